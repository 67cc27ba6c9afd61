"""What the group learner learns from decisions that were made live: by importance weights, and by what followed.

A decision that was drawn is praised for how much less was still to come than the value foresaw. Its weight is how much
more probable the network now holds it than who drew it, cut to 1. Any other decision teaches the value alone.

Source: truncated importance weights of IMPALA (Espeholt et al., 2018), and for the guard P3O (Wang et al., 2019);
docs/decisions/0013-learning-from-the-past.md.
"""

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...agents.networks.candidates import CandidateNetwork
from ..history.logged import Logged

LEAST_SAMPLE_SIZE = 0.3  # effective, of 1: whoever drew is too far away below, as in actor_critic/replay.py
CLOSED = -1e9  # logit of a candidate that the list does not have, as in group.py


class Lesson(NamedTuple):
    """Decisions in the fields of the learner's own."""

    observations: Tensor
    candidates: Tensor
    chosen: Tensor
    log_probability: Tensor  # by the network that learns, so that its step is bounded from where it is
    gain: Tensor  # 0 where it was not drawn
    to_go: Tensor


@torch.no_grad()
def lesson_of(logged: Logged, network: CandidateNetwork, rng: np.random.Generator, most: int) -> tuple[Lesson, float]:
    """Return some decisions drawn at random, and the effective sample size of their weights from 0 to 1.

    Args:
        logged: All of them, one at least.
        network: That learns.
        rng: Draws them.
        most: How many at most.
    """
    rows = rng.permutation(logged.chosen.size)[:most]
    observations, candidates, chosen, drawn_by, to_go = (torch.from_numpy(field[rows]) for field in logged)
    logits, values = network(observations)
    closed = torch.arange(logits.shape[1]) >= candidates[:, None]
    now = logits.masked_fill(closed, CLOSED).log_softmax(dim=1).gather(1, chosen[:, None]).squeeze(1)
    drawn = torch.isfinite(drawn_by)
    ratio = torch.where(drawn, (now - drawn_by).exp(), 0.0)
    size = effective_sample_size(ratio[drawn])
    better = torch.where(drawn, values - to_go, 0.0)
    spread = better[drawn].square().mean().sqrt() if bool(drawn.any()) else torch.zeros(())
    is_near = size >= LEAST_SAMPLE_SIZE and float(spread) > 0.0
    gain = ratio.clamp(max=1.0) * better / spread if is_near else torch.zeros_like(to_go)
    return Lesson(observations, candidates, chosen, now, gain, to_go), size


def effective_sample_size(ratio: Tensor) -> float:
    """Return (sum c)^2 / (n sum c^2) of some ratios, 0 of none."""
    squares = float(ratio.square().sum())
    return float(ratio.sum()) ** 2 / (ratio.numel() * squares) if squares > 0.0 else 0.0
