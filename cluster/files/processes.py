"""Processes as /proc shows them, the owners of leases, last errors in logs, sockets and ports.

The supervisor and the programs that start a ring import this module: standard library only.
"""

import os
import random
import re
import resource
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import NamedTuple

_PR_SET_PDEATHSIG, _NOT_STARTED = 1, 127


class Process(NamedTuple):
    """A process at one moment."""

    pid: int
    alive: bool  # a dead one stays to be seen until its parent has taken note
    parent: int
    group: int
    session: int
    start_ticks: int  # since the machine's start: with the pid and the boot it names one process
    uid: int
    threads: int


class Identity(NamedTuple):
    """What identifies a process among all that have had or will have its pid."""

    pid: int
    start_ticks: int
    boot: str


def limit_resource(kind: int, most: int) -> None:
    """Limit a resource of this process, and of those that it starts, for good.

    A lower limit that the process was started with stays, as login nodes set them: hard limits can only be lowered.

    Args:
        kind: Which, such as `resource.RLIMIT_CPU`.
        most: The limit, in the unit of that resource.
    """
    _, hard = resource.getrlimit(kind)
    limit = most if hard == resource.RLIM_INFINITY else min(most, hard)
    resource.setrlimit(kind, (limit, limit))


def boot_id() -> str:
    """Return what names the time since the machine's last start.

    Raises:
        OSError: If /proc cannot be read.
    """
    return read_proc_file("/proc/sys/kernel/random/boot_id")[0].decode().strip()


def machine_id() -> str:
    """Return what names this machine whenever it is started, "" where nothing does, as in many containers."""
    try:
        return read_proc_file("/etc/machine-id")[0].decode().strip()
    except OSError:
        return ""


def memory_kills() -> int:
    """Return how many processes this machine has killed as memory ran out, since its start; 0 if unknown."""
    try:
        lines = read_proc_file("/proc/vmstat")[0].splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(b"oom_kill ")), 0)


def find(pid: int) -> Process | None:
    """Return the process that has this pid, None if none has."""
    try:
        content, uid = read_proc_file(f"/proc/{pid}/stat")
    except (FileNotFoundError, ProcessLookupError, PermissionError):  # hidepid=1 hides other users' as hidepid=2 does
        return None
    # A program's name may hold blanks and parentheses: what follows the last one is fields 3 and on.
    fields = content[content.rindex(b")") + 2 :].split()
    parent, group, session = (int(field) for field in fields[1:4])
    threads = int(fields[17])
    # The state is that of the first thread; others may live on without it.
    alive = fields[0] not in (b"Z", b"X") or threads > 1
    return Process(pid, alive, parent, group, session, int(fields[19]), uid, threads)


def shows_this_process() -> bool:
    """Return whether /proc shows this process, by the number that it has for itself.

    It does not where none is mounted, or one of another PID namespace, in which the number is another process's.
    """
    try:
        return os.readlink("/proc/self") == str(os.getpid())  # noqa: PTH115 - with a Path, this module imports more
    except OSError:
        return False


def living() -> list[Process]:
    """Return all processes that live."""
    with os.scandir("/proc") as entries:
        pids = [int(entry.name) for entry in entries if entry.name.isdecimal()]
    found = (find(pid) for pid in pids)
    return [process for process in found if process is not None and process.alive]


def is_alive(identity: Identity, boot: str) -> bool:
    """Return whether exactly this process lives.

    Args:
        identity: The process that is meant.
        boot: This machine's boot id.
    """
    process = find(identity.pid) if identity.boot == boot else None
    return process is not None and process.start_ticks == identity.start_ticks and process.alive


def children(pid: int) -> list[Process]:
    """Return the living children of a process."""
    return [process for process in living() if process.parent == pid]


def kill(process: Process) -> None:
    """Kill a process unless it has exited; another one that got its pid meanwhile lives."""
    try:
        handle = os.pidfd_open(process.pid)
    except ProcessLookupError:
        return
    try:
        seen = find(process.pid)
        if seen is not None and seen.start_ticks == process.start_ticks:
            signal.pidfd_send_signal(handle, signal.SIGKILL)
    except (ProcessLookupError, PermissionError):
        pass  # The next check shows whether it has exited.
    finally:
        os.close(handle)


def environment(process: Process, name: bytes, *names: bytes) -> dict[bytes, bytes]:
    """Return what a process found in its environment when it began, of these names; nothing if that cannot be read."""
    content = _read_environment(f"/proc/{process.pid}")
    if not content and process.threads > 1:  # Its first thread has ended; the others still know.
        with suppress(OSError), os.scandir(f"/proc/{process.pid}/task") as threads:
            content = b"".join([_read_environment(thread.path) for thread in threads])
    found = {}
    for each in (name, *names):
        _, is_there, rest = (b"\0" + content).partition(b"\0" + each + b"=")
        if is_there:
            found[each] = rest.partition(b"\0")[0]
    return found


def _read_environment(path: str) -> bytes:
    try:
        return read_proc_file(f"{path}/environ")[0]
    except OSError:
        return b""


def read_proc_file(path: str) -> tuple[bytes, int]:
    """Return what a file of /proc or of a control group holds, and the user it belongs to.

    Raises:
        OSError: If it cannot be read.
    """
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        parts = []
        while part := os.read(file, 1 << 16):
            parts.append(part)
        return b"".join(parts), os.fstat(file).st_uid
    finally:
        os.close(file)


_FORM = re.compile(r"^(?P<pid>\d+)@\S+ start (?P<start>\d+) boot (?P<boot>\S+) in (?P<space>\S+)$")


def this_process_name() -> str:
    """Return the name of this process."""
    process = find(os.getpid()) if shows_this_process() else None
    if process is None:
        return f"{os.getpid()}@{socket.gethostname()}"  # /proc shows others: none can see whether it lives
    return f"{os.getpid()}@{socket.gethostname()} start {process.start_ticks} boot {boot_id()} in {_pid_namespace()}"


def is_proven_dead(owner: str) -> bool:
    """Return whether a process of this machine has exited; False for one that cannot be seen from here."""
    named = _FORM.match(owner)
    if named is None or named["boot"] != boot_id() or named["space"] != _pid_namespace():
        return False
    process = find(int(named["pid"]))
    if process is not None:
        return process.start_ticks != int(named["start"]) or not process.alive
    try:
        os.kill(int(named["pid"]), 0)
    except ProcessLookupError:
        return True
    except PermissionError:
        return False
    return False  # it is there, though /proc does not show it


def _pid_namespace() -> str:
    """Return what pids count in: a container has its own on a machine that others see too."""
    return str(Path("/proc/self/ns/pid").readlink())


LOG_TAIL_BYTES = 1 << 14  # of a log that are read
MAX_ERROR_CHARACTERS = 300  # characters of an error
_BEGIN = "Traceback (most recent call last):"
_RANK = re.compile(r"^(?:\[rank\d+\]: ?)+")  # that PyTorch writes before each line
_ERROR = re.compile(
    r"longshore: (?=the ring is lost: )(?P<words>.+)"  # a message of Longshore itself
    r"|(?:[A-Za-z_]\w*\.)*[A-Za-z_]\w*(?:Error|Exception)(?:: .*)?"  # an error that Python prints without a traceback
    r"|(?:/.*|\S*)python[\d.]*: .+"  # a script that it cannot begin; its own path may have spaces
)


def last_error_in_text(text: str) -> str:
    """Return the last error in a log, in one line that a terminal may show; "" if there is none.

    That is the line below a traceback, whatever it is, or one in the form of a Python error.
    """
    found, is_below = "", False
    for line in (_RANK.sub("", line) for line in text.splitlines()):
        if line.endswith(_BEGIN):
            is_below = True
        elif is_below and line and not line[0].isspace():
            found, is_below = line, False
        elif match := _ERROR.fullmatch(line):
            found = match["words"] or line
    shown = "".join(letter if letter.isprintable() else " " for letter in found).strip()
    return shown if len(shown) <= MAX_ERROR_CHARACTERS else shown[: MAX_ERROR_CHARACTERS - 3] + "..."


def last_error_in_log(name: str, folder: int | None = None, since: int = 0) -> str:
    """Return the last error in a log, "" if there is none or the log cannot be read.

    Args:
        name: Path of the log; a job may have put anything in its place.
        folder: Descriptor of the folder that it is in.
        since: Offset from which it counts.
    """
    try:
        opened = os.open(name, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC, dir_fd=folder)
    except OSError:
        return ""
    try:
        seen = os.fstat(opened)
        if not stat.S_ISREG(seen.st_mode):
            return ""
        begin = max(since, seen.st_size - LOG_TAIL_BYTES)
        return last_error_in_text(os.pread(opened, LOG_TAIL_BYTES, begin).decode(errors="replace"))
    except OSError:
        return ""
    finally:
        os.close(opened)


@contextmanager
def short_socket_path(path: Path) -> Iterator[str]:
    """Give a name by which a socket can be bound and reached while this is open, however long its path is.

    The kernel takes no name of more than 107 bytes.

    Raises:
        OSError: If its folder is not there.
    """
    folder = os.open(path.parent, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        yield f"/proc/self/fd/{folder}/{path.name}"
    finally:
        os.close(folder)


def kill_with_parent_hook(parent: int) -> Callable[[], None]:
    """Return what a child calls before its program begins: it is killed then when its parent ends, however it does."""
    import ctypes  # not at the top: most programs that import this module have no children

    libc = ctypes.CDLL(None, use_errno=True)

    def prepare() -> None:
        libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != parent:  # it had ended before that
            os._exit(_NOT_STARTED)

    return prepare


# No usual program listens on these, and by default the system gives none of them to outgoing connections.
_PORTS = range(10_000, 32_768)
_GIVEN = Path("/proc/sys/net/ipv4/ip_local_port_range")


def free_port(address: str = "127.0.0.1") -> int:
    """Return a port at which no process listens.

    The program may take seconds until it listens. So the port is none that the system may give to an outgoing
    connection meanwhile, and it is drawn, so that two callers at once hardly get the same, however `random` is seeded.

    Args:
        address: Of this machine, "" for all of them.
    """
    first, last = _outgoing_port_range()
    ports = [port for port in _PORTS if not first <= port <= last]
    for port in random.SystemRandom().sample(ports, min(100, len(ports))):
        with suppress(OSError), socket.socket() as probe:
            probe.bind((address, port))
            return port
    with socket.socket() as probe:  # all are taken, or are for outgoing connections
        probe.bind((address, 0))
        return int(probe.getsockname()[1])


def _outgoing_port_range() -> tuple[int, int]:
    """Return the first and the last port that the system gives to outgoing connections."""
    try:
        first, last = map(int, _GIVEN.read_text().split())
    except (OSError, ValueError):
        return 32_768, 60_999
    return first, last
