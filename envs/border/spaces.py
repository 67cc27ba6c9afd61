"""The spaces of environments, which say how they were made: a model that is saved with them can be taken up again."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import NDArray

if TYPE_CHECKING:
    from ..batch import Batch

MARK = "longshore"  # attribute of the observation space; Stable-Baselines3 writes it into its files as plain JSON


def spaces_of(batch: "Batch") -> tuple[spaces.Space[NDArray[np.float32]], spaces.Discrete]:
    """Return what one environment of a batch shows and takes.

    The observation space has an attribute `longshore`: a dict of the action, the observation, whether waiting is one of
    the actions, and the GPUs of each node.
    """
    seen: spaces.Space[Any] = spaces.Box(batch.low, batch.high, dtype=np.float32)
    mark: dict[str, Any] = {
        "action": batch.view.action, "observation": batch.view.observation,
        "waiting": bool(batch.problem.rules.waiting),
        "node_gpus": [int(gpus) for gpus in np.diff(batch.problem.cluster.first_gpu)],
    }  # fmt: skip
    setattr(seen, MARK, mark)
    return seen, spaces.Discrete(batch.actions)


def mark_of(space: object) -> Mapping[str, Any] | None:
    """Return how the environment was made that a space belongs to, None if the space does not say so."""
    mark = getattr(space, MARK, None)
    return mark if isinstance(mark, Mapping) else None
