"""The runner's side of warm processes, and the pool of those of this machine.

All warm processes of this machine are forked from one that has PyTorch loaded. The first takes seconds to start, the
others, and those that replace a killed one, tens of milliseconds.
"""

import multiprocessing
import os
import signal
import sys
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from multiprocessing import forkserver, resource_tracker, util
from multiprocessing.connection import Connection, wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from typing import Any

from ..cluster.files.errors import BackendError
from ..cluster.files.plugins import is_ours, registered
from .context import NodeSetup
from .warm_worker import MAX_CHECK_MESSAGE_BYTES, CheckReply, CheckRequest, Target, decode_reply, serve_node

MAX_GROUPS = 20  # that a process joins; each leaks some descriptors and threads
WARM_S = 120.0  # far more than loading PyTorch takes, eight at a time on two busy cores
_PRELOADED = ("torch", "torch.distributed", "longshore.preflight.warm_worker",
              "longshore.preflight.arithmetic")  # fmt: skip


class LocalNode:
    """The warm process of a node, on this machine."""

    def __init__(self, setup: NodeSetup, target: Target = serve_node) -> None:
        self.name, self._setup, self._target = setup.node, setup, target
        self._process: ForkServerProcess | None = None
        self._connection: Connection | None = None
        self._is_warm, self._groups = False, 0

    @property
    def pid(self) -> int | None:
        """Of the process; None before its start."""
        return None if self._process is None else self._process.pid

    def start(self) -> None:
        """Start the process unless it runs, without waiting until it is warm.

        Raises:
            OSError: If this machine starts no further process.
            EOFError: If the process that it is forked from was killed; the next start brings another one.
        """
        if self._process is not None and not self.is_gone() and self._groups < MAX_GROUPS:
            return
        self.close()
        context = _forkserver_context()
        ours, theirs = context.Pipe()
        process = context.Process(target=self._target, args=(theirs, self._setup), daemon=True)
        try:
            with theirs:
                process.start()
        except BaseException:
            ours.close()
            raise
        self._process, self._connection, self._is_warm, self._groups = process, ours, False, 0

    def wait_until_warm(self, wait_s: float = WARM_S) -> bool:
        """Return whether it accepts requests, after waiting at most `wait_s`."""
        until_s = time.monotonic() + wait_s
        while not self._is_warm:
            left_s = until_s - time.monotonic()
            if not wait(self.waitables(), max(0.0, left_s)):
                return False
            try:
                self._is_warm = self.receive() is not None
            except BackendError:
                return False
        return True

    def send(self, request: CheckRequest) -> bool:
        """Send a request; return False if the process has ended."""
        if self._connection is None or self.is_gone():
            return False
        try:
            self._connection.send_bytes(request.model_dump_json().encode())
        except OSError:
            return False
        self._groups += request.group is not None
        return True

    def waitables(self) -> list[Connection | int]:
        """Return what `multiprocessing.connection.wait` can wait for: a reply, and the end of the process."""
        found: list[Connection | int] = [] if self._connection is None else [self._connection]
        return found if self._process is None else [*found, self._process.sentinel]

    def receive(self) -> CheckReply | None:
        """Return a reply that has arrived, None if none has.

        Raises:
            BackendError: If the process has ended, or its reply is invalid.
        """
        if self._connection is None:
            raise BackendError("its process has not started")
        try:
            if self._connection.poll():
                return decode_reply(self._connection.recv_bytes(MAX_CHECK_MESSAGE_BYTES))
        except (EOFError, OSError) as error:
            raise BackendError("its process has ended") from error
        if self.is_gone():
            raise BackendError("its process has ended")
        return None

    def terminate(self) -> None:
        """Send SIGTERM to the process."""
        self._send_signal(signal.SIGTERM)

    def kill(self) -> None:
        """Kill the process and all that it has started."""
        self._send_signal(signal.SIGKILL)

    def _send_signal(self, number: int) -> None:
        if self.pid is None or self.is_gone():
            return
        for send in (os.killpg, os.kill):  # the group is its own once it is warm
            with suppress(ProcessLookupError, PermissionError):
                send(self.pid, number)

    def is_gone(self) -> bool:
        """Return whether the process has ended and is reaped."""
        return self._process is None or bool(wait([self._process.sentinel], 0.0))

    def close(self) -> None:
        """End the process, if it runs, and release it."""
        if self._process is not None and not self.is_gone():
            self.kill()
        if self._connection is not None:
            self._connection.close()
        if self._process is not None and self.is_gone():
            self._process.join(1.0)
            self._process.close()
        self._process, self._connection = None, None


def start_fork_server() -> None:
    """Start the process that others are forked from, so that the first need not wait for PyTorch. Does not wait."""
    _forkserver_context()
    forkserver.ensure_running()


def end_fork_server() -> None:
    """End the process that others are forked from, and its resource tracker; there is no public way.

    A program that this process becomes would have them as children, and their memory would be held as long.
    """
    server: Any = forkserver._forkserver
    tracker: Any = resource_tracker._resource_tracker
    for pid in (server._forkserver_pid, tracker._pid):
        if pid is not None:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    for ended in (server, tracker):
        with suppress(ChildProcessError, FileNotFoundError):
            ended._stop()
    util._run_finalizers()  # type: ignore[attr-defined]  # removes the folder of its socket


def _forkserver_context() -> ForkServerContext:
    """Return the context that starts processes, with the modules of this program preloaded."""
    context = multiprocessing.get_context("forkserver")
    checks = {point.module for point in registered("checks").values() if is_ours(point)}
    preloaded = [name for name in ("longshore.cli",) if name in sys.modules]
    context.set_forkserver_preload([*_PRELOADED, *sorted(checks), *preloaded])
    return context


MAX_IDLE_PROCESSES = 16  # idle processes that stay between rounds


class WarmNodes:
    """The warm processes of this machine. Any thread may use it."""

    def __init__(
        self, setup_of: Callable[[str], NodeSetup], make: Callable[[NodeSetup], LocalNode] = LocalNode
    ) -> None:
        self._place_of, self._make = setup_of, make
        self._kept: OrderedDict[str, LocalNode] = OrderedDict()  # idle ones, least recently used first
        self._lent: dict[str, LocalNode] = {}
        self._lock = threading.Lock()
        self._is_closed = False

    def take(self, names: Iterable[str]) -> Mapping[str, LocalNode] | None:
        """Return the processes of some nodes, which may not run yet; None while another round uses one of them."""
        wanted = set(names)
        with self._lock:
            if self._is_closed or wanted & self._lent.keys():
                return None
            found = {
                name: self._kept.pop(name) if name in self._kept else self._make(self._place_of(name))
                for name in wanted
            }
            self._lent |= found
        return found

    def give_back(self, names: Iterable[str]) -> None:
        """Return the processes of some nodes to the pool."""
        with self._lock:
            for name in names:
                self._kept[name] = self._lent.pop(name)
            most = 0 if self._is_closed else MAX_IDLE_PROCESSES
            surplus = [self._kept.popitem(last=False)[1] for _ in range(max(0, len(self._kept) - most))]
        for node in surplus:
            node.close()

    def kill(self, names: Iterable[str]) -> None:
        """Kill the processes of some nodes that a round uses; the round finds that they have ended."""
        with self._lock:
            nodes = [self._lent[name] for name in names if name in self._lent]
        for node in nodes:
            node.kill()

    def close(self) -> None:
        """End all processes."""
        with self._lock:
            self._is_closed = True
            kept, lent = list(self._kept.values()), list(self._lent.values())
            self._kept.clear()
        for node in kept:
            node.close()
        for node in lent:
            node.kill()  # the round that uses it closes it
