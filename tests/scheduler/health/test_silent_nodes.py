"""Nodes that fall silent, GPUs that fail and nodes out of service, under a scheduler on a simulated cluster."""

import re
from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.files.processes import this_process_name
from longshore.cluster.model.problem import stack
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.model.workload import workload_of
from longshore.scheduler.backends.protocol import NodeView
from longshore.scheduler.control.reconciler import Reconciler
from longshore.scheduler.health.evidence import GpuReport, NodeReport
from longshore.scheduler.health.monitor import DOWN_MISSES, NODE_POLL_S
from longshore.scheduler.model.job import JobRow
from longshore.scheduler.model.states import AttemptState, Contact, JobState
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.store.attempts import AttemptRow, attempts_of
from longshore.scheduler.store.database import open_store
from longshore.scheduler.store.events import events_after
from longshore.scheduler.store.jobs import get_job
from longshore.scheduler.store.nodes import ALARM, CHANGE, NodeRow, list_nodes, set_out_of_service
from longshore.scheduler.store.schema import Liveness
from longshore.testing.simulated import SimulatedBackend
from longshore.testing.twin import Twin, id_of
from tests.compiled_runs import compiled
from tests.plain_run import busy_case
from tests.scheduler.live_run import site_of
from tests.scheduler.twin_run import layout_of
from tests.strategies import Case

LONG_S = 1e6


class Silenced(SimulatedBackend):
    """A cluster some of whose nodes do not answer, and whose clock goes on while nothing happens."""

    later_s = 0.0
    silent_s: dict[str, float] = {}  # last answer of each silent node  # noqa: RUF012

    @property
    def now_s(self) -> float:
        return super().now_s + self.later_s

    def observe(self) -> tuple[NodeView, ...]:
        return tuple(
            replace(node, seen_s=self.silent_s.get(node.name, node.seen_s)) for node in super().observe()
        )  # fmt: skip


class Watched:
    """A scheduler of jobs that run for ever, two of two GPUs at first, on nodes of two GPUs.

    Args:
        folder: Of the store.
        nodes: How many.
        later: GPUs that a job asks for that comes 10,000 s later.
    """

    def __init__(self, folder: Path, nodes: int, later: int) -> None:
        busy = busy_case(ring=False)
        cluster = grid_cluster(nodes, 2)
        gpus, submit_s = np.array([2, 2, later], dtype=np.int32), np.array([0.0, 0.0, 10_000.0])
        workload = workload_of(("a", "b", "c"), gpus, np.full(3, LONG_S), submit_s)
        rates = np.zeros(3 * nodes + 1)
        scenarios = stack(cluster, [workload], fault_seed=np.array([5]), source_rate_per_s=rates)
        case = Case(cluster, scenarios, 0, busy.process, busy.rules._replace(estimated_hazards=True))
        self.store = open_store(f"sqlite:///{folder / 'store.db'}")
        self.backend = Silenced(compiled(case), layout_of(case))
        self.backend.silent_s = {}
        gone = re.sub(r"(?<= start )[0-9]+", "0", this_process_name())  # each scheduler is one that is proven dead
        self.twin = Twin(self.backend, site_of(case), self.store, Placer(HEURISTICS["pack"]), gone)
        self.twin.tick()
        self.live_on()
        self.wait(1)

    def live_on(self) -> None:
        self.twin.process_next_moment()
        self.twin.tick()

    def wait(self, seconds: float) -> None:
        """Let time pass in which nothing happens, with a look each second."""
        for _ in range(int(seconds)):
            self.backend.later_s += 1.0
            self.twin.tick()

    def crash(self) -> None:
        """Go on as another process would that finds the store of one that was killed."""
        self.twin.scheduler = Reconciler(self.twin.parts)
        self.twin.tick()

    def faulted(self) -> set[str]:
        """Return the nodes of which policies know that they failed, each no more than once."""
        cache = self.twin.scheduler.cache
        assert cache is not None
        state = cache.mirror.sim.state
        assert (state.observed_faults[0] < 1.5).all()
        assert np.array_equal(state.observed_faults[0] > 0.5, state.node_hazard_per_s[0] > 0.0)
        return {f"node{node}" for node in np.flatnonzero(state.observed_faults[0] > 0.5)}

    def silence(self, *nodes: str) -> None:
        self.backend.silent_s.update(dict.fromkeys(nodes, self.backend.now_s))

    def drain(self, node: str, reason: str) -> None:
        row = self.node(node)
        self.store.write(lambda tx: set_out_of_service(tx, row, reason, at_s=0.0, writer="api"))

    def report(self, node: str, healthy: list[bool]) -> None:
        reported = [
            GpuReport(index=index, healthy=fine, utilisation=0.0, free_bytes=1) for index, fine in enumerate(healthy)
        ]
        self.twin.parts.monitor.reports.add(node, NodeReport(gpus=tuple(reported)), self.backend.now_s)

    def node(self, name: str) -> NodeRow:
        with self.store.read() as tx:
            return next(row for row in list_nodes(tx) if row.name == name)

    def liveness(self) -> dict[str, Liveness]:
        with self.store.read() as tx:
            return {row.name: row.liveness for row in list_nodes(tx) if row.liveness is not Liveness.UP}

    def reported(self) -> list[str]:
        """Return the events of nodes."""
        with self.store.read() as tx:
            return [event.now for event in events_after(tx, 0, 1 << 40) if event.kind == CHANGE]

    def job(self, number: int) -> JobRow:
        with self.store.read() as tx:
            row = get_job(tx, id_of(number))
        assert row is not None
        return row

    def attempts(self, number: int) -> list[AttemptRow]:
        with self.store.read() as tx:
            return attempts_of(tx, id_of(number))

    def nodes_of(self, number: int) -> set[str]:
        return {share.node for share in self.attempts(number)[-1].placement}

    def free_node(self) -> str:
        return min(set(self.twin.parts.layout.nodes) - self.nodes_of(0) - self.nodes_of(1))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    """Ten nodes, with a job to come that needs all that are free."""
    it = Watched(tmp_path, 10, later=16)
    with closing(it.store):
        yield it


def test_policies_learn_of_nodes_that_are_lost_and_gpus_that_are_faulty_but_not_of_what_operators_do(
    watched: Watched,
) -> None:
    lost, faulty, drained = sorted({f"node{number}" for number in range(10)} - watched.nodes_of(0))[:3]
    watched.drain(drained, "new disks")
    watched.wait(5)
    watched.silence(lost, drained)
    watched.wait(20)
    assert watched.faulted() == set()  # they may answer again
    watched.wait(120)
    assert watched.liveness() == {lost: Liveness.DOWN, drained: Liveness.DOWN}
    assert watched.faulted() == {lost}
    for _ in range(4):
        watched.report(faulty, [False, True])
        watched.wait(5)

    assert watched.faulted() == {lost, faulty}
    watched.crash()
    watched.wait(1)
    assert watched.faulted() == {lost, faulty}


def test_half_the_cluster_falling_silent_is_one_alarm_and_nothing_else(tmp_path: Path) -> None:
    watched = Watched(tmp_path, 100, later=1)
    jobs = [watched.job(number) for number in (0, 1)]
    for number in range(50):
        watched.silence(f"node{number}")
        if number % 5 == 4:
            watched.wait(1)
    watched.wait(120)
    watched.crash()
    watched.wait(60)

    assert set(watched.liveness().values()) == {Liveness.SUSPECT}
    assert len(watched.liveness()) == 50
    assert watched.reported().count(ALARM) == 1
    assert watched.reported().count(Liveness.DOWN.value) == 0
    assert [watched.job(number) for number in (0, 1)] == jobs
    assert {row.contact for number in (0, 1) for row in watched.attempts(number)} == {Contact.OK}
    watched.store.close()


def test_a_node_that_is_not_declared_says_so_as_soon_as_it_would_have_been(tmp_path: Path) -> None:
    watched = Watched(tmp_path, 4, later=1)
    silent = ("node0", "node1")
    watched.silence(*silent)
    watched.wait(NODE_POLL_S * (DOWN_MISSES + 1))
    rows = [watched.node(name) for name in silent]
    assert [row.liveness for row in rows] == [Liveness.SUSPECT] * 2
    assert [row.misses >= DOWN_MISSES for row in rows] == [True] * 2  # as its page has it, which is of the store
    watched.store.close()


@pytest.mark.full
def test_a_job_goes_on_at_no_cost_on_a_node_that_is_silent_for_half_an_hour(watched: Watched) -> None:
    before = watched.job(0)
    (node,) = watched.nodes_of(0)
    watched.silence(node)
    watched.wait(900)
    watched.crash()
    watched.wait(900)

    assert watched.liveness() == {node: Liveness.DOWN}
    assert watched.job(0) == before
    assert [(row.state, row.contact) for row in watched.attempts(0)] == [(AttemptState.RUNNING, Contact.UNKNOWN)]

    watched.backend.silent_s.clear()
    watched.wait(1)
    assert watched.liveness() == {}
    assert watched.job(0) == before
    assert [(row.state, row.contact) for row in watched.attempts(0)] == [(AttemptState.RUNNING, Contact.OK)]
    assert watched.reported() == ["suspect", "down", "up"]


def test_nothing_starts_on_a_silent_node_until_it_answers(watched: Watched) -> None:
    free = watched.free_node()
    watched.silence(free)
    watched.wait(20)
    watched.live_on()
    watched.wait(60)
    assert watched.job(2).state is JobState.QUEUED

    watched.backend.silent_s.clear()
    watched.wait(1)
    assert free in watched.nodes_of(2)


def test_jobs_on_a_drained_node_run_on_and_none_starts_there_before_it_is_resumed(watched: Watched) -> None:
    before = watched.job(0)
    (node,) = watched.nodes_of(0)
    free = watched.free_node()
    for drained in (node, free):
        watched.drain(drained, "a fan is loud")
    watched.live_on()
    watched.crash()
    watched.wait(10)
    assert watched.job(2).state is JobState.QUEUED
    assert watched.job(0) == before
    assert watched.node(free).out_of_service == "a fan is loud"

    watched.drain(free, "")
    watched.wait(1)
    assert free in watched.nodes_of(2)


def test_a_job_leaves_a_gpu_that_the_agent_of_its_node_calls_faulty(watched: Watched) -> None:
    (node,) = watched.nodes_of(0)
    watched.report(node, [True, False])
    watched.wait(1)
    assert watched.job(0).state is JobState.RUNNING  # one report is not enough
    watched.report(node, [True, False])
    watched.wait(1)
    (row,) = watched.attempts(0)
    assert (row.state, row.cause) == (AttemptState.DRAINING, "a GPU of it is out of service")
