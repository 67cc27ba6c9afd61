"""What distillation learns from: decisions of training scenarios, with what every candidate would gain by rollouts."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...agents.learned.objective import objective_unit_s, spent_s
from ...agents.rollouts.rollout import Base, Ranking, Rollout, Search
from ...cluster.dispatch.placing import undo_picks
from ...cluster.kernels.counter_random import uniform
from ...cluster.model.objective import Objective
from ...cluster.model.problem import Problem
from ...cluster.simulator.engine import advance, reset, start, wait
from ...cluster.simulator.simulation import simulation_of
from ...cluster.state.state import CANDIDATES, Simulation
from ...envs.candidate_features import CANDIDATE_FEATURE_COUNT, CANDIDATE_GLOBAL_COUNT, write_candidates
from ..snapshot import Arrays, records, within

SIZE = CANDIDATE_GLOBAL_COUNT + CANDIDATES * CANDIDATE_FEATURE_COUNT
LABELLED, OWN = 0, 1  # second counter of what is drawn: which decisions are labelled, and who runs


class Labels(NamedTuple):
    """Decisions that had a choice, and the gain of each candidate over the first of its list."""

    observations: NDArray[np.float32]  # (decisions, size) observations
    listed: NDArray[np.int32]  # (decisions,) candidates of the list
    tried: NDArray[np.int32]  # (decisions,) of which the first so many have a label
    gain: NDArray[
        np.float32
    ]  # (decisions, CANDIDATES) mean over imagined futures, in units of objective_unit_s; 0 beyond
    error: NDArray[np.float32]  # (decisions, CANDIDATES) standard error of that, one for all decisions of a lesson
    to_go: NDArray[np.float32]  # (decisions,) mean of what is still to come by the choice of the rollout's base
    scenario: NDArray[np.int32]  # (decisions,)


def joined(parts: Iterable[Labels]) -> Labels:
    """Return the decisions of several parts in their order."""
    fields = zip(*([_none(), *parts]), strict=True)
    return Labels(*(np.concatenate(arrays) for arrays in fields))


def _none() -> Labels:
    counts, values = np.zeros(0, np.int32), np.zeros((0, CANDIDATES), np.float32)
    return Labels(np.zeros((0, SIZE), np.float32), counts, counts, values, values, values[:, 0], counts)


def sound_labels(arrays: Arrays, scenarios: int) -> Labels:
    """Return labels that were read from a file, of decisions in so many scenarios.

    Raises:
        ValueError: If they are no labels of these.
        KeyError: If a part is not there.
    """
    found = records(arrays, "", _none())
    within("listed", found.listed, 1, CANDIDATES)
    within("tried", found.tried, 1, CANDIDATES)
    within("scenario", found.scenario, 0, scenarios - 1)
    if (found.tried > found.listed).any():
        raise ValueError("tried is more than listed, expected at most as many")
    return found


class Label(NamedTuple):
    """What rollouts tell of a decision, in units of objective_unit_s."""

    gain: NDArray[np.float64]  # (candidates,) mean gain over the first of the list, 0 for that
    variance: float  # of that, by the futures that were imagined
    to_go: float  # mean of what is still to come by the base's own choice


def label(rollout: Rollout, sim: Simulation, row: int) -> Label:
    """Return what rollouts tell of a decision with a choice.

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
    own = int(base.predicted_gains(sim, row)[: gains.shape[1]].argmax()) if isinstance(base, Ranking) else 0
    to_go = (float(costs_s[:, own].mean()) - spent_s(sim, row, objective)) / unit_s
    # Of all candidates but the first, which gains nothing over itself.
    return Label(gains.mean(axis=0), float(gains[:, 1:].var(axis=0, ddof=1).mean()) / len(gains), to_go)


@dataclass(frozen=True, slots=True)
class Lesson:
    """Who runs a scenario, and which of its decisions are labelled.

    Args:
        scenario: Number of the scenario.
        seed: Of the imagined futures and of what is drawn.
        share: Of the decisions with a choice that are labelled, drawn one by one.
    """

    scenario: int
    seed: int
    share: float


def run_lesson(rollout: Rollout, actor: Base, sim: Simulation, lesson: Lesson) -> Labels:
    """Run a scenario in row 0 by one policy and label decisions on its way by the rollouts of another."""
    kept: list[tuple[NDArray[np.float32], int, Label]] = []
    observations = np.zeros((1, SIZE), dtype=np.float32)
    rollout.seed = lesson.seed
    reset(sim, 0, lesson.scenario)
    while advance(sim, 0):
        if uniform(lesson.seed, LABELLED, int(sim.state.decisions[0])) < lesson.share:
            listed = write_candidates(sim, 0, observations, 0)
            if listed > 1:
                kept.append((observations[0].copy(), listed, label(rollout, sim, 0)))
        if actor.place(sim, 0):
            start(sim, 0)
        else:
            undo_picks(sim, 0)
            wait(sim, 0)
    return _labels(kept, lesson.scenario)


def _labels(kept: list[tuple[NDArray[np.float32], int, Label]], scenario: int) -> Labels:
    if not kept:
        return _none()
    observations, listed, labels = zip(*kept, strict=True)
    gains, variances, to_go = zip(*labels, strict=True)
    tried = np.array([gain.size for gain in gains], dtype=np.int32)
    padded = np.stack([np.pad(gain, (0, CANDIDATES - gain.size)) for gain in gains])
    # A few futures tell too little of the noise of one decision: without a fault in them it would seem to have none.
    candidates = np.arange(CANDIDATES)
    error = np.sqrt(np.mean(variances)) * ((candidates > 0) & (candidates < tried[:, None]))
    return Labels(
        np.stack(observations), np.array(listed, dtype=np.int32), tried, padded.astype(np.float32),
        error.astype(np.float32),
        np.array(to_go, dtype=np.float32), np.full(tried.size, scenario, dtype=np.int32),
    )  # fmt: skip


class Worker(NamedTuple):
    """What one thread needs to run lessons."""

    sim: Simulation
    teacher: Rollout  # whose base is the learner's network, once it has one
    others: Base  # runs where the teacher's base does not


def workers_of(
    problem: Problem, objective: Objective, search: Search, bases: Iterable[Base], others: Base
) -> list[Worker]:
    """Return a worker for each of some bases of rollouts, which may not be shared between threads."""
    return [Worker(simulation_of(problem), Rollout(base, search, objective), others) for base in bases]


def run_lessons(lessons: Iterable[Lesson], workers: list[Worker], own: float, pool: ThreadPoolExecutor) -> Labels:
    """Run lessons at several workers at once; which of them runs what changes nothing.

    Args:
        lessons: What is run.
        workers: One for each thread.
        own: Share of the lessons that the base of the rollouts runs itself.
        pool: Threads.
    """
    free: SimpleQueue[Worker] = SimpleQueue()
    for worker in workers:
        free.put(worker)

    def one(lesson: Lesson) -> Labels:
        worker = free.get()
        try:
            actor = worker.teacher.base if uniform(lesson.seed, OWN, 0) < own else worker.others
            return run_lesson(worker.teacher, actor, worker.sim, lesson)
        finally:
            free.put(worker)

    return joined(pool.map(one, lessons))
