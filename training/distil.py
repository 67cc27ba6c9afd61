"""Distillation: the network `candidates` learns what rollouts find, in rounds; later rollouts use the network.

A round runs scenarios, labels some of their decisions by rollouts, and fits the network to all labels so far
(`learn_by_distillation`).

The end of the file sets the margin of a policy: by how much the choice of the base heuristic is favoured, as small
advantages of a network may be its errors. A policy is trained by sampling, and then decides greedily, so that a small
error of a logit decides alone.

Source: expert iteration (Anthony, Tian and Barber, 2017) on the states of DAgger (Ross, Gordon and Bagnell, 2011);
docs/training.md, Distillation.
"""

import copy
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..agents.heuristics import HEURISTICS
from ..agents.learned.checkpoint import layout_of
from ..agents.networks.candidates import (
    CandidateNetwork,
    CandidatePolicy,
    cost_so_far_s,
    mean_network,
    objective_unit_s,
)
from ..agents.rollouts import RankingBase, Rollout, RolloutBase, Search
from ..cluster.files.errors import CheckpointError, InputError
from ..cluster.kernels.structures import uniform
from ..cluster.model.outcome import Objective, Weighting, objective_of
from ..cluster.model.problem import Problem
from ..cluster.placing import undo_picks
from ..cluster.simulator.engine import advance, reset, start, wait
from ..cluster.simulator.simulation import simulation_of
from ..cluster.state.state import MAX_CANDIDATES, Simulation
from ..envs.features import CANDIDATE_FEATURE_COUNT, CANDIDATE_GLOBAL_COUNT, list_and_write_candidates
from .group import CLOSED_LOGIT, step_in_chunks, value_loss
from .history import OBSERVATION_SIZE
from .problems import DistilParameters
from .run_folder import RunFolder
from .snapshot import (
    SNAPSHOT,
    Arrays,
    check_within,
    checked_counts,
    checked_record,
    read_arrays,
    restore_weights,
    write_arrays,
)
from .validation import run_for_metrics

LABELLED, OWN = 0, 1  # second counter of the draws: which decisions are labelled, and which policy runs


class Labels(NamedTuple):
    """Decisions that had a choice, and the gain of each candidate over the first of its list."""

    observations: NDArray[np.float32]  # (decisions, size) observations
    listed: NDArray[np.int32]  # (decisions,) candidates of the list
    tried: NDArray[np.int32]  # (decisions,) the first ones of the list, which have a label
    gain: NDArray[
        np.float32
    ]  # (decisions, CANDIDATES) mean over imagined futures, in units of objective_unit_s; 0 beyond
    error: NDArray[np.float32]  # (decisions, CANDIDATES) standard error of that, one for all decisions of a task
    to_go: NDArray[np.float32]  # (decisions,) mean of what is still to come by the choice of the rollout's base
    scenario: NDArray[np.int32]  # (decisions,)


def join_labels(parts: Iterable[Labels]) -> Labels:
    """Return the decisions of several parts in their order."""
    fields = zip(*([_no_labels(), *parts]), strict=True)
    return Labels(*(np.concatenate(arrays) for arrays in fields))


def _no_labels() -> Labels:
    counts, values = np.zeros(0, np.int32), np.zeros((0, MAX_CANDIDATES), np.float32)
    return Labels(np.zeros((0, OBSERVATION_SIZE), np.float32), counts, counts, values, values, values[:, 0], counts)


def sound_labels(arrays: Arrays, scenarios: int) -> Labels:
    """Return labels that were read from a file, of decisions in a number of scenarios.

    Raises:
        ValueError: If they are no labels of these.
        KeyError: If an array is missing.
    """
    found = checked_record(arrays, "", _no_labels())
    check_within("listed", found.listed, 1, MAX_CANDIDATES)
    check_within("tried", found.tried, 1, MAX_CANDIDATES)
    check_within("scenario", found.scenario, 0, scenarios - 1)
    if (found.tried > found.listed).any():
        raise ValueError("tried is more than listed, expected at most as many")
    return found


class DecisionLabel(NamedTuple):
    """Label of one decision by rollouts, in units of objective_unit_s."""

    gain: NDArray[np.float64]  # (candidates,) mean gain over the first of the list, 0 for that
    variance: float  # of that, by the futures that were imagined
    to_go: float  # mean of what is still to come by the base's own choice


def label_decision(rollout: Rollout, sim: Simulation, row: int) -> DecisionLabel:
    """Return the label of a decision with a choice.

    Args:
        rollout: Of at least two futures and no budget.
        sim: The simulation; a job must be due in the row.
        row: Row of the decision.
    """
    objective = rollout.objective or "makespan"
    unit_s, base = objective_unit_s(sim, row, objective), rollout.base
    costs_s = rollout.costs_s(sim, row)
    gains = (costs_s[:, :1] - costs_s) / unit_s
    # The first candidate is the choice of the heuristics that teach.
    own = int(base.predicted_gains(sim, row)[: gains.shape[1]].argmax()) if isinstance(base, RankingBase) else 0
    to_go = (float(costs_s[:, own].mean()) - cost_so_far_s(sim, row, objective)) / unit_s
    # Of all candidates but the first, which gains nothing over itself.
    return DecisionLabel(gains.mean(axis=0), float(gains[:, 1:].var(axis=0, ddof=1).mean()) / len(gains), to_go)


@dataclass(frozen=True, slots=True)
class LabelTask:
    """A scenario to run, with some of its decisions to label.

    Args:
        scenario: Number of the scenario.
        seed: Of the imagined futures and of what is drawn.
        share: Of the decisions with a choice that are labelled, drawn one by one.
    """

    scenario: int
    seed: int
    share: float


def label_run(rollout: Rollout, actor: RolloutBase, sim: Simulation, task: LabelTask) -> Labels:
    """Run a scenario in row 0 by one policy and label decisions on its way by the rollouts of another."""
    kept: list[tuple[NDArray[np.float32], int, DecisionLabel]] = []
    observations = np.zeros((1, OBSERVATION_SIZE), dtype=np.float32)
    rollout.seed = task.seed
    reset(sim, 0, task.scenario)
    while advance(sim, 0):
        if uniform(task.seed, LABELLED, int(sim.state.decisions[0])) < task.share:
            listed = list_and_write_candidates(sim, 0, observations, 0)
            if listed > 1:
                kept.append((observations[0].copy(), listed, label_decision(rollout, sim, 0)))
        if actor.place(sim, 0):
            start(sim, 0)
        else:
            undo_picks(sim, 0)
            wait(sim, 0)
    return _stacked_labels(kept, task.scenario)


def _stacked_labels(kept: list[tuple[NDArray[np.float32], int, DecisionLabel]], scenario: int) -> Labels:
    if not kept:
        return _no_labels()
    observations, listed, labels = zip(*kept, strict=True)
    gains, variances, to_go = zip(*labels, strict=True)
    tried = np.array([gain.size for gain in gains], dtype=np.int32)
    padded = np.stack([np.pad(gain, (0, MAX_CANDIDATES - gain.size)) for gain in gains])
    # A few futures are too few for the noise of one decision: without a fault in them it would seem to have none.
    candidates = np.arange(MAX_CANDIDATES)
    error = np.sqrt(np.mean(variances)) * ((candidates > 0) & (candidates < tried[:, None]))
    return Labels(
        np.stack(observations), np.array(listed, dtype=np.int32), tried, padded.astype(np.float32),
        error.astype(np.float32),
        np.array(to_go, dtype=np.float32), np.full(tried.size, scenario, dtype=np.int32),
    )  # fmt: skip


class LabelWorker(NamedTuple):
    """What one thread needs to run tasks."""

    sim: Simulation
    teacher: Rollout  # whose base is the learner's network, once it has one
    others: RolloutBase  # runs the scenarios that the teacher's base does not


def label_workers(
    problem: Problem, objective: Objective, search: Search, bases: Iterable[RolloutBase], others: RolloutBase
) -> list[LabelWorker]:
    """Return a worker for each of some bases of rollouts, which may not be shared between threads."""
    return [LabelWorker(simulation_of(problem), Rollout(base, search, objective), others) for base in bases]


def label_runs(
    tasks: Iterable[LabelTask], workers: list[LabelWorker], own_share: float, pool: ThreadPoolExecutor
) -> Labels:
    """Run tasks at several workers at once; which of them runs what changes nothing.

    Args:
        tasks: What is run.
        workers: One for each thread.
        own_share: Share of the tasks that the base of the rollouts runs itself.
        pool: Threads.
    """
    free: SimpleQueue[LabelWorker] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def one(task: LabelTask) -> Labels:
        worker = free.get()
        try:
            actor = worker.teacher.base if uniform(task.seed, OWN, 0) < own_share else worker.others
            return label_run(worker.teacher, actor, worker.sim, task)
        finally:
            free.put(worker)

    return join_labels(pool.map(one, tasks))


NEAR = 0.5  # units
HELD_OUT = 10  # one of this number of scenarios is held out


class FitQuality(NamedTuple):
    """How well a network does on labels that are held out."""

    held_out_loss: float  # the least after any epoch; its weights are kept
    epochs: int
    regret: float  # by how much its candidates fall short of the best labels, in the mean
    value_error: float  # root mean square
    spread: float  # variance of the true gain of candidates, over their predicted gap to the chosen one, if below NEAR


class _LabelTensors(NamedTuple):
    """Labels as tensors, of some decisions."""

    observations: Tensor
    listed: Tensor
    tried: Tensor
    gain: Tensor
    error: Tensor
    to_go: Tensor

    def select(self, rows: Tensor) -> "_LabelTensors":
        """Return those of some rows, no wider than their longest list."""
        part = _LabelTensors(*(tensor[rows] for tensor in self))
        most = int(part.listed.max())
        observations = part.observations[:, : CANDIDATE_GLOBAL_COUNT + most * CANDIDATE_FEATURE_COUNT]
        return part._replace(observations=observations, gain=part.gain[:, :most], error=part.error[:, :most])


def noise_weight(error: Tensor, parameters: DistilParameters) -> Tensor:
    """Return the weight of labels by their standard error: 1 without noise, 1/2 where it is as large as the prior."""
    prior = parameters.distil_prior**2
    weight: Tensor = prior / (error**2 + prior)
    return weight


def distil_loss(
    logits: Tensor, tried: Tensor, gain: Tensor, error: Tensor, parameters: DistilParameters
) -> tuple[Tensor, Tensor]:
    """Return the regression and the expected cost of some decisions, summed, to be minimised.

    Args:
        logits: Of the network, shape (decisions, candidates).
        tried: Number of candidates with a label, shape (decisions,).
        gain: Labels, shape (decisions, candidates).
        error: Their standard errors, shape (decisions, candidates).
        parameters: Prior and temperature.
    """
    is_tried = torch.arange(logits.shape[1]) < tried[:, None]
    predicted_gains = logits - logits[:, :1]
    prior, temperature = parameters.distil_prior, parameters.distil_temperature
    residual = (predicted_gains - gain) / prior
    regression = 0.5 * (noise_weight(error, parameters) * residual**2 * is_tried).sum()
    shares = (predicted_gains / temperature).masked_fill(~is_tried, CLOSED_LOGIT).softmax(dim=1)
    cost = -(shares * gain).sum() / temperature
    return regression, cost


def _policy_loss(logits: Tensor, tasks: _LabelTensors, parameters: DistilParameters) -> Tensor:
    regression, cost = distil_loss(logits, tasks.tried, tasks.gain, tasks.error, parameters)
    return regression + parameters.distil_cost * cost


def fit_network(
    network: CandidateNetwork, labels: Labels, parameters: DistilParameters, pool: ThreadPoolExecutor,
    rng: np.random.Generator,
) -> FitQuality:  # fmt: skip
    """Fit a network; the weights of the least loss on held-out labels remain.

    Args:
        network: What learns.
        labels: What it learns from.
        parameters: Epochs, minibatch, learning rate and loss.
        pool: Threads; their number changes nothing.
        rng: Draws the order of the labels.
    """
    tasks = _LabelTensors(*map(torch.from_numpy, labels[:-1]))
    is_held = labels.scenario % HELD_OUT == HELD_OUT - 1
    learned = np.flatnonzero(~is_held) if (~is_held).any() else np.arange(is_held.size)
    held = tasks.select(torch.from_numpy(np.flatnonzero(is_held) if is_held.any() else learned))
    optimizer = torch.optim.Adam(network.parameters(), lr=parameters.distil_learning_rate)

    def loss(rows: Tensor) -> Tensor:
        part = tasks.select(rows)
        logits, values = network(part.observations)
        return _policy_loss(logits, part, parameters) + value_loss(values, part.to_go)

    least, at, best = np.inf, 0, copy.deepcopy(network.state_dict())
    for epoch in range(parameters.distil_epochs):
        for group in optimizer.param_groups:
            group["lr"] = parameters.distil_learning_rate * (1.0 - epoch / parameters.distil_epochs)
        for minibatch in torch.split(torch.from_numpy(rng.permutation(learned)), parameters.distil_minibatch):
            # Chunks of decisions with equally long lists are narrow.
            rows = minibatch[torch.argsort(tasks.listed[minibatch], stable=True)]
            step_in_chunks(network, optimizer, pool, rows, loss)
        with torch.no_grad():
            judged = float(_policy_loss(network(held.observations)[0], held, parameters)) / held.tried.numel()
        if judged < least:
            least, at, best = judged, epoch + 1, copy.deepcopy(network.state_dict())
    network.load_state_dict(best)
    return FitQuality(least, at, *_held_out_quality(network, held))


@torch.no_grad()
def _held_out_quality(network: CandidateNetwork, held: _LabelTensors) -> tuple[float, float, float]:
    """Return regret, error of the value, and spread."""
    logits, values = network(held.observations)
    is_tried = torch.arange(logits.shape[1]) < held.tried[:, None]
    chosen = logits.masked_fill(~is_tried, CLOSED_LOGIT).argmax(dim=1, keepdim=True)
    best = held.gain.masked_fill(~is_tried, CLOSED_LOGIT).amax(dim=1)
    gain, predicted_gains = (tensor - tensor.gather(1, chosen) for tensor in (held.gain, logits))
    near = is_tried & (predicted_gains < 0.0) & (predicted_gains > -NEAR)
    noise = held.error.amax(dim=1, keepdim=True).square()  # of the difference of any two candidates
    spread = ((gain - predicted_gains).square() - noise)[near].sum() / -predicted_gains[near].sum().clamp(max=-1e-9)
    regret = (best - held.gain.gather(1, chosen)[:, 0]).mean()
    return float(regret), float((values - held.to_go).square().mean().sqrt()), float(spread)


LABELS_FOLDER = "labels"  # of a run, with a file for each block of tasks


class DistilLearner:
    """A network that learns from rollouts.

    Args:
        problem: What is run.
        run_folder: Keeps the run.
    """

    def __init__(self, problem: Problem, run_folder: RunFolder) -> None:
        config = run_folder.config
        self.run_folder, self.parameters, self.problem = run_folder, config.distil, problem
        assert run_folder.initial is None or isinstance(run_folder.initial, CandidateNetwork)
        self._initial = run_folder.initial
        torch.manual_seed(config.seed)
        self.network = self._initial or CandidateNetwork(layout_of(run_folder.schema))
        self.pool = ThreadPoolExecutor(config.threads)
        self.order = np.random.default_rng(config.seed).permutation(problem.scenarios.jobs.size)
        self.steps = self.tasks = self.blocks = self.fits = 0
        self._labels: list[Labels] = []
        self._workers: list[LabelWorker] = []

    @property
    def steps_at_round_end(self) -> int:
        """Decisions after which the round in progress ends."""
        first, rounds = self.parameters.distil_first, self.parameters.rounds
        later = (1.0 - first) / max(rounds - 1, 1)
        share = first + later * self.fits if self.fits < rounds - 1 else 1.0
        return min(round(share * self.run_folder.config.steps), self.run_folder.config.steps)

    def collect_labels(self) -> None:
        """Run a block of tasks, and keep what they label.

        Raises:
            InputError: If no scenario has a decision with a choice.
        """
        if self.steps == 0 and self.tasks >= self.order.size:
            raise InputError("no decision of these scenarios has a choice", "take larger ones", field="--preset")
        if not self._workers:
            self._workers = self._new_workers()
        numbers = range(self.tasks, self.tasks + self.parameters.distil_block)
        tasks = [self._label_task(number) for number in numbers]
        labels = label_runs(tasks, self._workers, self.parameters.distil_own, self.pool)
        self._labels.append(labels)
        self._labels_file(self.blocks).parent.mkdir(exist_ok=True)
        write_arrays(self._labels_file(self.blocks), labels._asdict())
        self.blocks += 1
        self.tasks += len(tasks)
        self.steps += labels.tried.size
        self._record_labels(labels)

    def _label_task(self, number: int) -> LabelTask:
        scenario = int(self.order[number % self.order.size])
        seed = (self.run_folder.config.seed * 7_368_787 + number) & 0xFFFFFFFF
        return LabelTask(scenario, seed, self.parameters.distil_share)

    def _new_workers(self) -> list[LabelWorker]:
        """Return a worker for each thread: the base of rollouts is the heuristic first, then the network itself."""
        heuristic = HEURISTICS["patient" if self.problem.rules.waiting else "eft-hazard"]
        threads = self.run_folder.config.threads
        bases: list[RolloutBase] = [heuristic] * threads
        search = Search(self.parameters.futures, self.parameters.width)
        if self.fits or self.run_folder.config.init:
            network = copy.deepcopy(self.network)
            bases = [CandidatePolicy("network", self.run_folder.schema, network) for _ in range(threads)]
        if self.fits:  # the value of a checkpoint may be of something else
            search = replace(search, horizon=self.parameters.distil_horizon)
        return label_workers(self.problem, objective_of(self.problem.scenarios.submit_s), search, bases, heuristic)

    def _record_labels(self, labels: Labels) -> None:
        if labels.tried.size == 0:
            return
        record = self.run_folder.logger.record
        is_tried = np.arange(labels.gain.shape[1]) < labels.tried[:, None]
        record("distil/candidates", float(labels.tried.mean()))
        record("distil/best_gain", float(np.where(is_tried, labels.gain, -np.inf).max(axis=1).mean()))
        record("distil/standard_error", float(labels.error[:, 1:][is_tried[:, 1:]].mean()))

    def fit(self) -> CandidateNetwork:
        """Fit a network to all labels so far; in the last round return the mean of several."""
        labels = self._labels[:] = [join_labels(self._labels)]
        last = self.steps >= self.run_folder.config.steps
        members = []
        for number in range(self.parameters.distil_members if last else 1):
            rng = np.random.default_rng((self.run_folder.config.seed, self.fits, number))
            network = self._new_network(int(rng.integers(2**62)))
            fitted = fit_network(network, labels[0], self.parameters, self.pool, rng)
            for name, value in fitted._asdict().items():
                self.run_folder.logger.record(f"distil/{name}", value)
            members.append(network)
        self.network = members[0]
        self.fits += 1
        self._workers = []
        return mean_network(members) if last else self.network

    def _new_network(self, seed: int) -> CandidateNetwork:
        """Return the network that a fit begins with: weights that fitted fewer labels would hold it back."""
        if self._initial is not None:
            return copy.deepcopy(self._initial)
        torch.manual_seed(seed)
        return CandidateNetwork(self.network.layout)

    def save(self) -> None:
        """Write everything that the run needs to continue, except the labels, which are written already."""
        arrays = {f"network/{name}": tensor.numpy() for name, tensor in self.network.state_dict().items()}
        counters = np.array([self.steps, self.tasks, self.blocks, self.fits])
        write_arrays(self.run_folder.path / SNAPSHOT, arrays | {"counters": counters})

    def _labels_file(self, block: int) -> Path:
        return self.run_folder.path / LABELS_FOLDER / f"{block:05}.npz"

    def load(self) -> None:
        """Continue where `save` left the run.

        Raises:
            CheckpointError: If a file is missing, damaged or of another run.
        """
        with read_arrays(self.run_folder.path / SNAPSHOT) as arrays:
            restore_weights(arrays, "network", self.network)
            counters = checked_counts(arrays, "counters", np.zeros(4, dtype=np.int64))
            self.steps, self.tasks, self.blocks, self.fits = (int(count) for count in counters)
        for block in range(self.blocks):
            with read_arrays(self._labels_file(block)) as arrays:
                self._labels.append(sound_labels(arrays, self.problem.scenarios.jobs.size))
        held = sum(labels.tried.size for labels in self._labels)
        if held != self.steps:
            raise CheckpointError(
                f"{self.run_folder.path / LABELS_FOLDER} holds {held} decisions, the snapshot {self.steps}; "
                "remove its folder to start again"
            )


def learn_by_distillation(problem: Problem, run_folder: RunFolder) -> int:
    """Train until the run's decisions are labelled and learned, or it is interrupted; return the number of labels.

    1. Label decisions by rollouts: of the heuristic in the first round, then of the network itself.
    2. At the end of a round, fit a network to all labels so far and validate it.
    3. Repeat until all decisions are labelled; the policy is the mean of several networks of the last round.
    """
    learner = DistilLearner(problem, run_folder)
    if (run_folder.path / SNAPSHOT).exists():
        learner.load()
    total = run_folder.config.steps
    run_folder.begin(learner.steps)
    while learner.steps < total and not run_folder.interrupted:
        learner.collect_labels()
        if learner.steps >= learner.steps_at_round_end:
            run_folder.validate(learner.fit(), learner.steps)
        learner.save()
        run_folder.record_progress(learner.steps)
    if run_folder.best is None:
        run_folder.validate(
            learner.network, learner.steps, for_best=False
        )  # a stop before there was anything to validate
    return learner.steps


MARGINS = (0.0, 0.25, 0.5, 1.0, 2.0)


def with_best_margin(policy: CandidatePolicy, cost: Callable[[CandidatePolicy], float]) -> CandidatePolicy:
    """Return a policy with the margin of least cost, the smallest of equals."""
    found = [with_margin(policy, margin) for margin in MARGINS]
    return min(found, key=cost)


def with_margin(policy: CandidatePolicy, margin: float) -> CandidatePolicy:
    """Return a policy that favours the base heuristic by a margin."""
    network = policy.network
    assert isinstance(network, CandidateNetwork)
    return CandidatePolicy(policy.name, policy.schema.model_copy(update={"margin": margin}), network)


def mean_log_cost(
    policy: CandidatePolicy, problems: Sequence[Problem], tail: float, weighting: Weighting | None = None
) -> float:
    """Return the mean over problems of the mean logarithm of what each scenario costs.

    So each scenario weighs alike, whatever its jobs' lengths, as in the comparison of traces.

    Args:
        policy: What decides.
        problems: To validate on.
        tail: Share of the p99 of JCT in the cost where jobs arrive; the rest is the mean. A batch costs its makespan.
        weighting: The objective of a user in place of both.
    """
    return float(np.mean([_problem_log_cost(policy, problem, tail, weighting) for problem in problems]))


def _problem_log_cost(policy: CandidatePolicy, problem: Problem, tail: float, weighting: Weighting | None) -> float:
    found = run_for_metrics(simulation_of(problem, rows=problem.scenarios.jobs.size), policy, problem)
    if weighting is not None:
        return float(np.log(weighting.cost(found)).mean())
    if objective_of(problem.scenarios.submit_s) == "makespan":
        return float(np.log(found.makespan_s).mean())
    return float(np.log((1.0 - tail) * found.mean_jct_s + tail * found.p99_jct_s).mean())
