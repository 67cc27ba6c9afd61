"""What a network did live, as the group learner takes it: with the probabilities that it acted by and what followed."""

from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.state.state import CANDIDATES
from ...envs.candidate_features import CANDIDATE_FEATURE_COUNT, CANDIDATE_GLOBAL_COUNT
from ..asked import TRAINED_PART
from .problems import read_history, to_go_of

SIZE = CANDIDATE_GLOBAL_COUNT + CANDIDATES * CANDIDATE_FEATURE_COUNT


class Logged(NamedTuple):
    """Decisions among candidates."""

    observations: NDArray[np.float32]  # (decisions, SIZE)
    candidates: NDArray[np.int32]  # (decisions,) of the list
    chosen: NDArray[np.int64]  # (decisions,)
    log_probability: NDArray[np.float32]  # (decisions,) by which it was drawn; nan where it was not
    to_go: NDArray[np.float32]  # (decisions,) what was still to come, as the value tells it


def logged_decisions(path: Path) -> Logged:
    """Return the decisions among candidates in the part of a past that is trained on.

    Those of which it is not known what followed are left out.

    Raises:
        InputError: If the file cannot be used.
    """
    history = read_history(path)
    last = max(round(TRAINED_PART[1] * history.workload.jobs) - 1, 0)
    end_s = history.begin_s + float(history.workload.submit_s[last])
    able = [it for it in history.past.seen if it.now_s < end_s and it.observation.size == SIZE]
    to_go = np.array([to_go_of(history.stays, it) for it in able], dtype=np.float32)
    known = np.flatnonzero(np.isfinite(to_go))
    kept = [able[at] for at in known]
    observations = np.array([it.observation for it in kept], dtype=np.float32).reshape(-1, SIZE)
    # The first feature is 1 where the list has a candidate.
    listed = observations[:, CANDIDATE_GLOBAL_COUNT::CANDIDATE_FEATURE_COUNT] > 0.0
    return Logged(
        observations, listed.sum(axis=1).astype(np.int32), np.array([it.action for it in kept], dtype=np.int64),
        np.array([it.log_probability for it in kept], dtype=np.float32), to_go[known],
    )  # fmt: skip
