"""Writing the log from inside kernels, and reading it back as events."""

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
def name_gpu(sim: Simulation, gpu: int) -> None:
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
            name_gpu(sim, gpu)
            gpu = sim.state.gpu_next[row, gpu]


def events_of(log: Log) -> list[Event]:
    """Return the events that a log holds, GPUs in ascending order."""
    events = []
    for i in range(int(log.size[0])):
        gpus = tuple(sorted(int(gpu) for gpu in log.gpus[log.first_gpu[i] : log.first_gpu[i + 1]]))
        events.append(Event(float(log.time_s[i]), EVENT_KINDS[int(log.kind[i])], int(log.job[i]), gpus))
    return events
