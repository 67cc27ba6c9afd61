"""What the store tells of the queue, against the order that the scheduler gives it."""

import itertools

from sqlalchemy import update

from longshore.cluster.model.orders import ORDER_REGIMES
from longshore.scheduler.control.state_cache import queue_key
from longshore.scheduler.model.states import Desired, JobState
from longshore.scheduler.rules.jobs import in_queue_order
from longshore.scheduler.store.database import Store
from longshore.scheduler.store.jobs import (
    NewJob,
    count_queued,
    filtered_job_ids,
    insert_job,
    open_jobs,
    owners_of,
    waiting_jobs,
)
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


def test_the_queue_has_the_order_that_the_scheduler_gives_it(store: Store) -> None:
    fill(store)
    with store.read() as tx:
        inside = [row for row in open_jobs(tx) if row.desired == Desired.RUN and row.not_before_s <= NOW_S]
        line = in_queue_order(waiting_jobs(tx, NOW_S), ORDER_REGIMES["easy"], float("inf"), NOW_S, 16)

    assert [it.id for it in line] == [row.id for row in sorted(inside, key=queue_key)]


def test_queued_jobs_are_counted_by_owner(store: Store) -> None:
    fill(store)
    with store.read() as tx:
        assert [count_queued(tx, owner) for owner in ("ada", "bob", "eve")] == [10, 6, 0]
        assert owners_of(tx, ["0" * 26, f"{1:026}", "x"]) == {"0" * 26: "bob", f"{1:026}": "ada"}


def test_a_held_job_counts_as_one_that_is_queued_so_that_holding_makes_no_room(store: Store) -> None:
    fill(store)
    store.write(lambda tx: tx.execute(update(job).where(job.c.owner == "ada").values(state=JobState.HELD)))
    with store.read() as tx:
        assert [count_queued(tx, owner) for owner in ("ada", "bob")] == [10, 6]


def test_jobs_are_found_by_state_owner_and_name(store: Store) -> None:
    for number, name in enumerate(("train-1", "train-2", "other")):
        new = NewJob(f"{number:026}", name, "ada" if number else "bob", {"gpus": 1}, 0, 1, 10.0, 1.0)
        store.write(lambda tx, new=new: insert_job(tx, new, writer="test"))  # type: ignore[misc]
    queued = [JobState.QUEUED]
    with store.read() as tx:
        found = [
            filtered_job_ids(tx, queued),
            filtered_job_ids(tx, queued, "ada"),
            filtered_job_ids(tx, queued, None, "train-*"),
            filtered_job_ids(tx, queued, "ada", "train-1"),
            filtered_job_ids(tx, [JobState.RUNNING]),
            filtered_job_ids(tx, queued, name="*r*"),
        ]

    assert [[int(job) for job in jobs] for jobs in found] == [[0, 1, 2], [1, 2], [0, 1], [], [], [0, 1, 2]]
