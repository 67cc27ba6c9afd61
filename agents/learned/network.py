"""The contract of a network, the actions that an observation leaves open, and records of its decisions."""

from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, Protocol, Self, runtime_checkable

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from ...cluster.files.errors import PluginError
from ...cluster.files.plugins import load, registered
from ...cluster.kernels.compiled import kernel
from ...cluster.model.outcome import Objective
from ...cluster.state.state import Simulation
from ...envs.features import time_unit_s
from ...envs.layout import CANDIDATE_FEATURES, CANDIDATE_GLOBALS
from ..protocol import Policy
from .schema import Schema

if TYPE_CHECKING:
    from .schema import Schema
    from .step_policy import LearnedPolicy

Arrays = dict[str, NDArray[Any]]  # weights by name
LARGEST = 1e30  # a logit or a value that is gone by: weights that are finite can still overflow


class Layout(NamedTuple):
    """How a network reads an observation and what it answers."""

    globals: int  # features of the decision as a whole, first in the observation
    items: int  # GPUs, nodes or candidates, which follow one by one
    features: int  # features of each
    actions: int  # GPUs, nodes or candidates that can be chosen
    waiting: bool  # one more action at the end


class Network(nn.Module):
    """Actor and critic in one PyTorch module. Register a class of them under the group `longshore.networks`.

    A layout says all that a network needs to be made. So the weights of a checkpoint, and their shapes, are known
    before anything of it is read. Weights are floating numbers, and a pass changes nothing in the network: passes run
    on several threads.

    Args:
        layout: How it reads an observation.
        width: As in `sized_by`; only classes that have it are made with one.

    Attributes:
        actions: What it can choose, some of `node`, `gpu` and `candidate` (docs/environments.md).
        any_size: Whether the same weights serve clusters of any size.
        sized_by: A weight whose last extent is the width that a network was made with. Checkpoints of one class may
            then have different widths; if it is empty, the layout alone says what the weights are.
    """

    actions: ClassVar[tuple[str, ...]] = ("node", "gpu")
    any_size: ClassVar[bool] = True
    sized_by: ClassVar[str] = ""

    def __init__(self, layout: Layout, width: int = 0) -> None:
        super().__init__()
        self.layout, self.width = layout, width

    @classmethod
    def made_for(cls, schema: "Schema", layout: Layout, *width: int) -> Self:
        """Return an untrained network for a schema; only a network that reads more of it than the layout has its own.

        Args:
            schema: What the network is made for.
            layout: As the schema says it.
            width: As in `sized_by`, for classes that have it.
        """
        del schema
        return cls(layout, *width)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of shape (batch, actions), waiting last if the layout has it, and values of shape (batch,).

        Args:
            observation: Shape (batch, size); a network for any size takes other numbers of items than its layout's.
        """
        raise NotImplementedError

    @classmethod
    def with_later_features(cls, arrays: Arrays, was: Layout, now: Layout) -> Arrays | None:
        """Return the weights of a checkpoint for observations that have further features, None if there is no way.

        Features are only ever added behind the others. A network whose outputs stay as they were returns its weights
        with zeros for those that were added.

        Args:
            arrays: Weights by name.
            was: Layout that they are for.
            now: Layout with further features, global ones or those of each item.
        """
        del arrays, was, now
        return None

    def values(self, observation: Tensor) -> Tensor:
        """Return values of shape (batch,); worth writing where they take less than a whole pass."""
        values: Tensor = self(observation)[1]
        return values

    def compiled(self, name: str, schema: "Schema") -> "LearnedPolicy | None":
        """Return a policy that decides by a compiled pass of this network, None if it has none and PyTorch decides.

        Args:
            name: Of the policy.
            schema: What the network was made for.
        """
        del name, schema
        return None


def find_network(name: str) -> type[Network]:
    """Return a network by its registered name.

    Raises:
        PluginError: If nothing of that name is registered, or what is registered is no network.
    """
    found = load("networks", name)
    if not (isinstance(found, type) and issubclass(found, Network)):
        value = registered("networks")[name].value
        raise PluginError(f"network {name!r} ({value}) is no subclass of longshore.agents.learned.network.Network")
    return found


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


@kernel
def unit_of_objective_s(sim: Simulation, row: int, jct: int) -> float:
    """Return the unit of an objective, of mean JCT if `jct` is 1 and else of the makespan."""
    jobs = sim.state.queued[row] + sim.state.running[row] if jct else 1
    return float(time_unit_s(sim, row) * max(jobs, 1))


@kernel
def spent_on_objective_s(sim: Simulation, row: int, jct: int) -> float:
    """Return what a run has cost so far by one of the two objectives."""
    return float(sim.state.job_time_s[row] if jct else sim.state.now_s[row])


def objective_unit_s(sim: Simulation, row: int, objective: Objective) -> float:
    """Return the unit of an objective in seconds: that of the features' times, for `jct` once for each job present."""
    return float(unit_of_objective_s(sim, row, int(objective == "jct")))


def spent_s(sim: Simulation, row: int, objective: Objective) -> float:
    """Return what a run has cost so far: the time, or for `jct` that of all jobs in the system together."""
    return float(spent_on_objective_s(sim, row, int(objective == "jct")))


class DecisionRecord(NamedTuple):
    """The choices of one decision in their order: a single one among candidates, or one for each node or GPU picked."""

    observations: NDArray[np.float32]  # (choices, size)
    masks: NDArray[np.bool_]  # (choices, actions) True where an action was open
    log_probabilities: NDArray[np.float32]  # (choices, actions) of the network's softmax; -inf where it was closed
    actions: NDArray[np.int32]  # (choices,) that were taken


@runtime_checkable
class Observing(Policy, Protocol):
    """A policy that tells what it saw. Heuristics need not."""

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
