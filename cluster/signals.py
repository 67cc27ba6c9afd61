"""Letting Ctrl-C, and other signals that Python handles, reach it while a kernel runs for long."""

from collections.abc import Callable
from typing import Any, cast

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic


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
