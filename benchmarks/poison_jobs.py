"""Jobs that would hurt a scheduler: with numbers at their bounds, claims that make no sense, or rows of other versions.

Some are submitted as any job is, others are written into the store behind the scheduler's back. Those that say what to
run do it, and end as they would otherwise.
"""

import math
import time
from collections.abc import Mapping
from typing import Any, NamedTuple

from sqlalchemy import Connection, update

from longshore.scheduler.model.job import new_job_id
from longshore.scheduler.model.states import JobState
from longshore.scheduler.store.database import Store
from longshore.scheduler.store.jobs import NewJob, insert_job
from longshore.scheduler.store.schema import job

SHARE = 0.1  # of all jobs
WRITER = "poison"
LIES = """echo '{"step": 1e308, "saved_s": NaN, "more": -Infinity}' > "$LONGSHORE_PROGRESS"; exit 3"""


class Poison(NamedTuple):
    """What is wrong with a job."""

    ends: JobState  # how it has to end
    spec: Mapping[str, object]  # in place of what it has otherwise
    row: Mapping[str, object] | None = (
        None  # columns as an earlier program left them in the store; None if the API takes it
    )


WELL, FAILS, HELD = JobState.SUCCEEDED, JobState.FAILED, JobState.HELD
POISONS = (
    Poison(WELL, {"compute_s": 1e-6, "estimate_s": 1e-3, "parameter_bytes": 1e15}),
    Poison(WELL, {"compute_s": 86400.0, "estimate_s": 366 * 86400.0, "grace_s": 0.0, "priority": 100}),
    Poison(FAILS, {"limit_s": 1e-3, "command": ["sleep", "60"]}),
    Poison(FAILS, {"command": ["no-such-program-\N{SNOWMAN}"]}),
    Poison(FAILS, {"command": ["/bin/sh", "-c", LIES], "retry": {"user": 3, "no_progress": 1000}}),
    Poison(FAILS, {"command": ["/bin/sh", "-c", "kill -11 $$"], "retry": {"ambiguous": 2, "infra": 1000}}),
    Poison(WELL, {"compute_s": 5e-324, "of_a_later_version": {"x": [1]}}, {}),
    Poison(WELL, {"estimate_s": 5e-324, "limit_s": 1e300, "health": {"hang": 0}}, {"estimate_s": 5e-324}),
    Poison(WELL, {"parameter_bytes": 1e300}, {"guess_s": 0.0, "saved_s": math.inf, "wait_s": math.inf}),
    Poison(WELL, {"retry": {"infra": 10**9, "ambiguous": 10**9, "no_progress": 10**9}}, {"priority": 2**31 - 1}),
    Poison(FAILS, {}, {"gpus": 0}),
    Poison(FAILS, {}, {"gpus": 2**31 - 1}),
    Poison(HELD, {"command": []}, {}),
    Poison(HELD, {"command": None, "environment": "none"}, {}),
)  # fmt: skip


def put(store: Store, spec: Mapping[str, Any], row: Mapping[str, object]) -> str:
    """Write a job into the store as another version would have left it, and return its id."""
    now_s = time.time()
    new = NewJob(new_job_id(now_s), str(spec["name"]), "local", spec, 0, int(spec["gpus"]), 60.0, now_s)

    def write(tx: Connection) -> None:
        insert_job(tx, new, writer=WRITER)
        if row:
            tx.execute(update(job).where(job.c.id == new.id).values(**row))

    store.write(write)
    return new.id


def poison_of(number: int) -> Poison:
    """Return one of them, each as often as the others."""
    return POISONS[number % len(POISONS)]
