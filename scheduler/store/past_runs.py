"""How long a job is expected to run whose owner has not said so: by the jobs that have ended, as in traces.

What it comes to is written with the job when it is submitted. So it stays the same whatever ends later.
"""

import numpy as np
from sqlalchemy import Connection, bindparam, literal_column, select

from ...cluster.workloads.history import RECENT_JOBS, Alike, predicted_s
from ..model.job_spec import LEAST_S, YEAR_S, JobFile
from .database.schema import attempt, job
from .rows.jobs import GIVEN, NewJob

SHORTEST_S = 1.0  # a mean of logarithms would go by what fails at once, and by little else
UNNAMED = JobFile.model_fields["name"].default  # says nothing of what a job runs
# The partial indexes are used only for these very words, so that 0 is no parameter.
_ENDED = (job.c.ended_s.is_not(None), job.c.attempt > literal_column("0"), attempt.c.started_s.is_not(None))
_ROWS = (
    select(
        job.c.saved_s, job.c.entered_s, attempt.c.opened_s, attempt.c.started_s, attempt.c.ended_s,
        attempt.c.overhead_s, attempt.c.slowdown,
    )
    .join(attempt, (attempt.c.job_id == job.c.id) & (attempt.c.number == job.c.attempt))
    .where(*_ENDED)
    .order_by(job.c.ended_s.desc(), job.c.submit_seq.desc())
    .limit(RECENT_JOBS)
)  # fmt: skip


_OWNER, _NAME, _GPUS = (job.c[name] == bindparam(f"as_{name}") for name in ("owner", "name", "gpus"))
_LEVELS = {
    Alike.USER_AND_NAME: _ROWS.where(_OWNER, _NAME),
    Alike.USER_AND_GPUS: _ROWS.where(_OWNER, _GPUS),
    Alike.GPUS: _ROWS.where(_GPUS),
    Alike.ANY: _ROWS,
}  # what ended jobs may have in common with a new one, the closest first


def estimated(tx: Connection, new: NewJob) -> NewJob:
    """Return a job as it is if its owner has given an estimate, else with what ended jobs let expect.

    Of each ended job what counts is the work that its attempts have done, in seconds on the reference placement,
    however it ended. Where no job has ended, the job stays as it is as well.
    """
    if new.estimate_from == GIVEN:
        return new
    asked = {"as_owner": new.owner, "as_name": new.name, "as_gpus": new.gpus}
    for alike, rows in _LEVELS.items():
        if alike is Alike.USER_AND_NAME and new.name == UNNAMED:
            continue
        works_s = [work_s for row in tx.execute(rows, asked) if (work_s := _work_s(*row)) >= SHORTEST_S]
        if works_s:
            estimate_s = min(max(predicted_s(np.array(works_s[::-1])), LEAST_S), YEAR_S)
            spec = {**new.spec, "estimate_s": estimate_s}
            return new._replace(
                spec=spec, estimate_s=estimate_s, estimate_from=alike.value, estimate_jobs=len(works_s)
            )  # fmt: skip
    return new


def _work_s(
    saved_s: float, entered_s: float, opened_s: float, started_s: float, ended_s: float | None, overhead_s: float,
    slowdown: float,
) -> float:  # fmt: skip
    """Return the work that the attempts of an ended job have done: what was saved, and what the last one did."""
    if ended_s is None or entered_s > opened_s or not slowdown > 0:  # it came back into the queue, and ended there
        return saved_s
    return saved_s + max(ended_s - started_s - overhead_s, 0.0) / slowdown
