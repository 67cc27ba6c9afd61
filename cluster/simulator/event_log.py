"""The event log of a simulation, its limits, and signals while a kernel runs for long."""

from collections.abc import Callable
from typing import Any, cast

import numba
from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from ..kernels.compiled import kernel
from ..model.outcome import EVENT_KINDS, Event
from ..state.state import Log, Simulation

SUBMIT, START, STOP, FINISH, FAULT, REPAIR, SWITCH, SLOW, WELL = range(9)  # indices of EVENT_KINDS


@kernel
def begin_event(sim: Simulation, row: int, kind: int, job: int) -> bool:
    """Open an event of no GPUs; False if nothing is kept or there is no room."""
    log = sim.log
    if log.time_s.size == 0 or row != 0 or log.size[1] == 1:
        return False
    at = log.size[0]
    if at == log.time_s.size:
        log.size[1] = 1
        return False
    log.time_s[at] = sim.state.now_s[row]
    log.kind[at] = kind
    log.job[at] = job
    log.first_gpu[at + 1] = log.first_gpu[at]
    log.size[0] = at + 1
    return True


@kernel
def add_gpu_to_event(sim: Simulation, gpu: int) -> None:
    """Add a GPU to the event opened last."""
    log = sim.log
    at = log.size[0]
    if log.first_gpu[at] == log.gpus.size:
        log.size[1] = 1
        return
    log.gpus[log.first_gpu[at]] = gpu
    log.first_gpu[at] += 1


@kernel
def log_placement(sim: Simulation, row: int, kind: int, job: int) -> None:
    """Keep an event of a job and the GPUs that it holds."""
    if begin_event(sim, row, kind, job):
        gpu = sim.state.first_gpu[row, job]
        while gpu >= 0:
            add_gpu_to_event(sim, gpu)
            gpu = sim.state.gpu_next[row, gpu]


def events_of(log: Log) -> list[Event]:
    """Return the events that a log holds, GPUs in ascending order."""
    events = []
    for i in range(int(log.size[0])):
        gpus = tuple(sorted(int(gpu) for gpu in log.gpus[log.first_gpu[i] : log.first_gpu[i + 1]]))
        events.append(Event(float(log.time_s[i]), EVENT_KINDS[int(log.kind[i])], int(log.job[i]), gpus))
    return events


NO_ROW = "there is no such row of the simulation, or no such scenario, or the row was not reset"
# Where more than so much happens, faults or slow nodes come faster than anything could be done.
MAX_STOPS = 100_000  # of one job
MAX_CHANGES = 1_000_000  # faults and repairs at one moment
MAX_QUIET = 5_000_000  # moments without a submission, a start or an end of a job, whatever else is decided at them
STOPPED_FOR_EVER = "hazard_per_s: faults stopped a job 100,000 times before it could end"
FAILING_AT_ONCE = "hazard_per_s: a million faults came at one moment, so that time stands still"
NOTHING_ELSE = "hazard_per_s: faults and repairs filled five million moments in which no job could start or end"
FEWER_FAULTS = "lower the hazards, checkpoint_s or repair_mean_s of the cluster file, or let jobs ask fewer GPUs"
NOTHING_BUT_SLOW = "slow: slow nodes and faults filled five million moments in which no job could start or end"
FEWER_SLOW = "lower a_node_day or the hazards of the cluster file, or raise lasts_s"


# Signals are polled after this amount of work. A fault counts 1; a moment or a decision counts the nodes, as policies
# read them all: a network takes some 50 us for each.
WORK_PER_POLL = 1 << 12


def _poll_in_python() -> None:
    """Do nothing: plain Python runs the handlers of signals by itself."""


@intrinsic
def _poll_in_kernel(typing_context: Any) -> Any:
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


check_signals: Callable[[], None] = cast("Any", _poll_in_python if numba.config.DISABLE_JIT else _poll_in_kernel)  # type: ignore[attr-defined]


@kernel
def poll_signals(sim: Simulation, row: int, work: int) -> None:
    """Count work, and let handlers of signals run when there was enough since they last could."""
    state = sim.state
    state.unpolled[row] += work
    if state.unpolled[row] >= WORK_PER_POLL:
        state.unpolled[row] = 0
        check_signals()
