"""What observations themselves say of the actions that are open."""

import numpy as np
from numpy.typing import NDArray

from ...envs.candidate_layout import CANDIDATE_FEATURES, CANDIDATE_GLOBALS
from .schema import Schema

# A feature that is above 0 exactly where an item has GPUs to give, or the list has a candidate.
GIVES = {"node": "free", "gpu": "usable", "candidate": "exists"}


def listed_in(observations: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return where lists of candidates have one, given observations of them; shape (rows, candidates)."""
    return _of_candidates(observations, "exists")


def starts_due_in(observations: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which candidates start the job that is due at once, so that nobody waits; shape (rows, candidates)."""
    return _of_candidates(observations, "due") & ~_of_candidates(observations, "waits")


def _of_candidates(observations: NDArray[np.float32], feature: str) -> NDArray[np.bool_]:
    first = len(CANDIDATE_GLOBALS) + CANDIDATE_FEATURES.index(feature)
    said: NDArray[np.bool_] = observations[:, first :: len(CANDIDATE_FEATURES)] > 0.0
    return said


def open_in(schema: Schema, observations: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return the actions that are open as far as observations say, shape (rows, actions).

    They do not say what a reservation closes. The patent's say nothing of waiting, which counts as closed there.

    Args:
        schema: What the observations are.
        observations: Shape (rows, size).
    """
    items = observations[:, len(schema.globals) :].reshape(observations.shape[0], -1, len(schema.features))
    if schema.observation == "full":
        is_open = items[:, :, schema.features.index(GIVES[schema.action])] > 0.0
    else:
        is_open = items[:, :, 0] == 0.0  # 1 where a GPU is busy, faulty or picked
    if schema.action == "candidate" or not schema.waiting:
        return is_open
    return np.concatenate((is_open, _may_wait(schema, observations)[:, None]), axis=1)


def _may_wait(schema: Schema, observations: NDArray[np.float32]) -> NDArray[np.bool_]:
    if schema.observation != "full":
        return np.zeros(observations.shape[0], dtype=np.bool_)
    may_wait, picked = (observations[:, schema.globals.index(name)] for name in ("may_wait", "picked_nodes"))
    allowed: NDArray[np.bool_] = (may_wait > 0.0) & (picked == 0.0)
    return allowed
