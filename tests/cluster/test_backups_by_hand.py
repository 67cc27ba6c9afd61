"""Backups worked by hand: one node is slow for a while, and no other."""

import math
from functools import cache
from itertools import islice
from typing import Any

import numpy as np
import pytest

from longshore.cluster.model.outcome import Outcome
from longshore.cluster.model.problem import fault_sources
from longshore.cluster.model.topology import Cluster, grid_cluster
from longshore.cluster.placing import take_gpu
from longshore.cluster.simulator.engine import advance, reset, start
from longshore.cluster.simulator.slow_nodes import next_relief_s
from longshore.cluster.simulator.state_border import checked_state
from longshore.cluster.state.state import Simulation
from tests.cases_by_hand import Jobs, Outages, slow_case
from tests.compiled_runs import at_first_decision, compiled, run_heuristic
from tests.reference_slow import pace_stream, turns_of

FOUND_S, SWITCH_S = 5.0, 3.0
RULES: dict[str, Any] = {"switching": True, "switch_s": SWITCH_S, "detection_s": FOUND_S, "backups": 2}
LONG_S = 1e6


@cache
def lone_spell(nodes: int, node: int = 0) -> tuple[int, float, float]:
    """Return a seed with which a node is slow for over a minute, and no node else until long after; and that time."""
    case = slow_case(grid_cluster(nodes, 1), [(1, 1.0, 0.0)])
    for seed in range(10_000):
        turns = [
            list(islice(turns_of(case.rules, seed, pace_stream(2 * nodes + 1, nodes, each)), 3))
            for each in range(nodes)
        ]
        slow_s, well_s, again_s = turns[node]
        others = [again_s, *(first_s for each, (first_s, _, _) in enumerate(turns) if each != node)]
        if well_s - slow_s > 60.0 and min(others) > well_s + 300.0:
            return seed, slow_s, well_s
    raise AssertionError("no such seed")


def run(
    jobs: Jobs, cluster: Cluster, outages: Outages | None = None, **rules: Any
) -> tuple[list[tuple[Any, ...]], Outcome]:
    """Return (time, kind, job, GPUs) of each event of a job, and the outcome; clusters are of nodes of one GPU."""
    assert fault_sources(cluster) == 2 * cluster.speed.size + 1
    case = slow_case(cluster, jobs, outages, **(RULES | rules))
    seed = np.array([lone_spell(cluster.speed.size)[0]])
    case = case._replace(scenarios=case.scenarios._replace(fault_seed=seed))
    events, outcome = run_heuristic(case, "first-fit")
    return [tuple(event) for event in events if event.job >= 0 and event.kind != "submit"], outcome


def close(events: list[tuple[Any, ...]], expected: list[tuple[Any, ...]]) -> None:
    assert [event[1:] for event in events] == [event[1:] for event in expected]
    assert [event[0] for event in events] == pytest.approx([event[0] for event in expected])


THREE = grid_cluster(3, 1)
_, SLOW_S, WELL_S = lone_spell(3)
GIVEN_S = SLOW_S + FOUND_S
AT_FULL_SPEED_S = WELL_S - GIVEN_S - SWITCH_S  # with the backup
DONE_S = SLOW_S + FOUND_S / 4.0 + AT_FULL_SPEED_S  # of work, when the node is well again


def test_a_free_gpu_sits_in_for_a_slow_one_until_its_node_is_well() -> None:
    events, outcome = run([(2, DONE_S + 100.0, 0.0)], THREE)
    end_s = WELL_S + SWITCH_S + 100.0
    close(
        events,
        [
            (0.0, "start", 0, (0, 1)), (GIVEN_S, "switch", 0, (1, 2)), (WELL_S, "switch", 0, (0, 1)),
            (end_s, "finish", 0, (0, 1)),
        ],
    )  # fmt: skip
    assert (outcome.slowed[0], outcome.backups[0], outcome.switches[0]) == (1, 1, 2)
    assert outcome.backup_gpu_s[0] == pytest.approx(WELL_S - GIVEN_S)
    assert outcome.lost_s[0, 0] == pytest.approx(SWITCH_S)  # the second switch is the overhead of the last piece
    assert outcome.busy_gpu_s[0] == pytest.approx(2 * end_s)


def test_a_backup_waits_for_a_free_gpu_and_comes_before_the_queue_and_nobody_else_gets_the_slow_gpu() -> None:
    free_s = GIVEN_S + 10.0
    jobs: Jobs = [(2, 1000.0, 0.0), (1, free_s, 0.0), (1, 20.0, SLOW_S - 1.0)]
    events, _ = run(jobs, THREE)
    close(
        events[2:6],
        [
            (free_s, "finish", 1, (2,)), (free_s, "switch", 0, (1, 2)), (WELL_S, "switch", 0, (0, 1)),
            (WELL_S, "start", 2, (2,)),
        ],
    )  # fmt: skip


def test_a_gpu_that_is_no_faster_than_the_slow_one_is_no_backup() -> None:
    cluster = grid_cluster(3, 1, speed=np.array([1.0, 1.0, 0.25]))
    events, outcome = run([(2, DONE_S, 0.0)], cluster)
    assert [event[1] for event in events] == ["start", "finish"]
    assert (outcome.backups[0], outcome.backup_gpu_s[0]) == (0, 0.0)


@pytest.mark.parametrize("rules", [{"backups": 0}, {"switching": False}])
def test_without_leave_or_where_jobs_do_not_switch_there_is_no_backup(rules: dict[str, Any]) -> None:
    outcome = run([(2, DONE_S, 0.0)], THREE, **rules)[1]
    assert (outcome.slowed[0], outcome.backups[0], outcome.switches[0]) == (1, 0, 0)


def test_a_job_of_one_gpu_moves_to_its_backup_and_back() -> None:
    events, _ = run([(1, DONE_S + 10.0, 0.0)], THREE)
    assert [event[1:] for event in events] == [
        ("start", 0, (0,)), ("switch", 0, (1,)), ("switch", 0, (0,)), ("finish", 0, (0,)),
    ]  # fmt: skip


def test_a_backup_that_fails_gives_the_slow_gpu_its_seat_again() -> None:
    fault_s = GIVEN_S + SWITCH_S + 20.0
    events, _ = run([(2, 1000.0, 0.0)], THREE, {2: [(fault_s, LONG_S)]})
    close(events[1:3], [(GIVEN_S, "switch", 0, (1, 2)), (fault_s + FOUND_S, "switch", 0, (0, 1))])


def test_the_backup_of_a_slow_gpu_that_fails_stays_and_nobody_waits_for_that() -> None:
    fault_s = GIVEN_S + 20.0
    work_s = SLOW_S + FOUND_S / 4.0 + 200.0
    events, outcome = run([(2, work_s, 0.0)], THREE, {0: [(fault_s, LONG_S)]})
    close(events[1:], [(GIVEN_S, "switch", 0, (1, 2)), (GIVEN_S + SWITCH_S + 200.0, "finish", 0, (1, 2))])
    assert outcome.backup_gpu_s[0] == pytest.approx(fault_s - GIVEN_S)


def test_a_job_that_ends_leaves_both_the_slow_gpu_and_its_backup() -> None:
    end_s = GIVEN_S + SWITCH_S + 10.0
    work_s = SLOW_S + FOUND_S / 4.0 + 10.0
    events, outcome = run([(2, work_s, 0.0), (3, 1.0, 1.0)], THREE)
    close(events[1:4], [(GIVEN_S, "switch", 0, (1, 2)), (end_s, "finish", 0, (1, 2)), (end_s, "start", 1, (0, 1, 2))])
    assert outcome.backup_gpu_s[0] == pytest.approx(end_s - GIVEN_S)


def test_a_spare_may_be_a_backup_and_goes_back_to_the_pool() -> None:
    events, outcome = run([(2, DONE_S + 10.0, 0.0), (1, 1.0, WELL_S + 1.0)], THREE, spares=0.3)
    assert [event[1:] for event in events[:4]] == [
        ("start", 0, (0, 1)), ("switch", 0, (1, 2)), ("switch", 0, (0, 1)), ("finish", 0, (0, 1)),
    ]  # fmt: skip
    assert events[4][1:] == ("start", 1, (0,))
    assert outcome.down_gpu_s[0] == pytest.approx(outcome.makespan_s[0])  # one GPU is always idle, the spare or GPU 0


def test_a_slow_gpu_that_fails_takes_the_place_in_the_pool_of_the_spare_that_was_its_backup() -> None:
    fault_s, work_s = GIVEN_S + 20.0, SLOW_S + FOUND_S / 4.0 + 200.0
    outages: Outages = {0: [(fault_s, fault_s + 30.0)]}
    events, outcome = run([(2, work_s, 0.0), (2, 1.0, 1.0)], THREE, outages, spares=0.3)
    assert [event[1:] for event in events] == [
        ("start", 0, (0, 1)), ("switch", 0, (1, 2)), ("finish", 0, (1, 2)), ("start", 1, (1, 2)),
        ("finish", 1, (1, 2)),
    ]  # fmt: skip
    assert outcome.down_gpu_s[0] == pytest.approx(outcome.makespan_s[0])


def test_all_gpus_on_the_slow_node_have_a_backup_or_none_has() -> None:
    """Two GPUs of a job are on node 0 of a cluster whose nodes have two; they need two backups."""
    cluster = grid_cluster(2, 2)
    for backups, given in ((1, 0), (2, 2)):
        case = slow_case(cluster, [(2, 1000.0, 0.0)], **(RULES | {"backups": backups, "slow_factor": 8.0}))
        events, outcome = run_heuristic(case, "first-fit")
        assert outcome.slowed[0] > 0
        switches = [event for event in events if event.kind == "switch"]
        assert (outcome.backups[0] > 0) == (given > 0)
        assert [event.gpus for event in switches[:1]] == [(2, 3)][: given // 2]


def with_a_backup() -> Simulation:
    """Return a simulation of four nodes at a decision, in which GPU 2 sits in for GPU 0."""
    seed, slow_s, _ = lone_spell(4)
    case = slow_case(grid_cluster(4, 1), [(2, 1000.0, 0.0), (1, 1.0, slow_s + FOUND_S + 1.0)], **RULES)
    sim = compiled(case._replace(scenarios=case.scenarios._replace(fault_seed=np.array([seed]))))
    reset(sim, 0, 0)
    assert advance(sim, 0)
    for gpu in (0, 1):
        take_gpu(sim, 0, gpu)
    assert start(sim, 0)
    assert advance(sim, 0)
    assert (sim.state.kept_for[0].tolist(), sim.state.backup_of[0, 0]) == ([0, -1, -1, -1], 2)
    checked_state(sim, sim.state)
    return sim


@pytest.mark.parametrize(
    ("name", "at", "value"),
    [
        ("kept_for", 0, -1), ("kept_for", 0, 1), ("kept_for", 3, 0), ("backup_of", 0, -1), ("backup_of", 0, 3),
        ("backup_of", 1, 2), ("relieved_of", 0, 0), ("relieved_of", 1, 1), ("relieved", 0, 0), ("slowed_s", 0, -1.0),
        ("slowed_s", 0, 1e9), ("pace_s", 1, 0.0), ("pace_s", 1, math.nan), ("node_slow", 1, 2),
    ],
)  # fmt: skip
def test_a_kept_state_in_which_backups_do_not_hold_together_is_refused(name: str, at: int, value: float) -> None:
    sim = with_a_backup()
    spoiled = getattr(sim.state, name).copy()
    spoiled.reshape(-1)[at] = value
    with pytest.raises(ValueError, match=r"state\.\w+"):
        checked_state(sim, sim.state._replace(**{name: spoiled}))


def test_the_moment_at_which_a_slow_node_is_found_is_awaited_once() -> None:
    sim = at_first_decision(slow_case(THREE, [(1, 100.0, 0.0)], **RULES))
    take_gpu(sim, 0, 0)
    assert start(sim, 0)
    sim.state.slowed_s[0, 0], sim.state.now_s[0] = 10.0, 14.0
    assert next_relief_s(sim, 0) == 10.0 + FOUND_S
    sim.state.now_s[0] = 10.0 + FOUND_S
    assert next_relief_s(sim, 0) == math.inf
