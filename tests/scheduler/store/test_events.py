from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from threading import Event

import pytest
from sqlalchemy import Connection, text

from longshore.scheduler.model.job import NewEvent
from longshore.scheduler.store.database import Store, open_store
from longshore.scheduler.store.events import (
    append,
    events_after,
    jobs_changed_by_others,
    last_complete_seq,
    last_events_without_job,
    last_seq,
)

from .store_rows import all_events, submit

WAITING = text("SELECT count(*) FROM pg_locks WHERE locktype = 'advisory' AND NOT granted")


def note(number: int, job_id: str | None = None) -> NewEvent:
    return NewEvent("note", "test", at_s=0.0, job_id=job_id, data={"number": number})


def test_events_come_in_order_and_page_by_page(store: Store) -> None:
    for number in range(5):
        store.write(partial(append, new=note(number, f"job-{number % 2}")))
    with store.read() as tx:
        first = events_after(tx, 0, 3)
        assert [event.data for event in first] == [{"number": number} for number in range(3)]
        assert [event.data for event in events_after(tx, first[-1].seq, 3)] == [{"number": 3}, {"number": 4}]
        assert [event.data for event in events_after(tx, 0, 9, "job-1")] == [{"number": 1}, {"number": 3}]
        assert events_after(tx, last_seq(tx), 9) == []


def test_the_last_events_of_no_job_begin_at_a_time_and_come_in_order(store: Store) -> None:
    for number in range(6):
        event = note(number, "job-1" if number == 3 else None)._replace(at_s=float(number))
        store.write(partial(append, new=event))
    store.write(partial(append, new=note(6)._replace(kind="other", at_s=6.0)))
    with store.read() as tx:
        assert [event.at_s for event in last_events_without_job(tx, "note", 2.0, 9)] == [2.0, 4.0, 5.0]
        assert [event.at_s for event in last_events_without_job(tx, "note", 0.0, 2)] == [4.0, 5.0]


def test_an_event_without_data_reads_as_none(store: Store) -> None:
    submit(store)
    assert [event.data for event in all_events(store)] == [None]


def test_a_follower_gets_every_event_of_many_writers(url: str) -> None:
    """Two stores, as of two processes, write while a third follows."""
    stores = [open_store(url) for _ in range(3)]

    def write(worker: int) -> None:
        for number in range(25):
            stores[worker % 2].write(partial(append, new=note(worker * 25 + number)))

    got: list[object] = []
    with ThreadPoolExecutor(4) as pool:
        writers = [pool.submit(write, worker) for worker in range(4)]
        seq = 0
        while len(got) < 100 and not (all(writer.done() for writer in writers) and seq == last(stores[2])):
            with stores[2].read() as tx:
                for event in events_after(tx, seq, 10):
                    got.append(event.data)
                    seq = event.seq
    assert sorted(got, key=str) == sorted(({"number": number} for number in range(100)), key=str)
    for store in stores:
        store.close()


def last(store: Store) -> int:
    with store.read() as tx:
        return last_seq(tx)


def numbers(store: Store) -> object:
    return [event.data for event in all_events(store)]


def changed(store: Store) -> object:
    with store.read() as tx:
        return jobs_changed_by_others(tx, 0)[0]


def begun(store: Store) -> object:
    """Begin to follow, and count what was there before."""
    with store.read() as tx:
        seq = last_complete_seq(tx)
        return sum(event.seq <= seq for event in events_after(tx, 0, 9))


@pytest.mark.parametrize(
    ("follow", "found"), [(numbers, [{"number": 1}, {"number": 2}]), (changed, ["job-1", "job-2"]), (begun, 2)]
)
def test_a_follower_on_postgresql_does_not_run_past_a_late_commit(
    postgresql_url: str, follow: Callable[[Store], object], found: object
) -> None:
    slow, fast, follower = (open_store(postgresql_url) for _ in range(3))
    written, go = Event(), Event()

    def late(tx: Connection) -> None:
        append(tx, note(1, "job-1"))
        written.set()
        go.wait()

    with ThreadPoolExecutor(2) as pool:
        pool.submit(slow.write, late)
        written.wait()
        fast.write(lambda tx: append(tx, note(2, "job-2")))  # a larger number, committed earlier
        following = pool.submit(follow, follower)
        with fast.engine.connect() as tx:
            while not following.done() and tx.execute(WAITING).scalar() == 0:
                tx.rollback()
        go.set()
    assert following.result() == found
    for store in (slow, fast, follower):
        store.close()


def test_a_follower_on_postgresql_holds_no_writer_up_while_it_works_on_what_it_got(postgresql_url: str) -> None:
    store = open_store(postgresql_url)
    submit(store, 1)
    with store.read() as tx:
        assert len(events_after(tx, 0, 10)) == 1
        submit(store, 2)
        assert len(events_after(tx, 0, 10)) == 2
    store.close()
