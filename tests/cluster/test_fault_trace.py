import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longshore.cluster.faults.recorded import FaultTrace, draw_recorded_process, node_faults_per_s, read_fault_trace
from longshore.cluster.files.errors import InputError
from longshore.cluster.model.problem import FaultProcess, fault_sources
from longshore.cluster.model.topology import grid_cluster

DAY_S = 86_400
REAL = Path(__file__).parents[2].parent / "shared" / "data" / "faults" / "fault_trace.json"
Event = tuple[str, float, str]  # node, day, start or end

CLUSTER = grid_cluster(6, 4, nodes_per_rack=3)  # sources: 24 GPUs, 6 nodes, 2 racks


def written(folder: Path, events: list[Event]) -> Path:
    path = folder / "faults.json"
    keys = ("node_id", "event_time", "event_type")
    rows = [dict(zip(keys, (node, day, f"fault_{kind}"), strict=True)) for node, day, kind in events]
    path.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    return path


def in_days(trace: FaultTrace) -> list[tuple[str, float, float]]:
    return [
        (trace.node_ids[node], float(start_s / DAY_S), float(end_s / DAY_S))
        for node, start_s, end_s in zip(trace.node, trace.start_s, trace.end_s, strict=True)
    ]


def of_source(outages: FaultProcess, source: int) -> list[tuple[float, float]]:
    rows = slice(outages.outage_first[source], outages.outage_first[source + 1])
    return list(zip(outages.outage_start_s[rows].tolist(), outages.outage_end_s[rows].tolist(), strict=True))


def of_nodes(outages: FaultProcess) -> list[list[tuple[float, float]]]:
    gpus = CLUSTER.gpu_node.size
    return [of_source(outages, gpus + node) for node in range(CLUSTER.speed.size)]


@pytest.mark.parametrize(
    ("events", "outages"),
    [
        ([("a", 1, "start"), ("b", 2, "start"), ("a", 3, "end"), ("b", 5, "end")], [("a", 1, 3), ("b", 2, 5)]),
        ([("a", 1, "start"), ("a", 2, "start"), ("a", 3, "end"), ("a", 5, "end")], [("a", 1, 5)]),  # overlap
        ([("a", 1, "start"), ("a", 2, "end"), ("a", 2, "start"), ("a", 4, "end")], [("a", 1, 4)]),  # touch
        ([("a", 1, "start"), ("b", 2, "start"), ("b", 8, "end")], [("a", 1, 8), ("b", 2, 8)]),  # no end
        ([("a", 5, "end"), ("b", 1, "end"), ("a", 2, "start"), ("b", 1, "start")], [("b", 1, 1), ("a", 2, 5)]),  # order
    ],
)
def test_events_become_outages_as_worked_by_hand(
    events: list[Event], outages: list[tuple[str, float, float]], tmp_path: Path
) -> None:
    assert in_days(read_fault_trace(written(tmp_path, events))) == outages


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 20), st.integers(0, 6)), min_size=1))
def test_a_node_is_down_exactly_while_one_of_its_faults_lasts(
    tmp_path: Path, faults: list[tuple[str, int, int]]
) -> None:
    events = [(node, day, "start") for node, day, _ in faults] + [(node, day + n, "end") for node, day, n in faults]
    trace = read_fault_trace(written(tmp_path, sorted(events, key=lambda event: event[1])))
    for moment in np.arange(0.5, 27):
        down = {node for node, day, n in faults if day < moment < day + n}
        assert {node for node, start, end in in_days(trace) if start < moment < end} == down
    for node in range(len(trace.node_ids)):
        rows = trace.node == node
        assert (trace.start_s[rows][1:] > trace.end_s[rows][:-1]).all()


@pytest.mark.parametrize(
    ("events", "line", "field"),
    [
        ([("a", 1, "start"), ("a", 2, "end"), ("a", 3, "end")], 4, "event_type"),
        ([("a", 1, "start"), ("b", 2, "end")], 3, "event_type"),
        ([("a", 1, "start"), ("a", -2, "end")], 3, "event_time"),
        ([("a", 1, "start"), ("a", 1e300, "end")], 3, "event_time"),
        ([("a", 1, "middle")], 2, "event_type"),
        ([], None, ""),
    ],
)
def test_an_impossible_event_is_refused_with_its_line(
    events: list[Event], line: int | None, field: str, tmp_path: Path
) -> None:
    with pytest.raises(InputError) as caught:
        read_fault_trace(written(tmp_path, events))
    assert (caught.value.line, caught.value.field) == (line, field)


@pytest.mark.parametrize("content", ["", "[", '[{"node_id": "a"}]', '[{"event_time": 1e400}]', '{"a": 1}', "[NaN]"])
def test_a_file_that_is_no_fault_trace_is_refused(content: str, tmp_path: Path) -> None:
    path = tmp_path / "faults.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"faults\.json"):
        read_fault_trace(path)


def trace_of(nodes: int, watched: int = 0) -> FaultTrace:
    """Return a trace in which node i is down from second 10 i + 1 to 10 i + 5 and then for 3 s, and others never."""
    node = np.repeat(np.arange(nodes, dtype=np.int32), 2)
    start_s = 10.0 * node + np.tile([1.0, 7.0], nodes)
    end_s = 10.0 * node + np.tile([5.0, 10.0], nodes)
    names = tuple(f"n{index}" for index in range(nodes))
    return FaultTrace(names, node, start_s, end_s, float(end_s[-1]), nodes=watched or nodes)


def test_each_node_of_the_cluster_gets_the_outages_of_another_node_of_the_trace() -> None:
    outages = draw_recorded_process(trace_of(6), CLUSTER, np.random.default_rng(1))
    by_node = of_nodes(outages)
    assert sorted(by_node) == [[(10.0 * i + 1, 10.0 * i + 5), (10.0 * i + 7, 10.0 * i + 10)] for i in range(6)]
    assert by_node != sorted(by_node)
    assert outages.outage_first.size == fault_sources(CLUSTER) + 1
    assert outages.outage_first[24] == 0
    assert (outages.outage_first[30:] == 12).all()


def test_nodes_that_never_fail_are_drawn_as_often_as_others() -> None:
    rng, trace = np.random.default_rng(0), trace_of(3, watched=12)
    failing = [sum(map(bool, of_nodes(draw_recorded_process(trace, CLUSTER, rng)))) for _ in range(300)]
    assert np.isclose(np.mean(failing), 6 * 3 / 12, atol=0.15)


def test_the_same_seed_draws_the_same_faults() -> None:
    first, second = (draw_recorded_process(trace_of(9), CLUSTER, np.random.default_rng(5)) for _ in range(2))
    assert of_nodes(first) == of_nodes(second)


def test_a_cluster_larger_than_the_trace_uses_every_node_once_before_any_twice() -> None:
    outages = draw_recorded_process(trace_of(3), CLUSTER, np.random.default_rng(2))
    by_node = of_nodes(outages)
    assert sorted(by_node[:3]) == sorted(by_node[3:])
    assert len({str(node) for node in by_node}) == 3


def test_the_rate_of_a_node_counts_those_that_never_failed() -> None:
    assert node_faults_per_s(trace_of(3, watched=12)) == 6 / 30.0 / 12


@pytest.mark.skipif(not REAL.is_file(), reason="the real fault trace, ../shared/data/faults, is not here")
def test_the_real_fault_trace_agrees_with_its_published_figures() -> None:
    trace = read_fault_trace(REAL)
    assert len(trace.node_ids) == 231
    assert 580 <= trace.node.size <= 584  # 584 faults, of which some overlap
    assert np.isclose(trace.span_s / DAY_S, 348.98, atol=0.01)
    assert np.isclose(1000 * trace.node.size / (400 * trace.span_s / DAY_S), 4.2, atol=0.1)
    assert np.isclose((trace.end_s - trace.start_s).mean() / 3600, 133, atol=2)
