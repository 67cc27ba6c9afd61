"""Gradients of a stage summed over its replicas in pieces, each as soon as it is whole, while others compute.

Source: SPEC P6.
"""

from collections.abc import Collection, Sequence

import torch.distributed as dist
from torch import Tensor, nn

from ...gradients import Gathered, Piece, pieces_of
from .summing import Members

PIECE_BYTES = 4 << 20


class EarlySums:
    """Sums that begin in the last backward pass of an iteration.

    Args:
        parameters: The same ones on each member.
        tables: Identities of those with sparse gradients.
        members: Replicas of the stage.
        micro_batches: Backward passes of an iteration.
        late: Parameters that are summed with other stages first, and so begin in the end.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        tables: Collection[int],
        members: Members,
        micro_batches: int,
        late: Sequence[nn.Parameter],
    ) -> None:
        self._members, self._micro_batches = members, micro_batches
        lates = {id(it) for it in late}
        early = [it for it in reversed(parameters) if id(it) not in lates]
        self._pieces = [*pieces_of(early, tables, PIECE_BYTES), *(Piece([it], tables) for it in late)]
        # All members begin pieces in this order, whichever is whole first: sums of different pieces must not meet.
        self._left = list[int]()  # of each piece, gradients that are to come
        self._begun = list[tuple[Gathered, dist.Work]]()
        self._of = {id(it): at for at, piece in enumerate(self._pieces) for it in piece.parameters}
        self._lates = lates
        self._reset()
        for it in early:
            it.register_post_accumulate_grad_hook(self._came)  # type: ignore[no-untyped-call]

    def finish(self, loss: Tensor) -> Tensor:
        """Replace gradients by their means over the members; return the mean of the loss."""
        members = self._members
        for piece in self._pieces[len(self._begun) :]:
            self._begin(piece)
        members.sum(loss)
        for _, work in self._begun:
            work.wait()
        for piece, (own, _) in zip(self._pieces, self._begun, strict=True):
            piece.put(piece.averaged(own.flat, own, members, members.size).gradients)
        self._reset()
        return loss.div_(members.size)

    def _reset(self) -> None:
        # A late piece waits for a gradient more than will come.
        self._left = [
            len(piece.parameters) * self._micro_batches + any(id(it) in self._lates for it in piece.parameters)
            for piece in self._pieces
        ]
        self._begun = []

    def _came(self, parameter: Tensor) -> None:
        self._left[self._of[id(parameter)]] -= 1
        while len(self._begun) < len(self._pieces) and not self._left[len(self._begun)]:
            self._begin(self._pieces[len(self._begun)])

    def _begin(self, piece: Piece) -> None:
        own = piece.gathered()
        own.flat.div_(self._members.size)
        piece.put([None] * len(piece.parameters))
        work = dist.all_reduce(own.flat, group=self._members.group, async_op=True)
        assert work is not None
        self._begun.append((own, work))
