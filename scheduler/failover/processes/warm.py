"""A warm process: it has imported PyTorch, and members are forked from it in tens of milliseconds.

Started with a path, it listens there on a Unix socket. Each connection is one member: a line of JSON says what to run,
with the output's descriptor beside it. Back come a line with the member's pid and, when it has ended, one with its
status. The member's process ends if the connection does. It is forked while this process has one thread, before
anything was computed. Source: SPEC F8.
"""

import contextlib
import json
import os
import random
import runpy
import selectors
import signal
import socket
import sys
import time
from pathlib import Path
from typing import Any, NoReturn

from ...files.sockets import short_name

MOST_BYTES = 1 << 20
# What the first optimizer imports takes as long as PyTorch itself.
IMPORTS = (
    "torch",
    "torch.distributed",
    "torch._dynamo",
    "longshore.ring",
    "longshore.scheduler.failover.member.formation",
)


def main() -> None:
    """Serve members at the path that is the first argument, until the parent is gone."""
    for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[variable] = "1"  # or a library would start threads, which do not come along with a fork
    for name in IMPORTS:
        __import__(name)
    Warm(Path(sys.argv[1])).serve()


class Warm:
    """The loop of the warm process.

    Args:
        path: Of the socket.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._selector = selectors.DefaultSelector()
        self._members: dict[int, socket.socket] = {}
        self._parent = os.getppid()

    def serve(self) -> None:
        """Fork a member for each connection, and tell how it ends."""
        listener = socket.socket(socket.AF_UNIX)
        with contextlib.suppress(FileNotFoundError):
            self._path.unlink()
        with short_name(self._path) as name:
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
                    self._accept(listener)
                elif key.fileobj is woken:
                    woken.recv(4096)
                else:
                    self._hung_up(key.fileobj)
            self._reap()
        for pid in self._members:
            os.kill(pid, signal.SIGKILL)

    def _accept(self, listener: socket.socket) -> None:
        """Fork the member of a connection; one that cannot be forked is told by closing that."""
        outputs: list[int] = []
        try:
            connection, _ = listener.accept()
        except OSError:
            time.sleep(0.1)  # no descriptor is left
            return
        try:
            connection.settimeout(5.0)
            data, outputs, _, _ = socket.recv_fds(connection, MOST_BYTES, 1)
            while not data.endswith(b"\n"):
                more = connection.recv(MOST_BYTES)
                if not more:
                    raise ValueError("half a line")
                data += more
            what = json.loads(data)
            if len(outputs) != 1:
                raise ValueError("no output")
            pid = os.fork()
        except (OSError, ValueError):
            connection.close()
        else:
            if pid == 0:
                self._become_member(listener, connection, what, outputs[0])
            self._members[pid] = connection
            self._selector.register(connection, selectors.EVENT_READ, pid)
            _say(connection, {"pid": pid})
        for output in outputs:
            os.close(output)

    def _become_member(self, listener: socket.socket, connection: socket.socket, what: Any, output: int) -> NoReturn:
        try:
            listener.close()
            connection.close()
            self._selector.close()
            run(what, output)
        finally:  # A copy of the warm process must not live on.
            os._exit(1)

    def _hung_up(self, connection: Any) -> None:
        """End the member whose launcher is gone."""
        self._selector.unregister(connection)
        for pid, its in self._members.items():
            if its is connection:
                os.kill(pid, signal.SIGKILL)

    def _reap(self) -> None:
        for pid in list(self._members):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                connection = self._members.pop(pid)
                with contextlib.suppress(KeyError):
                    self._selector.unregister(connection)
                _say(connection, {"status": os.waitstatus_to_exitcode(status)})
                connection.close()


def _say(connection: socket.socket, what: dict[str, int]) -> None:
    with contextlib.suppress(OSError):
        connection.sendall(json.dumps(what).encode() + b"\n")


def run(what: dict[str, Any], output: int) -> None:
    """Become a member: run a script as Python would have been started with it; never return.

    Args:
        what: `arguments` behind the interpreter, `environment` and `folder`.
        output: Descriptor for what it writes.
    """
    status = 1
    try:
        _become(what, output)
        _run_script(what["arguments"])
        status = 0
    except SystemExit as end:
        status = _status_of(end)
    except BaseException:
        sys.excepthook(*sys.exc_info())
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(status)


def _become(what: dict[str, Any], output: int) -> None:
    signal.set_wakeup_fd(-1)
    signal.signal(signal.SIGCHLD, signal.SIG_DFL)
    os.setsid()
    for descriptor in (1, 2):
        os.dup2(output, descriptor)
    os.close(output)
    os.environ.clear()
    os.environ.update(what["environment"])
    os.chdir(what["folder"])
    import numpy
    import torch

    random.seed()  # A fork has the numbers of its parent.
    numpy.random.seed()  # noqa: NPY002
    threads = os.environ.get("OMP_NUM_THREADS", "")
    torch.set_num_threads(int(threads) if threads.isdecimal() and int(threads) else len(os.sched_getaffinity(0)))


def _run_script(arguments: list[str]) -> None:
    if arguments[0] == "-m":
        sys.argv = arguments[1:]
        sys.path.insert(0, str(Path.cwd()))
        runpy.run_module(arguments[1], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(arguments)
        sys.path.insert(0, str(Path(arguments[0]).resolve().parent))
        runpy.run_path(arguments[0], run_name="__main__")


def _status_of(end: SystemExit) -> int:
    if end.code is None:
        return 0
    if isinstance(end.code, int):
        return end.code & 0xFF
    sys.stderr.write(f"{end.code}\n")
    return 1


if __name__ == "__main__":
    main()
