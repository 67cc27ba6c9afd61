"""Bandwidth between neighbours of the ring.

Source: SPEC C3.
"""

import time
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ..check import Check, Finding, Need, Stage, failed, incomplete, passed, skipped
from ..context import Context
from ..groups import Members, join, wait_for

if TYPE_CHECKING:
    from torch import Tensor
    from torch.distributed import Work

LEAST = 0.8  # of what is expected
PARTS, SKIPPED = 10, 2  # the first fifth is not counted: buffers swallow it at once
LEAST_BYTES, USUAL_BYTES, MOST_BYTES = 1 << 20, 4 << 20, 64 << 20
PROBE_S = 0.04  # long enough for a figure within a percent


def bandwidth(context: Context) -> Iterator[Finding]:
    """Send to the next and receive from the one before; the receiver's clock counts."""
    group = context.group
    if group is None or len(group.members) < 2:
        yield skipped("there is one node alone")
        return
    before = group.members[group.members.index(context.node) - 1]
    link, expected = f"{before} to {context.node}", context.workload.link_bytes_per_s
    try:
        rate = _rate(context, group.members, expected)
    except RuntimeError as error:
        yield incomplete(" ".join(str(error).split())[:200], "look at cable and switch port", link)
        return
    got = f"{rate / 1e9:.4g} GB/s"
    if expected and rate < LEAST * expected:
        wanted = f"{LEAST:.0%} of {expected / 1e9:.4g} GB/s"
        yield failed(link, got, wanted, f"look at cable and switch port; {before} may be to blame")
    else:
        yield passed(link, got=got, figure=rate)


def _rate(context: Context, members: tuple[str, ...], expected: float) -> float:
    """Return the bytes a second that come from the node before.

    Raises:
        RuntimeError: If they do not come.
    """
    import torch

    ring, rank = join(context), members.index(context.node)
    size = int(min(MOST_BYTES, max(LEAST_BYTES, expected * PROBE_S))) if expected else USUAL_BYTES
    is_cuda = context.workload.backend == "nccl" and not context.place.slots
    home = context.where(context.chosen.gpus[0]) if is_cuda else "cpu"
    part = torch.ones(size // PARTS, dtype=torch.uint8, device=home)
    took_s = Exchange(context, ring, rank, len(members), part).took_s(takes_turns=is_cuda)
    return (PARTS - SKIPPED) * part.numel() / max(took_s, 1e-6)


class Exchange:
    """Parts that each member of a ring sends to the next.

    Args:
        context: Of the check: how long to wait.
        ring: The members.
        rank: Of this one.
        size: How many members there are.
        part: What is sent, several times.
    """

    def __init__(self, context: Context, ring: Members, rank: int, size: int, part: "Tensor") -> None:
        self._context, self._ring, self._part = context, ring, part
        self._after, self._before, self._receives_first = (rank + 1) % size, (rank - 1) % size, rank % 2 == 1

    def took_s(self, *, takes_turns: bool) -> float:
        """Send and receive, and return how long the parts took to come, without those that buffers swallow.

        Over NCCL a send ends only once the other side receives, and until then nothing else need run on a GPU. So
        members take turns there: if all sent first, all would wait for ever.

        Args:
            takes_turns: Whether every other member receives before it sends; else all do both at once.

        Raises:
            RuntimeError: If the others do not answer in time.
        """
        if not takes_turns:
            sent = self._send()
            took_s = self._receive_s()
            self._wait_for(sent)
        elif self._receives_first:
            took_s = self._receive_s()
            self._wait_for(self._send())
        else:
            self._wait_for(self._send())
            took_s = self._receive_s()
        return took_s

    def _send(self) -> "list[Work]":
        return [self._ring.send([self._part], self._after, tag) for tag in range(PARTS)]

    def _receive_s(self) -> float:
        came = [self._part.clone() for _ in range(PARTS)]
        awaited = [self._ring.recv([it], self._before, tag) for tag, it in enumerate(came)]
        self._wait_for(awaited[:SKIPPED])
        began_s = time.perf_counter()
        self._wait_for(awaited[SKIPPED:])
        return time.perf_counter() - began_s

    def _wait_for(self, works: "list[Work]") -> None:
        for work in works:
            wait_for(work, self._context)


BANDWIDTH = Check(
    "link.bw", 1, "bandwidth between neighbours of the ring", 2.0, bandwidth, (Need.SEVERAL,), Stage.GROUP
)
