"""Records of a network's decisions: open actions and probabilities; and the cost of a run so far."""

from typing import NamedTuple, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from ...cluster.kernels.compiled import kernel
from ...cluster.model.outcome import Objective
from ...cluster.state.state import Simulation
from ...envs.features import time_unit_s
from ...envs.layout import CANDIDATE_FEATURES, CANDIDATE_GLOBALS
from ..protocol import Policy
from .schema import Schema

# A feature that is above 0 exactly where an item has GPUs to give, or the list has a candidate.
GIVES = {"node": "free", "gpu": "usable", "candidate": "exists"}


def listed_in(observations: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return where lists of candidates have one, given observations of them; shape (rows, candidates)."""
    return _of_candidates(observations, "exists")


def starts_due_in(observations: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which candidates start the job that is due at once, without a wait; shape (rows, candidates)."""
    return _of_candidates(observations, "due") & ~_of_candidates(observations, "waits")


def _of_candidates(observations: NDArray[np.float32], feature: str) -> NDArray[np.bool_]:
    first = len(CANDIDATE_GLOBALS) + CANDIDATE_FEATURES.index(feature)
    is_set: NDArray[np.bool_] = observations[:, first :: len(CANDIDATE_FEATURES)] > 0.0
    return is_set


def open_in(schema: Schema, observations: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return the actions that are open by observations alone, shape (rows, actions).

    Observations do not show what a reservation closes. The patent's do not show waiting, which counts as closed there.

    Args:
        schema: Of the observations.
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


@kernel
def unit_of_objective_s(sim: Simulation, row: int, jct: int) -> float:
    """Return the unit of an objective, of mean JCT if `jct` is 1 and else of the makespan."""
    jobs = sim.state.queued[row] + sim.state.running[row] if jct else 1
    return float(time_unit_s(sim, row) * max(jobs, 1))


@kernel
def spent_on_objective_s(sim: Simulation, row: int, jct: int) -> float:
    """Return the cost of a run so far by one of the two objectives."""
    return float(sim.state.job_time_s[row] if jct else sim.state.now_s[row])


def objective_unit_s(sim: Simulation, row: int, objective: Objective) -> float:
    """Return the unit of an objective in seconds: that of the features' times, for `jct` once for each job present."""
    return float(unit_of_objective_s(sim, row, int(objective == "jct")))


def spent_s(sim: Simulation, row: int, objective: Objective) -> float:
    """Return the cost of a run so far: the time, or for `jct` that of all jobs in the system together."""
    return float(spent_on_objective_s(sim, row, int(objective == "jct")))


class DecisionRecord(NamedTuple):
    """The choices of one decision in their order: a single one among candidates, or one for each node or GPU picked."""

    observations: NDArray[np.float32]  # (choices, size)
    masks: NDArray[np.bool_]  # (choices, actions) True where an action was open
    log_probabilities: NDArray[np.float32]  # (choices, actions) of the network's softmax; -inf where it was closed
    actions: NDArray[np.int32]  # (choices,) taken


@runtime_checkable
class Observing(Policy, Protocol):
    """A policy that records its decisions, as networks do."""

    def last_decision(self) -> DecisionRecord:
        """Return its record of the last `place`, as a copy."""
        ...


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return log-probabilities, shape (choices, actions); logits of -inf stay so."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probabilities: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log_probabilities


def joined(choices: list[DecisionRecord]) -> DecisionRecord:
    """Return several choices of one decision as one record.

    Raises:
        ValueError: If there is none.
    """
    if not choices:
        raise ValueError("the policy has not decided yet")
    return DecisionRecord(*(np.concatenate(parts) for parts in zip(*choices, strict=True)))
