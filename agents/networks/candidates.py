"""The network `candidates`: one small scorer of whole placements, and the policy that decides by it.

candidate_run.py has the compiled decision, step by step (`decide_by_network`), and whole runs by it.
"""

import math
from collections.abc import Sequence
from copy import copy
from typing import Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...cluster.candidates.candidates import pick_candidate
from ...cluster.model.outcome import Objective
from ...cluster.state.border import rows_to_run
from ...cluster.state.state import MAX_CANDIDATES, Simulation
from ...envs.features import CANDIDATE_FEATURE_COUNT, CANDIDATE_GLOBAL_COUNT
from ..learned.network import Arrays, LearnedPolicy, Network, ObservationLayout, drawn_action, listed_in, log_softmax
from ..learned.schema import Schema
from ..protocol import TO_THE_END, Check, DecisionRecord, decisions_between_checks
from .candidate_run import (
    DECISION_DUE,
    IN_PROGRESS,
    RUN_BEGIN,
    CandidateWeights,
    decide_by_network,
    run_by_network,
    run_for_by_network,
    run_on_by_network,
    score_rows,
    value_by_network,
)

NETWORK_CHECK_NODES = 64  # nodes that a network reads in some milliseconds
TEMPERATURE = 0.02  # of the softmax over gains, in their unit, by which policies sample whose logits are no gains
MAX_MEMBERS = 16  # networks in a mean
# Parameters with a row for each unit of a member, and with a column.
BY_ROW = ("item.weight", "context.weight", "context.bias", "hidden.bias", "value.0.weight", "value.0.bias")
BY_COLUMN = ("score.weight", "value.2.weight")


class CandidateNetwork(Network):
    """One scorer for every candidate, which also reads the list's mean and its first candidate, the base heuristic's.

    Two layers for each candidate, of which the first also reads the context, give its logit. Layers of their own give
    the value from the context alone, so that policy and value learn apart. Rectified linear units keep the compiled
    forward pass short.
    """

    actions = ("candidate",)
    sized_by = "score.weight"

    def __init__(self, layout: ObservationLayout, width: int = 128) -> None:
        super().__init__(layout, width)
        self.item = nn.Linear(layout.features, width, bias=False)
        self.context = nn.Linear(layout.globals + 2 * layout.features, width)
        self.hidden = nn.Linear(width, width)
        self.score = nn.Linear(width, 1, bias=False)
        self.value = nn.Sequential(
            nn.Linear(layout.globals + 2 * layout.features, width), nn.ReLU(), nn.Linear(width, 1)
        )
        with torch.no_grad():
            self.score.weight *= 0.1  # a nearly uniform policy to begin with

    def _context(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return the candidates' features, and the context: all features of the decision as a whole."""
        layout = self.layout
        items = observation[:, layout.globals :].reshape(observation.shape[0], -1, layout.features)
        # The first feature is 1 where the list has a candidate, and all are 0 elsewhere.
        mean = items.sum(1) / items[:, :, :1].sum(1).clamp(min=1.0)
        return items, torch.cat((observation[:, : layout.globals], mean, items[:, 0]), 1)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of shape (batch, candidates) and values of shape (batch,)."""
        items, context = self._context(observation)
        hidden = (self.item(items) + self.context(context).unsqueeze(1)).relu()
        logits = self.score(self.hidden(hidden).relu()).squeeze(-1)
        return logits, self.value(context).squeeze(-1)

    @classmethod
    def with_later_features(cls, arrays: Arrays, was: ObservationLayout, now: ObservationLayout) -> Arrays | None:
        """Return the weights for observations with further features, which it does not read."""
        grown = dict(arrays)
        items, more = now.features - was.features, now.globals - was.globals
        grown["item.weight"] = np.pad(arrays["item.weight"], ((0, 0), (0, items)))
        for name in ("context.weight", "value.0.weight"):
            parts = np.split(arrays[name], [was.globals, was.globals + was.features], axis=1)
            grown[name] = np.hstack(
                [np.pad(part, ((0, 0), (0, new))) for part, new in zip(parts, (more, items, items), strict=True)]
            )
        return grown

    def values(self, observation: Tensor) -> Tensor:
        """Return values of shape (batch,)."""
        values: Tensor = self.value(self._context(observation)[1]).squeeze(-1)
        return values

    def compiled(self, name: str, schema: Schema) -> "CandidatePolicy":
        """Return the policy of this network."""
        return CandidatePolicy(name, schema, self)


def mean_of(networks: Sequence[CandidateNetwork]) -> CandidateNetwork:
    """Return one network whose outputs are the means of several's: their units are concatenated."""
    count, width = len(networks), sum(network.hidden.in_features for network in networks)
    mean = CandidateNetwork(networks[0].layout, width)

    def joined(name: str) -> list[Tensor]:
        return [network.get_parameter(name) for network in networks]

    with torch.no_grad():
        for name in BY_ROW:
            mean.get_parameter(name).copy_(torch.cat(joined(name)))
        mean.hidden.weight.copy_(torch.block_diag(*joined("hidden.weight")))  # type: ignore[no-untyped-call]
        for name in BY_COLUMN:
            mean.get_parameter(name).copy_(torch.cat(joined(name), dim=1) / count)
        mean.get_parameter("value.2.bias").copy_(torch.stack(joined("value.2.bias")).mean(0))
    return mean


def members_of(network: CandidateNetwork) -> int:
    """Return the number of networks of equal width that `mean_of` joined into one, 1 if it is no mean."""
    hidden = network.hidden.weight.detach()
    width = hidden.shape[0]
    for count in range(MAX_MEMBERS, 1, -1):
        block = torch.arange(width) // max(width // count, 1)
        if width % count == 0 and not hidden[block[:, None] != block].any():
            return count
    return 1


def member_of(mean: CandidateNetwork, number: int) -> CandidateNetwork:
    """Return one of the networks that `mean_of` joined; its value has the offset of their mean."""
    count = members_of(mean)
    width = mean.hidden.in_features // count
    part = slice(number * width, (number + 1) * width)
    network = CandidateNetwork(mean.layout, width)
    with torch.no_grad():
        for name in BY_ROW:
            network.get_parameter(name).copy_(mean.get_parameter(name)[part])
        network.hidden.weight.copy_(mean.hidden.weight[part, part])
        for name in BY_COLUMN:
            network.get_parameter(name).copy_(mean.get_parameter(name)[:, part] * count)
        network.get_parameter("value.2.bias").copy_(mean.get_parameter("value.2.bias"))
    return network


def candidate_weights(network: CandidateNetwork, margin: float = 0.0) -> CandidateWeights:
    """Return a copy of a network's weights, for compiled passes, which favour the base heuristic by a margin."""
    tensors = network.state_dict()

    def array(name: str) -> NDArray[np.float32]:
        return np.array(tensors[name].numpy().T, dtype=np.float32, order="C")

    width, inputs = network.hidden.in_features, network.context.in_features
    return CandidateWeights(
        array("item.weight"), array("context.weight"), array("context.bias"), array("hidden.weight"),
        array("hidden.bias"), array("score.weight")[:, 0].copy(), array("value.0.weight"), array("value.0.bias"),
        array("value.2.weight")[:, 0].copy(), array("value.2.bias"),
        np.zeros((4, max(width, inputs)), np.float32), np.zeros(max(width, inputs), np.int64), members_of(network),
        *_read(network), margin,
    )  # fmt: skip


def _read(network: CandidateNetwork) -> tuple[int, int]:
    """Return how many global features, and features of each candidate, a network reads.

    Those behind have weight 0, as they were added after the network was trained.
    """
    total, features = network.layout.globals, network.layout.features
    layers = network.context.weight, network.get_parameter("value.0.weight")
    parts = [weight.detach().abs().sum(0) for weight in layers]
    whole = torch.stack(parts).sum(0)
    of_items = network.item.weight.detach().abs().sum(0) + whole[total : total + features] + whole[total + features :]
    return _last(whole[:total]), _last(of_items)


def _last(weights: Tensor) -> int:
    """Return the number of weights up to the last that is not 0."""
    found = torch.nonzero(weights)
    return int(found[-1]) + 1 if found.numel() else 0


class CandidatePolicy(LearnedPolicy):
    """Takes the candidate of the largest logit, in one compiled pass for clusters of any size.

    Where the network is the mean of several, the first of them is the base of rollouts, as it takes less time.

    Args:
        name: Its name in tables.
        schema: Of its checkpoint.
        network: The trained network; later changes to it do not reach the policy.
    """

    def __init__(self, name: str, schema: Schema, network: CandidateNetwork) -> None:
        super().__init__(name, schema, network)
        self.weights = candidate_weights(network, schema.margin)
        self._stand_in = None if members_of(network) == 1 else CandidatePolicy(name, schema, member_of(network, 0))
        self._observations = np.zeros(
            (1, CANDIDATE_GLOBAL_COUNT + MAX_CANDIDATES * CANDIDATE_FEATURE_COUNT), dtype=np.float32
        )
        self._logits = np.zeros((1, MAX_CANDIDATES), dtype=np.float32)
        self._check: Check | None = None
        self._chosen = -1  # candidate of the last decision, -1 before the first

    @property
    def temperature(self) -> float:
        """Divisor of its logits where actions are drawn; predicted gains need one to become logits."""
        return TEMPERATURE if self._predicts_gains else 1.0

    @property
    def _predicts_gains(self) -> bool:
        return self.schema.algorithm == "distil"

    def _score(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logits of the compiled pass, shape (rows, candidates)."""
        logits = np.zeros((observations.shape[0], MAX_CANDIDATES), dtype=np.float32)
        score_rows(self.weights, observations, listed_in(observations).sum(axis=1), logits)
        return logits

    def place(self, sim: Simulation, row: int) -> bool:
        """Pick the GPUs of the job that is due in a row, or of one turned to; False, with nothing picked, to wait."""
        if self._draws is None:
            self._chosen = decide_by_network(sim, row, self.weights, int(self.waits), self._observations, self._logits)
        else:
            self._chosen = self._draw(sim, row, self._draws.seed)
        return bool(pick_candidate(sim, row, self._chosen))

    def drawing(self, temperature: float, seed: int = 0) -> Self:
        """Return the same policy, whose `place` draws a candidate by its probability; rollouts and runs stay greedy."""
        drawing = super().drawing(temperature, seed)
        # Each needs arrays of its own for its last decision.
        drawing._observations, drawing._logits = self._observations.copy(), self._logits.copy()
        return drawing

    def _draw(self, sim: Simulation, row: int, seed: int) -> int:
        """Return a candidate of the decision that is due, drawn by its probability."""
        decide_by_network(sim, row, self.weights, int(self.waits), self._observations, self._logits)
        return drawn_action(self._log_probabilities()[0], seed, sim, row)

    def _log_probabilities(self) -> NDArray[np.float32]:
        """Return those of the candidates of the last decision, as it was made or drawn, shape (1, candidates)."""
        divisor = np.float32(1.0 if self._draws is None else self._draws.temperature)
        logits: NDArray[np.float32] = np.where(listed_in(self._observations), self._logits / divisor, -np.inf)
        return log_softmax(logits.astype(np.float32))

    def last_decision(self) -> DecisionRecord:
        """Return its record of the last `place`; no other method may have been called since."""
        if self._chosen < 0:
            raise ValueError("the policy has not decided yet")
        found, actions = self._log_probabilities(), np.array([self._chosen], dtype=np.int32)
        return DecisionRecord(self._observations.copy(), np.isfinite(found), found, actions)

    def predicted_gains(self, sim: Simulation, row: int) -> NDArray[np.float64]:
        """List the candidates of the decision that is due and predict their gains but for a constant, (candidates,).

        In units of `objective_unit_s`. -inf for the candidates that the policy never takes, as it never learned to
        wait. The first of those that gain most is its own choice.
        """
        chosen = decide_by_network(sim, row, self.weights, int(self.waits), self._observations, self._logits)
        predicted_gains = self._logits[0, : sim.state.candidates[row]].astype(np.float64)
        predicted_gains[chosen] = predicted_gains.max()  # they differ by less than rounding
        return predicted_gains if self._predicts_gains else predicted_gains * TEMPERATURE

    @property
    def stand_in(self) -> "CandidatePolicy":
        """The base of rollouts in its place."""
        return self._stand_in or self

    def run_on(self, sim: Simulation, row: int) -> None:
        """Run a row to its end."""
        waits, decisions = int(self.waits), self._decisions_between_checks(sim)
        while run_on_by_network(sim, row, self.weights, waits, decisions, self._observations, self._logits):
            if self._check is not None:
                self._check()

    def interruptible(self, check: Check) -> Self:
        """Return the same policy, which calls `check` every few decisions while it runs on."""
        interruptible = copy(self)
        interruptible._check = check
        return interruptible

    def _decisions_between_checks(self, sim: Simulation) -> int:
        return TO_THE_END if self._check is None else decisions_between_checks(sim, NETWORK_CHECK_NODES)

    @property
    def time_to_go(self) -> Objective | None:
        """Objective whose remaining cost its value predicts, None if it predicts something else."""
        return self.schema.time_to_go

    def run_for(self, sim: Simulation, row: int, starts: int, foresee_from: int) -> tuple[bool, float]:
        """Run a row until N jobs are started and a decision is due, or to its end.

        Return whether a decision is due, and the predicted cost of the whole run in seconds: the mean over the first
        decisions after each start from number `foresee_from` on, nan if there were none.
        """
        jct = int(self.time_to_go == "jct")
        progress, limits = RUN_BEGIN, (int(self.waits), starts, foresee_from, jct)
        decisions = self._decisions_between_checks(sim)
        while True:
            progress = run_for_by_network(
                sim, row, self.weights, *limits, progress, decisions, self._observations, self._logits
            )
            if progress.stage != IN_PROGRESS:
                mean_s = progress.predicted_s / progress.predictions if progress.predictions else math.nan
                return progress.stage == DECISION_DUE, mean_s
            if self._check is not None:
                self._check()

    def value(self, sim: Simulation, row: int) -> float:
        """Return the network's value of the decision that is due."""
        return float(value_by_network(sim, row, self.weights, self._observations))

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        """Run one scenario in each row, from its beginning to its end."""
        scenarios = rows_to_run(sim, scenarios)
        run_by_network(sim, scenarios, self.weights, int(self.waits), self._observations, self._logits)
