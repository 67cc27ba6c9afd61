"""What distillation learns from: decisions of training scenarios, with what every move would gain by rollouts."""

from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from queue import SimpleQueue
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...agents.learned.objective import goal_unit_s, spent_s
from ...agents.learned.schema import Goal
from ...agents.rollouts.rollout import Base, Ranking, Rollout, Search
from ...cluster.dispatch.placing import undo_picks
from ...cluster.kernels.counter_random import uniform
from ...cluster.model.problem import Problem
from ...cluster.simulator.engine import advance, reset, start, wait
from ...cluster.simulator.simulation import simulation_of
from ...cluster.state.state import MOVES, Simulation
from ...envs.candidate_features import MOVE_COUNT, MOVE_GLOBAL_COUNT, write_moves
from ..snapshot import Arrays, records, within

SIZE = MOVE_GLOBAL_COUNT + MOVES * MOVE_COUNT
LABELLED, OWN = 0, 1  # second counter of what is drawn: which decisions are labelled, and who plays


class Labels(NamedTuple):
    """Decisions that had a choice, and the gain of each move over the first of its list."""

    seen: NDArray[np.float32]  # (decisions, size) observations
    listed: NDArray[np.int32]  # (decisions,) moves of the list
    tried: NDArray[np.int32]  # (decisions,) of which the first so many have a label
    gain: NDArray[np.float32]  # (decisions, MOVES) mean over imagined futures, in units of goal_unit_s; 0 beyond
    error: NDArray[np.float32]  # (decisions, MOVES) standard error of that, one for all decisions of a lesson
    to_go: NDArray[np.float32]  # (decisions,) mean of what is still to come by the choice of the rollout's base
    scenario: NDArray[np.int32]  # (decisions,)


def joined(parts: Iterable[Labels]) -> Labels:
    """Return the decisions of several parts in their order."""
    fields = zip(*([_none(), *parts]), strict=True)
    return Labels(*(np.concatenate(arrays) for arrays in fields))


def _none() -> Labels:
    counts, values = np.zeros(0, np.int32), np.zeros((0, MOVES), np.float32)
    return Labels(np.zeros((0, SIZE), np.float32), counts, counts, values, values, values[:, 0], counts)


def sound_labels(arrays: Arrays, scenarios: int) -> Labels:
    """Return labels that were read from a file, of decisions in so many scenarios.

    Raises:
        ValueError: If they are no labels of these.
        KeyError: If a part is not there.
    """
    found = records(arrays, "", _none())
    within("listed", found.listed, 1, MOVES)
    within("tried", found.tried, 1, MOVES)
    within("scenario", found.scenario, 0, scenarios - 1)
    if (found.tried > found.listed).any():
        raise ValueError("tried is more than listed, expected at most as many")
    return found


class Label(NamedTuple):
    """What rollouts tell of a decision, in units of goal_unit_s."""

    gain: NDArray[np.float64]  # (moves,) mean gain over the first of the list, 0 for that
    variance: float  # of that, by the futures that were imagined
    to_go: float  # mean of what is still to come by the base's own choice


def label(rollout: Rollout, sim: Simulation, row: int) -> Label:
    """Return what rollouts tell of a decision with a choice.

    Args:
        rollout: Of at least two futures and no budget.
        sim: The simulation; a job must be due in the row.
        row: Row of the decision.
    """
    goal = rollout.goal or "makespan"
    unit_s, base = goal_unit_s(sim, row, goal), rollout.base
    costs_s = rollout.costs_s(sim, row)
    gains = (costs_s[:, :1] - costs_s) / unit_s
    # The first move is the choice of the heuristics that teach.
    own = int(base.told(sim, row)[: gains.shape[1]].argmax()) if isinstance(base, Ranking) else 0
    to_go = (float(costs_s[:, own].mean()) - spent_s(sim, row, goal)) / unit_s
    # Of all moves but the first, which gains nothing over itself.
    return Label(gains.mean(axis=0), float(gains[:, 1:].var(axis=0, ddof=1).mean()) / len(gains), to_go)


@dataclass(frozen=True, slots=True)
class Lesson:
    """Who plays a scenario, and which of its decisions are labelled.

    Args:
        scenario: Number of the scenario.
        seed: Of the imagined futures and of what is drawn.
        share: Of the decisions with a choice that are labelled, drawn one by one.
    """

    scenario: int
    seed: int
    share: float


def play_lesson(rollout: Rollout, player: Base, sim: Simulation, lesson: Lesson) -> Labels:
    """Play a scenario in row 0 by one policy and label decisions on its way by the rollouts of another."""
    kept: list[tuple[NDArray[np.float32], int, Label]] = []
    seen = np.zeros((1, SIZE), dtype=np.float32)
    rollout.seed = lesson.seed
    reset(sim, 0, lesson.scenario)
    while advance(sim, 0):
        if uniform(lesson.seed, LABELLED, int(sim.state.decisions[0])) < lesson.share:
            listed = write_moves(sim, 0, seen, 0)
            if listed > 1:
                kept.append((seen[0].copy(), listed, label(rollout, sim, 0)))
        if player.place(sim, 0):
            start(sim, 0)
        else:
            undo_picks(sim, 0)
            wait(sim, 0)
    return _labels(kept, lesson.scenario)


def _labels(kept: list[tuple[NDArray[np.float32], int, Label]], scenario: int) -> Labels:
    if not kept:
        return _none()
    seen, listed, labels = zip(*kept, strict=True)
    gains, variances, to_go = zip(*labels, strict=True)
    tried = np.array([gain.size for gain in gains], dtype=np.int32)
    padded = np.stack([np.pad(gain, (0, MOVES - gain.size)) for gain in gains])
    # A few futures tell too little of the noise of one decision: without a fault in them it would seem to have none.
    moves = np.arange(MOVES)
    error = np.sqrt(np.mean(variances)) * ((moves > 0) & (moves < tried[:, None]))
    return Labels(
        np.stack(seen), np.array(listed, dtype=np.int32), tried, padded.astype(np.float32), error.astype(np.float32),
        np.array(to_go, dtype=np.float32), np.full(tried.size, scenario, dtype=np.int32),
    )  # fmt: skip


class Desk(NamedTuple):
    """What one thread needs to play lessons."""

    sim: Simulation
    teacher: Rollout  # whose base is the learner's network, once it has one
    others: Base  # plays where the teacher's base does not


def desks_of(problem: Problem, goal: Goal, search: Search, bases: Iterable[Base], others: Base) -> list[Desk]:
    """Return a desk for each of some bases of rollouts, which may not be shared between threads."""
    args = problem.cluster, problem.scenarios, problem.process, problem.rules
    return [Desk(simulation_of(*args), Rollout(base, search, goal), others) for base in bases]


def play_lessons(lessons: Iterable[Lesson], desks: list[Desk], own: float, pool: ThreadPoolExecutor) -> Labels:
    """Play lessons at several desks at once; which of them plays what changes nothing.

    Args:
        lessons: What is played.
        desks: One for each thread.
        own: Share of the lessons that the base of the rollouts plays itself.
        pool: Threads.
    """
    free: SimpleQueue[Desk] = SimpleQueue()
    for desk in desks:
        free.put(desk)

    def one(lesson: Lesson) -> Labels:
        desk = free.get()
        try:
            player = desk.teacher.base if uniform(lesson.seed, OWN, 0) < own else desk.others
            return play_lesson(desk.teacher, player, desk.sim, lesson)
        finally:
            free.put(desk)

    return joined(pool.map(one, lessons))
