from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from threading import Event

import pytest
from sqlalchemy import Connection, insert, text
from sqlalchemy.exc import IntegrityError

from longshore.scheduler.store.database import Store, StoreUnreachableError, open_store
from longshore.scheduler.store.jobs import insert_job
from longshore.scheduler.store.schema import gpu

from .store_rows import all_events, new_job, submit

Work = Callable[[Connection], object]


def in_one_group(store: Store, works: list[Work]) -> list[Future[object]]:
    """Let requests come together in one transaction, by holding the writer up until all of them wait."""
    begun, go, waiting = Event(), Event(), store._writer._waiting

    def busy(tx: Connection) -> None:
        begun.set()
        go.wait()

    with ThreadPoolExecutor(len(works) + 1) as pool:
        pool.submit(store.write, busy)
        begun.wait()
        futures = [pool.submit(store.write, work) for work in works]
        while waiting.qsize() < len(works):
            pass
        go.set()
    return futures


def inserting(number: int) -> Work:
    return lambda tx: insert_job(tx, new_job(number), writer="api").id


def raising(tx: Connection) -> object:
    insert_job(tx, new_job(99), writer="api")
    raise KeyError("mine")


def test_a_request_that_raises_harms_no_other_of_its_group(store: Store) -> None:
    futures = in_one_group(store, [inserting(1), raising, inserting(2), inserting(1), inserting(3)])
    errors = [future.exception() for future in futures]
    assert [isinstance(error, KeyError) for error in errors].count(True) == 1
    assert [isinstance(error, IntegrityError) for error in errors].count(True) == 1
    assert sorted(str(event.job_id)[-2:] for event in all_events(store)) == ["01", "02", "03"]


def test_what_cannot_be_committed_is_reported_to_the_whole_group(sqlite_url: str) -> None:
    def breaks_at_the_end(tx: Connection) -> None:
        tx.exec_driver_sql("PRAGMA defer_foreign_keys = ON")
        tx.execute(insert(gpu), {"node": "unknown", "gpu": 0, "healthy": True, "since_s": 0.0})

    store = open_store(sqlite_url)
    futures = in_one_group(store, [inserting(1), breaks_at_the_end, raising])
    kinds = [type(future.exception()) for future in futures]
    assert kinds == [IntegrityError, IntegrityError, KeyError]
    assert all_events(store) == []
    assert submit(store).state == "queued"
    store.close()


def test_a_group_whose_connection_is_lost_leaves_nothing(postgresql_url: str) -> None:
    def loses_its_connection(tx: Connection) -> None:
        tx.execute(text("SELECT pg_terminate_backend(pg_backend_pid())"))

    store = open_store(postgresql_url)
    futures = in_one_group(store, [inserting(1), loses_its_connection, inserting(2)])
    assert {type(future.exception()) for future in futures} == {StoreUnreachableError}
    assert all_events(store) == []
    assert submit(store).state == "queued"
    store.close()


def test_a_write_inside_a_write_is_refused_instead_of_waiting_for_itself(store: Store) -> None:
    with pytest.raises(ValueError, match="wait for itself"):
        store.write(lambda tx: submit(store))


def test_a_closed_store_refuses_writes(url: str) -> None:
    store = open_store(url)
    store.close()
    with pytest.raises(ValueError, match="closed"):
        submit(store)


def test_closing_finishes_what_waits(url: str) -> None:
    store = open_store(url)
    begun = Event()

    def slow(tx: Connection) -> str:
        begun.set()
        while store._writer._waiting.qsize() == 0:  # until the end of the queue is reported
            pass
        return insert_job(tx, new_job(), writer="api").id

    with ThreadPoolExecutor(1) as pool:
        writing = pool.submit(store.write, slow)
        begun.wait()
        store.close()
    assert writing.result() == new_job().id
    again = open_store(url)
    assert len(all_events(again)) == 1
    again.close()
