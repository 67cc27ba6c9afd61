"""Letting Ctrl-C, and other signals that Python handles, reach it while a kernel runs for long."""

from collections.abc import Callable
from typing import Any, cast

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from ..kernels.compiled import kernel
from ..state.state import Simulation

# After so much work it is looked whether a signal came. A fault counts 1; a moment or a decision counts the nodes, for
# policies look at them: a network takes some 50 us for each.
UNLOOKED = 1 << 12


def _plain() -> None:
    """Do nothing: plain Python runs the handlers of signals by itself."""


@intrinsic
def _compiled(typing_context: Any) -> Any:
    """Run the handlers of signals that came meanwhile; what they raise ends the kernel."""

    def code(context: Any, builder: Any, signature: Any, arguments: Any) -> Any:
        del signature, arguments
        python = context.get_python_api(builder)
        taken = python.gil_ensure()  # kernels run without Python's lock
        flag = ir.IntType(32)
        check = cgutils.get_or_insert_function(builder.module, ir.FunctionType(flag, ()), "PyErr_CheckSignals")
        raised = builder.call(check, ())
        python.gil_release(taken)
        with builder.if_then(builder.icmp_signed("!=", raised, flag(0))):
            context.call_conv.return_exc(builder)
        return context.get_dummy_value()

    return types.void(), code


check_signals: Callable[[], None] = cast("Any", _plain if numba.config.DISABLE_JIT else _compiled)  # type: ignore[attr-defined]


@kernel
def look(sim: Simulation, row: int, work: int) -> None:
    """Count work, and let handlers of signals run when there was enough since they last could."""
    state = sim.state
    state.unlooked[row] += work
    if state.unlooked[row] >= UNLOOKED:
        state.unlooked[row] = 0
        check_signals()
