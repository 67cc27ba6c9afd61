"""One rank: from the fork in its supervisor to its program. Standard library only."""

import ctypes
import os
import pwd
import signal
from contextlib import suppress
from typing import NamedTuple, NoReturn

from .spec import OWN, Part, Spec

_PR_SET_PDEATHSIG = 1
_NOT_STARTED = 127  # as shells say it
_KILLED_BEFORE, _MOST_KILLED = 500, 1000  # thousandths of the memory that a process seems to have beside its own
# Python ignores the first two, and whoever started the scheduler may have ignored others; an exec keeps that.
_BACK_TO_DEFAULT = (
    signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT,
    signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
)  # fmt: skip

libc = ctypes.CDLL(None, use_errno=True)


class Start(NamedTuple):
    """What a rank's start needs beside the spec."""

    rank: int
    path: str  # the attempt's folder
    part: Part  # of the attempt that its supervisor runs
    log: int  # descriptor for its output
    gate: int  # descriptor that a byte comes through once the rank may begin
    gate_in: int  # the gate's other end, which only the supervisor may hold


def steps_name(rank: int) -> str:
    """Return the name of the file in which a rank tells of its steps, in the folder of its attempt."""
    return f"steps-{rank}"


def saved_name(rank: int) -> str:
    """Return the name of the file in which a rank tells of its checkpoints, in the folder of its attempt."""
    return f"saved-{rank}"


def environment_of(spec: Spec, start: Start) -> dict[str, str]:
    """Return the environment of a rank: the attempt's, and over it what the placement fixes.

    As under torchrun, a rank sees the GPUs of all ranks on its node, and its own is number LOCAL_RANK among them. One
    that sees its own alone has the environment of the only rank on a node.
    """
    place, visible = spec.ranks[start.rank], start.part.visible
    seen = [rank for rank in visible if spec.ranks[rank].node == place.node]
    if spec.visible_gpus == OWN:
        seen = [start.rank]
    return {
        **user_variables(start.path),
        **spec.environment,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as the indices count, and not CUDA's own order of speed
        "CUDA_VISIBLE_DEVICES": ",".join(visible[rank] for rank in seen),
        "RANK": str(start.rank),
        "LOCAL_RANK": str(seen.index(start.rank)),
        "WORLD_SIZE": str(len(spec.ranks)),
        "LOCAL_WORLD_SIZE": str(len(seen)),
        "MASTER_ADDR": start.part.address,
        "MASTER_PORT": str(start.part.port),
        "LONGSHORE_JOB": spec.job,
        "LONGSHORE_ATTEMPT": spec.attempt,
        "LONGSHORE_NODE": place.node,
        "LONGSHORE_GPUS": ",".join(str(spec.ranks[rank].gpu) for rank in seen),
        "LONGSHORE_PROGRESS": f"{start.path}/progress.json",
        "LONGSHORE_STEPS": f"{start.path}/{steps_name(start.rank)}",
        "LONGSHORE_SAVED": f"{start.path}/{saved_name(start.rank)}",
    }


def user_variables(path: str) -> dict[str, str]:
    """Return HOME, USER and LOGNAME of the user that this process runs as, whom the machine need not know.

    HOME is the user's home by passwd, or else that of this process, if it can be written to; else a folder in the
    attempt's own. Without a name the user goes by the number, as programs that ask for a name fail without any.

    Args:
        path: The attempt's folder.
    """
    try:
        user = pwd.getpwuid(os.getuid())
        name, known = user.pw_name, user.pw_dir
    except KeyError:
        name, known = str(os.getuid()), ""
    homes = (home for home in (known, os.environ.get("HOME", "")) if home.startswith("/"))
    home = next((it for it in homes if os.path.isdir(it) and os.access(it, os.W_OK | os.X_OK)), "")  # noqa: PTH112
    return {"HOME": home or _own_home(path), "USER": name, "LOGNAME": name}


def _own_home(path: str) -> str:
    home = f"{path}/home"
    with suppress(OSError):  # the program says what it lacks, if it needs any
        os.makedirs(home, 0o700, exist_ok=True)  # noqa: PTH103  # pathlib is slow to import
    return home


def fork_rank(spec: Spec, start: Start) -> int:
    """Fork a rank, which waits at the gate in a process group of its own, and return its pid.

    Call it in the main thread: the rank is killed when the thread that forked it ends.

    Raises:
        OSError: If there can be no further process.
    """
    supervisor = os.getpid()
    pid = os.fork()
    if pid == 0:
        _run(spec, start, supervisor)
    os.setpgid(pid, pid)  # The rank does the same: whoever comes first, no signal to the group misses it.
    return pid


def _run(spec: Spec, start: Start, supervisor: int) -> NoReturn:
    try:
        os.dup2(start.log, 1)
        os.dup2(start.log, 2)
        _wait_at_gate(start, supervisor)
        _restore_signals()
        _be_killed_first()
        os.chdir(spec.folder)
        os.closerange(3, os.sysconf("SC_OPEN_MAX"))
        os.execvpe(spec.command[0], spec.command, environment_of(spec, start))
    except BaseException as error:
        problem = f"longshore: cannot start {spec.command[0]!r} in {spec.folder!r}: {error}\n"
        os.write(2, problem.encode(errors="backslashreplace"))
    finally:  # A copy of the supervisor must not live on.
        os._exit(_NOT_STARTED)


def _wait_at_gate(start: Start, supervisor: int) -> None:
    os.setpgid(0, 0)
    os.close(start.gate_in)
    libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    # The supervisor may have died before that; if it did since, nothing comes through the gate.
    if os.getppid() != supervisor or os.read(start.gate, 1) == b"":
        raise ChildProcessError("its supervisor died")


def _be_killed_first() -> None:
    """Let memory be taken from ranks before it is taken from who watches over them."""
    with suppress(OSError):
        file = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        raised = min(int(os.read(file, 16)) + _KILLED_BEFORE, _MOST_KILLED)
        os.pwrite(file, str(raised).encode(), 0)


def _restore_signals() -> None:
    for number in _BACK_TO_DEFAULT:
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())
