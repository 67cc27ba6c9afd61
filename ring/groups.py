"""The process group of one generation, whose exchanges end as soon as the ring is formed anew.

The process group of one generation: exchanges that end as soon as the ring is formed anew.

A collective of gloo that has begun can neither be ended nor waited for without its time-out. So it is polled beside the
word of the coordinator, and what was left is never dropped: its destructor would wait for the dead. Source: SPEC F8.

A group that sums what lies on GPUs over NCCL, and all else over gloo. It ran on one GPU, with one member, alone.

An all-reduce of NCCL with a member that died never ends by itself. So it is polled beside the word of the coordinator,
as those of gloo are, and then aborted. Some versions of NCCL hang in that: such a process ends itself, and another one
takes its seat with the state of a living member. Source: SPEC F8.
"""

import ctypes
import os
import platform
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
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, TCPStore

from ..cluster.files.errors import InputError
from .control import Control, end_process
from .wire import RESTART_STATUS, Form

CONNECT_S = 10.0  # for all members of a group to meet
REACH_S = 5.0  # for another member to take a connection
NEVER = timedelta(days=30)  # a slow collective is no fault: the coordinator says when to stop waiting
CHUNK_BYTES = 16 << 20
_POLL_S = (0.0, 0.0002, 0.001)
_SPINS = 200
_PLACE = re.compile(r"^\[[^\]]*:[0-9]+\] ?")  # in the source of gloo
_WATCHED = re.compile(r"^tfd: *(\d+) events: *([0-9a-f]+) data: *([0-9a-f]+)", re.MULTILINE)
_EPOLL_CTL_MOD = 3
_libc = ctypes.CDLL(None)
_GIVEN_UP = set[int]()  # descriptors by which threads of groups wait that were given up; gloo closes none
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
        before = _sockets()
        self._polls = set[int]()
        self._group: Any = None if self.size == 1 else self._meet(form, name, rank, host)
        self.ends = sorted(_sockets() - before)[:512]

    def _meet(self, form: Form, name: str, rank: int, host: str) -> ProcessGroupGloo:
        made: list[ProcessGroupGloo | Exception] = []

        def make() -> None:
            try:
                _reach_all(form, rank)
                device, self._polls = _device(host)
                made.append(_gloo(form, name, rank, device))
            except Exception as error:
                made.append(error)
            keep_for_ever(made[0])

        # In a thread: it does not return before all are there, and one may have died.
        thread = threading.Thread(target=make, daemon=True)
        thread.start()
        try:
            poll(lambda: bool(made), self._control)
            thread.join()
            if isinstance(made[0], Exception):
                raise LinkError(str(made[0])) from made[0]
        except BaseException:
            _GIVEN_UP.update(self._polls)
            raise
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
        """Let gloo look at this group's sockets once for each event; it can give nothing up.

        It reads nothing that no exchange waits for, and its thread would look at it again and again, a whole core.
        The sockets stay open: another member, who has not heard yet, would take their end for a fault.
        """
        _GIVEN_UP.update(self._polls)
        for it in _GIVEN_UP:  # of former groups, too: where gloo still wrote, it has undone this since
            calm(it)

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


def _device(host: str) -> tuple[Any, set[int]]:
    """Return a device of gloo, and the descriptors by which its thread waits."""
    before = _polls()
    device = ProcessGroupGloo.create_device(hostname=host)
    return device, _polls() - before


def _gloo(form: Form, name: str, rank: int, device: Any) -> ProcessGroupGloo:
    store_host, _, port = form.store.rpartition(":")
    limit = timedelta(seconds=CONNECT_S)
    store = TCPStore(store_host, int(port), is_master=False, wait_for_workers=False, timeout=limit)
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = limit
    options._devices = [device]
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
    numbers = map(int, os.listdir("/proc/self/fd"))  # noqa: PTH208
    return {it for it in numbers if _opened(it) == "anon_inode:[eventpoll]"}


class _Event(ctypes.Structure):
    """The kernel's `epoll_event`."""

    _pack_ = 1 if platform.machine() == "x86_64" else 8
    _fields_ = (("events", ctypes.c_uint32), ("kept", ctypes.c_uint64))


def _opened(number: int) -> str:
    """Return what a descriptor is of, "" if it was closed."""
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{number}")  # noqa: PTH115
    return ""


def calm(poll_at: int) -> None:
    """Let a thread hear of each event at its sockets once, as `EPOLLET` does.

    Not `epoll.modify`: it forgets what the thread keeps beside each descriptor. To take the sockets away from it would
    end the process once gloo does so itself.

    Args:
        poll_at: Descriptor by which the thread waits.
    """
    try:
        description = Path(f"/proc/self/fdinfo/{poll_at}").read_text()
    except OSError:  # a system that does not tell: the thread goes on as it did
        return
    for number, events, kept in _WATCHED.findall(description):
        if _opened(int(number)).startswith("socket:"):
            event = _Event(int(events, 16) | select.EPOLLET, int(kept, 16))
            _libc.epoll_ctl(poll_at, _EPOLL_CTL_MOD, int(number), ctypes.byref(event))  # fails if gloo has closed it


def _sockets() -> set[str]:
    """Return this process's own ends of its TCP connections, HOST:PORT, as errors may name them."""
    found: set[str] = set()
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        with suppress(OSError):
            if not _opened(number).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(number)) as end:
                if end.family in (socket.AF_INET, socket.AF_INET6):
                    host, port = end.getsockname()[:2]
                    # Gloo's errors name a port with its bytes the other way round.
                    found.update((f"{host}:{port}", f"{host}:{socket.htons(port)}"))
    return found


ABORT_S = 5.0  # an abort that works takes milliseconds


class Communicator(Protocol):
    """What is used of PyTorch's group of NCCL."""

    def allreduce(self, tensors: list[Tensor], options: dist.AllreduceOptions) -> dist.Work:
        """Begin a sum."""

    def abort(self) -> None:
        """End all that was begun."""


def check_nccl(device: torch.device) -> None:
    """Look whether gradients of a device can go over NCCL.

    Raises:
        InputError: If not.
    """
    if not dist.is_nccl_available():
        raise InputError("this PyTorch has no NCCL", 'leave `collectives="nccl"` out, or install PyTorch for CUDA')
    if device.type != "cuda":
        raise InputError(f"NCCL needs a model on a GPU, and this one is on {device}", 'leave `collectives="nccl"` out')


def connect(form: Form, rank: int, device: torch.device) -> Communicator:
    """Return PyTorch's group of NCCL for the members of a generation, once all are there."""
    # PyTorch's own watch would end the process where an exchange fails.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    host, _, port = form.store.rpartition(":")
    limit = timedelta(seconds=CONNECT_S)
    store = TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=limit)
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = NEVER
    with torch.cuda.device(device):
        made: Any = c10d.ProcessGroupNCCL(
            PrefixStore(f"g{form.generation}-nccl", store), rank, len(form.places), options
        )
        # The first exchange connects all, and returns only then.
        made.allreduce([torch.zeros(1, device=device)], dist.AllreduceOptions())
    found: Communicator = made
    return found


class NcclGroup:
    """A group over NCCL, with one over gloo for what lies on the CPU.

    Args:
        host_group: Of the same members, over gloo.
        make: Connects the members over NCCL, and may never return if one of them died.
        control: Says when to stop.

    Raises:
        AbortedError: If the ring is formed anew.
        LinkError: If the members do not meet.
    """

    def __init__(self, host_group: Group, make: Callable[[], Communicator], control: Control) -> None:
        self._host, self._control = host_group, control
        self._is_closed = False
        made: list[Communicator | Exception] = []

        def connecting() -> None:
            try:
                made.append(make())
            except Exception as error:
                made.append(error)
            keep_for_ever(made[0])

        threading.Thread(target=connecting, daemon=True).start()
        poll(lambda: bool(made), control)
        if isinstance(made[0], Exception):
            raise LinkError(str(made[0])) from made[0]
        self._group = made[0]

    @property
    def rank(self) -> int:
        """Of this member."""
        return self._host.rank

    @property
    def size(self) -> int:
        """Members of the group."""
        return self._host.size

    @property
    def ends(self) -> list[str]:
        """HOST:PORT of this member's ends of the sockets of gloo; those of NCCL are unknown."""
        return self._host.ends

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all members, each of which has the same bits then."""
        if tensor.device.type == "cpu":
            self._host.sum(tensor)
            return
        options = dist.AllreduceOptions()
        options.timeout = NEVER
        pulse = self._control.pulse
        pulse.waiting = True
        try:
            work = self._group.allreduce([tensor], options)
            poll(work.is_completed, self._control)
            _look_at(work)
        except RuntimeError as error:
            self.close()
            raise LinkError(str(error)) from error
        except BaseException:
            self.close()
            raise
        pulse.waiting = False
        pulse.moved += 1

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Replace a tensor by that of the member with this rank; states are copied through host memory."""
        self._host.broadcast(tensor, root)

    def begin_broadcast(self, tensor: Tensor, root: int) -> Callable[[], None]:
        """Begin a broadcast, and return what waits for its end."""
        return self._host.begin_broadcast(tensor, root)

    def close(self) -> None:
        """Give up all that was begun, and the GPU's memory that the group has."""
        self._host.close()
        if self._is_closed:
            return
        self._is_closed = True
        aborting = threading.Thread(target=self._group.abort, daemon=True)
        aborting.start()
        aborting.join(ABORT_S)
        if aborting.is_alive():
            end_process(RESTART_STATUS, f"NCCL has not let go of an exchange within {ABORT_S:.0f} s")


def _look_at(work: dist.Work) -> None:
    """Let what comes next on the GPU wait for an exchange that is over.

    Raises:
        RuntimeError: If it failed: that is over as well. Some versions of PyTorch tell it to whoever waits, but abort
            the exchange first, which may hang, and some do not tell it. So the exchange itself is asked.
    """
    try:
        failure = work.exception()
    except (TypeError, AttributeError):  # from PyTorch before 2.13, which cannot hand over what it has
        work.wait(NEVER)  # with a time it is more likely to raise
        return
    if failure is not None:
        raise RuntimeError(str(failure))
    work.wait()
