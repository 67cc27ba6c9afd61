"""The ranks of an attempt: started, logged, limited and ended, with all their processes. Standard library only.

- `Spec`: what is to be run, as the scheduler writes it and supervisors read it.
- `rank_environment`: the environment of a rank.
- `open_log`, `drop_beginning`, `read_log`: the output of ranks, in files that keep only their last part.
- `adopt_orphans`, `kill_children`: processes that lose their parent become children of the supervisor or its guard.
- `Gang`: the ranks that a supervisor runs.
- `confine_to_cgroup`, `kill_cgroup`: a control group (version 2) for the processes of an attempt, where this user may
  create one. Whatever a process does to its session, parent or environment, the processes that it starts are in it.
- `kill_all`: ends the processes of an attempt that has no supervisor any more; it finds them by their traces.
"""

import ctypes
import errno
import json
import os
import pwd
import signal
import time
from collections import deque
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple, NoReturn

from ....cluster.files.durable import open_folder, read_whole
from ....cluster.files.processes import Process, children, environment, find, kill, living, memory_kills, read_proc_file

SPEC_FILE = "spec.json"
MAX_SPEC_BYTES = 4 << 20
ALL_ON_NODE, OWN = "node", "rank"  # GPUs that a rank sees
_PR_SET_PDEATHSIG = 1
_NOT_STARTED = 127  # as in shells
_KILLED_BEFORE, _MAX_KILLED = 500, 1000  # thousandths of memory, added to a process's own
# Python ignores the first two, and the scheduler's parent may have ignored others; an exec keeps that.
_BACK_TO_DEFAULT = (
    signal.SIGPIPE, signal.SIGXFSZ, signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT,
    signal.SIGUSR1, signal.SIGUSR2, signal.SIGALRM,
)  # fmt: skip
_KEEP_SIZE, _PUNCH_HOLE = 0x01, 0x02  # linux/falloc.h
_PR_SET_CHILD_SUBREAPER = 36
_KILL_AGAIN_S = 0.5  # for what does not die at once
_LOG_BYTES = 64 << 20  # of each rank's output, kept at least; at most twice as much
_TOGETHER_S = 0.05  # between the signals to a rank and to this process where one sender ends both: a machine, or Slurm
_DYING_S = 60.0  # that a process may take from its kill, which counts at once, to its end: it frees its memory first
_CGROUP_DELETED = (errno.ENOENT, errno.ENODEV)  # the second: deleted while its file was open
_KILL_PAUSE_S = 0.02

libc = ctypes.CDLL(None, use_errno=True)


class RankPlace(NamedTuple):
    """Where one rank runs."""

    node: str
    gpu: int  # index on the node


class RankGroup(NamedTuple):
    """The ranks of an attempt that one supervisor runs, and the rendezvous address of all."""

    visible: dict[int, str]  # what CUDA_VISIBLE_DEVICES calls the GPU of each rank
    address: str
    port: int


class Spec(NamedTuple):
    """An attempt, ready to be run."""

    attempt: str
    job: str
    number: int
    command: tuple[str, ...]
    folder: str  # absolute
    environment: dict[str, str]
    grace_s: float
    limit_s: float | None
    ranks: tuple[RankPlace, ...]
    seats: int = 0  # of its ring; 0 for ranks that stop together
    backups: int = 0  # slow members of it whose work backup members may do
    visible_gpus: str = ALL_ON_NODE  # that a rank sees: those of all ranks on its node, or its own


def encode_spec(spec: Spec) -> bytes:
    """Return the spec as a file holds it; equal specs give equal bytes."""
    return json.dumps(spec._asdict(), sort_keys=True).encode()


def decode_spec(content: bytes) -> Spec:
    """Return the spec that `encode_spec` wrote.

    Raises:
        ValueError: If it makes no sense.
    """
    try:
        fields = json.loads(content)
        ranks = tuple(RankPlace(*place) for place in fields.pop("ranks"))
        return Spec(command=tuple(fields.pop("command")), ranks=ranks, **fields)
    except (TypeError, KeyError, AttributeError, RecursionError) as error:
        raise ValueError(f"not an attempt: {type(error).__name__}: {error}") from error


def read_spec(folder: int) -> Spec:
    """Return what an attempt is to run.

    Raises:
        OSError: If it cannot be read.
        ValueError: If it makes no sense.
    """
    return decode_spec(read_whole(folder, SPEC_FILE, MAX_SPEC_BYTES))


def steps_name(rank: int) -> str:
    """Return the name of the file in which a rank reports its steps, in the folder of its attempt."""
    return f"steps-{rank}"


def saved_name(rank: int) -> str:
    """Return the name of the file in which a rank reports its checkpoints, in the folder of its attempt."""
    return f"saved-{rank}"


def rank_environment(spec: Spec, part: RankGroup, rank: int, path: str) -> dict[str, str]:
    """Return the environment of a rank: the attempt's, overridden by what the placement fixes.

    As under torchrun, a rank sees the GPUs of all ranks on its node, and its own is number LOCAL_RANK among them. One
    that sees its own alone has the environment of the only rank on a node.

    Args:
        spec: The attempt.
        part: The ranks that its supervisor runs.
        rank: One of them.
        path: The folder for its logs and reports.
    """
    place = spec.ranks[rank]
    seen = [each for each in part.visible if spec.ranks[each].node == place.node]
    if spec.visible_gpus == OWN:
        seen = [rank]
    return {
        **user_variables(path),
        **spec.environment,
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",  # as the indices count, and not CUDA's own order of speed
        "CUDA_VISIBLE_DEVICES": ",".join(part.visible[each] for each in seen),
        "RANK": str(rank),
        "LOCAL_RANK": str(seen.index(rank)),
        "WORLD_SIZE": str(len(spec.ranks)),
        "LOCAL_WORLD_SIZE": str(len(seen)),
        "MASTER_ADDR": part.address,
        "MASTER_PORT": str(part.port),
        "LONGSHORE_JOB": spec.job,
        "LONGSHORE_ATTEMPT": spec.attempt,
        "LONGSHORE_NODE": place.node,
        "LONGSHORE_GPUS": ",".join(str(spec.ranks[each].gpu) for each in seen),
        "LONGSHORE_PROGRESS": f"{path}/progress.json",
        "LONGSHORE_STEPS": f"{path}/{steps_name(rank)}",
        "LONGSHORE_SAVED": f"{path}/{saved_name(rank)}",
    }


def user_variables(path: str) -> dict[str, str]:
    """Return HOME, USER and LOGNAME of the user of this process, who need not have a passwd entry.

    HOME is the user's home by passwd, or else that of this process, if it can be written to; else a folder in the
    attempt's own. Without a name, USER is the user id, as programs that read a name fail without any.
    """
    try:
        user = pwd.getpwuid(os.getuid())
        name, known = user.pw_name, user.pw_dir
    except KeyError:
        name, known = str(os.getuid()), ""
    homes = (home for home in (known, os.environ.get("HOME", "")) if home.startswith("/"))
    writable = (home for home in homes if os.path.isdir(home) and os.access(home, os.W_OK | os.X_OK))  # noqa: PTH112
    home = next(writable, "")
    return {"HOME": home or _make_home(path), "USER": name, "LOGNAME": name}


def _make_home(path: str) -> str:
    home = f"{path}/home"
    with suppress(OSError):  # the program reports it, if it needs a home
        os.makedirs(home, 0o700, exist_ok=True)  # noqa: PTH103  # pathlib is slow to import
    return home


def _raise_oom_score() -> None:
    """Let the kernel kill ranks for memory before their supervisor."""
    with suppress(OSError):
        file = os.open("/proc/self/oom_score_adj", os.O_RDWR | os.O_CLOEXEC)
        raised = min(int(os.read(file, 16)) + _KILLED_BEFORE, _MAX_KILLED)
        os.pwrite(file, str(raised).encode(), 0)


def log_name(rank: int) -> str:
    """Return the name of a rank's log in the folder of its attempt."""
    return f"rank-{rank}.log"


def open_log(folder: int, rank: int) -> int:
    """Open a rank's log for writing at its end, and return its descriptor.

    Raises:
        OSError: If it cannot be made.
    """
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NOFOLLOW | os.O_CLOEXEC
    return os.open(log_name(rank), flags, 0o600, dir_fd=folder)


def drop_beginning(log: int, keep_bytes: int) -> None:
    """Free the disk space of all but the last bytes of a log that holds over twice as much.

    Offsets stay as they are: the beginning turns into a hole. A file system without holes keeps it all.
    """
    seen = os.fstat(log)
    if seen.st_blocks * 512 <= 2 * keep_bytes:  # 512: the unit of st_blocks everywhere
        return
    libc.fallocate64.argtypes = (ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64)
    libc.fallocate64(log, _KEEP_SIZE | _PUNCH_HOLE, 0, seen.st_size - keep_bytes)


def read_log(log: int, offset: int, max_bytes: int) -> tuple[bytes, int]:
    """Return output from an offset on, after what was freed, and the offset after it.

    Args:
        log: Descriptor of the log, open for reading.
        offset: Where to begin; beyond the end there is nothing yet.
        max_bytes: What to read at most.

    Raises:
        OSError: If it cannot be read.
    """
    try:
        begin = os.lseek(log, offset, os.SEEK_DATA)
    except OSError as error:
        if error.errno == errno.ENXIO:
            return b"", offset
        raise
    content = os.pread(log, max_bytes, begin)
    return content, begin + len(content) if content else offset


def adopt_orphans() -> None:
    """Let this process adopt the orphans of its children, and receive SIGCHLD and SIGTERM by waiting for them."""
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)  # Ignored, it would hide how the ranks end.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGCHLD, signal.SIGTERM, signal.SIGINT, signal.SIGHUP})
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def kill_children() -> None:
    """Kill all children, and theirs, which this process then adopts; return when none is left.

    This waits for a process that cannot die, as it waits for a disk or a GPU: it may still hold the GPU.
    """
    while True:
        try:
            while os.waitpid(-1, os.WNOHANG) != (0, 0):
                pass
        except ChildProcessError:
            return
        for child in children(os.getpid()):
            send_signal(os.kill, child.pid, signal.SIGKILL)
        signal.sigtimedwait({signal.SIGCHLD}, _KILL_AGAIN_S)


def send_signal(call: Callable[[int, int], None], target: int, number: int) -> None:
    """Send a signal with `os.kill` or `os.killpg`, if its target still exists."""
    with suppress(ProcessLookupError, PermissionError):  # Gone, or another user's now: the caller waits for it.
        call(target, number)


class Gang:
    """Ranks of an attempt: they start together, and when one fails the others are stopped."""

    def __init__(self, spec: Spec, part: RankGroup, folder: int, path: str) -> None:
        self.reason = ""  # why it is being stopped
        self.ends: list[tuple[int, int, int, float]] = []  # rank, code, signal, Unix time: in the order of the ends
        self._spec, self._part, self._path = spec, part, path
        self._kill_at_s = 0.0
        self._killed = False
        self._memory_kills = deque([(time.monotonic(), memory_kills())])  # time and count of the last readings
        self._logs = {rank: open_log(folder, rank) for rank in part.visible}
        self._gate, self._gate_in = os.pipe()  # a byte comes through for each rank once it may begin
        self._ranks = {self._fork_rank(rank): rank for rank in self._logs}  # living ranks by pid

    @property
    def is_running(self) -> bool:
        """Whether a rank lives."""
        return bool(self._ranks)

    def _fork_rank(self, rank: int) -> int:
        """Fork a rank, which waits at the gate in a process group of its own, and return its pid.

        Its process is killed when the thread that forked it ends, so that has to be the main thread.
        """
        supervisor = os.getpid()
        pid = os.fork()
        if pid == 0:
            self._become_rank(rank, supervisor)
        os.setpgid(pid, pid)  # The rank does the same: in either order, no signal to the group misses it.
        return pid

    def _become_rank(self, rank: int, supervisor: int) -> NoReturn:
        """Turn this process, just forked, into a rank."""
        spec = self._spec
        try:
            os.dup2(self._logs[rank], 1)
            os.dup2(self._logs[rank], 2)
            self._wait_at_gate(supervisor)
            for number in _BACK_TO_DEFAULT:
                signal.signal(number, signal.SIG_DFL)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            _raise_oom_score()
            os.chdir(spec.folder)
            _close_descriptors()
            os.execvpe(spec.command[0], spec.command, rank_environment(spec, self._part, rank, self._path))
        except BaseException as error:
            problem = f"longshore: cannot start {spec.command[0]!r} in {spec.folder!r}: {error}\n"
            os.write(2, problem.encode(errors="backslashreplace"))
        finally:  # A copy of the supervisor must not live on.
            os._exit(_NOT_STARTED)

    def _wait_at_gate(self, supervisor: int) -> None:
        os.setpgid(0, 0)
        os.close(self._gate_in)
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        # The supervisor may have died before that; if it did since, nothing comes through the gate.
        if os.getppid() != supervisor or os.read(self._gate, 1) == b"":
            raise ChildProcessError("its supervisor died")

    def pids_and_starts(self) -> list[tuple[int, int]]:
        """Return the pid and the start of each rank, in the order of ranks; none of them has been reaped."""
        found = (find(pid) for pid in self._ranks)
        return [(process.pid, process.start_ticks) for process in found if process is not None]

    def open_gate(self) -> None:
        """Let the ranks run their program."""
        os.write(self._gate_in, bytes(len(self._ranks)))
        os.close(self._gate)
        os.close(self._gate_in)

    def wait_for_sigterm_or_end(self, limit_s: float) -> bool:
        """Wait until a process ended, this one gets SIGTERM, or the grace is over.

        Returns:
            Whether this process got SIGTERM.
        """
        if self.reason and not self._killed:
            limit_s = min(limit_s, max(self._kill_at_s - time.monotonic(), 0.0))
        woken = signal.sigtimedwait({signal.SIGCHLD, signal.SIGTERM}, limit_s)
        if woken is not None and woken.si_signo == signal.SIGCHLD and not self.reason:
            # A rank that got SIGTERM with this process may end first; that is no failure of its own then.
            woken = signal.sigtimedwait({signal.SIGTERM}, _TOGETHER_S)
        return woken is not None and woken.si_signo == signal.SIGTERM

    def stop(self, reason: str) -> None:
        """Ask all processes to end; they are killed after the grace. The first reason stays."""
        if not self.reason:
            self.reason = reason
            self._kill_at_s = time.monotonic() + self._spec.grace_s
            self._signal_all(signal.SIGTERM)

    def tend(self) -> None:
        """Record the ranks that ended, limit their logs, and kill what did not end within the grace."""
        self._reap_ranks()
        self._count_memory_kills()
        for log in self._logs.values():
            drop_beginning(log, _LOG_BYTES)
        if self.reason and time.monotonic() >= self._kill_at_s:
            self._signal_all(signal.SIGKILL)
            self._killed = True

    def _reap_ranks(self) -> None:
        while self._ranks:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            rank = self._ranks.pop(pid, -1)
            if rank >= 0:
                code = os.waitstatus_to_exitcode(status)
                self.ends.append((rank, max(code, 0), max(-code, 0), time.time()))
                if code != 0:
                    self.stop(self._failure_reason(code))

    def _count_memory_kills(self) -> None:
        """Record how many processes were killed for memory: the end of one counted now may be seen much later."""
        now_s, counts = time.monotonic(), self._memory_kills
        counts.append((now_s, memory_kills()))
        while len(counts) > 1 and counts[1][0] < now_s - _DYING_S:
            counts.popleft()

    def _failure_reason(self, code: int) -> str:
        """Return why a rank has failed: a kill for memory at about that moment was its own."""
        was_killed = code in (-signal.SIGKILL, 128 + signal.SIGKILL)  # itself, or what a shell waited for
        ran_out = was_killed and memory_kills() > self._memory_kills[0][1]
        return "out of memory" if ran_out else "rank failed"

    def _signal_all(self, number: int) -> None:
        """Signal the groups of living ranks, and the orphans of those that ended.

        Both are children that have not been reaped, so none of these numbers can be reused.
        """
        for pid in self._ranks:
            send_signal(os.killpg, pid, number)
        for child in children(os.getpid()):
            if child.pid not in self._ranks:
                send_signal(os.kill, child.pid, number)


def _close_descriptors() -> None:
    """Close all descriptors but standard input, output and error.

    Where Python was built for an old C library, a loop up to the limit of descriptors would take minutes.
    """
    for descriptor in [int(path.name) for path in Path("/proc/self/fd").iterdir()]:
        if descriptor > 2:
            with suppress(OSError):  # The one of the list itself is closed.
                os.close(descriptor)


def confine_to_cgroup(attempt: str, pids: Iterable[int]) -> str:
    """Move processes into a control group of their own, below that of this process.

    Args:
        attempt: Its name, part of the group's.
        pids: The processes, which have no children yet.

    Returns:
        Path of the group, "" where none can be created: then nothing has changed.
    """
    try:
        path = Path(_own_cgroup()) / f"longshore-{attempt}-{os.urandom(4).hex()}"
        path.mkdir()
    except OSError:
        return ""
    try:
        (path / "cgroup.kill").stat()  # Linux 5.14 and later
        for pid in pids:
            with suppress(ProcessLookupError):
                (path / "cgroup.procs").write_text(str(pid))
    except OSError:
        remove_cgroup(str(path))
        return ""
    return str(path)


def kill_cgroup(path: str) -> None:
    """Kill all processes of a group at once, those of groups inside it too.

    Raises:
        OSError: If the user may not.
    """
    try:
        file = os.open(f"{path}/cgroup.kill", os.O_WRONLY | os.O_CLOEXEC)  # creates no file
        try:
            os.write(file, b"1")
        finally:
            os.close(file)
    except OSError as error:
        if error.errno not in _CGROUP_DELETED:
            raise


def _is_cgroup_populated(path: str) -> bool:
    """Return whether a process lives in a group, or in one inside it; none does in a deleted one."""
    try:
        return b"populated 0" not in read_proc_file(f"{path}/cgroup.events")[0].splitlines()
    except OSError as error:
        if error.errno in _CGROUP_DELETED:
            return False
        raise


def remove_cgroup(path: str) -> None:
    """Remove a group without processes, and the groups inside it."""
    with suppress(OSError):  # An empty group costs next to nothing.
        for folder, _, _ in os.walk(path, topdown=False):
            Path(folder).rmdir()


def _own_cgroup() -> str:
    """Return the path of the group that this process is in."""
    lines = os.fsdecode(read_proc_file("/proc/self/cgroup")[0]).splitlines()
    own = next((line.removeprefix("0::") for line in lines if line.startswith("0::")), "")
    for mount in os.fsdecode(read_proc_file("/proc/self/mountinfo")[0]).splitlines():
        fields, _, kind = mount.partition(" - ")
        root, point = fields.split()[3:5]
        root = root.rstrip("/")
        if kind.startswith("cgroup2 ") and own.startswith(f"{root}/"):
            return point + own.removeprefix(root).rstrip("/")
    raise FileNotFoundError("no control group of version 2 is mounted")


class AttemptTraces(NamedTuple):
    """How an attempt's processes are recognised."""

    attempt: str  # in the environment of each, as LONGSHORE_ATTEMPT
    folder: int  # descriptor of its folder
    session: int  # of its supervisor, and so of its ranks' groups
    groups: Mapping[int, int]  # group of each rank, and the start of the rank that leads it; none after a restart
    cgroup: str = ""  # path of their control group, "" for none


def _find_processes(traces: AttemptTraces) -> list[Process]:
    """Return the living processes of an attempt: by groups, environment and output, and the descendants of those."""
    processes, logs = living(), _log_identities(traces.folder)
    found = {
        process.pid
        for process in processes
        if _is_in_rank_group(process, traces)
        or _environment_names_attempt(process, traces)
        or _writes_to_log(process, logs)
    }
    return with_descendants(found, processes)


def with_descendants(pids: Collection[int], processes: Collection[Process]) -> list[Process]:
    """Return those of all living processes that have one of these pids, or descend from one that has."""
    found, before = set(pids), 0
    while before != len(found):
        before = len(found)
        found |= {process.pid for process in processes if process.parent in found}
    return [process for process in processes if process.pid in found]


def kill_all(traces: AttemptTraces, within_s: float) -> bool:
    """Kill what is left of an attempt, and return whether nothing is.

    Args:
        traces: How its processes are recognised.
        within_s: How long to try.

    Returns:
        Whether the last read of their control group, and of all processes, found none of them.

    Raises:
        OSError: If their control group cannot be read.
    """
    until_s = time.monotonic() + within_s
    while True:
        if traces.cgroup:
            kill_cgroup(traces.cgroup)
        is_populated = bool(traces.cgroup) and _is_cgroup_populated(traces.cgroup)
        left = _find_processes(traces)
        if not (is_populated or left):
            remove_cgroup(traces.cgroup)
            return True
        if time.monotonic() > until_s:
            return False
        for process in left:
            kill(process)
        time.sleep(_KILL_PAUSE_S)


def _is_in_rank_group(process: Process, traces: AttemptTraces) -> bool:
    # Once the group is empty its number may be reused, but not in the same session by a process as old.
    led_since = traces.groups.get(process.group)
    return led_since is not None and process.session == traces.session and process.start_ticks >= led_since


def _log_identities(folder: int) -> set[tuple[int, int]]:
    """Return the identity of each log in an attempt's folder: device and inode."""
    found = set()
    for name in os.listdir(folder):
        if name.startswith("rank-") and name.endswith(".log"):
            with suppress(OSError):
                seen = os.stat(name, dir_fd=folder, follow_symlinks=False)
                found.add((seen.st_dev, seen.st_ino))
    return found


def _writes_to_log(process: Process, logs: Collection[tuple[int, int]]) -> bool:
    if process.uid != os.getuid():
        return False
    for descriptor in (1, 2):
        with suppress(OSError):
            seen = Path(f"/proc/{process.pid}/fd/{descriptor}").stat()
            if (seen.st_dev, seen.st_ino) in logs:
                return True
    return False


def _environment_names_attempt(process: Process, traces: AttemptTraces) -> bool:
    if process.uid != os.getuid():
        return False
    found = environment(process, b"LONGSHORE_ATTEMPT", b"LONGSHORE_PROGRESS")
    if found.get(b"LONGSHORE_ATTEMPT") != traces.attempt.encode():
        return False
    path = os.fsdecode(found.get(b"LONGSHORE_PROGRESS", b""))
    return not _is_other_folder(path.rpartition("/")[0], traces.folder)


def _is_other_folder(path: str, folder: int) -> bool:
    """Return whether a folder exists and is another one: of an attempt of the same name under another scheduler."""
    try:
        other = open_folder(path)
    except OSError:
        return False
    try:
        return not os.path.sameopenfile(other, folder)
    finally:
        os.close(other)
