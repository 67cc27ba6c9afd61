"""Process groups of checks that run on several nodes together."""

import os
from datetime import timedelta
from importlib import import_module
from typing import TYPE_CHECKING

from .context import CheckGroup, Context

if TYPE_CHECKING:
    from torch.distributed import ProcessGroup, Work

# Of the check's limit: good members give up first, so that only the member that hangs is killed.
PATIENCE_SHARE = 0.6
NO_ANSWER = "the others did not answer in time"


def join_check_group(context: Context) -> "ProcessGroup":
    """Form the group of a check, under a name that was never used before.

    Raises:
        RuntimeError: If not all members join in time.
        ValueError: If the request names no group.
    """
    dist = import_module("torch.distributed")
    group = context.group
    if group is None:
        raise ValueError("the check runs in a group, and the request names none")
    rank, size, wait = group.members.index(context.node), len(group.members), member_timeout(context)
    store = dist.PrefixStore(group.name, _open_store(context, group, wait))
    made: ProcessGroup  # as a back end, which has its operations and few of its types
    if context.workload.backend == "nccl" and not context.setup.slots:
        # PyTorch's own watchdog would end the process where others do not answer, and this node would be the suspect.
        os.environ["TORCH_NCCL_ASYNC_ERROR_HANDLING"] = "0"
        options = dist.ProcessGroupNCCL.Options()
        options._timeout = wait
        made = dist.ProcessGroupNCCL(store, rank, size, options)
    else:
        options = dist.ProcessGroupGloo._Options()
        options._devices = [dist.ProcessGroupGloo.create_device(hostname=group.address)]
        options._timeout = wait
        made = dist.ProcessGroupGloo(store, rank, size, options)
    # Kept until the process ends: dropping a group with an operation under way would wait for the others.
    context.joined[group.name] = made
    return made


def follows_on_node(context: Context) -> bool:
    """Return whether the previous member of a group is on the node of this one.

    Raises:
        RuntimeError: If it does not answer in time.
    """
    group = context.group
    if group is None or not group.node:
        return False
    dist = import_module("torch.distributed")
    rank = group.members.index(context.node)
    nodes = dist.PrefixStore(f"{group.name}-nodes", _open_store(context, group, member_timeout(context)))
    nodes.set(str(rank), group.node)
    return bool(nodes.get(str((rank - 1) % len(group.members))) == group.node.encode())


def member_timeout(context: Context) -> timedelta:
    """Return how long a member waits for the others."""
    return timedelta(seconds=PATIENCE_SHARE * context.chosen.limit_s)


def wait_for_work(work: "Work", timeout: timedelta) -> None:
    """Wait for an operation over gloo, or for a single one over NCCL.

    Raises:
        RuntimeError: If it does not end in time, or a member has exited.
    """
    if not work.wait(timeout):
        raise RuntimeError(NO_ANSWER)


def _open_store(context: Context, group: CheckGroup, wait: timedelta) -> object:
    """Return the store in which the members find each other. One at an address serves all groups there."""
    dist = import_module("torch.distributed")
    size = len(group.members)
    if not group.store.startswith("tcp://"):
        return dist.FileStore(f"{group.store}/{group.name}", size)
    if group.store not in context.stores:
        host, _, port = group.store.removeprefix("tcp://").rpartition(":")
        serves = group.members[0] == context.node
        context.stores[group.store] = dist.TCPStore(host, int(port), size, is_master=serves, timeout=wait)
    return context.stores[group.store]
