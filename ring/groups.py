"""The process group of one generation, whose exchanges end as soon as the ring is formed again.

`GlooGroup` works over gloo. A collective of gloo that has begun can neither be ended nor waited for without its
time-out. So it is polled together with the coordinator's messages, and an aborted one is never destroyed: its
destructor would wait for the dead member.

`NcclGroup` sums tensors on GPUs over NCCL, and all else over gloo. It ran on one GPU, with one member, only. An
all-reduce of NCCL with a member that died never ends by itself. So it is polled like those of gloo, and then aborted.
Some versions of NCCL hang in that: such a process ends itself, and another one takes its seat with the state of a
living member. Source: SPEC F8.
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
from typing import Any, Protocol, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import PrefixStore, ProcessGroupGloo, TCPStore

from ..cluster.files.errors import InputError
from .member_client import MemberClient, end_process
from .wire import RESTART_STATUS, RingLayout

CONNECT_S = 10.0  # for all members of a group to meet
REACH_S = 5.0  # for another member to accept a connection
NO_TIMEOUT = timedelta(days=30)  # a slow collective is no fault: the coordinator decides when to stop waiting
SUM_CHUNK_BYTES = 16 << 20
_POLL_PAUSES_S = (0.0, 0.0002, 0.001)
_POLLS_EACH = 200
_SOURCE_PLACE = re.compile(r"^\[[^\]]*:[0-9]+\] ?")  # of an error, in the source of gloo
_WATCHED = re.compile(r"^tfd: *(\d+) events: *([0-9a-f]+) data: *([0-9a-f]+)", re.MULTILINE)
_EPOLL_CTL_MOD = 3
_libc = ctypes.CDLL(None)
_ABANDONED = set[int]()  # epoll descriptors of abandoned groups, which gloo never closes
_ENDPOINT = re.compile(r"\[([0-9a-fA-F.:]+)\]:(\d+)")
Connected = TypeVar("Connected")


class LinkError(Exception):
    """An exchange with a member that may live failed.

    Args:
        evidence: The library's error.
        peer: HOST:PORT of the other end, "" if that is unknown.
    """

    def __init__(self, evidence: str) -> None:
        first = _SOURCE_PLACE.sub("", evidence).partition(". ")[0]  # gloo adds advice
        super().__init__(f"an exchange failed: {first}")
        found = _ENDPOINT.search(evidence)
        self.peer = f"{found[1]}:{found[2]}" if found else ""


class RingGroup(Protocol):
    """Members that exchange tensors."""

    rank: int  # of this member in the group
    size: int
    endpoints: list[str]  # HOST:PORT of this member's ends of the group's sockets

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all members, each of which has the same bits then."""

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Replace a tensor by that of the member with this rank."""

    def begin_broadcast(self, tensor: Tensor, root: int) -> Callable[[], None]:
        """Begin a broadcast, and return a function that waits for its end; several may be under way."""

    def close(self) -> None:
        """Release what can be released; nothing more is exchanged."""


def offer_store(host: str) -> tuple[TCPStore, str]:
    """Return a store at which members meet if the layout names it, and its HOST:PORT."""
    listener = socket.create_server((host, 0))  # the store's own would listen on all addresses
    port = listener.getsockname()[1]
    store = TCPStore(
        host, port, is_master=True, wait_for_workers=False, master_listen_fd=listener.detach(), use_libuv=True
    )
    return store, f"{host}:{port}"


def own_address_towards(address: str) -> str:
    """Return the address of this machine towards another one, HOST:PORT: there that one reaches it."""
    host, _, port = address.rpartition(":")
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        probe.connect((host, int(port)))
        return str(probe.getsockname()[0])


class GlooGroup:
    """A group over gloo.

    Args:
        layout: Its members.
        name: Unique among the groups of the generation.
        rank: Of this member.
        host: Address by which others reach it.
        client: Stops exchanges once the ring is formed again.

    Raises:
        AbortedError: If the ring is formed again.
        LinkError: If the members do not meet.
    """

    def __init__(self, layout: RingLayout, name: str, rank: int, host: str, client: MemberClient) -> None:
        self._client = client
        self.rank, self.size = rank, len(layout.assignments)
        before = _own_endpoints()
        self._epolls = set[int]()
        self._group: Any = None if self.size == 1 else self._connect_members(layout, name, rank, host)
        self.endpoints = sorted(_own_endpoints() - before)[:512]

    def _connect_members(self, layout: RingLayout, name: str, rank: int, host: str) -> ProcessGroupGloo:
        def make() -> ProcessGroupGloo:
            _check_all_reachable(layout, rank)
            device, self._epolls = _create_device(host)
            return _create_gloo_group(layout, name, rank, device)

        try:
            return _make_in_thread(make, self._client)
        except BaseException:
            _ABANDONED.update(self._epolls)
            raise

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all members; in pieces, which show progress."""
        if self._group is None:
            return
        for piece in torch.split(tensor, SUM_CHUNK_BYTES // tensor.element_size()):
            options = dist.AllreduceOptions()
            options.timeout = NO_TIMEOUT
            host = piece.cpu()  # itself, if it is on the CPU
            self._wait_for_work(self._group.allreduce([host], options))
            if host is not piece:
                piece.copy_(host)

    def broadcast(self, tensor: Tensor, root: int) -> None:
        """Replace a tensor by that of the member with this rank."""
        self.begin_broadcast(tensor, root)()

    def begin_broadcast(self, tensor: Tensor, root: int) -> Callable[[], None]:
        """Begin a broadcast, and return a function that waits for its end."""
        if self._group is None:
            return lambda: None
        options = dist.BroadcastOptions()
        options.rootRank, options.rootTensor, options.timeout = root, 0, NO_TIMEOUT
        return partial(self._wait_for_work, self._group.broadcast([tensor], options))

    def close(self) -> None:
        """Let gloo poll this group's sockets once for each event; it can release nothing.

        It reads no data that no exchange waits for, and its thread would poll such data again and again, with a whole
        core. The sockets stay open: another member that has not been aborted yet would take their end for a fault.
        """
        _ABANDONED.update(self._epolls)
        for epoll in _ABANDONED:  # of former groups, too: where gloo still wrote, it has undone this since
            use_edge_triggers(epoll)

    def _wait_for_work(self, work: dist.Work) -> None:
        pulse = self._client.pulse
        pulse.waiting = True
        try:
            poll_until(work.is_completed, self._client)
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


def _make_in_thread(make: Callable[[], Connected], client: MemberClient) -> Connected:
    """Return what a function makes that connects all members. It may never return if one of them dies meanwhile.

    Raises:
        AbortedError: If the ring is formed again.
        LinkError: If the members do not meet.
    """
    made: list[Connected | Exception] = []

    def run() -> None:
        try:
            made.append(make())
        except Exception as error:
            made.append(error)
        keep_for_ever(made[0])

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    poll_until(lambda: bool(made), client)
    thread.join()
    if isinstance(made[0], Exception):
        raise LinkError(str(made[0])) from made[0]
    return made[0]


def _create_device(host: str) -> tuple[Any, set[int]]:
    """Return a device of gloo, and the epoll descriptors of its thread."""
    before = _epoll_descriptors()
    device = ProcessGroupGloo.create_device(hostname=host)
    return device, _epoll_descriptors() - before


def _create_gloo_group(layout: RingLayout, name: str, rank: int, device: Any) -> ProcessGroupGloo:
    store_host, _, port = layout.store.rpartition(":")
    limit = timedelta(seconds=CONNECT_S)
    store = TCPStore(store_host, int(port), is_master=False, wait_for_workers=False, timeout=limit)
    options = ProcessGroupGloo._Options()  # type: ignore[attr-defined]
    options._timeout = limit
    options._devices = [device]
    # The prefix is of this generation alone: with that of another one, members would find addresses of the dead.
    return ProcessGroupGloo(PrefixStore(f"g{layout.generation}-{name}", store), rank, len(layout.assignments), options)


def _check_all_reachable(layout: RingLayout, rank: int) -> None:
    """Check that each other member can be reached.

    A group of gloo that cannot be formed takes a minute, does not report why, and may crash its process.

    Raises:
        LinkError: Names one that cannot be reached.
    """
    others = (other for at, other in enumerate(layout.assignments) if at != rank and other.store)
    for other in others:
        host, _, port = other.store.rpartition(":")
        try:
            socket.create_connection((host, int(port)), REACH_S).close()
        except OSError as error:
            raise LinkError(f"member {other.member} at [{host}]:{port} cannot be reached: {error}") from error


def poll_until(is_over: Callable[[], bool], client: MemberClient) -> None:
    """Wait until a condition holds.

    Raises:
        AbortedError: If the ring is formed again meanwhile.
    """
    polls = 0
    while not is_over():
        client.wait_for_lease()
        time.sleep(_POLL_PAUSES_S[min(polls // _POLLS_EACH, len(_POLL_PAUSES_S) - 1)])
        polls += 1


def keep_for_ever(kept: object) -> None:
    """Never destroy an object, not even when the process ends."""
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(kept))


def _epoll_descriptors() -> set[int]:
    numbers = map(int, os.listdir("/proc/self/fd"))  # noqa: PTH208
    return {number for number in numbers if _descriptor_target(number) == "anon_inode:[eventpoll]"}


class _Event(ctypes.Structure):
    """The kernel's `epoll_event`."""

    _pack_ = 1 if platform.machine() == "x86_64" else 8
    _fields_ = (("events", ctypes.c_uint32), ("kept", ctypes.c_uint64))


def _descriptor_target(descriptor: int) -> str:
    """Return the target of a descriptor, "" if it was closed."""
    with suppress(OSError):
        return os.readlink(f"/proc/self/fd/{descriptor}")  # noqa: PTH115
    return ""


def use_edge_triggers(epoll: int) -> None:
    """Report each event at the sockets of an epoll descriptor once (`EPOLLET`).

    Not by `epoll.modify`: it drops the data that gloo's thread keeps with each socket. To remove the sockets would end
    the process once gloo does so itself.

    Args:
        epoll: The descriptor.
    """
    try:
        description = Path(f"/proc/self/fdinfo/{epoll}").read_text()
    except OSError:  # not every system has that: the thread continues as it did
        return
    for number, events, kept in _WATCHED.findall(description):
        if _descriptor_target(int(number)).startswith("socket:"):
            event = _Event(int(events, 16) | select.EPOLLET, int(kept, 16))
            _libc.epoll_ctl(epoll, _EPOLL_CTL_MOD, int(number), ctypes.byref(event))  # fails if gloo has closed it


def _own_endpoints() -> set[str]:
    """Return this process's own ends of its TCP connections, HOST:PORT, as errors may name them."""
    found: set[str] = set()
    for number in map(int, os.listdir("/proc/self/fd")):  # noqa: PTH208
        with suppress(OSError):
            if not _descriptor_target(number).startswith("socket:"):
                continue
            with socket.socket(fileno=os.dup(number)) as end:
                if end.family in (socket.AF_INET, socket.AF_INET6):
                    host, port = end.getsockname()[:2]
                    # Gloo's errors name a port with its bytes swapped.
                    found.update((f"{host}:{port}", f"{host}:{socket.htons(port)}"))
    return found


ABORT_S = 5.0  # an abort that works takes milliseconds


class Communicator(Protocol):
    """The part of PyTorch's NCCL group that is used."""

    def allreduce(self, tensors: list[Tensor], options: dist.AllreduceOptions) -> dist.Work:
        """Begin a sum."""

    def abort(self) -> None:
        """End all exchanges."""


def check_nccl(device: torch.device) -> None:
    """Check that gradients of a device can go over NCCL.

    Raises:
        InputError: If not.
    """
    if not dist.is_nccl_available():
        raise InputError("this PyTorch has no NCCL", 'omit `collectives="nccl"`, or install PyTorch for CUDA')
    if device.type != "cuda":
        raise InputError(f"NCCL needs a model on a GPU, and this one is on {device}", 'omit `collectives="nccl"`')


def connect_nccl(layout: RingLayout, rank: int, device: torch.device) -> Communicator:
    """Return PyTorch's NCCL group of the members of a generation, once all have connected."""
    # PyTorch's own watchdog would end the process where an exchange fails.
    os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
    host, _, port = layout.store.rpartition(":")
    limit = timedelta(seconds=CONNECT_S)
    store = TCPStore(host, int(port), is_master=False, wait_for_workers=False, timeout=limit)
    options = c10d.ProcessGroupNCCL.Options()
    options._timeout = NO_TIMEOUT
    with torch.cuda.device(device):
        made: Any = c10d.ProcessGroupNCCL(
            PrefixStore(f"g{layout.generation}-nccl", store), rank, len(layout.assignments), options
        )
        # The first exchange returns once all have connected.
        made.allreduce([torch.zeros(1, device=device)], dist.AllreduceOptions())
    found: Communicator = made
    return found


class NcclGroup:
    """A group over NCCL, with one over gloo for tensors on the CPU, and for broadcasts.

    Args:
        host_group: Of the same members, over gloo.
        make: Connects the members over NCCL, and may never return if one of them died.
        client: Stops exchanges once the ring is formed again.

    Raises:
        AbortedError: If the ring is formed again.
        LinkError: If the members do not meet.
    """

    def __init__(self, host_group: RingGroup, make: Callable[[], Communicator], client: MemberClient) -> None:
        self._host, self._client = host_group, client
        self.rank, self.size = host_group.rank, host_group.size
        self.endpoints = host_group.endpoints  # of gloo's sockets; those of NCCL are unknown
        self.broadcast, self.begin_broadcast = host_group.broadcast, host_group.begin_broadcast  # through host memory
        self._is_closed = False
        self._group = _make_in_thread(make, client)

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all members, each of which has the same bits then."""
        if tensor.device.type == "cpu":
            self._host.sum(tensor)
            return
        options = dist.AllreduceOptions()
        options.timeout = NO_TIMEOUT
        pulse = self._client.pulse
        pulse.waiting = True
        try:
            work = self._group.allreduce([tensor], options)
            poll_until(work.is_completed, self._client)
            _check_exchange(work)
        except RuntimeError as error:
            self.close()
            raise LinkError(str(error)) from error
        except BaseException:
            self.close()
            raise
        pulse.waiting = False
        pulse.moved += 1

    def close(self) -> None:
        """Abort all exchanges, and free the GPU's memory that the group has."""
        self._host.close()
        if self._is_closed:
            return
        self._is_closed = True
        aborting = threading.Thread(target=self._group.abort, daemon=True)
        aborting.start()
        aborting.join(ABORT_S)
        if aborting.is_alive():
            end_process(RESTART_STATUS, f"NCCL has not aborted an exchange within {ABORT_S:.0f} s")


def _check_exchange(work: dist.Work) -> None:
    """Let later work on the GPU wait for an exchange that is over.

    Raises:
        RuntimeError: If it failed: then it is over as well. Some versions of PyTorch raise that from `wait`, but abort
            the exchange first, which may hang, and some do not raise it. So the exchange itself is checked.
    """
    try:
        failure = work.exception()
    except (TypeError, AttributeError):  # before PyTorch 2.13, which cannot return the error
        work.wait(NO_TIMEOUT)  # with a time it is more likely to raise
        return
    if failure is not None:
        raise RuntimeError(str(failure))
    work.wait()
