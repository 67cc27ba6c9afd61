"""What the past tells of faults, and that policies see each fault at once."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.agents.heuristics import HEURISTICS
from longshore.scheduler.health.evidence import GpuReport, NodeReport
from longshore.scheduler.health.fault_report import FaultHistory, FaultReport, fault_report, learn_beliefs
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.store.events import EventRow
from tests.scheduler.health.fault_events import DAY_S, LAYOUT, RATE_PER_S, SITE, event
from tests.scheduler.obedient import WELL, Obedient
from tests.scheduler.trials import Trial

TYPES = {"a": "t4", "b": "v100", "c": "v100"}
WORDS = ["faulty", "healthy", "down", "up", "suspect", "out of service", "in service", "", "alarm"]


def report(*events: EventRow, days: float = 10.0) -> FaultReport:
    past = FaultHistory(0.0, events, days * DAY_S)
    return fault_report(past, learn_beliefs(SITE, LAYOUT, past), LAYOUT, TYPES)


def test_rates_and_repairs_by_hand() -> None:
    found = report(
        event(1, "b", "faulty", 1), event(1.5, "b", "healthy", 1), event(3, "b", "down"), event(4.5, "b", "up"),
        event(5, "c", "out of service"), event(6, "c", "down"), event(7, "c", "up"), event(9, "b", "faulty", 0),
    )  # fmt: skip
    assert [it.node for it in found.nodes] == [
        "b",
        "c",
        "a",
    ]  # c was in service for less time
    first = found.nodes[0]
    assert (first.faults, first.per_day, first.repair_s, first.is_lemon) == (3, 0.3, DAY_S, True)
    assert first.hazard_per_s is not None
    assert first.hazard_per_s > 5.0 * RATE_PER_S
    assert [(it.faults, it.repair_s, it.is_lemon) for it in found.nodes[1:]] == [(0, None, False)] * 2
    by_type = [(each.type, each.nodes, each.faults, each.per_day) for each in found.types]
    assert by_type == [("t4", 1, 0, 0.0), ("v100", 2, 3, 0.15)]


def test_without_a_past_there_is_nothing_to_report() -> None:
    found = report(days=0.0)
    assert all((it.faults, it.per_day, it.repair_s) == (0, 0.0, None) for it in found.nodes)
    assert all((it.faults, it.per_day, it.repair_s) == (0, 0.0, None) for it in found.types)


@given(st.lists(st.tuples(st.floats(-1e3, 1e3), st.sampled_from("abcd"), st.sampled_from(WORDS), st.integers(-1, 3))))
def test_whatever_events_say_the_report_is_finite_and_counts_them_once(
    events: list[tuple[float, str, str, int]],
) -> None:
    rows = [event(day, node, now, gpu) for day, node, now, gpu in events]
    found = report(*rows)
    assert sum(it.faults for it in found.nodes) == sum(it.faults for it in found.types)
    assert sum(it.faults for it in found.nodes) <= sum(row.now in ("faulty", "down") for row in rows)
    repairs_s = [it.repair_s for it in found.nodes] + [it.repair_s for it in found.types]
    assert all(it is None or 0.0 <= it < 1e9 for it in repairs_s)


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    nodes = {"a": 2, "b": 2}
    backend = Obedient(nodes)
    made = Trial(tmp_path, nodes, lambda: backend, "obedient")
    yield made
    made.close()


def test_a_fault_changes_what_a_heuristic_does_at_once_and_after_a_restart(trial: Trial) -> None:
    """`reliable` takes the node that fails least; both are equal until one has had a fault."""

    def another() -> None:
        trial.scheduler = trial.another()
        trial.scheduler.parts = replace(trial.scheduler.parts, placer=Placer(HEURISTICS["reliable"]))

    def node_of(job: str) -> str:
        trial.runs(job)
        (node,) = {it.node for it in trial.held() if it.job_id == job}
        backend = trial.way.backend
        assert isinstance(backend, Obedient)
        backend.end(WELL, job)
        trial.ends(job)
        return node

    def report_gpu(*, healthy: bool) -> None:
        reported = NodeReport(gpus=(GpuReport(index=0, healthy=healthy, utilisation=0.0, free_bytes=1),))
        whole = NodeReport(gpus=(*reported.gpus, reported.gpus[0].model_copy(update={"index": 1, "healthy": True})))
        trial.scheduler.parts.monitor.reports.add(first, whole, trial.now_s())
        trial.wait(5.0)

    another()
    first = node_of(trial.submit("one"))
    for healthy in (False, False, True):
        report_gpu(healthy=healthy)
    cache = trial.scheduler.cache
    assert cache is not None
    assert cache.health.faulty == ()
    assert node_of(trial.submit("two")) != first
    trial.scheduler.close()
    another()
    assert node_of(trial.submit("three")) != first
