"""Distillation: the network `candidates` learns what rollouts find, in rounds; later rollouts use the network.

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
from ...agents.learned.checkpoint import layout_of
from ...agents.networks.candidates import CandidateNetwork, CandidatePolicy, mean_of
from ...agents.rollouts.rollout import Base, Search
from ...cluster.files.errors import CheckpointError, InputError
from ...cluster.model.objective import objective_of
from ...cluster.model.problem import Problem
from ..initial import initial_network
from ..run_folder import RunFolder
from ..snapshot import SNAPSHOT, counts, read_arrays, restore_weights, write_arrays
from .fitting import fit_network
from .labels import Labels, Lesson, Worker, joined, run_lessons, sound_labels, workers_of

FOLDER = "labels"  # of a run, with a file for each block of lessons


class DistilLearner:
    """A network that is taught by rollouts.

    Args:
        problem: What is run.
        run_folder: Keeps the run.
    """

    def __init__(self, problem: Problem, run_folder: RunFolder) -> None:
        config = run_folder.config
        self.run_folder, self.parameters, self.problem = run_folder, config.distil, problem
        self._initial = initial_network(config)
        torch.manual_seed(config.seed)
        self.network = self._initial or CandidateNetwork(layout_of(run_folder.schema))
        self.pool = ThreadPoolExecutor(config.threads)
        self.order = np.random.default_rng(config.seed).permutation(problem.scenarios.jobs.size)
        self.steps = self.lessons = self.blocks = self.fits = 0
        self._labels: list[Labels] = []
        self._workers: list[Worker] = []

    @property
    def due(self) -> int:
        """Decisions after which the round in progress ends."""
        first, rounds = self.parameters.distil_first, self.parameters.rounds
        later = (1.0 - first) / max(rounds - 1, 1)
        share = first + later * self.fits if self.fits < rounds - 1 else 1.0
        return min(round(share * self.run_folder.config.steps), self.run_folder.config.steps)

    def collect(self) -> None:
        """Run a block of lessons, and keep what they label.

        Raises:
            InputError: If no scenario has a decision with a choice.
        """
        if self.steps == 0 and self.lessons >= self.order.size:
            raise InputError("no decision of these scenarios has a choice", "take larger ones", field="--preset")
        if not self._workers:
            self._workers = self._new_workers()
        numbers = range(self.lessons, self.lessons + self.parameters.distil_block)
        lessons = [self._lesson(number) for number in numbers]
        labels = run_lessons(lessons, self._workers, self.parameters.distil_own, self.pool)
        self._labels.append(labels)
        self._file(self.blocks).parent.mkdir(exist_ok=True)
        write_arrays(self._file(self.blocks), labels._asdict())
        self.blocks += 1
        self.lessons += len(lessons)
        self.steps += labels.tried.size
        self._note(labels)

    def _lesson(self, number: int) -> Lesson:
        scenario = int(self.order[number % self.order.size])
        seed = (self.run_folder.config.seed * 7_368_787 + number) & 0xFFFFFFFF
        return Lesson(scenario, seed, self.parameters.distil_share)

    def _new_workers(self) -> list[Worker]:
        """Return a worker for each thread: the heuristic teaches first, then the network itself."""
        heuristic = HEURISTICS["patient" if self.problem.rules.waiting else "eft-hazard"]
        threads = self.run_folder.config.threads
        bases: list[Base] = [heuristic] * threads
        search = Search(self.parameters.futures, self.parameters.width)
        if self.fits or self.run_folder.config.init:
            network = copy.deepcopy(self.network)
            bases = [CandidatePolicy("network", self.run_folder.schema, network) for _ in range(threads)]
        if self.fits:  # the value of a checkpoint may tell something else
            search = replace(search, horizon=self.parameters.distil_horizon)
        return workers_of(self.problem, objective_of(self.problem.scenarios.submit_s), search, bases, heuristic)

    def _note(self, labels: Labels) -> None:
        if labels.tried.size == 0:
            return
        record = self.run_folder.logger.record
        is_tried = np.arange(labels.gain.shape[1]) < labels.tried[:, None]
        record("distil/candidates", float(labels.tried.mean()))
        record("distil/best_gain", float(np.where(is_tried, labels.gain, -np.inf).max(axis=1).mean()))
        record("distil/standard_error", float(labels.error[:, 1:][is_tried[:, 1:]].mean()))

    def fit(self) -> CandidateNetwork:
        """Learn anew from all labels so far; return what runs best: in the last round the mean of several networks."""
        labels = self._labels[:] = [joined(self._labels)]
        last = self.steps >= self.run_folder.config.steps
        members = []
        for number in range(self.parameters.distil_members if last else 1):
            rng = np.random.default_rng((self.run_folder.config.seed, self.fits, number))
            network = self._unlearned(int(rng.integers(2**62)))
            fitted = fit_network(network, labels[0], self.parameters, self.pool, rng)
            for name, value in fitted._asdict().items():
                self.run_folder.logger.record(f"distil/{name}", value)
            members.append(network)
        self.network = members[0]
        self.fits += 1
        self._workers = []
        return mean_of(members) if last else self.network

    def _unlearned(self, seed: int) -> CandidateNetwork:
        """Return the network that learning begins with: weights that fitted fewer labels would hold it back."""
        if self._initial is not None:
            return copy.deepcopy(self._initial)
        torch.manual_seed(seed)
        return CandidateNetwork(self.network.layout)

    def save(self) -> None:
        """Write everything that the run needs to go on, beside the labels, which are written already."""
        arrays = {f"network/{name}": tensor.numpy() for name, tensor in self.network.state_dict().items()}
        counters = np.array([self.steps, self.lessons, self.blocks, self.fits])
        write_arrays(self.run_folder.path / SNAPSHOT, arrays | {"counters": counters})

    def _file(self, block: int) -> Path:
        return self.run_folder.path / FOLDER / f"{block:05}.npz"

    def load(self) -> None:
        """Go on where `save` left the run.

        Raises:
            CheckpointError: If a file is missing, damaged or of another run.
        """
        with read_arrays(self.run_folder.path / SNAPSHOT) as arrays:
            restore_weights(arrays, "network", self.network)
            counters = counts(arrays, "counters", np.zeros(4, dtype=np.int64))
            self.steps, self.lessons, self.blocks, self.fits = (int(count) for count in counters)
        for block in range(self.blocks):
            with read_arrays(self._file(block)) as arrays:
                self._labels.append(sound_labels(arrays, self.problem.scenarios.jobs.size))
        held = sum(labels.tried.size for labels in self._labels)
        if held != self.steps:
            raise CheckpointError(
                f"{self.run_folder.path / FOLDER} holds {held} decisions, the snapshot says {self.steps}; "
                "remove its folder to begin anew"
            )


def learn_by_distillation(problem: Problem, run_folder: RunFolder) -> int:
    """Train until the run's decisions are labelled and learned, or it is interrupted; return how many were labelled."""
    learner = DistilLearner(problem, run_folder)
    if (run_folder.path / SNAPSHOT).exists():
        learner.load()
    total = run_folder.config.steps
    run_folder.begin(learner.steps)
    while learner.steps < total and not run_folder.interrupted:
        learner.collect()
        if learner.steps >= learner.due:
            run_folder.validate(learner.fit(), learner.steps)
        learner.save()
        run_folder.note(learner.steps)
    if run_folder.best is None:
        run_folder.validate(
            learner.network, learner.steps, for_best=False
        )  # a stop before there was anything to validate
    return learner.steps
