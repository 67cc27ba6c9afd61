"""Distillation: the network `moves` learns what rollouts find, in rounds; a later round's rollouts are by the network.

Source: expert iteration (Anthony, Tian and Barber, 2017) on the states of DAgger (Ross, Gordon and Bagnell, 2011);
docs/training.md, Distillation.
"""

import copy
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from ...agents.heuristics.heuristics import HEURISTICS
from ...agents.learned.candidate_policy import MovesPolicy
from ...agents.learned.checkpoint import layout_of
from ...agents.networks.networks import MovesNetwork, mean_of
from ...agents.rollouts.rollout import Base, Search
from ...cluster.files.errors import CheckpointError, InputError
from ...cluster.model.problem import Problem
from ..initial import initial_network
from ..run_folder import Keeper
from ..snapshot import SNAPSHOT, counts, read_arrays, restore_weights, write_arrays
from .fitting import fit_network
from .group import goal_of
from .labels import Desk, Labels, Lesson, desks_of, joined, play_lessons, sound_labels

FOLDER = "labels"  # of a run, with a file for each block of lessons


class DistilLearner:
    """A network that is taught by rollouts.

    Args:
        problem: What is played.
        keeper: Keeps the run.
    """

    def __init__(self, problem: Problem, keeper: Keeper) -> None:
        config = keeper.config
        self.keeper, self.parameters, self.problem = keeper, config.distil, problem
        self._initial = initial_network(config)
        torch.manual_seed(config.seed)
        self.network = self._initial or MovesNetwork(layout_of(keeper.schema))
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
        search = Search(self.parameters.futures, self.parameters.width)
        if self.fits or self.keeper.config.init:
            network = copy.deepcopy(self.network)
            bases = [MovesPolicy("network", self.keeper.schema, network) for _ in range(threads)]
        if self.fits:  # the value of a checkpoint may tell something else
            search = replace(search, horizon=self.parameters.distil_horizon)
        return desks_of(self.problem, goal_of(self.problem), search, bases, heuristic)

    def _note(self, labels: Labels) -> None:
        if labels.tried.size == 0:
            return
        record = self.keeper.logger.record
        is_tried = np.arange(labels.gain.shape[1]) < labels.tried[:, None]
        record("distil/moves", float(labels.tried.mean()))
        record("distil/best_gain", float(np.where(is_tried, labels.gain, -np.inf).max(axis=1).mean()))
        record("distil/standard_error", float(labels.error[:, 1:][is_tried[:, 1:]].mean()))

    def fit(self) -> MovesNetwork:
        """Learn anew from all labels so far; return what plays best: in the last round the mean of several networks."""
        labels = self._labels[:] = [joined(self._labels)]
        last = self.steps >= self.keeper.config.steps
        members = []
        for number in range(self.parameters.distil_members if last else 1):
            rng = np.random.default_rng((self.keeper.config.seed, self.fits, number))
            network = self._unlearned(int(rng.integers(2**62)))
            fitted = fit_network(network, labels[0], self.parameters, self.pool, rng)
            for name, value in fitted._asdict().items():
                self.keeper.logger.record(f"distil/{name}", value)
            members.append(network)
        self.network = members[0]
        self.fits += 1
        self._desks = []
        return mean_of(members) if last else self.network

    def _unlearned(self, seed: int) -> MovesNetwork:
        """Return the network that learning begins with: weights that fitted fewer labels would hold it back."""
        if self._initial is not None:
            return copy.deepcopy(self._initial)
        torch.manual_seed(seed)
        return MovesNetwork(self.network.layout)

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
            restore_weights(arrays, "network", self.network)
            counters = counts(arrays, "counters", np.zeros(4, dtype=np.int64))
            self.steps, self.lessons, self.blocks, self.fits = (int(count) for count in counters)
        for block in range(self.blocks):
            with read_arrays(self._file(block)) as arrays:
                self._labels.append(sound_labels(arrays, self.problem.scenarios.jobs.size))
        held = sum(labels.tried.size for labels in self._labels)
        if held != self.steps:
            raise CheckpointError(
                f"{self.keeper.folder / FOLDER} holds {held} decisions, the snapshot says {self.steps}; "
                "remove its folder to begin anew"
            )


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
            keeper.validate(learner.fit(), learner.steps)
        learner.save()
        keeper.note(learner.steps)
    if keeper.best is None:
        keeper.validate(learner.network, learner.steps, for_best=False)  # a stop before there was anything to validate
    return learner.steps
