"""Process groups for checks that take several nodes together."""

import os
from collections.abc import Sequence
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING, Protocol

from .context import Context, Group

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Work

# Of the check's limit: members that are well give up first, so that only who hangs is killed.
PATIENCE = 0.6
NO_ANSWER = "the others did not answer in time"


class Members(Protocol):
    """What of a process group the checks use. PyTorch's own types leave much of it out."""

    def allreduce(self, tensors: Sequence["Tensor"]) -> "Work":
        """Begin to sum up."""
        ...

    def send(self, tensors: Sequence["Tensor"], to: int, tag: int) -> "Work":
        """Begin to send."""
        ...

    def recv(self, tensors: Sequence["Tensor"], sender: int, tag: int) -> "Work":
        """Begin to receive."""
        ...


def join(context: Context) -> Members:
    """Return the group of a check, formed anew under a name that no earlier one had.

    Raises:
        RuntimeError: If not all members come in time.
        ValueError: If the check was given no group.
    """
    dist = import_module("torch.distributed")
    group = context.group
    if group is None:
        raise ValueError("the check runs in a group, and none was given")
    rank, size, wait = group.members.index(context.node), len(group.members), patience(context)
    store = dist.PrefixStore(group.name, _store_of(context, group, wait))
    made: Members
    if context.workload.backend == "nccl" and not context.place.slots:
        # PyTorch's own watch would end the process where others do not answer, and this node would be blamed.
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = wait
        made = dist.ProcessGroupNCCL(store, rank, size, options)
    else:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=group.address)]
        options._timeout = wait
        made = dist.ProcessGroupGloo(store, rank, size, options)
    # Kept until the process ends: to drop one with an operation under way would wait for the others.
    context.joined[group.name] = made
    return made


def patience(context: Context) -> timedelta:
    """Return how long a member waits for others."""
    return timedelta(seconds=PATIENCE * context.chosen.limit_s)


def wait_for(work: "Work", at_most: timedelta) -> None:
    """Wait for an operation over gloo, or one that is alone over NCCL.

    Raises:
        RuntimeError: If it does not end in time, or a member has gone.
    """
    if not work.wait(at_most):
        raise RuntimeError(NO_ANSWER)


def _store_of(context: Context, group: Group, wait: timedelta) -> object:
    """Return where the members find each other. One at an address serves all groups that meet there."""
    dist = import_module("torch.distributed")
    size = len(group.members)
    if not group.store.startswith("tcp://"):
        return dist.FileStore(f"{group.store}/{group.name}", size)
    if group.store not in context.stores:
        host, _, port = group.store.removeprefix("tcp://").rpartition(":")
        serves = group.members[0] == context.node
        context.stores[group.store] = dist.TCPStore(host, int(port), size, is_master=serves, timeout=wait)
    return context.stores[group.store]
