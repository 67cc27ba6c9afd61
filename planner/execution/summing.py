"""The processes over which gradients of a plan are summed."""

from collections.abc import Sequence

import torch.distributed as dist
from torch import Tensor

from ...gradients import Piece, average_now


class Members:
    """Members of a process group.

    Args:
        group: Of this process and others.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self.group = group
        self.rank, self.size = dist.get_rank(group), dist.get_world_size(group)

    def sum(self, tensor: Tensor) -> None:
        """Replace a tensor by its sum over all members."""
        dist.all_reduce(tensor, group=self.group)


def average(pieces: Sequence[Piece], loss: Tensor, members: Members) -> Tensor:
    """Replace gradients by their means over members; return the mean of the loss as well.

    Args:
        pieces: Of the parameters, the same on each member.
        loss: Of the member, a number; it travels with the gradients.
        members: All of them.
    """
    if pieces:
        return average_now(pieces, members, members.size, [loss.reshape(1)])[0]
    whole = loss.clone()
    members.sum(whole)
    return whole.div_(members.size)
