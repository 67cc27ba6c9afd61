"""The network `candidates`: one small scorer of whole placements, compiled, and the policy that decides by it.

`decide_by_network` is one decision, step by step, in microseconds. The forward pass follows it, then whole runs that
take the best candidate, the network itself in PyTorch, and the policy.
"""

import math
from collections.abc import Sequence
from copy import copy
from typing import NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from ...cluster.candidates.candidates import is_wait, list_candidates, pick_candidate
from ...cluster.kernels.compiled import kernel
from ...cluster.model.outcome import Objective
from ...cluster.simulator.engine import advance, reset, start, wait
from ...cluster.state.border import checked_scenario_indices
from ...cluster.state.state import MAX_CANDIDATES, Simulation
from ...envs.features import (
    CANDIDATE_FEATURE_COUNT,
    CANDIDATE_GLOBAL_COUNT,
    Rows,
    list_and_write_candidates,
    time_unit_s,
    write_candidate_features,
)
from ..learned.network import (
    LOGIT_TIE,
    MAX_OUTPUT,
    LearnedPolicy,
    Network,
    ObservationLayout,
    draw_action,
    listed_candidates,
    log_softmax,
)
from ..learned.schema import Schema
from ..protocol import TO_THE_END, Check, DecisionRecord, decisions_between_checks

Vector = NDArray[np.float32]
Indices = NDArray[np.int64]


class CandidateWeights(NamedTuple):
    """Weights of a CandidateNetwork, inputs first, and scratch for one decision."""

    item: NDArray[np.float32]  # (candidate features, width)
    context: NDArray[np.float32]  # (global and twice the candidate features, width)
    context_bias: NDArray[np.float32]  # (width,)
    hidden: NDArray[np.float32]  # (width, width)
    hidden_bias: NDArray[np.float32]  # (width,)
    score: NDArray[np.float32]  # (width,)
    value: NDArray[np.float32]  # (global and twice the candidate features, width)
    value_bias: NDArray[np.float32]  # (width,)
    value_score: NDArray[np.float32]  # (width,)
    value_offset: NDArray[np.float32]  # (1,)
    scratch: NDArray[np.float32]  # (4, the larger of width and inputs of `context`)
    rows: NDArray[np.int64]  # (the same,)
    members: int  # equal blocks on the diagonal of `hidden` outside of which all is 0
    globals: int  # global features that it reads: the weights of those behind them are 0
    features: int  # and features of each candidate
    margin: float  # added to the logit of the first candidate, the base heuristic's


@kernel
def decide_by_network(
    sim: Simulation, row: int, weights: CandidateWeights, waits: int, observations: Rows, logits: Rows
) -> int:
    """Return the candidate to take at the decision that is due.

    1. List the candidates: whole placements, now or after a wait, the base heuristic's first.
    2. Write their features: those of the decision as a whole, then those of each candidate.
    3. Score them by the network: a logit each.
    4. Close those that let the job that is due wait, if the policy never learned to.
    5. Choose the largest logit, the first of equals.

    Args:
        sim: The simulation; a job must be due in the row. Its state holds the list, and the number of candidates.
        row: Row of the decision.
        weights: Of the network.
        waits: 1 if the policy learned to wait.
        observations: Takes the features in row 0.
        logits: Takes the logits in row 0.
    """
    candidates = list_candidates(sim, row)
    write_candidate_features(sim, row, candidates, observations, 0)
    score_candidates(weights, observations, 0, candidates, logits)
    if not waits:
        close_waits(sim, row, candidates, logits)
    return first_of_largest(logits, candidates)


@kernel
def take_candidate(sim: Simulation, row: int, candidate: int) -> None:
    """Carry out a candidate of the list: start its job, or wait."""
    if pick_candidate(sim, row, candidate):
        start(sim, row)
    else:
        wait(sim, row)


@kernel
def score_candidates(weights: CandidateWeights, observations: Rows, at: int, candidates: int, logits: Rows) -> None:
    """Write the logits of the first `candidates` items of observation `at` into row `at` of `logits`."""
    context, first, second = weights.scratch[0], weights.scratch[1], weights.scratch[2]
    values, rows = weights.scratch[3], weights.rows
    _write_context_output(weights, weights.context, weights.context_bias, observations[at], candidates, context)
    width = weights.hidden_bias.size
    size = width // weights.members
    for candidate in range(candidates):
        for unit in range(width):
            first[unit] = context[unit]
            second[unit] = weights.hidden_bias[unit]
        count = _append_nonzero(
            observations[at],
            CANDIDATE_GLOBAL_COUNT + candidate * CANDIDATE_FEATURE_COUNT,
            weights.features,
            0,
            0,
            values,
            rows,
        )
        _add_weighted_rows(first, count, values, rows, weights.item, 0, width)
        for begin in range(0, width, size):
            count = 0
            for unit in range(begin, begin + size):
                values[count] = first[unit]
                rows[count] = unit
                count += first[unit] > 0.0
            _add_weighted_rows(second, count, values, rows, weights.hidden, begin, size)
        logit = np.float32(0.0)
        for unit in range(width):
            logit += max(second[unit], np.float32(0.0)) * weights.score[unit]
        logits[at, candidate] = _finite_output(float(logit))
    logits[at, 0] += np.float32(weights.margin)


@kernel
def score_observations(weights: CandidateWeights, observations: Rows, listed: Indices, logits: Rows) -> None:
    """Write the logits of observations, which list `listed` candidates each, into the same rows of `logits`."""
    for at in range(listed.size):
        score_candidates(weights, observations, at, listed[at], logits)


@kernel
def _add_weighted_rows(
    total: Vector, count: int, values: Vector, rows: Indices, matrix: Rows, begin: int, size: int
) -> None:
    """Add to columns `begin` to `begin` + `size` - 1 of a total those of some rows of a matrix, each times a value.

    Eight rows at a time, so that the total is seldom read and written.
    """
    end, at = begin + size, 0
    part = total[begin:end]
    while at + 8 <= count:
        v0, v1, v2, v3 = values[at], values[at + 1], values[at + 2], values[at + 3]
        v4, v5, v6, v7 = values[at + 4], values[at + 5], values[at + 6], values[at + 7]
        m0, m1 = matrix[rows[at], begin:end], matrix[rows[at + 1], begin:end]
        m2, m3 = matrix[rows[at + 2], begin:end], matrix[rows[at + 3], begin:end]
        m4, m5 = matrix[rows[at + 4], begin:end], matrix[rows[at + 5], begin:end]
        m6, m7 = matrix[rows[at + 6], begin:end], matrix[rows[at + 7], begin:end]
        for unit in range(size):
            low = v0 * m0[unit] + v1 * m1[unit] + v2 * m2[unit] + v3 * m3[unit]
            part[unit] += low + (v4 * m4[unit] + v5 * m5[unit] + v6 * m6[unit] + v7 * m7[unit])
        at += 8
    while at < count:
        value, row = values[at], matrix[rows[at], begin:end]
        for unit in range(size):
            part[unit] += value * row[unit]
        at += 1


@kernel
def _append_nonzero(
    observations: Vector, begin: int, size: int, first_row: int, count: int, values: Vector, rows: Indices
) -> int:
    """Append the features that are not 0 to `count` values, with the rows of their weights; return the new count."""
    for at in range(size):
        value = observations[begin + at]
        if value != 0.0:
            values[count] = value
            rows[count] = first_row + at
            count += 1
    return count


@kernel
def _write_context_output(
    weights: CandidateWeights, layer: Rows, bias: Vector, observations: Vector, candidates: int, total: Vector
) -> None:
    """Write a layer's output for the context: the global features, the candidates' mean, and the first of them."""
    mean, values, rows = weights.scratch[2], weights.scratch[3], weights.rows
    reads = weights.features
    for feature in range(reads):
        together = np.float32(0.0)
        for candidate in range(candidates):
            together += observations[CANDIDATE_GLOBAL_COUNT + candidate * CANDIDATE_FEATURE_COUNT + feature]
        mean[feature] = together / np.float32(candidates)
    base = CANDIDATE_GLOBAL_COUNT + CANDIDATE_FEATURE_COUNT  # the base's weights follow those of the mean
    count = _append_nonzero(observations, 0, weights.globals, 0, 0, values, rows)
    count = _append_nonzero(mean, 0, reads, CANDIDATE_GLOBAL_COUNT, count, values, rows)
    count = _append_nonzero(observations, CANDIDATE_GLOBAL_COUNT, reads, base, count, values, rows)
    for unit in range(bias.size):
        total[unit] = bias[unit]
    _add_weighted_rows(total, count, values, rows, layer, 0, bias.size)


@kernel
def _finite_output(output: float) -> float:
    """Return an output of the network as a finite number, the lowest in place of NaN."""
    if not output > -MAX_OUTPUT:  # true for NaN too
        return -MAX_OUTPUT
    return min(output, MAX_OUTPUT)


@kernel
def close_waits(sim: Simulation, row: int, candidates: int, logits: Rows) -> None:
    """Write a logit of -inf for candidates that do not start the job that is due at once."""
    state = sim.state
    for candidate in range(candidates):
        if is_wait(sim, row, candidate) or state.candidate_job[row, candidate] != state.current[row]:
            logits[0, candidate] = -math.inf


@kernel
def first_of_largest(logits: Rows, candidates: int) -> int:
    """Return the candidate of the largest logit in row 0, the first among equals."""
    most = logits[0, 0]
    for candidate in range(1, candidates):
        most = max(most, logits[0, candidate])
    best = 0
    while logits[0, best] < most - LOGIT_TIE:
        best += 1
    return best


@kernel
def observation_value(weights: CandidateWeights, observations: Rows, at: int, candidates: int) -> float:
    """Return the value of an observation, row `at` of `observations`, which lists `candidates` candidates."""
    hidden = weights.scratch[0]
    _write_context_output(weights, weights.value, weights.value_bias, observations[at], candidates, hidden)
    value = weights.value_offset[0]
    for unit in range(weights.value_bias.size):
        value += max(hidden[unit], np.float32(0.0)) * weights.value_score[unit]
    return _finite_output(float(value))


@kernel
def value_by_network(sim: Simulation, row: int, weights: CandidateWeights, observations: Rows) -> float:
    """Return the network's value of the decision that is due; `observations` has at least one row."""
    return observation_value(weights, observations, 0, list_and_write_candidates(sim, row, observations, 0))


@kernel
def run_on_by_network(
    sim: Simulation, row: int, weights: CandidateWeights, waits: int, decisions: int, observations: Rows, logits: Rows
) -> bool:
    """Run a row on for at most N decisions, greedily; False if it has ended before."""
    for _ in range(decisions):
        if not advance(sim, row):
            return False
        take_candidate(sim, row, decide_by_network(sim, row, weights, waits, observations, logits))
    return True


@kernel
def run_by_network(
    sim: Simulation,
    scenarios: NDArray[np.int64],
    weights: CandidateWeights,
    waits: int,
    observations: Rows,
    logits: Rows,
) -> None:
    """Run one scenario in each row, from its beginning to its end, greedily."""
    for row in range(scenarios.size):
        reset(sim, row, scenarios[row])
        run_on_by_network(sim, row, weights, waits, TO_THE_END, observations, logits)


@kernel
def jct_or_makespan_unit_s(sim: Simulation, row: int, jct: int) -> float:
    """Return the unit of an objective, of mean JCT if `jct` is 1 and else of the makespan."""
    jobs = sim.state.queued[row] + sim.state.running[row] if jct else 1
    return float(time_unit_s(sim, row) * max(jobs, 1))


@kernel
def spent_jct_or_makespan_s(sim: Simulation, row: int, jct: int) -> float:
    """Return the cost of a run so far by one of the two objectives."""
    return float(sim.state.job_time_s[row] if jct else sim.state.now_s[row])


def objective_unit_s(sim: Simulation, row: int, objective: Objective) -> float:
    """Return the unit of an objective in seconds: that of the features' times, for `jct` once for each job present."""
    return float(jct_or_makespan_unit_s(sim, row, int(objective == "jct")))


def cost_so_far_s(sim: Simulation, row: int, objective: Objective) -> float:
    """Return the cost of a run so far: the time, or for `jct` that of all jobs in the system together."""
    return float(spent_jct_or_makespan_s(sim, row, int(objective == "jct")))


IN_PROGRESS, DECISION_DUE, RUN_ENDED = range(3)


class RunProgress(NamedTuple):
    """How far a row was run."""

    stage: int  # IN_PROGRESS, DECISION_DUE once enough jobs were started, or RUN_ENDED
    started: int  # jobs
    has_started: int  # 1 if the last decision started one
    predicted_s: float  # sum of predictions of the run's cost
    predictions: int


RUN_BEGIN = RunProgress(IN_PROGRESS, 0, 0, 0.0, 0)


@kernel
def run_for_by_network(
    sim: Simulation, row: int, weights: CandidateWeights, waits: int, starts: int, foresee_from: int, jct: int,
    before: RunProgress, decisions: int, observations: Rows, logits: Rows,
) -> RunProgress:  # fmt: skip
    """Run a row greedily until N jobs are started and a decision is due, to its end, or for some decisions.

    On the way, at the first decision after each start from number `foresee_from` on, the value predicts the run's cost
    by its objective. `before` is how far the row was run before.
    """
    started, has_started, predicted_s, predictions = (
        before.started, before.has_started, before.predicted_s, before.predictions
    )  # fmt: skip
    for _ in range(decisions):
        if not advance(sim, row):
            return RunProgress(RUN_ENDED, started, has_started, predicted_s, predictions)
        if started >= starts:
            return RunProgress(DECISION_DUE, started, has_started, predicted_s, predictions)
        candidate = decide_by_network(sim, row, weights, waits, observations, logits)
        if has_started and started >= foresee_from:
            left = observation_value(weights, observations, 0, int(sim.state.candidates[row]))
            predicted_s += spent_jct_or_makespan_s(sim, row, jct) + left * jct_or_makespan_unit_s(sim, row, jct)
            predictions += 1
        has_started = 0 if is_wait(sim, row, candidate) else 1
        started += has_started
        take_candidate(sim, row, candidate)
    return RunProgress(IN_PROGRESS, started, has_started, predicted_s, predictions)


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

    def _items_and_context(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return the candidates' features, and the context: all features of the decision as a whole."""
        layout = self.layout
        items = observation[:, layout.globals :].reshape(observation.shape[0], -1, layout.features)
        # The first feature is 1 where the list has a candidate, and all are 0 elsewhere.
        mean = items.sum(1) / items[:, :, :1].sum(1).clamp(min=1.0)
        return items, torch.cat((observation[:, : layout.globals], mean, items[:, 0]), 1)

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of shape (batch, candidates) and values of shape (batch,)."""
        items, context = self._items_and_context(observation)
        hidden = (self.item(items) + self.context(context).unsqueeze(1)).relu()
        logits = self.score(self.hidden(hidden).relu()).squeeze(-1)
        return logits, self.value(context).squeeze(-1)

    def values(self, observation: Tensor) -> Tensor:
        """Return values of shape (batch,)."""
        values: Tensor = self.value(self._items_and_context(observation)[1]).squeeze(-1)
        return values

    def compiled(self, name: str, schema: Schema) -> "CandidatePolicy":
        """Return the policy of this network."""
        return CandidatePolicy(name, schema, self)


def mean_network(networks: Sequence[CandidateNetwork]) -> CandidateNetwork:
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


def member_count(network: CandidateNetwork) -> int:
    """Return the number of networks of equal width that `mean_network` joined into one, 1 if it is no mean."""
    hidden = network.hidden.weight.detach()
    width = hidden.shape[0]
    for count in range(MAX_MEMBERS, 1, -1):
        block = torch.arange(width) // max(width // count, 1)
        if width % count == 0 and not hidden[block[:, None] != block].any():
            return count
    return 1


def member_network(mean: CandidateNetwork, index: int) -> CandidateNetwork:
    """Return one of the networks that `mean_network` joined; its value has the offset of their mean."""
    count = member_count(mean)
    width = mean.hidden.in_features // count
    part = slice(index * width, (index + 1) * width)
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
        np.zeros((4, max(width, inputs)), np.float32), np.zeros(max(width, inputs), np.int64), member_count(network),
        *_features_read(network), margin,
    )  # fmt: skip


def _features_read(network: CandidateNetwork) -> tuple[int, int]:
    """Return how many global features, and features of each candidate, a network reads.

    Those behind have weight 0, as the network was trained without them.
    """
    total, features = network.layout.globals, network.layout.features
    layers = network.context.weight, network.get_parameter("value.0.weight")
    parts = [weight.detach().abs().sum(0) for weight in layers]
    whole = torch.stack(parts).sum(0)
    of_items = network.item.weight.detach().abs().sum(0) + whole[total : total + features] + whole[total + features :]
    return _count_to_last_nonzero(whole[:total]), _count_to_last_nonzero(of_items)


def _count_to_last_nonzero(weights: Tensor) -> int:
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
        self._rollout_base = (
            None if member_count(network) == 1 else CandidatePolicy(name, schema, member_network(network, 0))
        )
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

    def _compute_logits(self, observations: NDArray[np.float32]) -> NDArray[np.float32]:
        """Return the logits of the compiled pass, shape (rows, candidates)."""
        logits = np.zeros((observations.shape[0], MAX_CANDIDATES), dtype=np.float32)
        score_observations(self.weights, observations, listed_candidates(observations).sum(axis=1), logits)
        return logits

    def place(self, sim: Simulation, row: int) -> bool:
        """Pick the GPUs of the job that is due in a row, or of one turned to; False, with nothing picked, to wait."""
        if self._draws is None:
            self._chosen = decide_by_network(sim, row, self.weights, int(self.waits), self._observations, self._logits)
        else:
            self._chosen = self._draw_candidate(sim, row, self._draws.seed)
        return bool(pick_candidate(sim, row, self._chosen))

    def with_drawn_actions(self, temperature: float, seed: int = 0) -> Self:
        """Return the same policy, whose `place` draws a candidate by its probability; rollouts and runs stay greedy."""
        drawing = super().with_drawn_actions(temperature, seed)
        # Each needs arrays of its own for its last decision.
        drawing._observations, drawing._logits = self._observations.copy(), self._logits.copy()
        return drawing

    def _draw_candidate(self, sim: Simulation, row: int, seed: int) -> int:
        """Return a candidate of the decision that is due, drawn by its probability."""
        decide_by_network(sim, row, self.weights, int(self.waits), self._observations, self._logits)
        return draw_action(self._log_probabilities()[0], seed, sim, row)

    def _log_probabilities(self) -> NDArray[np.float32]:
        """Return those of the candidates of the last decision, as it was made or drawn, shape (1, candidates)."""
        divisor = np.float32(1.0 if self._draws is None else self._draws.temperature)
        logits: NDArray[np.float32] = np.where(listed_candidates(self._observations), self._logits / divisor, -np.inf)
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
    def rollout_base(self) -> "CandidatePolicy":
        """The policy that rollouts of this one use as base."""
        return self._rollout_base or self

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
        scenarios = checked_scenario_indices(sim, scenarios)
        run_by_network(sim, scenarios, self.weights, int(self.waits), self._observations, self._logits)
