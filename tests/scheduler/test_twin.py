"""One workload through the simulator and through the real scheduler: the same decisions in the same order."""

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from unittest.mock import patch

import numpy as np
import pytest
from numpy.typing import NDArray

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.model.problem import ORDERS, FaultProcess, Rules, Scenarios
from longshore.cluster.model.topology import Cluster
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.state.state import Simulation
from longshore.scheduler.control.reconciler import Reconciler, ReconcilerTiming
from longshore.scheduler.mirror.cluster_mirror import Beliefs
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.model.states import Desired, JobState
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.store.attempts import AttemptRow, attempts_of, held_gpus
from longshore.scheduler.store.database import Store, StoreUnreachableError, open_store
from longshore.scheduler.store.jobs import get_job, set_desired
from longshore.testing.twin import id_of, starts_of
from tests.compiled_runs import read_out
from tests.plain_run import busy_case
from tests.scheduler.store.postgresql_server import Server
from tests.scheduler.twin_run import layout_of, learning_case, simulated, twin_of
from tests.strategies import Case


def hetero64_case(jobs: int) -> tuple[Cluster, Scenarios, int, FaultProcess, Rules]:
    cluster, scenarios, process, rules = hetero64(1, 7, jobs=jobs, load=0.85)
    rules = rules._replace(order=ORDERS["easy-shortest"], waiting=True, ageing_s=24 * 3600.0)
    return cluster._replace(speed=scenarios.speed[0]), scenarios, 0, process, rules


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    opened = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    yield opened
    opened.close()


@pytest.mark.parametrize("name", ["pack", "eft-hazard", "patient", "replacement"])
@pytest.mark.parametrize("ring", [False, True])
def test_the_scheduler_decides_as_the_simulator(name: str, ring: bool, store: Store) -> None:  # noqa: FBT001
    case = busy_case(ring=ring)

    twin = twin_of(case, store, Placer(HEURISTICS[name]))
    twin.run()
    events, _ = read_out(twin.backend.sim)
    decisions = starts_of(store, layout_of(case))

    assert decisions == simulated(case, HEURISTICS[name])
    assert sorted(decisions) == sorted((it.time_s, it.job, it.gpus) for it in events if it.kind == "start")


def test_a_run_in_which_the_scheduler_gives_up_a_job_ends_with_an_error(store: Store) -> None:
    case = Case(*hetero64_case(jobs=4))
    twin = twin_of(case, store, Placer(HEURISTICS["pack"]))
    with patch.object(Layout, "gpus_for", return_value=0), pytest.raises(RuntimeError, match="has given up some"):
        twin.run()


def test_many_jobs_that_arrive_over_time_on_a_cluster_with_faults_are_placed_as_in_the_simulator(store: Store) -> None:
    case = Case(*hetero64_case(jobs=150))

    twin_of(case, store, Placer(HEURISTICS["patient"])).run()

    assert starts_of(store, layout_of(case)) == simulated(case, HEURISTICS["patient"])


@pytest.mark.few(1)
@pytest.mark.parametrize("name", ["eft-hazard", "patient"])
def test_the_scheduler_learns_from_faults_what_the_simulator_learns_and_decides_as_it(name: str, store: Store) -> None:
    case = learning_case(jobs=150)
    twin = twin_of(case, store, Placer(HEURISTICS[name]))
    twin.run()

    assert starts_of(store, layout_of(case)) == simulated(case, HEURISTICS[name])
    assert twin.scheduler.cache is not None
    mine, theirs = twin.scheduler.cache.mirror.sim.state, twin.backend.sim.state
    assert theirs.observed_faults.sum() > 5.0
    for field in Beliefs._fields:
        assert np.array_equal(getattr(mine, field), getattr(theirs, field)), field


@pytest.mark.full
def test_a_scheduler_that_takes_over_knows_from_the_store_what_the_one_before_had_learned(store: Store) -> None:
    case = learning_case(jobs=150)
    twin = twin_of(case, store, Placer(HEURISTICS["patient"]))
    twin.tick()
    turns = 0
    while not twin.is_over:
        twin.process_next_moment()
        twin.tick()
        turns += 1
        if turns % 50 == 0:
            twin.scheduler.cache = None

    assert turns > 200
    assert sorted(starts_of(store, layout_of(case))) == sorted(simulated(case, HEURISTICS["patient"]))
    assert twin.scheduler.cache is not None
    mine, theirs = twin.scheduler.cache.mirror.sim.state, twin.backend.sim.state
    for field in Beliefs._fields:
        np.testing.assert_allclose(getattr(mine, field), getattr(theirs, field), rtol=1e-9, err_msg=field)


def test_a_scheduler_without_the_time_to_decide_at_once_decides_the_same(store: Store) -> None:
    case = busy_case(ring=True)
    twin = twin_of(case, store, Placer(HEURISTICS["patient"]))
    twin.scheduler = Reconciler(twin.parts, ReconcilerTiming(place_s=0.0))

    twin.run()

    assert starts_of(store, layout_of(case)) == simulated(case, HEURISTICS["patient"])


def test_a_scheduler_that_reads_its_store_anew_at_every_moment_starts_every_job_once(store: Store) -> None:
    case = busy_case(ring=False)
    twin = twin_of(case, store, Placer(HEURISTICS["pack"]))
    twin.tick()
    while not twin.is_over:
        twin.process_next_moment()
        twin.tick()
        twin.scheduler.cache = None

    events, _ = read_out(twin.backend.sim)
    decisions = starts_of(store, layout_of(case))
    assert sorted(decisions) == sorted((it.time_s, it.job, it.gpus) for it in events if it.kind == "start")
    assert {job for _, job, _ in decisions} == set(range(10))


def twin_attempts(store: Store, job: int) -> list[AttemptRow]:
    with store.read() as tx:
        return attempts_of(tx, id_of(job))


class Fickle:
    """A policy whose jobs' owners cancel a job just when it is to be started."""

    def __init__(self, store: Store, job: int) -> None:
        self.store, self.job = store, id_of(job)
        self.name, self.about, self.waits = "fickle", "", False

    def place(self, sim: Simulation, row: int) -> bool:
        with suppress(ValueError):  # it is not submitted yet
            self.store.write(lambda tx: set_desired(tx, self.job, Desired.CANCEL, at_s=0.0, writer="api"))
        return HEURISTICS["pack"].place(sim, row)

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        raise AssertionError("nobody simulates with it")


def test_a_job_that_is_cancelled_while_it_is_being_placed_never_starts_and_frees_its_gpus(store: Store) -> None:
    case = busy_case(ring=False)
    twin = twin_of(case, store, Placer(Fickle(store, 0)))
    twin.process_next_moment()
    for _ in range(3):
        twin.tick()

    with store.read() as tx:
        job = get_job(tx, id_of(0))
        assert attempts_of(tx, id_of(0)) == []
        assert id_of(0) not in {row.job_id for row in held_gpus(tx)}
    assert job is not None
    assert (job.state, job.attempt) == (JobState.CANCELLED, 0)
    cache = twin.scheduler.cache
    assert cache is not None
    assert id_of(0) not in cache.table.jobs
    assert [row.number for job in range(1, 10) for row in twin_attempts(store, job)]  # others have its GPUs
    assert id_of(0) not in [asked.job for asked, _ in cache.mirror.origin_now().jobs]


@pytest.mark.full
def test_a_store_that_goes_away_for_a_while_is_taken_up_again(server: Server, postgresql_url: str) -> None:
    case = busy_case(ring=False)
    store = open_store(postgresql_url)
    twin = twin_of(case, store, Placer(HEURISTICS["pack"]))
    twin.tick()
    turns = 0
    while not twin.is_over:
        twin.process_next_moment()
        if turns % 7 == 3:
            server.stop("immediate")
            with pytest.raises(StoreUnreachableError):
                twin.tick()
            server.start()
        twin.tick()
        turns += 1

    events, _ = read_out(twin.backend.sim)
    decisions = starts_of(store, layout_of(case))
    store.close()
    assert turns > 7
    assert sorted(decisions) == sorted((it.time_s, it.job, it.gpus) for it in events if it.kind == "start")
    assert {job for _, job, _ in decisions} == set(range(10))
