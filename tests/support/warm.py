"""Processes that begin with many imports, forked from one that has them, in place of those that `subprocess` starts.

They are children of the process that asks: a first fork forks them and ends, and the system gives an orphan to the
nearest ancestor that takes orphans, which is who asks, for that moment. What this leaves out: they have imported what
they need before they run, and their interpreter has the options and the module search path of these tests, behind what
their own environment names.
"""

import ctypes
import gc
import json
import os
import random
import runpy
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Sequence
from contextlib import suppress
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import IO, Any

from tests.support import processes
from tests.support.processes import Stream

PR_SET_CHILD_SUBREAPER = 36
MOST_BYTES, READY = 1 << 20, b"ready"
ENVIRONMENT = dict(os.environ)  # not what a test has changed: all that is forked later begins with what it led to
_libc = ctypes.CDLL(None)


class Forked:
    """A process that was forked, with what the code that is tested asks of a `subprocess.Popen`."""

    def __init__(self, pid: int, stdin: IO[bytes] | None) -> None:
        self.pid, self.stdin = pid, stdin
        self.returncode: int | None = None
        self._handle = os.pidfd_open(pid)

    def poll(self) -> int | None:
        """Return how it ended, None if it runs."""
        with suppress(subprocess.TimeoutExpired):
            self.wait(0.0)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Return how it ended.

        Raises:
            subprocess.TimeoutExpired: If it has not, after some seconds, `WAIT_S` where none are named.
        """
        if self.returncode is None:
            wait_s = processes.WAIT_S if timeout is None else timeout
            if not select.select([self._handle], [], [], wait_s)[0]:
                if timeout is None:
                    self.end()
                raise subprocess.TimeoutExpired("a forked process", wait_s)
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
            os.close(self._handle)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)

    def end(self) -> None:
        """Kill it with its group."""
        if self.poll() is None:
            with suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
            self.wait(30.0)


class Warm:
    """The process that others are forked from, once one is asked for; in place of the module `subprocess`.

    Args:
        prepare: Modules that it imports, or `MODULE:FUNCTION` that it calls.
    """

    def __init__(self, *prepare: str) -> None:
        self._prepare = prepare
        self._asks = threading.Lock()
        self._socket: socket.socket | None = None
        self._process: processes.Process[bytes] | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(subprocess, name)

    def Popen(  # noqa: N802  # the name of what it stands for
        self, line: Sequence[str], *, env: dict[str, str] | None = None, cwd: Path | None = None,
        stdin: int | None = None, stdout: Stream = None, stderr: Stream = None,
        pass_fds: Sequence[int] = (), start_new_session: bool = True,
    ) -> Forked:  # fmt: skip
        """Start `python -m MODULE ...` or `python -c CODE ...` in a session of its own."""
        assert line[0] == sys.executable
        assert line[1] in ("-m", "-c")
        assert start_new_session
        reads, writes = os.pipe() if stdin == subprocess.PIPE else (os.open(os.devnull, os.O_RDONLY), None)
        nothing = os.open(os.devnull, os.O_WRONLY)
        descriptors = (reads, _number(stdout, 1, nothing), _number(stderr, 2, nothing), *pass_fds)
        asked = {
            "line": line[1:], "environment": dict(os.environ if env is None else env), "folder": str(cwd or Path.cwd()),
            "descriptors": [0, 1, 2, *pass_fds], "parent": os.getpid(),
        }  # fmt: skip
        try:
            pid = self._fork(asked, descriptors)
        finally:
            os.close(reads)
            os.close(nothing)
        forked = Forked(pid, None if writes is None else os.fdopen(writes, "wb"))
        processes.end_with_tests(forked)
        return forked

    def _fork(self, asked: dict[str, Any], descriptors: Sequence[int]) -> int:
        with self._asks:
            connection = self._connection()
            _libc.prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
            try:
                socket.send_fds(connection, [json.dumps(asked).encode()], descriptors)
                return int(connection.recv(100))
            except BaseException:
                self.end()  # an answer that comes later would be taken for that of the next
                raise
            finally:
                _libc.prctl(PR_SET_CHILD_SUBREAPER, 0, 0, 0, 0)

    def end(self) -> None:
        """End the process that others are forked from."""
        if self._socket is not None and self._process is not None:
            self._socket.close()
            self._process.end()
            self._socket = self._process = None

    def _connection(self) -> socket.socket:
        if self._socket is None:
            self._socket, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            self._socket.settimeout(processes.WAIT_S)
            line = [sys.executable, "-m", "tests.support.warm", str(its.fileno()), *self._prepare]
            self._process = processes.start(
                line,
                pass_fds=[its.fileno()],
                env=ENVIRONMENT | {"PYTHONPATH": os.pathsep.join((*filter(None, sys.path), processes.LIGHT))},
            )
            its.close()
            if self._socket.recv(100) != READY:
                self.end()
                raise RuntimeError("the process that others are forked from has not begun")
        return self._socket


def _number(stream: Stream, inherited: int, nothing: int) -> int:
    if stream is None:
        return inherited
    if isinstance(stream, int):
        return nothing if stream == subprocess.DEVNULL else stream
    return stream.fileno()


def main() -> None:
    """Fork a process for each request, until who asks is gone; return there in each of them, before it runs."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"
    for name in sys.argv[2:]:
        module, _, function = name.partition(":")
        imported = import_module(module)
        if function:
            getattr(imported, function)()
    gc.freeze()  # or each process would copy the memory of all that was imported
    connection = socket.socket(fileno=int(sys.argv[1]))
    connection.send(READY)
    while True:
        data, descriptors, _, _ = socket.recv_fds(connection, MOST_BYTES, 8)
        if not data:
            raise SystemExit(0)
        first = os.fork()
        if not first:
            if os.fork():
                os._exit(0)
            _run(json.loads(data), descriptors, connection)
            return
        os.waitpid(first, 0)
        for it in descriptors:
            os.close(it)


def _run(asked: dict[str, Any], descriptors: Sequence[int], connection: socket.socket) -> None:
    """Become what was asked for, and say so once it can be killed as what it is."""
    give_up_s = time.monotonic() + 10.0
    while os.getppid() != asked["parent"]:
        if time.monotonic() > give_up_s:  # who asked is gone, or asks no more
            os._exit(1)
        time.sleep(0.001)
    os.setsid()
    connection.send(str(os.getpid()).encode())
    connection.close()
    free = max(*descriptors, *asked["descriptors"]) + 1
    moved = [os.dup2(it, free + at) for at, it in enumerate(descriptors)]
    for it, to in zip(moved, asked["descriptors"], strict=True):
        os.dup2(it, to)
    for it in {*moved, *descriptors} - {*asked["descriptors"]}:
        os.close(it)
    os.environ.clear()
    os.environ.update(asked["environment"])
    os.chdir(asked["folder"])
    signal.signal(signal.SIGINT, signal.default_int_handler)
    random.seed()  # a fork has the numbers of its parent
    if "numpy" in sys.modules:
        sys.modules["numpy"].random.seed()
    if "torch" in sys.modules:
        sys.modules["torch"].seed()
    kind, what, *arguments = asked["line"]
    named = [it for it in os.environ.get("PYTHONPATH", "").split(os.pathsep) if it]
    sys.path[:] = [str(Path.cwd()), *named, *(it for it in sys.path[1:] if it not in named)]
    sys.argv[:] = [what if kind == "-m" else "-c", *arguments]
    if kind == "-m":
        runpy.run_module(what, run_name="__main__", alter_sys=True)
    else:
        main = sys.modules["__main__"] = ModuleType("__main__")
        exec(what, main.__dict__)


if __name__ == "__main__":
    main()
