"""The group-relative policy gradient: the trainer of networks that choose among candidates.

The algorithm is `GroupLearner.update`. It runs each scenario several times, on the same jobs and faults, and needs no
critic: the advantage of a decision is how much better its run does than the other runs of its group. The network's
value head learns the time that is still to come, for rollouts that stop early (agents/rollouts.py). It changes nothing
in the policy.

The file follows the steps of an update: collection, advantages, live decisions, loss, snapshot.

Source: REINFORCE with a leave-one-out baseline (Kool et al., 2019); PPO's clipped objective (Schulman et al., 2017);
docs/training.md. For live decisions: truncated importance weights of IMPALA (Espeholt et al., 2018), a bound on the
effective sample size as in P3O (Wang et al., 2019), and docs/decisions/0013-learning-from-the-past.md.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..agents.learned.checkpoint import layout_of
from ..agents.networks.candidates import CandidateNetwork, candidate_weights
from ..agents.networks.sampled_runs import SampledRuns, sample_runs
from ..cluster.model.outcome import RunMetrics, Weighting, metrics, objective_of, slowdown_base_s, weighting_of_figure
from ..cluster.model.problem import Problem
from ..cluster.simulator.simulation import outcome_of, simulation_of
from ..cluster.state.state import MAX_CANDIDATES, Simulation
from ..envs.features import CANDIDATE_FEATURE_COUNT, CANDIDATE_GLOBAL_COUNT
from .credit import CreditBaseline, JobTimes, credits_of, divided_by_spread, feature_gaps_of, job_times, join_job_times
from .history import OBSERVATION_SIZE, ObservedDecision, Stays, read_history
from .problems import TRAINED_PART
from .run_folder import RunFolder
from .snapshot import (
    SNAPSHOT,
    Arrays,
    check_within,
    checked_alike,
    checked_counts,
    learned_arrays,
    read_arrays,
    restore_learned,
    restore_weights,
    write_arrays,
)

SHARDS = 4  # simulations that collect; independent of the number of threads, which must change nothing
AVERAGED_UPDATES = 8  # from random weights, the average is over the latest 1/8 of the run so far
CHUNKS = 8  # of a minibatch, one after the other on each thread
LIVE_RATIO = 4  # simulated decisions for each live one, at least
MIN_SAMPLE_SIZE = 0.3  # effective, of 1; below it the policy that acted is too far away, as in replay.py
VALUE_ERROR_SAMPLES = 4096  # decisions of an update that the error of the value is computed from
MAX_BASELINE_SUM = 1e30  # far above any sum that a credit baseline reaches
CLOSED_LOGIT = -1e9  # of a candidate that is not in the list
SUMS = ("mean-jct", "slowdown")  # figures that are sums over jobs, so that decisions are credited with them by time
STATE_FEATURES = CANDIDATE_GLOBAL_COUNT + CANDIDATE_FEATURE_COUNT  # features of a decision that no choice changes


class CollectedRuns(NamedTuple):
    """What the runs of an update were like."""

    record: SampledRuns  # all decisions
    figures: RunMetrics  # of shape (runs,)
    times: JobTimes  # of their jobs


class Decisions(NamedTuple):
    """Decisions that are learned from."""

    observations: Tensor  # (decisions, size)
    candidates: Tensor  # (decisions,) length of the list
    chosen: Tensor  # (decisions,)
    log_probability: Tensor  # (decisions,) of the chosen one, by the network that is the start of the update
    gain: Tensor  # (decisions,) advantage
    to_go: Tensor  # (decisions,) what was still to come of the objective, in the unit of the value head


class LiveDecisions(NamedTuple):
    """Decisions among candidates that a live scheduler made."""

    observations: NDArray[np.float32]  # (decisions, OBSERVATION_SIZE)
    candidates: NDArray[np.int32]  # (decisions,) length of the list
    chosen: NDArray[np.int64]  # (decisions,)
    log_probability: NDArray[np.float32]  # (decisions,) with which it was drawn; nan where it was not drawn
    to_go: NDArray[np.float32]  # (decisions,) what was still to come, in the unit of the value head


class Shard(NamedTuple):
    """One of the simulations that collect, and which of all runs it collects."""

    problem: Problem
    sim: Simulation
    scenarios: slice  # of all that are run
    jct: int  # 1 if the objective is the mean JCT, 0 for the makespan


def learn_by_groups(problems: Sequence[Problem], run_folder: RunFolder) -> int:
    """Train until the run's steps are done or it is interrupted; return the steps.

    1. Load the snapshot, if the run was stopped before.
    2. Update the network, until the steps are done.
    3. Validate the averaged network and save a snapshot, whenever a validation is due and at the end.
    """
    learner = GroupLearner(problems, run_folder)
    if (run_folder.path / SNAPSHOT).exists():
        learner.load()
    begun, total = learner.steps, run_folder.config.steps
    run_folder.begin(begun)
    while learner.steps < total and not run_folder.interrupted:
        learner.update()
        if run_folder.is_validation_due(learner.steps):
            run_folder.validate(learner.average, learner.steps)
            learner.save()
        run_folder.record_progress(learner.steps)
    if learner.steps > begun:
        # An uninterrupted run would not have validated where this one was stopped.
        run_folder.validate(learner.average, learner.steps, for_best=learner.steps >= total)
        learner.save()
        run_folder.record_progress(learner.steps)
    elif run_folder.best is None:  # a stop before the first update: the policy is what the run begins with
        run_folder.validate(learner.average, learner.steps, for_best=False)
    return learner.steps


class GroupLearner:
    """A network and its optimiser, updated by groups of runs.

    Args:
        problems: What is run: each update runs the same number of scenarios of each, give or take one.
        run_folder: Keeps the run.
    """

    def __init__(self, problems: Sequence[Problem], run_folder: RunFolder) -> None:
        config = run_folder.config
        torch.manual_seed(config.seed)
        self.run_folder, self.parameters, self.problems = run_folder, config.group, problems
        self.weighting = config.weighting  # None: the usual objective of each problem
        initial = run_folder.initial
        assert initial is None or isinstance(initial, CandidateNetwork)
        self.network = initial or CandidateNetwork(layout_of(run_folder.schema))
        self.average = deepcopy(self.network)  # over the latest updates; it is the policy
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=self.parameters.group_learning_rate)
        self.rng = np.random.default_rng(config.seed)
        self.pool = ThreadPoolExecutor(config.threads)
        each, more = divmod(max(self.parameters.groups, len(problems)), len(problems))
        self.groups = [each + int(place < more) for place in range(len(problems))]
        self.collector = RunCollector(problems, [groups * self.parameters.runs for groups in self.groups], self.pool)
        self.baseline = CreditBaseline(len(problems), STATE_FEATURES)
        self.steps = 0
        self.live = read_live_decisions(Path(config.history)) if config.history else None

    def update(self) -> None:
        """Make one update of the group-relative policy gradient.

        1. Draw the scenarios, one for each group.
        2. Collect: run each scenario `runs` times on the same jobs and faults, by candidates that the network samples.
        3. Compute the advantage of each decision against the other runs of its group.
        4. Add decisions of a live scheduler, if the run learns from a history.
        5. Optimise PPO's clipped objective, the entropy and the value, by a step of Adam for each minibatch.
        6. Average the weights: the average over the latest updates is the policy.
        """
        scenarios, seed = self._draw_scenarios()
        collected = self.collector.collect(self.network, scenarios, seed)
        decisions = decisions_of(collected.record, self._advantages(collected))
        self._record_value_error(decisions)
        self._optimise(self._with_live_decisions(decisions))
        new_steps = int(collected.record.size[0])
        self.steps += new_steps
        self._average_weights(new_steps)
        self._record_figures(collected.figures)

    def _draw_scenarios(self) -> tuple[NDArray[np.int64], int]:
        """Return the scenario of each run, shape (runs of all groups,), and the seed of the sampled candidates."""
        drawn = [
            self.rng.integers(0, problem.scenarios.jobs.size, groups)
            for problem, groups in zip(self.problems, self.groups, strict=True)
        ]
        seed = int(self.rng.integers(0, 2**32))
        return np.repeat(np.concatenate(drawn), self.parameters.runs), seed

    def _advantages(self, collected: CollectedRuns) -> NDArray[np.float64]:
        """Return the advantage of each decision, shape (decisions,).

        A decision of a batch, or of any run without a horizon, has the advantage of its whole run. Where jobs arrive
        over time, a decision is credited with the job-time after it, and shares in what is no sum over time.
        """
        row, figures, runs = collected.record.row, collected.figures, self.parameters.runs
        of_run = group_advantages(self._group_costs(figures)).reshape(-1)[row]
        if not self.parameters.group_horizon:
            return of_run
        credit = self._credits(collected)
        if self.weighting is None:
            whole_share, whole_cost = self.parameters.group_tail, relative_to_group(figures.p99_jct_s, runs)
        else:
            whole = {name: share for name, share in figure_shares(self.weighting).items() if name not in SUMS}
            whole_share, whole_cost = sum(whole.values()), relative_cost(whole, figures, runs)
        of_whole = group_advantages(whole_cost).reshape(-1)[row]
        over_time: NDArray[np.float64] = (1.0 - whole_share) * divided_by_spread(credit) + whole_share * of_whole
        return np.where(self._are_batches().repeat(runs)[row], of_run, over_time)

    def _credits(self, collected: CollectedRuns) -> NDArray[np.float64]:
        """Return the credit of each decision by time, less its baseline; record how much the baseline explains."""
        record, figures, times = collected
        runs, horizon = self.parameters.runs, self.parameters.group_horizon
        mean_s = figures.mean_jct_s.reshape(-1, runs).mean(axis=1).repeat(runs)
        weights = None if self.weighting is None else job_weights(self.weighting, times, figures, runs)
        earned = credits_of(record, times, runs, mean_s, horizon, weights)
        problem = np.repeat(np.arange(len(self.problems)), self.groups).repeat(runs)[record.row]
        left = self.baseline.subtract_and_fit(earned, feature_gaps_of(record, runs, STATE_FEATURES), problem)
        explained = 1.0 - float(left.var()) / max(float(earned.var()), 1e-30)
        self.run_folder.logger.record("group/explained", explained)
        return left

    def _are_batches(self) -> NDArray[np.bool_]:
        """Return which groups are of batches, whose objective is the makespan, shape (groups,)."""
        is_batch = [objective_of(problem.scenarios.submit_s) == "makespan" for problem in self.problems]
        return np.repeat(is_batch, self.groups)

    def _group_costs(self, figures: RunMetrics) -> NDArray[np.float64]:
        """Return what is minimised, shape (groups, runs).

        It is the makespan, or the mean JCT relative to the group's mean: in hours, groups of long jobs would drown the
        others. The objective of a user is relative likewise, and counts for batches, too.
        """
        runs, tail = self.parameters.runs, self.parameters.group_tail
        if self.weighting is not None:
            return relative_cost(figure_shares(self.weighting), figures, runs)
        makespan_s, jct_s = figures.makespan_s.reshape(-1, runs), figures.mean_jct_s.reshape(-1, runs)
        if len(self.problems) == 1 and objective_of(self.problems[0].scenarios.submit_s) == "makespan":
            return makespan_s
        mean = relative_to_group(np.where(self._are_batches()[:, None], makespan_s, jct_s), runs)
        return (1.0 - tail) * mean + tail * relative_to_group(figures.p99_jct_s, runs) if tail else mean

    def _with_live_decisions(self, decisions: Decisions) -> Decisions:
        """Return decisions with some live ones, if there are any: one for LIVE_RATIO of the others at most."""
        if self.live is None or not self.live.chosen.size:
            return decisions
        live, size = draw_live_decisions(self.live, self.network, self.rng, decisions.chosen.numel() // LIVE_RATIO)
        self.run_folder.logger.record("history/decisions", float(live.chosen.numel()))
        self.run_folder.logger.record("history/effective_sample_size", size)
        return Decisions(*(torch.cat(pair) for pair in zip(decisions, live, strict=True)))

    def _optimise(self, decisions: Decisions) -> None:
        """Take a step of Adam for each minibatch of decisions that had a choice."""
        left = max(1.0 - self.steps / self.run_folder.config.steps, 0.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.parameters.group_learning_rate * left
        choices = np.flatnonzero(decisions.candidates.numpy() > 1)
        if not choices.size:  # as in the history of a cluster that had room for every job
            return

        def loss(part: Tensor) -> Tensor:
            return self._loss(Decisions(*(tensor[part] for tensor in decisions)))

        order = torch.from_numpy(self.rng.permutation(choices))
        for minibatch in torch.split(order, self.parameters.group_minibatch):
            # Chunks of decisions with equally long lists are narrow.
            rows = minibatch[torch.argsort(decisions.candidates[minibatch], stable=True)]
            step_in_chunks(self.network, self.optimizer, self.pool, rows, loss)

    def _loss(self, decisions: Decisions) -> Tensor:
        """Return the loss of the policy and that of the value, summed over decisions."""
        longest = int(decisions.candidates.max())
        width = CANDIDATE_GLOBAL_COUNT + longest * CANDIDATE_FEATURE_COUNT
        logits, values = self.network(decisions.observations[:, :width])
        return self._policy_loss(logits, decisions) + value_loss(values, decisions.to_go)

    def _policy_loss(self, logits: Tensor, decisions: Decisions) -> Tensor:
        """Return minus PPO's clipped objective, min(r A, clip(r, 1 - eps, 1 + eps) A), and the entropy, summed."""
        log_probabilities = open_log_probabilities(logits, decisions.candidates)
        taken = log_probabilities.gather(1, decisions.chosen[:, None]).squeeze(1)
        ratio = (taken - decisions.log_probability).exp()
        clip, gain = self.parameters.group_clip, decisions.gain
        objective = torch.minimum(ratio * gain, ratio.clamp(1.0 - clip, 1.0 + clip) * gain).sum()
        entropy = -(log_probabilities.exp() * log_probabilities).sum()
        loss: Tensor = -objective - self.parameters.group_entropy * entropy
        return loss

    @torch.no_grad()
    def _average_weights(self, new_steps: int) -> None:
        weight = self.parameters.group_average
        if self.run_folder.config.init is None:  # from random weights the first updates are soon outdated
            weight = max(weight, min(AVERAGED_UPDATES * new_steps / self.steps, 1.0))
        for mean, (name, latest) in zip(self.average.parameters(), self.network.named_parameters(), strict=True):
            # The value begins at random even where the policy does not, so that it is not averaged.
            mean.lerp_(latest, 1.0 if name.startswith("value") else weight)

    @torch.no_grad()
    def _record_value_error(self, decisions: Decisions) -> None:
        """Record the error of the value on runs that it has not learned from."""
        rows = torch.arange(0, decisions.candidates.numel(), -(-decisions.candidates.numel() // VALUE_ERROR_SAMPLES))
        error = self.network.values(decisions.observations[rows]) - decisions.to_go[rows]
        self.run_folder.logger.record("group/value_error", float(error.square().mean().sqrt()))

    def _record_figures(self, figures: RunMetrics) -> None:
        record = self.run_folder.logger.record
        record("rollout/makespan_h", float(figures.makespan_s.mean()) / 3600.0)
        record("rollout/mean_jct_h", float(figures.mean_jct_s.mean()) / 3600.0)
        record("rollout/lost_gpu_h", float(figures.lost_gpu_s.mean()) / 3600.0)
        record("rollout/restarts", float(figures.restarts.mean()))
        cost = self._group_costs(figures)
        record("group/spread_percent", float((cost.std(axis=1) / cost.mean(axis=1)).mean()) * 100.0)

    def save(self) -> None:
        """Write everything that the run needs to continue."""
        arrays = learned_arrays(self.network, self.optimizer)
        state = self.rng.bit_generator.state["state"]
        words = [state["state"] >> shift & 0xFFFFFFFFFFFFFFFF for shift in (0, 64)]
        words += [state["inc"] >> shift & 0xFFFFFFFFFFFFFFFF for shift in (0, 64)]
        rest = [self.rng.bit_generator.state["has_uint32"], self.rng.bit_generator.state["uinteger"]]
        arrays |= {"rng": np.array(words + rest, dtype=np.uint64), "steps": np.array([self.steps])}
        arrays |= {"baseline/square": self.baseline.square, "baseline/product": self.baseline.product}
        arrays |= {f"average/{name}": tensor.numpy() for name, tensor in self.average.state_dict().items()}
        write_arrays(self.run_folder.path / SNAPSHOT, arrays)

    def load(self) -> None:
        """Continue where `save` left the run.

        Raises:
            CheckpointError: If the file is damaged or belongs to another run.
        """
        with read_arrays(self.run_folder.path / SNAPSHOT) as arrays:
            restore_learned(arrays, self.network, self.optimizer)
            restore_weights(arrays, "average", self.average)
            for name in ("square", "product"):
                kept = checked_alike(arrays, f"baseline/{name}", getattr(self.baseline, name))
                check_within(f"baseline/{name}", kept, -MAX_BASELINE_SUM, MAX_BASELINE_SUM)
                setattr(self.baseline, name, kept)
            self.rng.bit_generator.state = _checked_rng_state(arrays)
            self.steps = int(checked_counts(arrays, "steps", np.zeros(1, dtype=np.int64))[0])


class RunCollector:
    """Collects a number of runs at once, of one problem or of several.

    Args:
        problems: What is run.
        rows: Runs of each problem, a multiple of SHARDS if there is one problem.
        pool: Threads.
    """

    def __init__(self, problems: Sequence[Problem], rows: Sequence[int], pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self.shards, first = list[Shard](), 0
        for problem, count in zip(problems, rows, strict=True):
            shards = max(1, SHARDS // len(problems))
            jct = int(objective_of(problem.scenarios.submit_s) == "jct")
            for size in [count // shards] * shards:
                self.shards.append(Shard(problem, simulation_of(problem, rows=size), slice(first, first + size), jct))
                first += size
        self._records = [_empty_record(2 * shard.sim.state.first_gpu.size) for shard in self.shards]

    def collect(self, network: CandidateNetwork, scenarios: NDArray[np.int64], seed: int) -> CollectedRuns:
        """Run a scenario in each row by sampled candidates; return all decisions, the runs' figures and their times."""

        def collect_shard(index: int) -> tuple[SampledRuns, RunMetrics, JobTimes]:
            shard, record = self.shards[index], self._records[index]
            run = scenarios[shard.scenarios]
            record.size[0] = 0
            weights = candidate_weights(network)
            while not sample_runs(shard.sim, run, weights, seed, shard.scenarios.start, shard.jct, record):
                record = self._records[index] = _empty_record(2 * record.chosen.size)
            return record, *_shard_figures(shard, run)

        records, figures, times = zip(*self.pool.map(collect_shard, range(len(self.shards))), strict=True)
        together = RunMetrics(*(np.concatenate(values) for values in zip(*figures, strict=True)))
        return CollectedRuns(_join_records(records), together, join_job_times(times))


def _shard_figures(shard: Shard, run: NDArray[np.int64]) -> tuple[RunMetrics, JobTimes]:
    scenarios, gpus = shard.problem.scenarios, shard.problem.cluster.gpu_node.size
    outcome, jobs, submit_s = outcome_of(shard.sim), scenarios.jobs[run], scenarios.submit_s[run]
    work_s = scenarios.work_s[run]
    figures = metrics(outcome, jobs, scenarios.gpus[run], submit_s, gpus, work_s)
    return figures, job_times(outcome, jobs, submit_s, work_s)


def _empty_record(decisions: int) -> SampledRuns:
    return SampledRuns(
        observations=np.zeros((decisions, OBSERVATION_SIZE), np.float32),
        logits=np.zeros((decisions, MAX_CANDIDATES), np.float32),
        candidates=np.zeros(decisions, np.int32),
        chosen=np.zeros(decisions, np.int64),
        log_probability=np.zeros(decisions, np.float32),
        row=np.zeros(decisions, np.int32),
        now_s=np.zeros(decisions),
        unit_s=np.zeros(decisions),
        submitted=np.zeros(decisions, np.int32),
        to_go=np.zeros(decisions, np.float32),
        size=np.zeros(1, np.int64),
    )


def _join_records(records: tuple[SampledRuns, ...]) -> SampledRuns:
    """Return the decisions of several records in one."""
    fields = {
        name: np.concatenate([getattr(record, name)[: record.size[0]] for record in records])
        for name in SampledRuns._fields[:-1]
    }
    return SampledRuns(**fields, size=np.array([fields["row"].size]))


def decisions_of(record: SampledRuns, gain: NDArray[np.float64]) -> Decisions:
    """Return recorded decisions with these advantages, shape (decisions,)."""
    arrays = (
        record.observations, record.candidates, record.chosen, record.log_probability, gain.astype(np.float32),
        record.to_go,
    )  # fmt: skip
    return Decisions(*map(torch.from_numpy, arrays))


def group_advantages(cost: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how much better each run is than the mean of the others of its group, over the spread of that.

    Args:
        cost: Shape (groups, runs).

    Returns:
        Shape (groups, runs), of mean 0 in each group; 0 where no run differs from any other.
    """
    runs = cost.shape[1]
    gains = (cost.mean(axis=1, keepdims=True) - cost) * (runs / (runs - 1))
    spread = float(gains.std())
    # 1e-12: where all runs cost the same, rounding leaves gains that would be blown up
    differs = spread > 1e-12 * float(np.abs(cost).mean())
    scaled: NDArray[np.float64] = gains / spread if differs else np.zeros_like(gains)
    return scaled


def relative_to_group(values: NDArray[np.float64], runs: int) -> NDArray[np.float64]:
    """Return values of runs over the mean of their group, shape (groups, runs)."""
    grouped = values.reshape(-1, runs)
    over: NDArray[np.float64] = grouped / grouped.mean(axis=1, keepdims=True)
    return over


def relative_cost(shares: Mapping[str, float], figures: RunMetrics, runs: int) -> NDArray[np.float64]:
    """Return the weighted sum of figures that are relative to the group's mean, shape (groups, runs).

    Close to that mean it differs by as much as the weighted geometric mean does.

    Args:
        shares: Of figures, by their names.
        figures: Of all runs, shape (runs of all groups,).
        runs: Of each group.
    """
    cost = np.zeros((figures.mean_jct_s.size // runs, runs))
    for name, share in shares.items():
        cost += share * relative_to_group(weighting_of_figure(name).cost(figures), runs)
    return cost


def figure_shares(weighting: Weighting) -> dict[str, float]:
    """Return the share of each figure."""
    return {name: weighting.weight(name) for name in weighting.weights}


def job_weights(weighting: Weighting, times: JobTimes, figures: RunMetrics, runs: int) -> NDArray[np.float64]:
    """Return what a second of each job in the system weighs, over what it weighs in the relative mean JCT.

    Args:
        weighting: What is minimised.
        times: Of the runs.
        figures: Of the runs, shape (runs of all groups,).
        runs: Of each group.

    Returns:
        Shape (runs of all groups, jobs).
    """
    jct, slowdown = (weighting.weight(name) for name in SUMS)
    if jct + slowdown == 0.0:
        return np.ones_like(times.submit_s)
    mean_s, mean = (
        values.reshape(-1, runs).mean(axis=1).repeat(runs)[:, None]
        for values in (figures.mean_jct_s, figures.mean_slowdown)
    )
    weights: NDArray[np.float64] = (jct + slowdown * mean_s / (mean * slowdown_base_s(times.work_s))) / (jct + slowdown)
    return weights


def read_live_decisions(path: Path) -> LiveDecisions:
    """Return the decisions among candidates in the part of a history that is trained on.

    A decision is dropped where it is not known what followed it.

    Raises:
        InputError: If the file cannot be used.
    """
    history = read_history(path)
    last = max(round(TRAINED_PART[1] * history.workload.jobs) - 1, 0)
    end_s = history.begin_s + float(history.workload.submit_s[last])
    trained_on = [seen for seen in history.past.observed if seen.now_s < end_s]
    to_go = np.array([observed_time_to_go(history.stays, seen) for seen in trained_on], dtype=np.float32)
    known = np.flatnonzero(np.isfinite(to_go))
    kept = [trained_on[at] for at in known]
    observations = np.array([seen.observation for seen in kept], dtype=np.float32).reshape(-1, OBSERVATION_SIZE)
    # The first feature is 1 where the list has a candidate.
    listed = observations[:, CANDIDATE_GLOBAL_COUNT::CANDIDATE_FEATURE_COUNT] > 0.0
    return LiveDecisions(
        observations, listed.sum(axis=1).astype(np.int32), np.array([seen.action for seen in kept], dtype=np.int64),
        np.array([seen.log_probability for seen in kept], dtype=np.float32), to_go[known],
    )  # fmt: skip


def observed_time_to_go(stays: Stays, seen: ObservedDecision) -> float:
    """Return what was still to come at a decision, in the unit of the value head; nan where that is not known.

    It is the mean time that the jobs then in the system still spent there, of those whose end is known.
    """
    inside = (stays.enter_s <= seen.now_s) & (stays.leave_s > seen.now_s) & np.isfinite(stays.leave_s)
    if not inside.any() or seen.unit_s <= 0.0:
        return math.nan
    return float((stays.leave_s[inside] - seen.now_s).mean()) / seen.unit_s


@torch.no_grad()
def draw_live_decisions(
    live: LiveDecisions, network: CandidateNetwork, rng: np.random.Generator, limit: int
) -> tuple[Decisions, float]:
    """Return some live decisions drawn at random, and the effective sample size of their weights from 0 to 1.

    The gain of a decision that was drawn is how much less was still to come than the value predicted. Its weight is
    how much more probable the network holds it than the policy that acted, cut to 1. Any other decision has no gain,
    and teaches the value alone.

    Args:
        live: All of them, one at least.
        network: That learns.
        rng: Draws them.
        limit: Of their number.
    """
    rows = rng.permutation(live.chosen.size)[:limit]
    observations, candidates, chosen, drawn_by, to_go = (torch.from_numpy(field[rows]) for field in live)
    logits, values = network(observations)
    now = open_log_probabilities(logits, candidates).gather(1, chosen[:, None]).squeeze(1)
    drawn = torch.isfinite(drawn_by)
    ratio = torch.where(drawn, (now - drawn_by).exp(), 0.0)
    size = effective_sample_share(ratio[drawn])
    better = torch.where(drawn, values - to_go, 0.0)
    spread = better[drawn].square().mean().sqrt() if bool(drawn.any()) else torch.zeros(())
    is_near = size >= MIN_SAMPLE_SIZE and float(spread) > 0.0
    gain = ratio.clamp(max=1.0) * better / spread if is_near else torch.zeros_like(to_go)
    # The probability is that of the network itself, so that its step is bounded from where it is.
    return Decisions(observations, candidates, chosen, now, gain, to_go), size


def effective_sample_share(ratio: Tensor) -> float:
    """Return (sum c)^2 / (n sum c^2) of some ratios, 0 of none."""
    squares = float(ratio.square().sum())
    return float(ratio.sum()) ** 2 / (ratio.numel() * squares) if squares > 0.0 else 0.0


def open_log_probabilities(logits: Tensor, candidates: Tensor) -> Tensor:
    """Return log-probabilities of the candidates in the list, shape (decisions, width), of logits of that shape."""
    closed = torch.arange(logits.shape[1]) >= candidates[:, None]
    return logits.masked_fill(closed, CLOSED_LOGIT).log_softmax(dim=1)


def value_loss(values: Tensor, to_go: Tensor) -> Tensor:
    """Return half the squared error of some values, summed."""
    loss: Tensor = 0.5 * (values - to_go).square().sum()
    return loss


def step_in_chunks(
    network: CandidateNetwork, optimizer: torch.optim.Optimizer, pool: ThreadPoolExecutor, rows: Tensor,
    loss: Callable[[Tensor], Tensor],
) -> None:  # fmt: skip
    """Take a step of the optimiser on a minibatch, in chunks of which each thread takes one at a time.

    The gradients of the value and of all else are clipped to length 1 separately, so that the value changes nothing
    else.

    Args:
        network: What learns.
        optimizer: Of its weights.
        pool: Threads; their number changes nothing.
        rows: Numbers of the minibatch's samples.
        loss: From some of the numbers to the sum of their losses.
    """
    parameters, value = list(network.parameters()), list(network.value.parameters())

    def gradients(part: Tensor) -> tuple[Tensor, ...]:
        return torch.autograd.grad(loss(part) / rows.numel(), parameters)

    chunks = pool.map(gradients, torch.split(rows, -(-rows.numel() // CHUNKS)))
    for parameter, parts in zip(parameters, zip(*chunks, strict=True), strict=True):
        parameter.grad = torch.stack(parts).sum(0)
    policy = [tensor for name, tensor in network.named_parameters() if not name.startswith("value")]
    for side in (policy, value):
        torch.nn.utils.clip_grad_norm_(side, 1.0)
    optimizer.step()


def _checked_rng_state(arrays: Arrays) -> dict[str, Any]:
    """Return the state of NumPy's random numbers, and refuse one with an even increment, which repeats early."""
    low, high, inc_low, inc_high, has, rest = (
        int(word) for word in checked_alike(arrays, "rng", np.zeros(6, dtype=np.uint64))
    )
    if inc_low % 2 == 0 or has > 1 or rest >= 2**32:
        raise ValueError(f"rng has increment {inc_low}, has_uint32 {has} and uinteger {rest}, which no generator has")
    return {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has,
        "uinteger": rest,
    }
