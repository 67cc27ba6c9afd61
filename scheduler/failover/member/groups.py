"""The process group of one generation: exchanges that end as soon as the ring is formed anew.

A collective of gloo that has begun can neither be ended nor waited for without its time-out. So it is polled beside the
word of the coordinator, and what was left is never dropped: its destructor would wait for the dead. Source: SPEC F8.
"""

import ctypes
import os
import re
import select
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, TCPStore

from ..wire import Form
from .control import Control

CONNECT_S = 10.0  # for all members of a group to meet
REACH_S = 5.0  # for another member to take a connection
NEVER = timedelta(days=30)  # a slow collective is no fault: the coordinator says when to stop waiting
CHUNK_BYTES = 16 << 20
_POLL_S = (0.0, 0.0002, 0.001)
_SPINS = 200
_PLACE = re.compile(r"^\[[^\]]*:[0-9]+\] ?")  # in the source of gloo
_END = re.compile(r"\[([0-9a-fA-F.:]+)\]:(\d+)")


class LinkError(Exception):
    """An exchange with a member that may live failed.

    Args:
        evidence: What the library said.
        peer: HOST:PORT of the other end, "" if that is unknown.
    """

    def __init__(self, evidence: str) -> None:
        first = _PLACE.sub("", evidence).partition(". ")[0]  # gloo goes on with advice
        super().__init__(f"an exchange failed: {first}")
        found = _END.search(evidence)
        self.peer = f"{found[1]}:{found[2]}" if found else ""


class Group(Protocol):
    """What a ring needs of a group."""

    @property
    def rank(self) -> int:
        """Of this member in the group."""

    @property
    def size(self) -> int:
        """Members of the group."""

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all members, each of which has the same bits then."""

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Replace a tensor by that of the member with this rank."""

    def begin_broadcast(self, tensor: Tensor, root: int) -> Callable[[], None]:
        """Begin a broadcast, and return what waits for its end; several may be under way."""

    @property
    def ends(self) -> list[str]:
        """HOST:PORT of this member's ends of the group's sockets."""

    def close(self) -> None:
        """Give up what can be given up; nothing more is exchanged."""


def offer_store(host: str) -> tuple[TCPStore, str]:
    """Return a store at which members meet, if the coordinator names it, and its HOST:PORT."""
    listener = socket.create_server((host, 0))  # of our own: the store's would listen on all addresses
    port = listener.getsockname()[1]
    store = TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=True
    )
    return store, f"{host}:{port}"


def own_address(address: str) -> str:
    """Return the address by which this machine reaches another, HOST:PORT: so that one reaches it."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


class GlooGroup:
    """A group over gloo.

    Args:
        form: Its members.
        name: What it is for, unlike those of other groups of the generation.
        rank: Of this member.
        host: Address by which others reach it.
        control: Says when to stop.

    Raises:
        AbortedError: If the ring is formed anew.
        LinkError: If the members do not meet.
    """

    def __init__(self, form: Form, name: str, rank: int, host: str, control: Control) -> None:
        self._control = control
        self.rank, self.size = rank, len(form.places)
        before, polls_before = _sockets(), _polls()
        self._group: Any = None if self.size == 1 else self._meet(form, name, rank, host)
        self.ends = sorted(_sockets() - before)[:512]
        self._polls = _polls() - polls_before

    def _meet(self, form: Form, name: str, rank: int, host: str) -> ProcessGroupGloo:
        made: list[ProcessGroupGloo | Exception] = []

        def make() -> None:
            try:
                _reach_all(form, rank)
                made.append(_gloo(form, name, rank, host))
            except Exception as error:
                made.append(error)
            keep_for_ever(made[0])

        # In a thread: it does not return before all are there, and one may have died.
        thread = threading.Thread(target=make, daemon=True)
        thread.start()
        poll(lambda: bool(made), self._control)
        thread.join()
        if isinstance(made[0], Exception):
            raise LinkError(str(made[0])) from made[0]
        return made[0]

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all members; in pieces, so that it is seen to move."""
        if self._group is None:
            return
        for piece in torch.split(tensor, CHUNK_BYTES // tensor.element_size()):
            options = dist.AllreduceOptions()
            options.timeout = NEVER
            host = piece.cpu()  # itself, if it is there already
            self._finish(self._group.allreduce([host], options))
            if host is not piece:
                piece.copy_(host)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Replace a tensor by that of the member with this rank."""
        self.begin_broadcast(tensor, root)()

    def begin_broadcast(self, tensor: Tensor, root: int) -> Callable[[], None]:
        """Begin a broadcast, and return what waits for its end."""
        if self._group is None:
            return lambda: None
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = root, 0, NEVER
        return partial(self._finish, self._group.broadcast([tensor], options))

    def close(self) -> None:
        """Let gloo hear no more from this group's sockets; it can give nothing up.

        Of what came and nobody waits for it reads nothing, and its thread would look again and again, a whole core.
        The sockets stay open: another member, who has not heard yet, would take their end for a fault.
        """
        for poll_at in self._polls:
            with suppress(OSError), select.epoll.fromfd(os.dup(poll_at)) as watching:
                for it in _watched(poll_at):
                    watching.unregister(it)
        self._polls = set()

    def _finish(self, work: dist.Work) -> None:
        pulse = self._control.pulse
        pulse.waiting = True
        try:
            poll(work.is_completed, self._control)
        except BaseException:
            keep_for_ever(work)
            raise
        pulse.waiting = False
        pulse.moved += 1
        try:
            work.wait()
        except RuntimeError as error:
            keep_for_ever(work)
            raise LinkError(str(error)) from error


def _gloo(form: Form, name: str, rank: int, host: str) -> ProcessGroupGloo:
    store_host, _, port = form.store.rpartition(":")
    limit = timedelta(seconds=CONNECT_S)
    store = TCPStore(store_host, int(port), is_master=False, wait_for_workers=False, timeout=limit)
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = limit
    options._devices = [ProcessGroupGloo.create_device(hostname=host)]
    # The prefix is of this generation alone: in another one's, members would find addresses of the dead.
    return ProcessGroupGloo(PrefixStore(f"g{form.generation}-{name}", store), rank, len(form.places), options)


def _reach_all(form: Form, rank: int) -> None:
    """Look whether each other member can be reached.

    A group of gloo that does not come about takes a minute, does not tell why, and may crash its process.

    Raises:
        LinkError: Names one that cannot be reached.
    """
    for place in (it for at, it in enumerate(form.places) if at != rank and it.store):
        host, _, port = place.store.rpartition(":")
        try:
            socket.create_connection((host, int(port)), REACH_S).close()
        except OSError as error:
            raise LinkError(f"no way to member {place.member} at [{host}]:{port}: {error}") from error


def poll(is_over: Callable[[], bool], control: Control) -> None:
    """Wait for something.

    Raises:
        AbortedError: If the ring is formed anew meanwhile.
    """
    looks = 0
    while not is_over():
        control.check()
        time.sleep(_POLL_S[min(looks // _SPINS, len(_POLL_S) - 1)])
        looks += 1


def keep_for_ever(it: object) -> None:
    """Let an object never be destroyed, also not when the process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(it))


def _polls() -> set[int]:
    """Return this process's descriptors by which a thread waits for many others."""
    found = set[int]()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(OSError):
            if os.readlink(f"/proc/self/fd/{name}") == "anon_inode:[eventpoll]":  # noqa: PTH115
                found.add(int(name))
    return found


def _watched(poll_at: int) -> list[int]:
    """Return the sockets that are waited for by a descriptor of that kind."""
    numbers = re.findall(r"^tfd: *(\d+)", Path(f"/proc/self/fdinfo/{poll_at}").read_text(), re.MULTILINE)
    return [int(it) for it in numbers if os.readlink(f"/proc/self/fd/{it}").startswith("socket:")]  # noqa: PTH115


def _sockets() -> set[str]:
    """Return this process's own ends of its TCP connections, HOST:PORT, as errors may name them."""
    found: set[str] = set()
    for name in os.listdir("/proc/self/fd"):  # noqa: PTH208
        with suppress(OSError):
            if not os.readlink(f"/proc/self/fd/{name}").startswith("socket:"):  # noqa: PTH115
                continue
            with socket.socket(fileno=os.dup(int(name))) as end:
                if end.family in (socket.AF_INET, socket.AF_INET6):
                    host, port = end.getsockname()[:2]
                    # Gloo's errors name a port with its bytes the other way round.
                    found.update((f"{host}:{port}", f"{host}:{socket.htons(port)}"))
    return found
