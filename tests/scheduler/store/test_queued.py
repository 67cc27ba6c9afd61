"""What the store tells of the queue, against the order that the scheduler gives it."""

import itertools

from sqlalchemy import update

from longshore.scheduler.recall import queue_key
from longshore.scheduler.states import Desired
from longshore.scheduler.store.jobs import NewJob, insert_job, open_jobs
from longshore.scheduler.store.opening import Store
from longshore.scheduler.store.queued import LAST, jobs_ahead, jobs_before, owners_of, queued_of
from longshore.scheduler.store.schema import job

NOW_S = 100.0


def fill(store: Store) -> None:
    """Queue jobs of two priorities, some of which have run, at two moments; one is held, one waits for its time."""
    kinds = list(itertools.product((0, 3), ((0, 1.0), (1, 1.0), (2, 5.0), (1, 5.0)), range(2)))
    for number, (priority, (attempt, entered_s), _) in enumerate(kinds):
        owner = "ada" if number % 3 else "bob"
        new = NewJob(f"{number:026}", "j", owner, {"gpus": 1}, priority, 1, 10.0, 1.0)
        store.write(lambda tx, new=new: insert_job(tx, new, writer="test"))  # type: ignore[misc]
        back_s = 7.0 if number % 5 == 0 else 0.0
        columns = (
            update(job).where(job.c.id == new.id).values(attempt=attempt, entered_s=entered_s, not_before_s=back_s)
        )
        store.write(lambda tx, columns=columns: tx.execute(columns))  # type: ignore[misc]
    outside = {"0" * 26: {"desired": Desired.HOLD}, f"{1:026}": {"not_before_s": NOW_S + 1.0}}
    for name, values in outside.items():
        store.write(lambda tx, at=name, to=values: tx.execute(update(job).where(job.c.id == at).values(**to)))  # type: ignore[misc]


def test_as_many_jobs_stand_before_one_as_the_scheduler_puts_there(store: Store) -> None:
    fill(store)
    with store.read() as tx:
        inside = [row for row in open_jobs(tx) if row.desired == Desired.RUN and row.not_before_s <= NOW_S]
        ahead = [jobs_ahead(tx, row, NOW_S) for row in sorted(inside, key=queue_key)]
        before_new = [jobs_before(tx, priority, LAST, NOW_S) for priority in (4, 3, 0, -1)]

    assert ahead == list(range(len(inside)))
    assert before_new == [0, 8, 14, 14]


def test_queued_jobs_are_counted_by_owner(store: Store) -> None:
    fill(store)
    with store.read() as tx:
        assert [queued_of(tx, owner) for owner in ("ada", "bob", "eve")] == [10, 6, 0]
        assert owners_of(tx, ["0" * 26, f"{1:026}", "x"]) == {"0" * 26: "bob", f"{1:026}": "ada"}
