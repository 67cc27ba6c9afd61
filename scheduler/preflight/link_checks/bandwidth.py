"""Bandwidth between neighbours of the ring.

Source: SPEC C3.
"""

from collections.abc import Iterator

from ..check import Check, Finding, Need, Stage, failed, incomplete, passed, skipped
from ..context import Context
from ..groups import join, patience
from .exchange import PARTS, SKIPPED, Exchange

LEAST = 0.8  # of what is expected
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
    is_cuda = context.workload.backend == "nccl" and not context.place.slots
    size = int(min(MOST_BYTES, max(LEAST_BYTES, expected * PROBE_S))) if expected else USUAL_BYTES
    if is_cuda:
        size = MOST_BYTES  # small parts take as long as to ask for them
    home = context.where(context.chosen.gpus[0]) if is_cuda else "cpu"
    part = torch.ones(size // PARTS, dtype=torch.uint8, device=home)
    took_s = Exchange(ring, rank, len(members), part, patience(context)).took_s()
    return (PARTS - SKIPPED) * part.numel() / max(took_s, 1e-6)


BANDWIDTH = Check(
    "link.bw", 1, "bandwidth between neighbours of the ring", 2.0, bandwidth, (Need.SEVERAL,), Stage.GROUP
)
