"""Distillation: the network `moves` learns what rollouts find, in rounds; a later round's rollouts are by the network.

Source: expert iteration (Anthony, Tian and Barber, 2017) on the states of DAgger (Ross, Gordon and Bagnell, 2011);
docs/training.md, Distillation.
"""

import copy
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from ..agents.checkpoint import layout_of
from ..agents.heuristics import HEURISTICS
from ..agents.moves_policy import MovesPolicy
from ..agents.networks import MovesNetwork
from ..agents.rollout import Base, Search
from ..cluster.errors import InputError
from ..envs.batch import Problem
from ..envs.move_features import MOVE_COUNT, MOVE_GLOBAL_COUNT
from .group import CLOSED, goal_of, step_in_chunks, value_loss
from .initial import initial_network
from .keeper import Keeper
from .labels import Desk, Labels, Lesson, desks_of, joined, play_lessons
from .presets import DistilParameters
from .snapshot import SNAPSHOT, read_arrays, write_arrays

FOLDER = "labels"  # of a run, with a file for each block of lessons
HELD_OUT = 10  # every so many scenarios one is kept for early stopping


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
        logits: What the network tells, shape (decisions, moves).
        tried: How many moves have a label, shape (decisions,).
        gain: Labels, shape (decisions, moves).
        error: Their standard errors, shape (decisions, moves).
        parameters: Prior and temperature.
    """
    is_tried = torch.arange(logits.shape[1]) < tried[:, None]
    told = logits - logits[:, :1]
    prior, temperature = parameters.distil_prior, parameters.distil_temperature
    residual = (told - gain) / prior
    regression = 0.5 * (noise_weight(error, parameters) * residual**2 * is_tried).sum()
    shares = (told / temperature).masked_fill(~is_tried, CLOSED).softmax(dim=1)
    cost = -(shares * gain).sum() / temperature
    return regression, cost


class DistilLearner:
    """A network that is taught by rollouts.

    Args:
        problem: What is played.
        keeper: Keeps the run.
    """

    def __init__(self, problem: Problem, keeper: Keeper) -> None:
        config = keeper.config
        torch.manual_seed(config.seed)
        self.keeper, self.parameters, self.problem = keeper, config.distil, problem
        self.network = initial_network(config) or MovesNetwork(layout_of(keeper.schema))
        self.pool = ThreadPoolExecutor(config.threads)
        self.order = np.random.default_rng(config.seed).permutation(problem.scenarios.jobs.size)
        self.steps = self.lessons = self.blocks = self.fits = 0
        self._labels: list[Labels] = []
        self._desks: list[Desk] = []

    @property
    def due(self) -> int:
        """Decisions after which the round in progress ends."""
        first, rounds = self.parameters.distil_first, self.parameters.rounds
        later = (1.0 - first) / max(rounds - 1, 1)
        share = first + later * self.fits if self.fits < rounds - 1 else 1.0
        return min(round(share * self.keeper.config.steps), self.keeper.config.steps)

    def collect(self) -> None:
        """Play a block of lessons, and keep what they label.

        Raises:
            InputError: If no scenario has a decision with a choice.
        """
        if self.steps == 0 and self.lessons >= self.order.size:
            raise InputError("no decision of these scenarios has a choice", "take larger ones", field="--preset")
        if not self._desks:
            self._desks = self._new_desks()
        numbers = range(self.lessons, self.lessons + self.parameters.distil_block)
        lessons = [self._lesson(number) for number in numbers]
        labels = play_lessons(lessons, self._desks, self.parameters.distil_own, self.pool)
        self._labels.append(labels)
        self._file(self.blocks).parent.mkdir(exist_ok=True)
        write_arrays(self._file(self.blocks), labels._asdict())
        self.blocks += 1
        self.lessons += len(lessons)
        self.steps += labels.tried.size
        self._note(labels)

    def _lesson(self, number: int) -> Lesson:
        scenario = int(self.order[number % self.order.size])
        seed = (self.keeper.config.seed * 7_368_787 + number) & 0xFFFFFFFF
        return Lesson(scenario, seed, self.parameters.distil_share)

    def _new_desks(self) -> list[Desk]:
        """Return a desk for each thread: the heuristic teaches first, then the network itself."""
        heuristic = HEURISTICS["patient" if self.problem.rules.waiting else "eft-hazard"]
        threads = self.keeper.config.threads
        bases: list[Base] = [heuristic] * threads
        if self.fits or self.keeper.config.init:
            network = copy.deepcopy(self.network)
            bases = [MovesPolicy("network", self.keeper.schema, network) for _ in range(threads)]
        search = Search(self.parameters.futures, self.parameters.width)
        return desks_of(self.problem, goal_of(self.problem), search, bases, heuristic)

    def _note(self, labels: Labels) -> None:
        if labels.tried.size == 0:
            return
        record = self.keeper.logger.record
        is_tried = np.arange(labels.gain.shape[1]) < labels.tried[:, None]
        record("distil/moves", float(labels.tried.mean()))
        record("distil/best_gain", float(np.where(is_tried, labels.gain, -np.inf).max(axis=1).mean()))
        record("distil/standard_error", float(labels.error[:, 1:][is_tried[:, 1:]].mean()))

    def fit(self) -> None:
        """Learn from all labels so far; the weights of the least loss on what is held out remain."""
        labels = self._labels[:] = [joined(self._labels)]
        tensors = [torch.from_numpy(array) for array in labels[0][:-1]]
        is_held = labels[0].scenario % HELD_OUT == HELD_OUT - 1
        rows = np.flatnonzero(~is_held) if (~is_held).any() else np.arange(is_held.size)
        held = torch.from_numpy(np.flatnonzero(is_held)) if is_held.any() else torch.from_numpy(rows)
        rng = np.random.default_rng((self.keeper.config.seed, self.fits))
        optimizer = torch.optim.Adam(self.network.parameters(), lr=self.parameters.distil_learning_rate)
        least, at, best = np.inf, 0, copy.deepcopy(self.network.state_dict())
        epochs = self.parameters.distil_epochs
        for epoch in range(epochs):
            for group in optimizer.param_groups:
                group["lr"] = self.parameters.distil_learning_rate * (1.0 - epoch / epochs)
            self._learn(tensors, rng.permutation(rows), optimizer)
            loss = self._judge(tensors, held)
            if loss < least:
                least, at, best = loss, epoch, copy.deepcopy(self.network.state_dict())
        self.network.load_state_dict(best)
        self.fits += 1
        self._desks = []
        self.keeper.logger.record("distil/held_out_loss", least)
        self.keeper.logger.record("distil/epochs", at + 1)
        self.keeper.logger.record("distil/regret", self._regret(tensors, held))
        self.keeper.logger.record("distil/value_error", self._value_error(tensors, held))

    def _learn(self, tensors: list[Tensor], order: NDArray[np.int64], optimizer: torch.optim.Optimizer) -> None:
        for minibatch in torch.split(torch.from_numpy(order), self.parameters.distil_minibatch):
            # Chunks of decisions with equally long lists are narrow.
            rows = minibatch[torch.argsort(tensors[1][minibatch], stable=True)]
            step_in_chunks(self.network, optimizer, self.pool, rows, lambda part: self._loss(tensors, part))

    def _tells(self, tensors: list[Tensor], rows: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits and values of some decisions."""
        most = int(tensors[1][rows].max())
        told: tuple[Tensor, Tensor] = self.network(tensors[0][rows, : MOVE_GLOBAL_COUNT + most * MOVE_COUNT])
        return told

    def _loss(self, tensors: list[Tensor], rows: Tensor) -> Tensor:
        """Return what is minimised, summed over some decisions: the policy's loss and that of the value."""
        logits, values = self._tells(tensors, rows)
        return self._policy_loss(tensors, rows, logits) + value_loss(values, tensors[5][rows])

    def _policy_loss(self, tensors: list[Tensor], rows: Tensor, logits: Tensor) -> Tensor:
        gain, error = (tensor[rows, : logits.shape[1]] for tensor in tensors[3:5])
        regression, cost = distil_loss(logits, tensors[2][rows], gain, error, self.parameters)
        return regression + self.parameters.distil_cost * cost

    def _judge(self, tensors: list[Tensor], rows: Tensor) -> float:
        """Return the policy's mean loss over some decisions."""
        with torch.no_grad():
            losses = (
                self._policy_loss(tensors, part, self._tells(tensors, part)[0]) for part in torch.split(rows, 1024)
            )
            return sum(map(float, losses)) / rows.numel()

    def _regret(self, tensors: list[Tensor], rows: Tensor) -> float:
        """Return by how much the move of the largest logit falls short of the best label, in the mean."""
        with torch.no_grad():
            logits = self._tells(tensors, rows)[0]
        is_tried = torch.arange(logits.shape[1]) < tensors[2][rows, None]
        gain = tensors[3][rows, : logits.shape[1]]
        chosen = logits.masked_fill(~is_tried, CLOSED).argmax(dim=1, keepdim=True)
        best = gain.masked_fill(~is_tried, CLOSED).amax(dim=1)
        return float((best - gain.gather(1, chosen)[:, 0]).mean())

    def _value_error(self, tensors: list[Tensor], rows: Tensor) -> float:
        """Return how far the value is off, root mean square."""
        with torch.no_grad():
            return float((self.network.values(tensors[0][rows]) - tensors[5][rows]).square().mean().sqrt())

    def save(self) -> None:
        """Write everything that the run needs to go on, beside the labels, which are written already."""
        arrays = {f"network/{name}": tensor.numpy() for name, tensor in self.network.state_dict().items()}
        counters = np.array([self.steps, self.lessons, self.blocks, self.fits])
        write_arrays(self.keeper.folder / SNAPSHOT, arrays | {"counters": counters})

    def _file(self, block: int) -> Path:
        return self.keeper.folder / FOLDER / f"{block:05}.npz"

    def load(self) -> None:
        """Go on where `save` left the run.

        Raises:
            CheckpointError: If a file is missing, damaged or of another run.
        """
        with read_arrays(self.keeper.folder / SNAPSHOT) as arrays:
            tensors = {name: torch.from_numpy(arrays[f"network/{name}"]) for name in self.network.state_dict()}
            self.network.load_state_dict(tensors)
            self.steps, self.lessons, self.blocks, self.fits = (int(count) for count in arrays["counters"])
        for block in range(self.blocks):
            with read_arrays(self._file(block)) as arrays:
                self._labels.append(Labels(**arrays))


def learn_by_distillation(problem: Problem, keeper: Keeper) -> int:
    """Train until the run's decisions are labelled and learned, or it is interrupted; return how many were labelled."""
    learner = DistilLearner(problem, keeper)
    if (keeper.folder / SNAPSHOT).exists():
        learner.load()
    total = keeper.config.steps
    keeper.begin(learner.steps)
    while learner.steps < total and not keeper.interrupted:
        learner.collect()
        if learner.steps >= learner.due:
            learner.fit()
            keeper.validate(learner.network, learner.steps)
        learner.save()
        keeper.note(learner.steps)
    if keeper.best is None:
        keeper.validate(learner.network, learner.steps, for_best=False)  # a stop before there was anything to validate
    return learner.steps
