import time
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from pathlib import Path
from threading import Event

import pytest
from sqlalchemy import Connection, text

from longshore.scheduler.model.states import JobState
from longshore.scheduler.store.copying import back_up, swap_in_backup
from longshore.scheduler.store.database import FencedError, Store, open_store
from longshore.scheduler.store.events import (
    SCHEDULER_LEASE,
    acquire_lease,
    check_fence,
    database_now_s,
    events_after,
    lease_row,
    lease_takeovers,
    release_lease,
    renew_lease,
)

from .store_rows import change_job, job_now, submit


def take(store: Store, now_s: float, owner: str = "a", ttl_s: float = 10.0) -> int | None:
    return store.write(lambda tx: acquire_lease(tx, SCHEDULER_LEASE, owner, now_s, ttl_s))


def test_a_lease_that_is_held_is_not_given_to_anybody(store: Store) -> None:
    assert take(store, 0.0) == 1
    assert take(store, 9.9, "b") is None
    assert take(store, 9.9, "a") is None


def test_each_takeover_raises_the_token_to_the_present_or_by_one_if_the_clock_was_set_back(store: Store) -> None:
    takings = [(0.0, 1), (1e10, 10**10), (1e10 + 10.5, 10**10 + 10), (1e10 + 20.5, 10**10 + 20)]
    for taken, (now_s, token) in enumerate(takings, 1):
        assert take(store, now_s) == token
        with store.read() as tx:
            assert lease_takeovers(tx) == {SCHEDULER_LEASE: taken}
        store.write(partial(release_lease, name=SCHEDULER_LEASE, token=token))
    assert take(store, 20.0) == 10**10 + 21
    assert take(store, 40.0) == 10**10 + 22


def test_a_token_is_stored_with_events_whatever_its_size(store: Store) -> None:
    fence = take(store, 1e10)
    assert fence is not None
    job = submit(store)
    store.write(lambda tx: claim(tx, fence, job.id))
    with store.read() as tx:
        assert events_after(tx, 0, 10)[-1].fence == fence


def test_a_store_that_was_restored_or_is_new_grants_no_lower_token_than_before(tmp_path: Path) -> None:
    """Agents know tokens of the store that was replaced."""
    file, copy, now_s = tmp_path / "a.db", tmp_path / "copy.db", 1e9
    seen = 0
    for replaced in (None, None, "copy", "copy", "new", "copy"):
        store = open_store(f"sqlite:///{file}")
        for _ in range(3):
            now_s += 20.0
            token = take(store, now_s)
            assert token is not None
            assert token > seen
            seen = token
        store.close()
        if not copy.exists():
            back_up(file, copy)
        if replaced == "copy":
            swap_in_backup(copy, file, f"{now_s}")
        elif replaced == "new":
            file.unlink()


def test_a_lease_whose_owner_is_proven_dead_can_be_taken_before_it_expires(store: Store) -> None:
    take(store, 0.0, "a")
    again = partial(acquire_lease, name=SCHEDULER_LEASE, owner="b", now_s=1.0, ttl_s=10.0)
    with store.read() as tx:
        row = lease_row(tx, SCHEDULER_LEASE)
    assert store.write(partial(again, left=row._replace(owner="c"))) is None
    assert store.write(partial(again, left=row._replace(expires_s=row.expires_s + 1.0))) is None  # it was renewed
    assert store.write(partial(again, left=row)) == 2  # no lower than the last one, which is higher than the time
    with store.read() as tx:
        assert lease_row(tx, SCHEDULER_LEASE).owner == "b"


def test_a_renewed_lease_expires_later(store: Store) -> None:
    take(store, 0.0)
    assert store.write(lambda tx: renew_lease(tx, SCHEDULER_LEASE, 1, now_s=8.0, ttl_s=10.0))
    assert take(store, 17.9, "b") is None
    assert take(store, 18.0, "b") == 18


def test_a_lease_that_was_taken_over_cannot_be_renewed_or_given_up(store: Store) -> None:
    take(store, 0.0)
    take(store, 10.0, "b")
    assert not store.write(lambda tx: renew_lease(tx, SCHEDULER_LEASE, 1, now_s=11.0, ttl_s=100.0))
    assert not store.write(lambda tx: release_lease(tx, SCHEDULER_LEASE, 1))
    assert take(store, 20.0, "c") == 20


def test_a_lease_that_is_given_up_can_be_taken_at_once(store: Store) -> None:
    take(store, 0.0)
    assert store.write(lambda tx: release_lease(tx, SCHEDULER_LEASE, 1))
    assert take(store, 0.1, "b") == 2


def test_a_fence_holds_until_the_lease_is_taken_over_even_if_it_has_expired(store: Store) -> None:
    take(store, 0.0)
    store.write(lambda tx: check_fence(tx, 1))
    take(store, 10.0, "b")
    with pytest.raises(FencedError, match="'scheduler' does not carry token 1"):
        store.write(lambda tx: check_fence(tx, 1))


def test_an_expired_lease_goes_to_one_of_those_who_ask_at_the_same_time(url: str) -> None:
    stores = [open_store(url) for _ in range(4)]
    with ThreadPoolExecutor(4) as pool:
        tokens = list(pool.map(lambda store: take(store, 5.0), stores))
    assert sorted(tokens, key=str) == [5, None, None, None]
    for store in stores:
        store.close()


def test_time_is_that_of_the_host_of_the_database(store: Store) -> None:
    with store.read() as tx:
        assert abs(database_now_s(tx) - time.time()) < 60.0  # the same host here


def test_on_postgresql_a_takeover_waits_for_what_the_old_holder_has_begun(postgresql_url: str) -> None:
    old, new = open_store(postgresql_url), open_store(postgresql_url)
    take(old, 0.0)
    job = submit(old)
    written, go = Event(), Event()

    def claim_slowly(tx: Connection) -> None:
        claim(tx, 1, job.id)
        written.set()
        go.wait()

    with ThreadPoolExecutor(2) as pool:
        claiming = pool.submit(old.write, claim_slowly)
        written.wait()
        taking = pool.submit(take, new, 100.0, "b")
        waited = waits(taking, old)
        go.set()
    assert waited
    assert (claiming.exception(), taking.result()) == (None, 100)
    assert job_now(new, job.id).state is JobState.STARTING
    old.close()
    new.close()


def test_on_postgresql_a_write_waits_for_a_takeover_that_has_begun_and_is_fenced(postgresql_url: str) -> None:
    old, new = open_store(postgresql_url), open_store(postgresql_url)
    take(old, 0.0)
    job = submit(old)
    taken, go = Event(), Event()

    def take_slowly(tx: Connection) -> None:
        acquire_lease(tx, SCHEDULER_LEASE, "b", 100.0, 10.0)
        taken.set()
        go.wait()

    with ThreadPoolExecutor(2) as pool:
        pool.submit(new.write, take_slowly)
        taken.wait()
        claiming = pool.submit(old.write, lambda tx: claim(tx, 1, job.id))
        waited = waits(claiming, old)
        go.set()
    assert waited
    assert isinstance(claiming.exception(), FencedError)
    assert job_now(new, job.id) == job
    old.close()
    new.close()


def claim(tx: Connection, fence: int, job_id: str) -> None:
    change_job(tx, fence, job_id, JobState.QUEUED, JobState.STARTING)


def waits(future: Future[int | None] | Future[None], store: Store) -> bool:
    """Say whether a write comes to wait for another transaction, instead of ending."""
    waiting = 0
    while waiting == 0 and not future.done():
        with store.read() as tx:
            waiting = tx.execute(text("SELECT count(*) FROM pg_locks WHERE NOT granted")).scalar_one()
    return waiting > 0
