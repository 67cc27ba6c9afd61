"""Processes that tests and benchmarks start: `run` and `start`, in place of `subprocess`.

However the tests were started, a process begins with default signals. Each is the leader of a session of its own, each
wait for it ends, and all of its group is killed where its context ends, where a wait times out, and with these tests.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import time
import uuid
import weakref
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, AnyStr, Literal, Protocol, overload

PIPE, DEVNULL, STDOUT = subprocess.PIPE, subprocess.DEVNULL, subprocess.STDOUT
CalledProcessError, TimeoutExpired = subprocess.CalledProcessError, subprocess.TimeoutExpired
CompletedProcess = subprocess.CompletedProcess

WAIT_S = 240.0  # for all waits that name no other time: most tests end before, and with them what they started
# What Python itself ignores in each process, and `subprocess` gives back to a child.
_PYTHON_IGNORES = frozenset({signal.SIGPIPE, signal.SIGXFSZ})
# In the environment of each process that descends from these tests, whatever session it is in.
MARK = "LONGSHORE_TESTS_RUN"
os.environ.setdefault(MARK, uuid.uuid4().hex)  # a process of tests has that of the run, set by `signals`

ROOT = Path(__file__).absolute().parents[2]
# For processes whose environment is not that of these tests; what is last makes PyTorch light (see there).
LIGHT = str(ROOT / "tests" / "support" / "light")
PYTHON_PATH = os.pathsep.join((str(ROOT / "src"), str(ROOT), LIGHT))

Line = Sequence[str | Path] | str
Stream = int | IO[Any] | None
_started: "weakref.WeakSet[Ends]" = weakref.WeakSet()


class Ends(Protocol):
    """What is ended with these tests."""

    def end(self) -> None:
        """Kill it, with all of its group."""


class Process(subprocess.Popen[AnyStr]):
    """A process that ends with its context, and each of whose waits ends; made by `start`."""

    def wait(self, timeout: float | None = None) -> int:
        """Return the exit status.

        Args:
            timeout: Seconds, `WAIT_S` where there are none.

        Raises:
            TimeoutExpired: If it has not ended by then. All of its group is killed.
        """
        try:
            return super().wait(WAIT_S if timeout is None else timeout)
        except TimeoutExpired:
            if timeout is None:
                self.end()
            raise

    def communicate(self, input: Any = None, timeout: float | None = None) -> tuple[Any, Any]:  # noqa: A002
        """Return what it wrote, as `Popen.communicate` does; one that does not end is killed with its group.

        Raises:
            TimeoutExpired: After `timeout` seconds, `WAIT_S` where there are none, with what was written so far.
        """
        try:
            return super().communicate(input, WAIT_S if timeout is None else timeout)
        except TimeoutExpired as late:
            self.end()
            late.add_note(f"it wrote: {late.output!r}\n{late.stderr!r}")
            raise

    def __del__(self) -> None:
        """End one that everybody has forgotten, and warn of it as `Popen` does."""
        if getattr(self, "returncode", 0) is None:
            _kill_group(self)
        super().__del__()

    def __exit__(self, *_: object) -> None:
        """Kill what is left, and close its pipes: unlike that of `Popen`, this never waits for it to end by itself."""
        self.end()

    def end(self) -> None:
        """Kill all of the group. Those that it put into sessions of their own are ended with the tests."""
        _kill_group(self)
        with contextlib.suppress(TimeoutExpired):  # a process in the kernel's hands ends when it lets go
            super().wait(30.0)
        for pipe in (self.stdin, self.stdout, self.stderr):
            if pipe:
                with contextlib.suppress(OSError, ValueError):
                    pipe.close()
        _started.discard(self)


@overload
def start(
    line: Line, *, text: Literal[True], before: Callable[[], None] | None = ..., **options: Any
) -> Process[str]: ...
@overload
def start(line: Line, **options: Any) -> Process[bytes]: ...
def start(
    line: Line,
    *,
    text: bool = False,
    before: Callable[[], None] | None = None,
    env: Mapping[str, str] | None = None,
    **options: Any,
) -> Process[Any]:
    """Start a process with default signals, in a session of its own.

    Args:
        line: The command and its arguments.
        text: Whether pipes carry text, in UTF-8, rather than bytes.
        before: Called in the child before the command.
        env: Its environment, that of this process by default; `MARK` is added.
        options: Of `subprocess.Popen`.

    Returns:
        It, which is a context that ends with a kill.
    """

    def prepare() -> None:
        default_signals()
        if before:
            before()

    process: Process[Any] = Process(
        line, env={**(os.environ if env is None else env), MARK: os.environ[MARK]}, start_new_session=True,
        encoding="utf-8" if text else None,
        # Costs a real fork, so that it is only for those that need it.
        preexec_fn=prepare if before or _signals_to_restore() else None, **options,
    )  # fmt: skip
    _started.add(process)
    return process


def run(
    line: Line,
    *,
    check: bool,
    timeout_s: float = WAIT_S,
    capture_output: bool = False,
    input: str | None = None,  # noqa: A002
    stdin: Stream = None,
    stdout: Stream = None,
    stderr: Stream = None,
    **options: Any,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end, as `subprocess.run` does with text; what it leaves of its group is killed.

    Args:
        line: The command and its arguments.
        check: Whether a failure raises, with what was written in the message.
        timeout_s: Seconds that it may take.
        capture_output: Whether what it writes is returned.
        input: What it reads; without it, it reads nothing.
        stdin: As for `Popen`; so are `stdout` and `stderr`.
        stdout: See there.
        stderr: See there.
        options: Of `start`.

    Raises:
        CalledProcessError: If it fails, and `check` is set.
        TimeoutExpired: If it does not end in time.
    """
    pipe = PIPE if capture_output else None
    given = PIPE if input is not None else DEVNULL if stdin is None else stdin
    with start(line, text=True, stdin=given, stdout=stdout or pipe, stderr=stderr or pipe, **options) as process:
        out, err = process.communicate(input, timeout_s)
        status = process.wait()
    if check and status:
        error = CalledProcessError(status, line, out, err)
        error.add_note(f"it wrote: {out}\n{err}")
        raise error
    return subprocess.CompletedProcess(line, status, out, err)


def default_signals() -> None:
    """Give this process the signals that a process starts with at a terminal; in a main thread only."""
    for number in _ignored():
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def take_signals_back() -> None:
    """Undo for these tests that whoever started them ignores signals, as `&` in a script and `nohup` do.

    SIGINT interrupts again. What else was ignored stays without effect here, but a child gets the default.
    """
    for number in _ignored():
        signal.signal(number, signal.default_int_handler if number == signal.SIGINT else _without_effect)
    signal.pthread_sigmask(signal.SIG_SETMASK, ())


def end_with_tests(it: Ends) -> None:
    """Let something be ended with these tests."""
    _started.add(it)


def end_started() -> None:
    """Kill what this process started, group by group."""
    for process in [*_started]:
        process.end()


def end_marked() -> dict[int, str]:
    """Kill all that descends from these tests, in whatever session it is, and return the command line of each."""
    found = marked()
    for pid in found:
        _kill(pid)
    return found


def _signals_to_restore() -> bool:
    return bool(_ignored() or signal.pthread_sigmask(signal.SIG_BLOCK, ()))


def _ignored() -> list[signal.Signals]:
    """Return what this process ignores, apart from what each Python does; libraries in C may have changed it."""
    status = Path("/proc/self/status").read_text()
    bits = int(status.partition("SigIgn:")[2].split()[0], 16)
    return [it for it in signal.Signals if bits >> it - 1 & 1 and it not in _PYTHON_IGNORES]


def _without_effect(*_: object) -> None:
    pass


def _kill_group(process: subprocess.Popen[Any]) -> None:
    """Kill a process and its group; where it has been waited for already, another group may have its number."""
    if process.returncode is None:
        with contextlib.suppress(OSError):
            os.killpg(process.pid, signal.SIGKILL)
        _kill(process.pid)
    elif _is_group(process.pid):
        for pid in marked():
            with contextlib.suppress(ProcessLookupError):
                if os.getpgid(pid) == process.pid:
                    _kill(pid)


def stop(pid: int) -> None:
    """Stop a process, and see it stand still: until then its threads may go on for a moment."""
    os.kill(pid, signal.SIGSTOP)
    see_stopped(pid)


def see_stopped(pid: int) -> None:
    """Wait until all threads of a process stand still."""
    until_s = time.monotonic() + WAIT_S
    while any(it != "T" for it in _states(pid)):
        if time.monotonic() > until_s:
            raise TimeoutExpired("SIGSTOP", WAIT_S)
        time.sleep(0.001)


def _states(pid: int) -> Iterator[str]:
    """Yield the states of a process's threads, as `/proc` has them."""
    for task in Path(f"/proc/{pid}/task").iterdir():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):  # a thread that has ended
            yield (task / "stat").read_text().rpartition(")")[2].split()[0]


def _kill(pid: int) -> None:
    with contextlib.suppress(OSError):  # it has ended, or is another user's
        os.kill(pid, signal.SIGKILL)


def _is_group(number: int) -> bool:
    try:
        os.killpg(number, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        pass
    return True


def marked() -> dict[int, str]:
    """Return the processes that began with the mark of this process, or one that begins so, and their commands."""
    found = {}
    entry = f"{MARK}={os.environ[MARK]}".encode()
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal() and int(folder.name) != os.getpid():
            with contextlib.suppress(OSError):  # it has ended, or is another user's
                if any(it.startswith(entry) for it in (folder / "environ").read_bytes().split(b"\0")):
                    found[int(folder.name)] = (folder / "cmdline").read_text(errors="replace").replace("\0", " ")[:200]
    return found


def _end_with(pid: int) -> None:
    if os.getpid() == pid:  # else it is a fork, whose parent still needs them
        end_started()


atexit.register(_end_with, os.getpid())
