from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from random import Random

from sqlalchemy import Connection

from longshore.scheduler.model.job import JobRow
from longshore.scheduler.model.states import AttemptState, JobState
from longshore.scheduler.store.attempts import held_gpus, unclosed_attempts
from longshore.scheduler.store.database import StaleWriteError, Store, TakenError, open_store
from longshore.scheduler.store.events import SCHEDULER_LEASE, acquire_lease
from longshore.scheduler.store.jobs import get_job

from .store_rows import (
    all_events,
    assert_each_change_has_one_event,
    change_attempt,
    change_job,
    drain,
    job_now,
    start,
    submit,
)

CLIENTS = 8
WAY = (JobState.STARTING, JobState.RUNNING, JobState.STOPPING, JobState.SUCCEEDED)
AFTER = dict(zip((JobState.QUEUED, *WAY), WAY, strict=False))
GPUS = 4


def push(tx: Connection, fence: int, job_id: str) -> JobState:
    """Change a job to what comes next on its way."""
    row = get_job(tx, job_id)
    assert row is not None
    if row.state in AFTER:
        was, now = row.state, AFTER[row.state]
        change_job(tx, fence, job_id, was, now)
    return row.state


def test_eight_clients_lose_and_double_no_transition(store: Store, fence: int) -> None:
    jobs = [submit(store, number).id for number in range(20)]

    def push_all(seed: int) -> Counter[JobState]:
        order, pushed = Random(seed), Counter[JobState]()
        for job_id in order.choices(jobs, k=60):
            pushed[store.write(partial(push, fence=fence, job_id=job_id))] += 1
        return pushed

    with ThreadPoolExecutor(CLIENTS) as pool:
        pushed = sum(pool.map(push_all, range(CLIENTS)), Counter[JobState]())
    events = all_events(store)
    rows = [job_now(store, job_id) for job_id in jobs]
    for row in rows:
        assert_each_change_has_one_event(row, events)
    assert sum(count for state, count in pushed.items() if state in AFTER) == sum(row.version - 1 for row in rows)


def test_of_many_who_read_the_same_one_changes_the_job(url: str) -> None:
    """Each client has a store of its own, as processes have."""
    stores = [open_store(url) for _ in range(3)]
    fence = stores[0].write(lambda tx: acquire_lease(tx, SCHEDULER_LEASE, "test", now_s=0.0, ttl_s=60.0)) or 0
    queued = submit(stores[0])

    def claim(store: Store) -> bool:
        try:
            store.write(lambda tx: change_job(tx, fence, queued.id, JobState.QUEUED, JobState.STARTING))
        except StaleWriteError:
            return False
        return True

    with ThreadPoolExecutor(CLIENTS) as pool:
        assert sorted(pool.map(claim, stores * 3)) == [False] * 8 + [True]
    for store in stores:
        store.close()


def test_one_gpu_never_has_two_reservations(store: Store, fence: int) -> None:
    jobs = [submit(store, number, gpus=2) for number in range(40)]

    def run(number: int) -> None:
        order = Random(number)
        for waiting in jobs[number::CLIENTS]:
            while not started(store, fence, waiting, order.sample(range(GPUS), 2)):
                pass
            assert_reservations_are_those_of_open_attempts(store)
            store.write(partial(drain, fence=fence, job=waiting))
            store.write(partial(change_attempt, fence=fence, job=waiting, now=AttemptState.RELEASED))

    with ThreadPoolExecutor(CLIENTS) as pool:
        list(pool.map(run, range(CLIENTS)))
    with store.read() as tx:
        assert held_gpus(tx) == []


def started(store: Store, fence: int, waiting: JobRow, gpus: list[int]) -> bool:
    try:
        store.write(lambda tx: start(tx, fence, waiting, *gpus))
    except TakenError:
        return False
    return True


def assert_reservations_are_those_of_open_attempts(store: Store) -> None:
    with store.read() as tx:
        if tx.dialect.name == "postgresql":
            tx.exec_driver_sql("SET TRANSACTION ISOLATION LEVEL REPEATABLE READ")  # both reads of one moment
        held = [(row.node, row.gpu, row.job_id) for row in held_gpus(tx)]
        wanted = [
            (share.node, gpu, row.job_id)
            for row in unclosed_attempts(tx)
            if row.state is not AttemptState.RELEASED
            for share in row.placement
            for gpu in share.gpus
        ]
    assert held == sorted(wanted)
