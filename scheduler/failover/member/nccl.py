"""A group that sums what lies on GPUs over NCCL, and all else over gloo. It ran on one GPU, with one member, alone.

An all-reduce of NCCL with a member that died never ends by itself. So it is polled beside the word of the coordinator,
as those of gloo are, and then aborted. Some versions of NCCL hang in that: such a process ends itself, and another one
takes its seat with the state of a living member. Source: SPEC F8.
"""

import os
import threading
from collections.abc import Callable
from datetime import timedelta
from typing import Any, Protocol

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C import _distributed_c10d as c10d
from torch._C._distributed_c10d import PrefixStore, TCPStore

from ....cluster.files.errors import InputError
from ..wire import RESTART_STATUS, Form
from .control import Control, end_process
from .groups import CONNECT_S, NEVER, Group, LinkError, keep_for_ever, poll

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
