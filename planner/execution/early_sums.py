"""Gradients of a stage summed over its replicas in pieces, each as soon as it is whole, while others compute.

Source: SPEC P6.
"""

from collections.abc import Iterator, Sequence

import torch
import torch.distributed as dist
from torch import Tensor, nn

PIECE_BYTES = 4 << 20


class EarlySums:
    """Sums that begin in the last backward pass of an iteration.

    Args:
        parameters: The same ones on each member.
        group: The members.
        members: How many.
        micro_batches: Backward passes of an iteration.
        late: Parameters that are summed with other stages first, and so begin in the end.
    """

    def __init__(
        self,
        parameters: Sequence[nn.Parameter],
        group: dist.ProcessGroup,
        members: int,
        micro_batches: int,
        late: Sequence[nn.Parameter],
    ) -> None:
        self._group, self._members, self._micro_batches = group, members, micro_batches
        lates = {id(it) for it in late}
        early = [it for it in reversed(parameters) if id(it) not in lates]
        self._pieces = [*_pieces(early), *([it] for it in late)]
        # All members begin pieces in this order, whichever is whole first: sums of different pieces must not meet.
        self._left = list[int]()  # of each piece, gradients that are to come
        self._begun = list[tuple[Tensor, dist.Work]]()
        self._of = {id(it): at for at, piece in enumerate(self._pieces) for it in piece}
        self._lates = lates
        self._reset()
        for it in early:
            it.register_post_accumulate_grad_hook(self._came)  # type: ignore[no-untyped-call]

    def finish(self, loss: Tensor) -> Tensor:
        """Replace gradients by their means over the members; return the mean of the loss."""
        for piece in self._pieces[len(self._begun) :]:
            self._begin(piece, 1)
        dist.all_reduce(loss, group=self._group)
        for piece, (whole, work) in zip(self._pieces, self._begun, strict=True):
            work.wait()
            whole.div_(self._members)
            views = torch.split(whole, [it.numel() for it in piece])
            for it, view in zip(piece, views, strict=True):
                it.grad = view.view_as(it)
        self._reset()
        return loss.div_(self._members)

    def _reset(self) -> None:
        # A late piece waits for a gradient more than will come.
        self._left = [
            len(piece) * self._micro_batches + any(id(it) in self._lates for it in piece) for piece in self._pieces
        ]
        self._begun = []

    def _came(self, parameter: Tensor) -> None:
        self._left[self._of[id(parameter)]] -= 1
        while len(self._begun) < len(self._pieces) and not self._left[len(self._begun)]:
            self._begin(self._pieces[len(self._begun)], self._micro_batches)

    def _begin(self, piece: Sequence[nn.Parameter], micro_batches: int) -> None:
        """Begin the sum of a piece; in a schedule gradients are not yet divided by the micro-batches."""
        parts = [(torch.zeros_like(it) if it.grad is None else it.grad).reshape(-1) for it in piece]
        whole = torch.cat(parts)
        if micro_batches > 1:
            whole.div_(micro_batches)
        for it in piece:
            it.grad = None
        work = dist.all_reduce(whole, group=self._group, async_op=True)
        assert work is not None
        self._begun.append((whole, work))


def _pieces(parameters: Sequence[nn.Parameter]) -> Iterator[list[nn.Parameter]]:
    found, size = list[nn.Parameter](), 0
    for it in parameters:
        if found and (it.dtype != found[0].dtype or size + it.nbytes > PIECE_BYTES):
            yield found
            found, size = [], 0
        found.append(it)
        size += it.nbytes
    if found:
        yield found
