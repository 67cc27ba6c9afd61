"""The contract of a network, networks by name, and the policy that decides by one."""

from copy import copy
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor, nn

from ...cluster.files.errors import CheckpointError, PluginError
from ...cluster.files.plugins import load, registered
from ...cluster.kernels.structures import uniform
from ...cluster.state.border import checked_scenario_indices
from ...cluster.state.state import Simulation
from ...envs.batch import ACTIONS, OBSERVATIONS, begin_rows, continue_rows, pick_by_action, write_observation
from ...envs.features import NODE_COUNT
from ...envs.layout import CANDIDATE_FEATURES, CANDIDATE_GLOBALS, action_count, observation_size
from ..protocol import DecisionRecord
from .schema import Schema

MAX_OUTPUT = 1e30  # bound of logits and values: finite weights can still overflow
# Logits that differ by less are equal: rounding differs with the size of a batch, and between PyTorch and our kernels.
LOGIT_TIE = 1e-4


class ObservationLayout(NamedTuple):
    """Shape of a network's input and output."""

    globals: int  # features of the decision as a whole, first in the observation
    items: int  # GPUs, nodes or candidates, which follow one by one
    features: int  # features of each
    actions: int  # GPUs, nodes or candidates that can be chosen
    waiting: bool  # one more action at the end


class Network(nn.Module):
    """Actor and critic in one PyTorch module. Register a class of them under the group `longshore.networks`.

    The layout alone determines the network. So the shapes of a checkpoint's weights are known before any is read.
    Weights are floating numbers. A pass changes nothing in the network, as passes run on several threads.

    Args:
        layout: How it reads an observation.
        width: As in `sized_by`; only classes that have it are made with one.

    Attributes:
        actions: Kinds of actions that it can choose, some of `node`, `gpu` and `candidate` (docs/environments.md).
        any_size: Whether the same weights serve clusters of any size.
        sized_by: A weight whose last extent is the width that a network was made with. Checkpoints of one class may
            then have different widths; if it is empty, the layout alone determines the weights.
    """

    actions: ClassVar[tuple[str, ...]] = ("node", "gpu")
    any_size: ClassVar[bool] = True
    sized_by: ClassVar[str] = ""

    def __init__(self, layout: ObservationLayout, width: int = 0) -> None:
        super().__init__()
        self.layout, self.width = layout, width

    @classmethod
    def made_for(cls, schema: Schema, layout: ObservationLayout, *width: int) -> Self:
        """Return an untrained network for a schema; only a network that reads more of it than the layout has its own.

        Args:
            schema: Of the checkpoint.
            layout: Of the schema.
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

    def values(self, observation: Tensor) -> Tensor:
        """Return values of shape (batch,); worth writing where they take less than a whole pass."""
        values: Tensor = self(observation)[1]
        return values

    def compiled(self, name: str, schema: Schema) -> "LearnedPolicy | None":
        """Return a policy that decides by a compiled pass of this network, None if it has none and PyTorch decides.

        Args:
            name: Of the policy.
            schema: Of the checkpoint.
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


PICKS_APART = 0x9E3779B1  # between the keys of picks of one decision: no two seeds that are used share a key
# A feature that is above 0 exactly where an item has GPUs to give, or the list has a candidate.
GIVES = {"node": "free", "gpu": "usable", "candidate": "exists"}


def listed_candidates(observations: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return where lists of candidates have one, given observations of them; shape (rows, candidates)."""
    return _candidates_with(observations, "exists")


def candidates_starting_due(observations: NDArray[np.float32]) -> NDArray[np.bool_]:
    """Return which candidates start the job that is due at once, without a wait; shape (rows, candidates)."""
    return _candidates_with(observations, "due") & ~_candidates_with(observations, "waits")


def _candidates_with(observations: NDArray[np.float32], feature: str) -> NDArray[np.bool_]:
    first = len(CANDIDATE_GLOBALS) + CANDIDATE_FEATURES.index(feature)
    is_set: NDArray[np.bool_] = observations[:, first :: len(CANDIDATE_FEATURES)] > 0.0
    return is_set


def open_actions(schema: Schema, observations: NDArray[np.float32]) -> NDArray[np.bool_]:
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


def log_softmax(logits: NDArray[np.float32]) -> NDArray[np.float32]:
    """Return log-probabilities, shape (choices, actions); logits of -inf stay so."""
    shifted = logits - logits.max(axis=1, keepdims=True)
    log_probabilities: NDArray[np.float32] = shifted - np.log(np.exp(shifted).sum(axis=1, keepdims=True))
    return log_probabilities


def join_records(choices: list[DecisionRecord]) -> DecisionRecord:
    """Return several choices of one decision as one record.

    Raises:
        ValueError: If there is none.
    """
    if not choices:
        raise ValueError("the policy has not decided yet")
    return DecisionRecord(*(np.concatenate(parts) for parts in zip(*choices, strict=True)))


class DrawParameters(NamedTuple):
    """Parameters of drawn actions."""

    temperature: float  # that logits are divided by
    seed: int


class LearnedPolicy:
    """Takes the most probable open action at every pick (SPEC R4, R8).

    Args:
        name: Its name in tables.
        schema: Of its checkpoint.
        network: The trained network.
    """

    def __init__(self, name: str, schema: Schema, network: Network) -> None:
        self.name, self.schema, self.network = name, schema, network.eval()
        self._choices: list[DecisionRecord] = []  # of the last decision
        self._draws: DrawParameters | None = None  # None: it takes the most probable

    @property
    def about(self) -> str:
        """One line of description."""
        return f"learned: {self.schema.algorithm}, {self.schema.network} network, {self.schema.action} actions"

    @property
    def waits(self) -> bool:
        """Whether waiting is one of its actions."""
        return self.schema.waiting

    @property
    def temperature(self) -> float:
        """Divisor of its logits where actions are drawn."""
        return 1.0

    def check_cluster(self, sim: Simulation) -> None:
        """Refuse a cluster that the network cannot read.

        Of the patent's state with one action for each GPU it reads the number of GPUs alone (SPEC R2 to R4), whatever
        the nodes.

        Raises:
            CheckpointError: If the network is tied to another number of GPUs or nodes.
        """
        if self.network.any_size:
            return
        sizes = tuple(int(gpus) for gpus in np.diff(sim.cluster.first_gpu))
        if not self.schema.fits(sizes):
            other = "" if self.schema.sees_only_gpu_count else ", or other numbers on a node"
            raise CheckpointError(
                f"{self.name} was trained for {self.schema.gpus} GPUs on {len(self.schema.node_gpus)} nodes, this "
                f"cluster has {sum(sizes)} on {len(sizes)}{other}; "
                "use a policy whose network serves clusters of any size, or train one for this cluster"
            )

    def choose_actions(self, observations: NDArray[np.float32], masks: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the most probable open action of each row, shape (rows,); ties go to the first."""
        return _first_of_largest(self._open_logits(observations, masks))

    def with_drawn_actions(self, temperature: float, seed: int = 0) -> Self:
        """Return the same policy, whose `place` draws each action by its probability at a temperature.

        At 1 that is how the policy was sampled in training. Draws depend on the seed, the time, and the numbers of the
        decision and the pick alone, so that the same past gives the same decisions. Runs stay greedy.
        """
        drawing = copy(self)
        drawing._draws, drawing._choices = DrawParameters(temperature * self.temperature, seed), []
        return drawing

    def predict(
        self,
        observation: ArrayLike | dict[str, Any],
        state: tuple[Any, ...] | None = None,
        episode_start: ArrayLike | None = None,
        deterministic: bool = True,  # noqa: FBT001, FBT002 (the signature is Stable-Baselines3's)
        *,
        action_masks: ArrayLike | None = None,
    ) -> tuple[NDArray[np.int64], tuple[Any, ...] | None]:
        """Return actions and the state, as models of Stable-Baselines3 and sb3-contrib do.

        Args:
            observation: Of an environment with the action and the observation of the policy's schema, shape (size,) or
                (rows, size). Dicts are refused.
            state: Returned unchanged; the policy has none.
            episode_start: Ignored.
            deterministic: Whether actions are the policy's own choice. Else they are drawn by their probabilities, with
                the random numbers of PyTorch.
            action_masks: Open actions, of shape (actions,) or (rows, actions). By default those of the
                observation, which does not show what a reservation closes.

        Returns:
            Actions, of no shape for one observation, else of shape (rows,).

        Raises:
            ValueError: If observations or masks have another shape, or a row has no open action.
        """
        del episode_start
        given = np.ascontiguousarray(observation, dtype=np.float32)
        observations = np.atleast_2d(given)
        rows, items = observations.shape[0], self._count_items(observations)
        masks = (
            open_actions(self.schema, observations)
            if action_masks is None
            else _checked_masks(action_masks, rows, items)
        )
        logits = self._open_logits(observations, masks)
        closed = np.flatnonzero(np.isneginf(logits).all(axis=1))
        if closed.size:
            raise ValueError(f"observation {closed[0]} has no open action for the policy")
        actions = _first_of_largest(logits) if deterministic else self._draw_actions(logits)
        return actions.reshape(given.shape[:-1]), state

    def _count_items(self, observations: NDArray[np.float32]) -> int:
        """Return the number of items in observations."""
        before, each = len(self.schema.globals), len(self.schema.features)
        items: int = (observations.shape[-1] - before) // each
        is_free = self.network.any_size and self.schema.action != "candidate"
        is_whole = observations.ndim == 2 and items > 0 and observations.shape[1] == before + each * items
        if not (is_whole and (is_free or items == self.schema.items)):
            raise ValueError(
                f"observations have shape {observations.shape}, expected {before} numbers and {each} for each of "
                f"{self.schema.items} {self.schema.action}s a row"
            )
        return items

    def _draw_actions(self, logits: NDArray[np.float32]) -> NDArray[np.int64]:
        """Return an action of each row by its probability."""
        probabilities = np.exp(log_softmax(logits / np.float32(self.temperature)))
        drawn: NDArray[np.int64] = torch.multinomial(torch.from_numpy(probabilities), 1).squeeze(1).numpy()
        return drawn

    def _compute_logits(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logits of the network, shape (rows, actions)."""
        with torch.inference_mode():
            logits: NDArray[np.float32] = self.network(torch.from_numpy(observations))[0].numpy()
        return logits

    def _open_logits(self, observations: NDArray[np.float32], masks: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return the logits of all actions, shape (rows, actions): finite for those that are open, else -inf.

        Weights that are finite can still overflow; an open action must stay open, or a placement would never be whole.
        """
        if self.schema.action == "candidate" and not self.waits:
            masks = masks & candidates_starting_due(observations)
        logits = self._compute_logits(observations)
        # A policy that was trained without waiting has no logit for it; one that has may not be allowed to wait.
        actions = min(logits.shape[1], masks.shape[1])
        finite = np.nan_to_num(logits[:, :actions], nan=-MAX_OUTPUT).clip(-MAX_OUTPUT, MAX_OUTPUT)
        open_logits: NDArray[np.float32] = np.where(masks[:, :actions], finite, np.float32(-np.inf))
        return open_logits

    def _empty_arrays(
        self, sim: Simulation, rows: int
    ) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.float32]]:
        nodes, gpus = sim.cluster.speed.size, sim.cluster.gpu_node.size
        size = observation_size(self.schema.observation, self.schema.action, gpus, nodes)
        actions = action_count(self.schema.action, gpus, nodes, waiting=bool(sim.rules.waiting))
        masks = np.zeros((rows, actions), dtype=np.bool_)
        return np.zeros((rows, size), np.float32), masks, np.zeros((rows, nodes * NODE_COUNT), np.float32)

    def place(self, sim: Simulation, row: int) -> bool:
        """Pick the GPUs of the job that is due in a row, or of one turned to; False, with nothing picked, to wait."""
        self.check_cluster(sim)
        observations, masks, table = self._empty_arrays(sim, 1)
        action, observation = ACTIONS[self.schema.action], OBSERVATIONS[self.schema.observation]
        self._choices = []
        while sim.state.need[row] > 0:
            write_observation(sim, row, action, observation, observations, masks, table, 0)
            logits = self._open_logits(observations, masks)
            log_probabilities, chosen = self._choose_action(logits, sim, row)
            self._choices.append(
                DecisionRecord(
                    observations.copy(), np.isfinite(logits), log_probabilities, np.array([chosen], dtype=np.int32)
                )
            )
            if not pick_by_action(sim, row, action, chosen):
                return False
        return True

    def _choose_action(self, logits: NDArray[np.float32], sim: Simulation, row: int) -> tuple[NDArray[np.float32], int]:
        """Return log-probabilities of the actions of a pick, shape (1, actions), and the one that is taken or drawn."""
        if self._draws is None:
            return log_softmax(logits), int(_first_of_largest(logits)[0])
        # From the largest down, before it is divided: no temperature makes it infinite.
        shifted = (logits - logits.max()) / np.float32(self._draws.temperature)
        log_probabilities = log_softmax(shifted)
        return log_probabilities, draw_action(log_probabilities[0], self._draws.seed, sim, row, len(self._choices))

    def last_decision(self) -> DecisionRecord:
        """Return its record of the last `place`, one row for each pick."""
        return join_records(self._choices)

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        """Run one scenario in each row side by side, all decisions of a step in one forward pass."""
        self.check_cluster(sim)
        scenarios = checked_scenario_indices(sim, scenarios)
        observations, masks, table = self._empty_arrays(sim, scenarios.size)
        kinds = ACTIONS[self.schema.action], OBSERVATIONS[self.schema.observation]
        ended = np.zeros(scenarios.size, dtype=np.bool_)
        begin_rows(sim, *kinds, np.arange(scenarios.size), scenarios, observations, masks, table, ended)
        while not ended.all():
            rows = np.flatnonzero(~ended)
            chosen = self.choose_actions(observations[rows], masks[rows])
            continue_rows(sim, *kinds, rows, chosen, observations, masks, table, ended)


def draw_action(log_probabilities: NDArray[np.float32], seed: int, sim: Simulation, row: int, pick: int = 0) -> int:
    """Return an action drawn by its probability, by the seed, the time and the number of the decision and the pick.

    Args:
        log_probabilities: Shape (actions,); -inf where an action is closed.
        seed: Of all draws.
        sim: The simulation.
        row: Row of the decision.
        pick: Number of the pick in its decision, from 0.
    """
    state = sim.state
    drawn = uniform(seed + PICKS_APART * pick, int(state.decisions[row]), int(1000.0 * state.now_s[row]))
    likely = np.exp(log_probabilities.astype(np.float64))
    able = np.flatnonzero(likely)
    sums = np.cumsum(likely[able])
    return int(able[min(np.searchsorted(sums, drawn * sums[-1], side="right"), able.size - 1)])


def _checked_masks(given: ArrayLike, rows: int, items: int) -> NDArray[np.bool_]:
    """Return masks of shape (rows, actions): one action for each item, and perhaps waiting."""
    masks = np.atleast_2d(np.asarray(given, dtype=np.bool_))
    if masks.shape not in ((rows, items), (rows, items + 1)):
        raise ValueError(
            f"action_masks have shape {masks.shape}, expected {rows} rows of {items} actions, and perhaps waiting"
        )
    return masks


def _first_of_largest(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    chosen: NDArray[np.int64] = (logits >= logits.max(axis=1, keepdims=True) - LOGIT_TIE).argmax(axis=1)
    return chosen
