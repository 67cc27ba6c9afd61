"""Group-relative policy gradient: runs of one scenario, on the same faults, measured against each other.

No critic: what a run does better than the others of its group is the advantage of every decision in it.

Source: REINFORCE with a leave-one-out baseline (Kool et al., 2019); docs/training.md.
"""

from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..agents.checkpoint import layout_of
from ..agents.forward import moves_weights
from ..agents.move_play import Record, sample_runs
from ..agents.networks import MovesNetwork
from ..cluster.outcome import Metrics, metrics
from ..cluster.simulation import outcome_of, simulation_of
from ..cluster.state import MOVES, Simulation
from ..envs.batch import Problem
from ..envs.move_features import MOVE_COUNT, MOVE_GLOBAL_COUNT
from .keeper import Keeper
from .relative import write_advantages
from .snapshot import SNAPSHOT, learned_arrays, read_arrays, restore_learned, write_arrays

CHUNKS = 8  # of a minibatch, one after the other on each thread
CLOSED = -1e9  # logit of a move that the list does not have
PARTS = 4  # simulations that collect; not the threads, so that their number changes nothing


class Runs:
    """A number of runs collected at once.

    Args:
        problem: What is played.
        rows: Runs, a multiple of PARTS.
        pool: Threads.
    """

    def __init__(self, problem: Problem, rows: int, pool: ThreadPoolExecutor, *, jct: bool) -> None:
        self.problem, self.rows, self.pool, self.jct = problem, rows, pool, int(jct)
        part = rows // PARTS
        args = problem.cluster, problem.scenarios, problem.process, problem.rules
        self._sims = [simulation_of(*args, rows=part) for _ in range(PARTS)]
        self._records = [_record(part * 2 * problem.scenarios.gpus.shape[1]) for _ in range(PARTS)]

    def collect(self, network: MovesNetwork, scenarios: NDArray[np.int64], seed: int) -> tuple[Record, Metrics]:
        """Play a scenario in each row by sampled moves; return all decisions and the runs' figures."""
        part = self.rows // PARTS

        def one(index: int) -> tuple[Record, Metrics]:
            mine = scenarios[index * part : (index + 1) * part]
            record = self._records[index]
            record.size[0] = 0
            while not sample_runs(
                self._sims[index], mine, moves_weights(network), seed, index * part, self.jct, record
            ):
                record = self._records[index] = _record(2 * record.chosen.size)
            return record, self._metrics(self._sims[index], mine)

        records, figures = zip(*self.pool.map(one, range(PARTS)), strict=True)
        return _joined(records), Metrics(*(np.concatenate(values) for values in zip(*figures, strict=True)))

    def _metrics(self, sim: Simulation, played: NDArray[np.int64]) -> Metrics:
        scenarios = self.problem.scenarios
        gpus = self.problem.cluster.gpu_node.size
        return metrics(
            outcome_of(sim), scenarios.jobs[played], scenarios.gpus[played], scenarios.submit_s[played], gpus
        )


def _record(decisions: int) -> Record:
    return Record(
        seen=np.zeros((decisions, MOVE_GLOBAL_COUNT + MOVES * MOVE_COUNT), np.float32),
        logits=np.zeros((decisions, MOVES), np.float32),
        moves=np.zeros(decisions, np.int32),
        chosen=np.zeros(decisions, np.int64),
        log_probability=np.zeros(decisions, np.float32),
        row=np.zeros(decisions, np.int32),
        starts=np.zeros(decisions, np.int32),
        spent_s=np.zeros(decisions),
        unit_s=np.zeros(decisions),
        size=np.zeros(1, np.int64),
    )


def _joined(records: tuple[Record, ...]) -> Record:
    """Return the decisions of several records in one."""
    fields = {
        name: np.concatenate([getattr(record, name)[: record.size[0]] for record in records])
        for name in Record._fields[:-1]
    }
    return Record(**fields, size=np.array([fields["row"].size]))


class Batch(NamedTuple):
    """What is learned from, one entry for each decision."""

    seen: Tensor
    moves: Tensor
    chosen: Tensor
    log_probability: Tensor
    gain: Tensor
    left: Tensor  # what the run still cost, in the unit of its features


class GroupLearner:
    """A network and its optimiser, updated by groups of runs.

    Args:
        problem: What is played.
        keeper: Keeps the run.
    """

    def __init__(self, problem: Problem, keeper: Keeper) -> None:
        config = keeper.config
        torch.manual_seed(config.seed)
        self.keeper, self.parameters, self.problem = keeper, config.group, problem
        self.network = MovesNetwork(layout_of(keeper.schema))
        self.optimizer = torch.optim.Adam(self.network.parameters(), lr=self.parameters.group_learning_rate)
        self.rng = np.random.default_rng(config.seed)
        self.pool = ThreadPoolExecutor(config.threads)
        self.jct = keeper.validation.goal != "makespan"
        self.runs = Runs(problem, self.parameters.groups * self.parameters.runs, self.pool, jct=self.jct)
        self.steps = 0
        self.error = 0.0

    def update(self) -> None:
        """Collect groups of runs and learn from them."""
        groups, runs = self.parameters.groups, self.parameters.runs
        drawn = self.rng.integers(0, self.problem.scenarios.jobs.size, groups)
        seed = int(self.rng.integers(0, 2**32))
        record, figures = self.runs.collect(self.network, np.repeat(drawn, runs), seed)
        cost_s = figures.mean_jct_s if self.jct else figures.makespan_s
        batch = self._batch(record, cost_s)
        self._learn(record, batch)
        self.steps += int(record.size[0])
        self._note(figures, cost_s.reshape(groups, runs))

    def _batch(self, record: Record, cost_s: NDArray[np.float64]) -> Batch:
        """Return what is learned from the decisions of groups of runs that came to so much."""
        groups, runs = self.parameters.groups, self.parameters.runs
        seen = torch.from_numpy(record.seen)
        with torch.no_grad():
            chunks = torch.split(seen, -(-seen.shape[0] // CHUNKS))
            left = torch.cat(list(self.pool.map(self.network.values, chunks))).numpy().astype(np.float64)
        predicted_s = record.spent_s + record.unit_s * left
        cost = cost_s.reshape(groups, runs)
        # In hours, groups of long jobs would drown the others.
        scale_s = cost.mean(axis=1, keepdims=True) if self.jct else np.full((groups, 1), cost.mean())
        width = int(record.starts.max()) + 2
        gains = np.empty(record.row.size)
        write_advantages(
            record.row, record.starts, predicted_s / scale_s[record.row // runs, 0], cost / scale_s,
            self.parameters.group_lag, np.empty((groups * runs, width)), np.empty((groups, width)), gains,
        )  # fmt: skip
        choices = record.moves > 1
        # 1e-9: where all runs cost the same, rounding leaves gains that would be blown up
        spread = max(float(gains[choices].std()), 1e-9)
        left_after = (cost_s[record.row] - record.spent_s) / record.unit_s
        self.error = float(np.abs(left_after - left).mean() / left_after.mean())
        return Batch(
            seen, torch.from_numpy(record.moves), torch.from_numpy(record.chosen),
            torch.from_numpy(record.log_probability), torch.from_numpy((gains / spread).astype(np.float32)),
            torch.from_numpy(left_after.astype(np.float32)),
        )  # fmt: skip

    def _learn(self, record: Record, batch: Batch) -> None:
        """Take a step of Adam for each minibatch of decisions that had a choice."""
        left = max(1.0 - self.steps / self.keeper.config.steps, 0.0)
        for group in self.optimizer.param_groups:
            group["lr"] = self.parameters.group_learning_rate * left
        order = torch.from_numpy(self.rng.permutation(np.flatnonzero(record.moves > 1)))
        for minibatch in torch.split(order, self.parameters.group_minibatch):
            # Chunks of decisions with equally long lists are narrow.
            self._step(batch, minibatch[torch.argsort(batch.moves[minibatch], stable=True)])

    def _step(self, batch: Batch, rows: Tensor) -> None:
        parameters = list(self.network.parameters())

        def gradients(part: Tensor) -> tuple[Tensor, ...]:
            return torch.autograd.grad(self._loss(batch, part) / rows.numel(), parameters)

        chunks = self.pool.map(gradients, torch.split(rows, -(-rows.numel() // CHUNKS)))
        for parameter, parts in zip(parameters, zip(*chunks, strict=True), strict=True):
            parameter.grad = torch.stack(parts).sum(0)
        torch.nn.utils.clip_grad_norm_(parameters, 1.0)
        self.optimizer.step()

    def _loss(self, batch: Batch, rows: Tensor) -> Tensor:
        """Return the sum over some decisions of PPO's clipped objective, the entropy and the critic's error."""
        seen, moves, chosen, before, gain, left = (tensor[rows] for tensor in batch)
        most = int(moves.max())
        logits, value = self.network(seen[:, : MOVE_GLOBAL_COUNT + most * MOVE_COUNT])
        closed = torch.arange(most) >= moves[:, None]
        log_probabilities = logits.masked_fill(closed, CLOSED).log_softmax(dim=1)
        ratio = (log_probabilities.gather(1, chosen[:, None]).squeeze(1) - before).exp()
        clip = self.parameters.group_clip
        objective = torch.minimum(ratio * gain, ratio.clamp(1.0 - clip, 1.0 + clip) * gain).sum()
        entropy = -(log_probabilities.exp() * log_probabilities).sum()
        error = torch.nn.functional.smooth_l1_loss(value, left, reduction="sum")
        loss: Tensor = error - objective - self.parameters.group_entropy * entropy
        return loss

    def _note(self, figures: Metrics, cost_s: NDArray[np.float64]) -> None:
        record = self.keeper.logger.record
        record("rollout/makespan_h", float(figures.makespan_s.mean()) / 3600.0)
        record("rollout/mean_jct_h", float(figures.mean_jct_s.mean()) / 3600.0)
        record("rollout/lost_gpu_h", float(figures.lost_gpu_s.mean()) / 3600.0)
        record("rollout/restarts", float(figures.restarts.mean()))
        record("group/spread_percent", float((cost_s.std(axis=1) / cost_s.mean(axis=1)).mean()) * 100.0)
        record("group/critic_error_percent", self.error * 100.0)

    def save(self) -> None:
        """Write everything that the run needs to go on."""
        arrays = learned_arrays(self.network, self.optimizer)
        state = self.rng.bit_generator.state["state"]
        words = [state["state"] >> shift & 0xFFFFFFFFFFFFFFFF for shift in (0, 64)]
        words += [state["inc"] >> shift & 0xFFFFFFFFFFFFFFFF for shift in (0, 64)]
        rest = [self.rng.bit_generator.state["has_uint32"], self.rng.bit_generator.state["uinteger"]]
        arrays |= {"rng": np.array(words + rest, dtype=np.uint64), "steps": np.array([self.steps])}
        write_arrays(self.keeper.folder / SNAPSHOT, arrays)

    def load(self) -> None:
        """Go on where `save` left the run.

        Raises:
            CheckpointError: If the file is damaged or belongs to another run.
        """
        with read_arrays(self.keeper.folder / SNAPSHOT) as arrays:
            restore_learned(arrays, self.network, self.optimizer)
            low, high, inc_low, inc_high, has, rest = (int(word) for word in arrays["rng"])
            self.rng.bit_generator.state = {
                "bit_generator": "PCG64",
                "state": {"state": high << 64 | low, "inc": inc_high << 64 | inc_low},
                "has_uint32": has,
                "uinteger": rest,
            }
            self.steps = int(arrays["steps"][0])


def learn_by_groups(problem: Problem, keeper: Keeper) -> int:
    """Train until the run's steps are done or it is interrupted; return the steps."""
    learner = GroupLearner(problem, keeper)
    if (keeper.folder / SNAPSHOT).exists():
        learner.load()
    begun, total = learner.steps, keeper.config.steps
    keeper.begin(begun)
    while learner.steps < total and not keeper.interrupted:
        learner.update()
        if keeper.is_due(learner.steps):
            keeper.validate(learner.network, learner.steps)
            learner.save()
        keeper.note(learner.steps)
    if learner.steps > begun:
        # A stop is no validation that an uninterrupted run would have had.
        keeper.validate(learner.network, learner.steps, for_best=learner.steps >= total)
        learner.save()
        keeper.note(learner.steps)
    return learner.steps
