"""Group-relative policy gradient: runs of one scenario, on the same faults, measured against each other.

No critic: what a run does better than the others of its group is the advantage of every decision in it. The value only
looks on, and learns what was still to come, for rollouts that are cut off (agents/rollouts.py).

What runs and their jobs are worth by an objective that a user asks for, each figure relative to its group's mean.

Mean JCT and mean slowdown are sums over jobs of the time that each spends in the system, so that decisions can be
credited with them by time. The p99 of JCT and the makespan are no such sums: all decisions of a run have a share.

What the group learner learns from decisions that were made live: by importance weights, and by what followed.

A decision that was drawn is praised for how much less was still to come than the value foresaw. Its weight is how much
more probable the network now holds it than who drew it, cut to 1. Any other decision teaches the value alone.

Source: REINFORCE with a leave-one-out baseline (Kool et al., 2019); docs/training.md; truncated importance weights of
IMPALA (Espeholt et al., 2018), and for the guard P3O (Wang et al., 2019); docs/decisions/0013-learning-from-the-
past.md.
"""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ...agents.learned.checkpoint import layout_of
from ...agents.networks.candidate_run import Record, sample_runs
from ...agents.networks.candidates import CandidateNetwork, candidate_weights
from ...cluster.model.outcome import Metrics, Weighting, alone, bounded_s, metrics, objective_of
from ...cluster.model.problem import Problem
from ...cluster.simulator.simulation import outcome_of, simulation_of
from ...cluster.state.state import CANDIDATES, Simulation
from ...envs.candidate_features import CANDIDATE_FEATURE_COUNT, CANDIDATE_GLOBAL_COUNT
from ..history_problems import Logged, logged_decisions
from ..initial import initial_network
from ..run_folder import RunFolder
from ..snapshot import (
    SNAPSHOT,
    Arrays,
    alike,
    counts,
    learned_arrays,
    read_arrays,
    restore_learned,
    restore_weights,
    within,
    write_arrays,
)
from .credit import Foreseen, Ran, credits_of, gaps_of, joined_runs, over_spread, ran_of

PARTS = 4  # simulations that collect; not the threads, so that their number changes nothing


class Collected(NamedTuple):
    """What runs were like."""

    record: Record  # all decisions
    figures: Metrics  # of shape (runs,)
    ran: Ran  # the times of their jobs


class Part(NamedTuple):
    """A simulation that collects, and what it holds."""

    problem: Problem
    sim: Simulation
    scenarios: slice  # of all that are run
    jct: int  # 1 if the objective is the mean JCT, 0 for the makespan


class Runs:
    """A number of runs collected at once, of one problem or of several.

    Args:
        problems: What is run.
        rows: Runs of each problem, a multiple of PARTS if there is one problem.
        pool: Threads.
    """

    def __init__(self, problems: Sequence[Problem], rows: Sequence[int], pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self._parts, first = [], 0
        for problem, count in zip(problems, rows, strict=True):
            parts = max(1, PARTS // len(problems))
            jct = int(objective_of(problem.scenarios.submit_s) == "jct")
            for size in [count // parts] * parts:
                self._parts.append(Part(problem, simulation_of(problem, rows=size), slice(first, first + size), jct))
                first += size
        self._records = [_record(2 * sim.state.first_gpu.size) for _, sim, _, _ in self._parts]

    def collect(self, network: CandidateNetwork, scenarios: NDArray[np.int64], seed: int) -> Collected:
        """Run a scenario in each row by sampled candidates; return all decisions, the runs' figures and their times."""

        def one(index: int) -> tuple[Record, Metrics, Ran]:
            part, record = self._parts[index], self._records[index]
            mine = scenarios[part.scenarios]
            record.size[0] = 0
            weights = candidate_weights(network)
            while not sample_runs(part.sim, mine, weights, seed, part.scenarios.start, part.jct, record):
                record = self._records[index] = _record(2 * record.chosen.size)
            return record, *_figures(part, mine)

        records, figures, ran = zip(*self.pool.map(one, range(len(self._parts))), strict=True)
        together = Metrics(*(np.concatenate(values) for values in zip(*figures, strict=True)))
        return Collected(_joined(records), together, joined_runs(ran))


def _figures(part: Part, run: NDArray[np.int64]) -> tuple[Metrics, Ran]:
    scenarios, gpus = part.problem.scenarios, part.problem.cluster.gpu_node.size
    outcome, jobs, submit_s = outcome_of(part.sim), scenarios.jobs[run], scenarios.submit_s[run]
    work_s = scenarios.work_s[run]
    return metrics(outcome, jobs, scenarios.gpus[run], submit_s, gpus, work_s), ran_of(outcome, jobs, submit_s, work_s)


def _record(decisions: int) -> Record:
    return Record(
        observations=np.zeros((decisions, CANDIDATE_GLOBAL_COUNT + CANDIDATES * CANDIDATE_FEATURE_COUNT), np.float32),
        logits=np.zeros((decisions, CANDIDATES), np.float32),
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


def _joined(records: tuple[Record, ...]) -> Record:
    """Return the decisions of several records in one."""
    fields = {
        name: np.concatenate([getattr(record, name)[: record.size[0]] for record in records])
        for name in Record._fields[:-1]
    }
    return Record(**fields, size=np.array([fields["row"].size]))


SUMS = ("mean-jct", "slowdown")


def relative(values: NDArray[np.float64], runs: int) -> NDArray[np.float64]:
    """Return values of runs over the mean of their group, shape (groups, runs)."""
    grouped = values.reshape(-1, runs)
    over: NDArray[np.float64] = grouped / grouped.mean(axis=1, keepdims=True)
    return over


def relative_cost(shares: Mapping[str, float], figures: Metrics, runs: int) -> NDArray[np.float64]:
    """Return the weighted sum of figures that are relative to the group's mean, shape (groups, runs).

    Close to that mean it differs by as much as the weighted geometric mean does.

    Args:
        shares: Of figures, by their names.
        figures: Of all runs, shape (runs of all groups,).
        runs: Of each group.
    """
    cost = np.zeros((figures.mean_jct_s.size // runs, runs))
    for name, share in shares.items():
        cost += share * relative(alone(name).cost(figures), runs)
    return cost


def shares_of(weighting: Weighting) -> dict[str, float]:
    """Return the share of each figure."""
    return {term.name: weighting.weight(term.name) for term in weighting.terms}


def whole_shares(weighting: Weighting) -> dict[str, float]:
    """Return the shares of what decisions cannot be credited with by time."""
    return {name: share for name, share in shares_of(weighting).items() if name not in SUMS}


def job_weights(weighting: Weighting, ran: Ran, figures: Metrics, runs: int) -> NDArray[np.float64]:
    """Return what a second of each job in the system weighs, over what it weighs in the relative mean JCT.

    Args:
        weighting: What is minimised.
        ran: The runs.
        figures: Of them, shape (runs of all groups,).
        runs: Of each group.

    Returns:
        Shape (runs of all groups, jobs).
    """
    jct, slowdown = (weighting.weight(name) for name in SUMS)
    if jct + slowdown == 0.0:
        return np.ones_like(ran.submit_s)
    mean_s, mean = (
        values.reshape(-1, runs).mean(axis=1).repeat(runs)[:, None]
        for values in (figures.mean_jct_s, figures.mean_slowdown)
    )
    weights: NDArray[np.float64] = (jct + slowdown * mean_s / (mean * bounded_s(ran.work_s))) / (jct + slowdown)
    return weights


LEAST_SAMPLE_SIZE = 0.3  # effective, of 1: whoever drew is too far away below, as in actor_critic/replay.py
CLOSED = -1e9  # logit of a candidate that the list does not have, as in group.py


class Lesson(NamedTuple):
    """Decisions in the fields of the learner's own."""

    observations: Tensor
    candidates: Tensor
    chosen: Tensor
    log_probability: Tensor  # by the network that learns, so that its step is bounded from where it is
    gain: Tensor  # 0 where it was not drawn
    to_go: Tensor


@torch.no_grad()
def lesson_of(logged: Logged, network: CandidateNetwork, rng: np.random.Generator, most: int) -> tuple[Lesson, float]:
    """Return some decisions drawn at random, and the effective sample size of their weights from 0 to 1.

    Args:
        logged: All of them, one at least.
        network: That learns.
        rng: Draws them.
        most: How many at most.
    """
    rows = rng.permutation(logged.chosen.size)[:most]
    observations, candidates, chosen, drawn_by, to_go = (torch.from_numpy(field[rows]) for field in logged)
    logits, values = network(observations)
    closed = torch.arange(logits.shape[1]) >= candidates[:, None]
    now = logits.masked_fill(closed, CLOSED).log_softmax(dim=1).gather(1, chosen[:, None]).squeeze(1)
    drawn = torch.isfinite(drawn_by)
    ratio = torch.where(drawn, (now - drawn_by).exp(), 0.0)
    size = effective_sample_size(ratio[drawn])
    better = torch.where(drawn, values - to_go, 0.0)
    spread = better[drawn].square().mean().sqrt() if bool(drawn.any()) else torch.zeros(())
    is_near = size >= LEAST_SAMPLE_SIZE and float(spread) > 0.0
    gain = ratio.clamp(max=1.0) * better / spread if is_near else torch.zeros_like(to_go)
    return Lesson(observations, candidates, chosen, now, gain, to_go), size


def effective_sample_size(ratio: Tensor) -> float:
    """Return (sum c)^2 / (n sum c^2) of some ratios, 0 of none."""
    squares = float(ratio.square().sum())
    return float(ratio.sum()) ** 2 / (ratio.numel() * squares) if squares > 0.0 else 0.0


AVERAGED = 8  # from random weights, the average is over the latest of so many parts of the run so far
CHUNKS = 8  # of a minibatch, one after the other on each thread
STATE = CANDIDATE_GLOBAL_COUNT + CANDIDATE_FEATURE_COUNT  # features of a decision that no choice changes
MOST_KEPT = 1e30  # no sum of what is foreseen comes near
LIVE = 4  # simulated decisions for each that was made live, at least
JUDGED = 4096  # decisions of an update that the error of the value is taken from


class Decisions(NamedTuple):
    """Decisions that are learned from."""

    observations: Tensor  # (decisions, size) observations
    candidates: Tensor  # (decisions,) candidates of the list
    chosen: Tensor  # (decisions,)
    log_probability: Tensor  # (decisions,) of that, by the network that chose
    gain: Tensor  # (decisions,) advantage
    to_go: Tensor  # (decisions,) what was still to come of the objective, as the value tells it


def decisions_of(record: Record, gain: NDArray[np.float64]) -> Decisions:
    """Return what is learned from decisions with these advantages, shape (decisions,)."""
    arrays = (
        record.observations, record.candidates, record.chosen, record.log_probability,
        gain.astype(np.float32),
        record.to_go,
    )  # fmt: skip
    return Decisions(*map(torch.from_numpy, arrays))


def value_loss(values: Tensor, to_go: Tensor) -> Tensor:
    """Return half the squared error of some values, summed."""
    loss: Tensor = 0.5 * (values - to_go).square().sum()
    return loss


def advantages(cost: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return by how much each run is better than the others of its group, over the spread of that.

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


def step_in_chunks(
    network: CandidateNetwork, optimizer: torch.optim.Optimizer, pool: ThreadPoolExecutor, rows: Tensor,
    loss: Callable[[Tensor], Tensor],
) -> None:  # fmt: skip
    """Take a step of the optimiser on a minibatch, in parts of which each thread takes one at a time.

    The gradients of the value and of all else are cut to length 1 apart, so that the value changes nothing else.

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


def _relative(values: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return values over the mean of their group, shape (groups, runs)."""
    relative: NDArray[np.float64] = values / values.mean(axis=1, keepdims=True)
    return relative


class GroupLearner:
    """A network and its optimiser, updated by groups of runs.

    Args:
        problems: What is run: each update runs as many scenarios of one as of another.
        run_folder: Keeps the run.
    """

    def __init__(self, problems: Sequence[Problem], run_folder: RunFolder) -> None:
        config = run_folder.config
        torch.manual_seed(config.seed)
        self.run_folder, self.parameters, self.problems = run_folder, config.group, problems
        self.weighting = config.weighting  # None: what is usual
        self.network = initial_network(config) or CandidateNetwork(layout_of(run_folder.schema))
        self.average = deepcopy(self.network)  # over the latest updates: each goes a little astray
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=self.parameters.group_learning_rate)
        self.rng = np.random.default_rng(config.seed)
        self.pool = ThreadPoolExecutor(config.threads)
        each, more = divmod(max(self.parameters.groups, len(problems)), len(problems))
        self.groups = [each + int(place < more) for place in range(len(problems))]
        self.runs = Runs(problems, [groups * self.parameters.runs for groups in self.groups], self.pool)
        self.foreseen = Foreseen(len(problems), STATE)
        self.steps = 0
        self.logged = logged_decisions(Path(config.history)) if config.history else None

    def update(self) -> None:
        """Collect groups of runs and learn from them."""
        drawn = [
            self.rng.integers(0, problem.scenarios.jobs.size, groups)
            for problem, groups in zip(self.problems, self.groups, strict=True)
        ]
        seed = int(self.rng.integers(0, 2**32))
        scenarios = np.repeat(np.concatenate(drawn), self.parameters.runs)
        collected = self.runs.collect(self.network, scenarios, seed)
        record, figures = collected.record, collected.figures
        decisions = decisions_of(record, self._gains(collected))
        self._note_value(decisions)
        self._learn(self._with_logged(decisions))
        self.steps += int(record.size[0])
        self._average(int(record.size[0]))
        self._note(figures)

    def _with_logged(self, decisions: Decisions) -> Decisions:
        """Return decisions with some that were made live, if there are such: one for LIVE of the others at most."""
        if self.logged is None or not self.logged.chosen.size:
            return decisions
        lesson, size = lesson_of(self.logged, self.network, self.rng, decisions.chosen.numel() // LIVE)
        self.run_folder.logger.record("history/decisions", float(lesson.chosen.numel()))
        self.run_folder.logger.record("history/effective_sample_size", size)
        return Decisions(*(torch.cat(pair) for pair in zip(decisions, lesson, strict=True)))

    @torch.no_grad()
    def _average(self, latest_steps: int) -> None:
        weight = self.parameters.group_average
        if self.run_folder.config.init is None:  # what random weights became first is soon outdated
            weight = max(weight, min(AVERAGED * latest_steps / self.steps, 1.0))
        for mean, (name, latest) in zip(self.average.parameters(), self.network.named_parameters(), strict=True):
            # The value begins at random also where the policy was taught: it is not averaged with that.
            mean.lerp_(latest, 1.0 if name.startswith("value") else weight)

    def _gains(self, collected: Collected) -> NDArray[np.float64]:
        """Return the advantage of each decision: that of its run, or by what came after it alone.

        The makespan is no sum over time, so that all decisions of a batch have a share in it.
        """
        row, runs, weight = collected.record.row, self.parameters.runs, self.parameters.group_tail
        gain = advantages(self._cost(collected.figures)).reshape(-1)[row]
        if not self.parameters.group_horizon:
            return gain
        mean_s = collected.figures.mean_jct_s.reshape(-1, runs).mean(axis=1).repeat(runs)
        weights = self._job_weights(collected)
        earned = credits_of(collected.record, collected.ran, runs, mean_s, self.parameters.group_horizon, weights)
        problem = np.repeat(np.arange(len(self.problems)), self.groups).repeat(runs)[row]
        earned = self._less_foreseen(earned, gaps_of(collected.record, runs, STATE), problem)
        tail = advantages(_relative(collected.figures.p99_jct_s.reshape(-1, runs))).reshape(-1)
        if self.weighting is not None:
            whole = whole_shares(self.weighting)
            weight = sum(whole.values())
            tail = advantages(relative_cost(whole, collected.figures, runs)).reshape(-1)
        later: NDArray[np.float64] = (1.0 - weight) * over_spread(earned) + weight * tail[row]
        return np.where(self._batches().repeat(runs)[row], gain, later)

    def _job_weights(self, collected: Collected) -> NDArray[np.float64] | None:
        """Return what a second of each job weighs in the credits; None where all weigh alike."""
        if self.weighting is None:
            return None
        return job_weights(self.weighting, collected.ran, collected.figures, self.parameters.runs)

    def _less_foreseen(
        self, earned: NDArray[np.float64], gap: NDArray[np.float64], problem: NDArray[np.intp]
    ) -> NDArray[np.float64]:
        """Return credits less what the state lets expect of them, and note how much of their variance that is."""
        left = self.foreseen.taken_off(earned, gap, problem)
        explained = 1.0 - float(left.var()) / max(float(earned.var()), 1e-30)
        self.run_folder.logger.record("group/explained", explained)
        return left

    def _batches(self) -> NDArray[np.bool_]:
        """Say which groups are of batches, whose objective is the makespan, shape (groups,)."""
        return np.repeat([objective_of(it.scenarios.submit_s) == "makespan" for it in self.problems], self.groups)

    def _cost(self, figures: Metrics) -> NDArray[np.float64]:
        """Return what is minimised, shape (groups, runs): the makespan, or the mean JCT relative to its group's.

        What a user asks for is relative likewise, and counts for batches, too.
        In hours, groups of long jobs would drown the others; so they would beside those of other problems.
        """
        runs, weight = self.parameters.runs, self.parameters.group_tail
        if self.weighting is not None:
            return relative_cost(shares_of(self.weighting), figures, runs)
        makespan, jct, tail = (
            values.reshape(-1, runs) for values in (figures.makespan_s, figures.mean_jct_s, figures.p99_jct_s)
        )
        if len(self.problems) == 1 and objective_of(self.problems[0].scenarios.submit_s) == "makespan":
            return makespan
        mean = _relative(np.where(self._batches()[:, None], makespan, jct))
        return (1.0 - weight) * mean + weight * _relative(tail) if weight else mean

    def _learn(self, decisions: Decisions) -> None:
        """Take a step of Adam for each minibatch of decisions that had a choice."""
        left = max(1.0 - self.steps / self.run_folder.config.steps, 0.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.parameters.group_learning_rate * left
        choices = np.flatnonzero(decisions.candidates.numpy() > 1)
        if not choices.size:  # as in a past of a cluster that had room for every job
            return
        order = torch.from_numpy(self.rng.permutation(choices))
        for minibatch in torch.split(order, self.parameters.group_minibatch):
            # Chunks of decisions with equally long lists are narrow.
            rows = minibatch[torch.argsort(decisions.candidates[minibatch], stable=True)]
            self._step(decisions, rows)

    def _step(self, decisions: Decisions, rows: Tensor) -> None:
        def loss(part: Tensor) -> Tensor:
            return self._loss(Decisions(*(tensor[part] for tensor in decisions)))

        step_in_chunks(self.network, self.optimizer, self.pool, rows, loss)

    def _loss(self, decisions: Decisions) -> Tensor:
        """Return what is minimised, summed over some decisions: the policy's loss and that of the value."""
        most = int(decisions.candidates.max())
        logits, values = self.network(
            decisions.observations[:, : CANDIDATE_GLOBAL_COUNT + most * CANDIDATE_FEATURE_COUNT]
        )
        return self._policy_loss(logits, decisions) + value_loss(values, decisions.to_go)

    def _policy_loss(self, logits: Tensor, decisions: Decisions) -> Tensor:
        """Return minus PPO's clipped objective and the entropy, summed."""
        closed = torch.arange(logits.shape[1]) >= decisions.candidates[:, None]
        log_probabilities = logits.masked_fill(closed, CLOSED).log_softmax(dim=1)
        taken = log_probabilities.gather(1, decisions.chosen[:, None]).squeeze(1)
        ratio = (taken - decisions.log_probability).exp()
        clip, gain = self.parameters.group_clip, decisions.gain
        objective = torch.minimum(ratio * gain, ratio.clamp(1.0 - clip, 1.0 + clip) * gain).sum()
        entropy = -(log_probabilities.exp() * log_probabilities).sum()
        loss: Tensor = -objective - self.parameters.group_entropy * entropy
        return loss

    @torch.no_grad()
    def _note_value(self, decisions: Decisions) -> None:
        """Record how far the value is off on runs that it has not learned from."""
        rows = torch.arange(0, decisions.candidates.numel(), -(-decisions.candidates.numel() // JUDGED))
        off = self.network.values(decisions.observations[rows]) - decisions.to_go[rows]
        self.run_folder.logger.record("group/value_error", float(off.square().mean().sqrt()))

    def _note(self, figures: Metrics) -> None:
        record = self.run_folder.logger.record
        record("rollout/makespan_h", float(figures.makespan_s.mean()) / 3600.0)
        record("rollout/mean_jct_h", float(figures.mean_jct_s.mean()) / 3600.0)
        record("rollout/lost_gpu_h", float(figures.lost_gpu_s.mean()) / 3600.0)
        record("rollout/restarts", float(figures.restarts.mean()))
        cost = self._cost(figures)
        record("group/spread_percent", float((cost.std(axis=1) / cost.mean(axis=1)).mean()) * 100.0)

    def save(self) -> None:
        """Write everything that the run needs to go on."""
        arrays = learned_arrays(self.network, self.optimizer)
        state = self.rng.bit_generator.state["state"]
        words = [state["state"] >> shift & 0xFFFFFFFFFFFFFFFF for shift in (0, 64)]
        words += [state["inc"] >> shift & 0xFFFFFFFFFFFFFFFF for shift in (0, 64)]
        rest = [self.rng.bit_generator.state["has_uint32"], self.rng.bit_generator.state["uinteger"]]
        arrays |= {"rng": np.array(words + rest, dtype=np.uint64), "steps": np.array([self.steps])}
        arrays |= {"foreseen/square": self.foreseen.square, "foreseen/product": self.foreseen.product}
        arrays |= {f"average/{name}": tensor.numpy() for name, tensor in self.average.state_dict().items()}
        write_arrays(self.run_folder.path / SNAPSHOT, arrays)

    def load(self) -> None:
        """Go on where `save` left the run.

        Raises:
            CheckpointError: If the file is damaged or belongs to another run.
        """
        with read_arrays(self.run_folder.path / SNAPSHOT) as arrays:
            restore_learned(arrays, self.network, self.optimizer)
            restore_weights(arrays, "average", self.average)
            # Runs that began before it was kept go on without.
            for name in (it for it in ("square", "product") if f"foreseen/{it}" in arrays):
                kept = alike(arrays, f"foreseen/{name}", getattr(self.foreseen, name))
                within(f"foreseen/{name}", kept, -MOST_KEPT, MOST_KEPT)
                setattr(self.foreseen, name, kept)
            self.rng.bit_generator.state = _random_state(arrays)
            self.steps = int(counts(arrays, "steps", np.zeros(1, dtype=np.int64))[0])


def _random_state(arrays: Arrays) -> dict[str, Any]:
    """Return the state of NumPy's random numbers; with an even increment, some are the same for ever."""
    low, high, inc_low, inc_high, has, rest = (int(word) for word in alike(arrays, "rng", np.zeros(6, dtype=np.uint64)))
    if inc_low % 2 == 0 or has > 1 or rest >= 2**32:
        raise ValueError(f"rng has increment {inc_low}, has_uint32 {has} and uinteger {rest}, which no generator has")
    return {
        "bit_generator": "PCG64",
        "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
        "has_uint32": has,
        "uinteger": rest,
    }


def learn_by_groups(problems: Sequence[Problem], run_folder: RunFolder) -> int:
    """Train until the run's steps are done or it is interrupted; return the steps."""
    learner = GroupLearner(problems, run_folder)
    if (run_folder.path / SNAPSHOT).exists():
        learner.load()
    begun, total = learner.steps, run_folder.config.steps
    run_folder.begin(begun)
    while learner.steps < total and not run_folder.interrupted:
        learner.update()
        if run_folder.is_due(learner.steps):
            run_folder.validate(learner.average, learner.steps)
            learner.save()
        run_folder.note(learner.steps)
    if learner.steps > begun:
        # A stop is no validation that an uninterrupted run would have had.
        run_folder.validate(learner.average, learner.steps, for_best=learner.steps >= total)
        learner.save()
        run_folder.note(learner.steps)
    return learner.steps
