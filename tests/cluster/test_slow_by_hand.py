"""Slow nodes worked by hand, given when the nodes turn slow and well."""

from itertools import islice
from typing import Any

import pytest

from longshore.cluster.model.outcome import Event, Outcome
from longshore.cluster.model.problem import fault_sources
from longshore.cluster.model.topology import Cluster, grid_cluster
from tests.cases_by_hand import Jobs, Outages, slow_case
from tests.compiled_runs import run_heuristic
from tests.reference_slow import pace_stream, turns_of


def turns(cluster: Cluster, node: int, count: int = 3) -> list[float]:
    """Return when a node becomes slow, well, slow again and so on."""
    case = slow_case(cluster, [(1, 1.0, 0.0)])
    stream = pace_stream(fault_sources(cluster), cluster.speed.size, node)
    return list(islice(turns_of(case.rules, int(case.scenarios.fault_seed[0]), stream), count))


def run(cluster: Cluster, jobs: Jobs, outages: Outages | None = None, **rules: Any) -> tuple[list[Event], Outcome]:
    events, outcome = run_heuristic(slow_case(cluster, jobs, outages, **rules), "first-fit")
    return [event for event in events if event.kind != "submit"], outcome


ONE, TWO = grid_cluster(1, 2), grid_cluster(2, 1)
SLOW_S, WELL_S, AGAIN_S = turns(ONE, 0)
DURING_S = (SLOW_S + WELL_S) / 2


def test_a_job_runs_slower_while_its_node_is_slow_and_as_before_afterwards() -> None:
    end_s = (WELL_S + AGAIN_S) / 2
    events, outcome = run(ONE, [(2, end_s - 0.75 * (WELL_S - SLOW_S), 0.0)])
    assert [event.kind for event in events] == ["start", "slow", "well", "finish"]
    assert [event.time_s for event in events] == pytest.approx([0.0, SLOW_S, WELL_S, end_s])
    assert events[1][1:] == ("slow", -1, (0, 1))
    assert (outcome.slowed[0], outcome.switches[0], outcome.lost_s[0, 0]) == (1, 0, 0.0)


def test_a_job_that_ends_while_its_node_is_slow_has_done_all_its_work() -> None:
    outcome = run(ONE, [(1, SLOW_S + 0.25 * (DURING_S - SLOW_S), 0.0)])[1]
    assert outcome.finish_s[0, 0] == pytest.approx(DURING_S)


def test_a_job_that_starts_on_a_slow_node_is_slow_from_its_first_second() -> None:
    outcome = run(ONE, [(1, 1.0, 0.0), (1, 1.0, DURING_S)])[1]
    assert outcome.finish_s[0, 1] == pytest.approx(DURING_S + 4.0)
    assert outcome.slowed[0] == 1


def test_a_job_on_several_nodes_is_as_slow_as_the_slowest_of_them_and_not_slower_where_two_are() -> None:
    spells = [turns(TWO, node, 12) for node in (0, 1)]
    edges = sorted({edge for each in spells for edge in each})
    work_s, end_s = 0.0, edges[8]
    for since_s, until_s in zip([0.0, *edges], edges[:9], strict=False):
        is_slow = any(sum(edge <= since_s for edge in each) % 2 for each in spells)
        work_s += (until_s - since_s) / (4.0 if is_slow else 1.0)
    assert run(TWO, [(2, work_s, 0.0)])[1].finish_s[0, 0] == pytest.approx(end_s)


def test_only_the_compute_time_of_an_iteration_is_longer() -> None:
    events, _ = run(TWO, [(2, 1e4, 0.0)], ring=True, reference_gpus=1)
    assert events[0].kind == "start"
    case = slow_case(TWO, [(2, 1e4, 0.0)], ring=True, reference_gpus=1)
    compute_s = float(case.scenarios.compute_s[0, 0])
    sent_s = float(case.scenarios.parameter_bytes[0, 0]) / 12.5e9
    first = next(event for event in events if event.kind == "slow")
    work_s = first.time_s + 1.0  # one second of work is done on a slow node
    end_s = run(TWO, [(2, work_s, 0.0)], ring=True, reference_gpus=1)[1].finish_s[0, 0]
    assert end_s == pytest.approx(first.time_s + (4.0 * compute_s + sent_s) / (compute_s + sent_s))


def test_a_pause_is_no_longer_on_a_slow_node() -> None:
    checked_s = (SLOW_S + DURING_S) / 2
    work_s = 0.25 * (DURING_S - checked_s)
    outcome = run(ONE, [(1, work_s, 0.0)], preflight_s=checked_s)[1]
    assert outcome.finish_s[0, 0] == pytest.approx(DURING_S)
    assert outcome.lost_s[0, 0] + outcome.overhead_gpu_s[0] == pytest.approx(checked_s)


def test_a_checkpoint_holds_what_was_done_before_the_node_was_slow_and_while_it_was() -> None:
    """One was written half-way between the change and the fault."""
    saved_at_s = (SLOW_S + DURING_S) / 2
    saved_s, left_s = SLOW_S + 0.25 * (saved_at_s - SLOW_S), 0.3 * (DURING_S - saved_at_s)
    outages: Outages = {0: [(DURING_S, 1e9)]}
    events, outcome = run(ONE, [(1, saved_s + left_s, 0.0)], outages, checkpoint_s=saved_at_s, restart_s=0.0)
    ours = [event for event in events if event.job == 0]
    assert [event.kind for event in ours] == ["start", "stop", "start", "finish"]
    assert ours[-1].time_s == pytest.approx(DURING_S + 4.0 * left_s)  # on the other GPU of the slow node
    assert outcome.lost_s[0, 0] == pytest.approx(DURING_S - saved_at_s)


def test_an_empty_seat_is_not_filled_on_a_slow_node() -> None:
    """Node 1 is slow when a GPU of node 0 fails: the ring goes on short of a member until node 1 is well."""
    cluster = grid_cluster(2, 2)
    slow_s, well_s = turns(cluster, 1, 2)
    fault_s = (slow_s + well_s) / 2
    events, _ = run(cluster, [(2, 1e4, 0.0)], {0: [(fault_s, 1e9)]}, switching=True, switch_s=0.0, slow_factor=1.0)
    switches = [event for event in events if event.kind == "switch"][:2]
    assert [event.gpus for event in switches] == [(1,), (1, 2)]
    assert [event.time_s for event in switches] == pytest.approx([fault_s, well_s])
