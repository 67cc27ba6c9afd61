"""How a job with a plan stands: its sub-tasks where they run, what was predicted and measured, and when it ends.

Source: SPEC P1, P2.
"""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from ...cluster.model.training_plan import PlanFile
from ..health.step_monitor import Figures
from ..store.rows.attempts import AttemptRow
from .sub_tasks import SubTask, sub_tasks, waited_for

Figure = TypeVar("Figure", float, int)


class Sitting(NamedTuple):
    """Who has a seat of a ring now."""

    node: str
    gpu: int
    rank: int  # by which its steps are known


class PlacedTask(NamedTuple):
    """A sub-task where it runs."""

    task: SubTask
    runs_as: int | None  # rank by which its log is known; none before the first attempt
    node: str  # "" before the first attempt
    gpu: int | None  # index on the node
    waits_for: tuple[int, ...]  # ranks
    computed_s: float | None  # measured, of an iteration; none before any was told
    away_bytes: int | None  # of its state that is put away; none of one that tells of none


class Planned(NamedTuple):
    """A job with a plan."""

    plan: PlanFile
    tasks: tuple[PlacedTask, ...]
    step: int | None  # that it is at; none of one that does not run or tell
    step_s: float | None  # measured
    ends_s: float | None  # Unix time at which it will have done all its iterations


def planned(
    plan: PlanFile, attempts: list[AttemptRow], figures: Figures | None, now_s: float, seats: Mapping[int, Sitting]
) -> Planned:
    """Return how a job with a plan stands.

    Args:
        plan: Of the job.
        attempts: Of the job; it stands as the last one does.
        figures: Of its steps; none of one that does not run or tell.
        now_s: The present.
        seats: Who has which seat of the job's ring, each of which has a sub-task; empty for other jobs.
    """
    tasks = sub_tasks(plan)
    places = [(share.node, gpu) for share in attempts[-1].placement for gpu in share.gpus] if attempts else []
    computed_s, away_bytes = (figures.computed_s, figures.away_bytes) if figures else ((), ())
    sitting = seats or {rank: Sitting(*place, rank) for rank, place in enumerate(places)}
    found = []
    for task, waits in zip(tasks, waited_for(tasks), strict=True):
        it = sitting.get(task.rank)
        node, gpu, rank = ("", None, None) if it is None else it
        found.append(PlacedTask(task, rank, node, gpu, waits, _told(computed_s, rank), _told(away_bytes, rank)))
    average = None if figures is None else figures.average
    step_s = None if average is None else average.iteration_s
    return Planned(
        plan,
        tuple(found),
        None if figures is None else figures.step,
        step_s,
        None if figures is None else _ends_s(plan, figures.step, step_s or plan.step_s, now_s),
    )


def _told(figures: tuple[Figure | None, ...], rank: int | None) -> Figure | None:
    return figures[rank] if rank is not None and rank < len(figures) else None


def _ends_s(plan: PlanFile, step: int, step_s: float, now_s: float) -> float | None:
    """Return when all iterations will be done if they go on as they do; none of a plan that does not say how many."""
    return now_s + max(0, plan.iterations - step) * step_s if plan.iterations and step_s else None
