"""A warm process that has imported PyTorch: members are forked from it in tens of milliseconds.

Started with a path, it listens there on a Unix socket. Each connection is one member: a line of JSON has the command,
with the output's descriptor beside it. The answer is a line with the member's pid and, when it has ended, one with its
status. The member's process ends if the connection does. It is forked while this process has one thread, before
anything was computed. Its script is run as Python would run it, and ends as Python does: threads are waited for,
`atexit` is called, files are flushed. Source: SPEC F8.
"""

import asyncio
import builtins
import contextlib
import gc
import io
import json
import os
import pkgutil
import random
import runpy
import selectors
import shutil
import signal
import socket
import sys
import time
import zipfile
from collections.abc import Callable, Coroutine, Mapping
from importlib.machinery import SourceFileLoader
from pathlib import Path
from types import CodeType, ModuleType, TracebackType
from typing import Any, NamedTuple

from ..cluster.files.processes import short_socket_path
from .wire import UNKNOWN_STATUS

MAX_REQUEST_BYTES = 1 << 20
# What the first optimizer imports takes as long as PyTorch itself.
MEMBER_IMPORTS = (
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "longshore.ring",
    "longshore.ring.member",
)


def main() -> None:
    """Serve members at the path that is the first argument, until the parent has ended.

    Further arguments are modules to import, too.
    """
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"  # or a library would start threads, which a fork does not have
    for name in (*MEMBER_IMPORTS, *sys.argv[2:]):
        __import__(name)
    # Else members would copy the memory of all imports at each garbage collection and at their end.
    gc.collect()
    gc.freeze()
    request = WarmProcess(Path(sys.argv[1])).serve()
    if request is not None:
        run_as_member(request)


class ForkRequest(NamedTuple):
    """The member that a forked process becomes."""

    arguments: list[str]  # after the interpreter
    environment: dict[str, str]
    folder: str
    output: int  # descriptor for what it writes


class WarmProcess:
    """The loop of the warm process, which listens at a path."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._selector = selectors.DefaultSelector()
        self._members: dict[int, socket.socket] = {}
        self._parent = os.getppid()

    def serve(self) -> ForkRequest | None:
        """Fork a member for each connection, and report how it ends.

        Returns:
            None once the parent has ended; in a process that was forked, its request.
        """
        listener = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        with short_socket_path(self._path) as name:
            listener.bind(name)
        self._path.chmod(0o600)
        listener.listen(64)
        self._selector.register(listener, selectors.EVENT_READ)
        woken, waker = socket.socketpair()
        waker.settimeout(0.0)
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(waker.fileno(), warn_on_full_buffer=False)
        self._selector.register(woken, selectors.EVENT_READ)
        while os.getppid() == self._parent:
            for key, _ in self._selector.select(1.0):
                if key.fileobj is listener:
                    if (request := self._accept_and_fork(listener)) is not None:
                        return request
                elif key.fileobj is woken:
                    woken.recv(4096)
                else:
                    self._kill_abandoned_member(key.fileobj)
            self._reap_members()
        for pid in self._members:
            os.kill(pid, signal.SIGKILL)
        return None

    def _accept_and_fork(self, listener: socket.socket) -> ForkRequest | None:
        """Fork the member of a connection, and return its request there; the connection is closed if that fails."""
        outputs: list[int] = []
        try:
            connection, _ = listener.accept()
        except OSError:
            time.sleep(0.1)  # no descriptor is left
            return None
        try:
            connection.settimeout(5.0)
            data, outputs, _, _ = socket.recv_fds(connection, MAX_REQUEST_BYTES, 1)
            while not data.endswith(b"\n"):
                more = connection.recv(MAX_REQUEST_BYTES)
                if not more:
                    raise ValueError("half a line")
                data += more
            command = json.loads(data)
            if len(outputs) != 1:
                raise ValueError("no output")
            pid = os.fork()
        except (OSError, ValueError):
            connection.close()
        else:
            if pid == 0:
                listener.close()
                connection.close()
                self._selector.close()
                return ForkRequest(**command, output=outputs[0])
            self._members[pid] = connection
            self._selector.register(connection, selectors.EVENT_READ, pid)
            _send_report(connection, {"pid": pid})
        for output in outputs:
            os.close(output)
        return None

    def _kill_abandoned_member(self, connection: Any) -> None:
        """End the member whose launcher has ended."""
        self._selector.unregister(connection)
        for pid, own in self._members.items():
            if own is connection:
                os.kill(pid, signal.SIGKILL)

    def _reap_members(self) -> None:
        for pid in list(self._members):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                connection = self._members.pop(pid)
                with contextlib.suppress(KeyError):
                    self._selector.unregister(connection)
                _send_report(connection, {"status": os.waitstatus_to_exitcode(status)})
                connection.close()


def _send_report(connection: socket.socket, report: dict[str, int]) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(report).encode() + b"\n")


def run_as_member(request: ForkRequest) -> None:
    """Become a member: run a script as Python would have been started with it.

    Raises:
        BaseException: Errors that the script did not catch; the interpreter shows them, as for any script.
    """
    try:
        _set_up_process(request)
        _run_script(request.arguments)
    except BaseException:
        shown = sys.excepthook  # perhaps the script's own

        def show(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
            trace = _trace_of_script(trace)
            shown(kind, error.with_traceback(trace), trace)

        sys.excepthook = show
        raise


def _trace_of_script(trace: TracebackType | None) -> TracebackType | None:
    """Return a traceback without its first lines, which are of this module."""
    own, at = {"<string>", __file__, runpy.__file__, "<frozen runpy>"}, trace
    while at is not None and at.tb_frame.f_code.co_filename in own:
        at = at.tb_next
    return at


def _set_up_process(request: ForkRequest) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for descriptor in (1, 2):
        os.dup2(request.output, descriptor)
    os.close(request.output)
    os.environ.clear()
    os.environ.update(request.environment)
    os.chdir(request.folder)
    import numpy
    import torch

    random.seed()  # A fork has the numbers of its parent.
    numpy.random.seed()  # noqa: NPY002
    threads = os.environ.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(int(threads) if threads.isdecimal() and int(threads) else len(os.sched_getaffinity(0)))


def _run_script(arguments: list[str]) -> None:
    """Run a script or a module as `__main__`, which it stays: threads and `atexit` may need it after the last line."""
    main = sys.modules["__main__"] = ModuleType("__main__")
    main.__dict__["__builtins__"] = builtins
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy._run_module_as_main(arguments[1])  # type: ignore[attr-defined]  # what `python -m` calls
        return
    sys.argv = list(arguments)
    path = arguments[0]
    if Path(path).is_dir() or zipfile.is_zipfile(path):
        sys.path.insert(0, path)
        runpy._run_module_as_main("__main__", alter_argv=False)  # type: ignore[attr-defined]
        return
    sys.path.insert(0, str(Path(path).resolve().parent))
    whole = str(Path(path).absolute())
    main.__dict__.update(__file__=whole, __cached__=None, __loader__=SourceFileLoader("__main__", whole))
    exec(_script_code(path), main.__dict__)


def _script_code(path: str) -> CodeType:
    """Return the code of a script, or end this process as Python does where there is none."""
    try:
        with io.open_code(str(Path(path).absolute())) as file:
            compiled: CodeType | None = pkgutil.read_code(file)  # of a .pyc
    except OSError as error:
        problem = f"[Errno {error.errno}] {error.strerror}"
        sys.stderr.write(f"{sys.executable}: can't open file {str(Path(path).absolute())!r}: {problem}\n")
        raise SystemExit(2) from None
    return compile(Path(path).read_bytes(), path, "exec") if compiled is None else compiled


WARM_S = 120.0  # for a warm process to be ready
FORK_S = 30.0  # for a warm process to fork a member


def python_arguments(command: tuple[str, ...]) -> list[str] | None:
    """Return the arguments of the interpreter if a command runs a script with this Python, else None."""
    found = shutil.which(command[0])
    if len(command) < 2 or found is None or str(Path(found).absolute()) != sys.executable:
        return None
    rest = list(command[1:])
    if rest[0] == "-m":
        return rest if len(rest) > 1 else None
    return None if rest[0].startswith("-") else rest


async def connect_to_warm_process(path: Path, has_ended: Callable[[], bool]) -> socket.socket | None:
    """Connect to a warm process, which may not be ready yet.

    Args:
        path: Of its socket.
        has_ended: Returns whether the process has ended; what it raises ends the waiting.

    Returns:
        The connection, None if it has ended or is never ready.
    """
    until_s = asyncio.get_running_loop().time() + WARM_S
    while asyncio.get_running_loop().time() < until_s:
        connection = socket.socket(socket.AF_UNIX)
        try:
            with short_socket_path(path) as name:
                connection.connect(name)
        except OSError:
            connection.close()
            if has_ended():
                return None
            await asyncio.sleep(0.02)
        else:
            return connection
    return None


async def fork_member(
    connection: socket.socket, command: Mapping[str, Any], output: int
) -> tuple[int, Coroutine[None, None, int]] | None:
    """Let a warm process fork a member; return its pid, and what waits for its end and returns its status.

    Args:
        connection: To the warm process.
        command: As in `ForkRequest`, without the output.
        output: Descriptor for what it writes.

    Returns:
        None if the warm process cannot fork it.
    """
    try:
        socket.send_fds(connection, [json.dumps(command).encode() + b"\n"], [output])
        connection.settimeout(0.0)
        reader, writer = await asyncio.open_unix_connection(sock=connection)
        async with asyncio.timeout(FORK_S):
            pid = int(json.loads(await reader.readline())["pid"])
    except (OSError, ValueError):
        connection.close()
        return None
    return pid, _wait_for_forked(pid, reader, writer)


async def _wait_for_forked(pid: int, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> int:
    """Wait for the end of a member that a warm process forked, and return its status."""
    try:
        return int(json.loads(await reader.readline())["status"])
    except (OSError, ValueError):
        await _wait_until_gone(pid)  # The warm process was killed; the member lives on.
        return UNKNOWN_STATUS
    finally:
        writer.close()


async def _wait_until_gone(pid: int) -> None:
    """Wait for the end of a process that is no child of this one."""
    handle = -1
    while handle < 0:
        try:
            handle = os.pidfd_open(pid)
        except ProcessLookupError:
            return
        except OSError:  # No descriptor is left; that does not prove its end.
            await asyncio.sleep(1.0)
    gone, loop = asyncio.Event(), asyncio.get_running_loop()
    loop.add_reader(handle, gone.set)
    try:
        await gone.wait()
    finally:
        loop.remove_reader(handle)
        os.close(handle)


if __name__ == "__main__":
    main()
