"""Run times of jobs that have plans, against the plain version, which goes through their links one by one."""

import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.model.problem import LAYOUTS, with_layout
from longshore.cluster.model.topology import ANYTHING, NodeNeeds
from longshore.cluster.model.workload import Iteration, JobPlan, best_plan, iteration_s, workload_of
from longshore.cluster.placing import slowdown_of
from longshore.cluster.state.state import Simulation
from longshore.cluster.traces.read import read_trace
from longshore.cluster.traces.write import write_trace
from tests.compiled_runs import compiled
from tests.reference import first_state
from tests.reference_state import slowdown
from tests.strategies import Case, cases, planned_cases


def on_gpus(sim: Simulation, row: int, job: int, gpus: list[int]) -> float:
    """Return the slowdown of a job on a placement, all of whose figures are taken from scratch."""
    cluster = sim.cluster
    nodes, counts = np.unique(cluster.gpu_node[gpus], return_counts=True)
    racks = np.unique(cluster.node_rack[nodes])
    return slowdown_of(
        sim, row, job, nodes.size, float(sim.scenarios.speed[row, nodes].min()),
        float(cluster.intra_bytes_per_s[nodes[counts > 1]].min(initial=np.inf)),
        float(cluster.nic_bytes_per_s[nodes].min()),
        float(cluster.uplink_bytes_per_s[racks].min()) if racks.size > 1 else math.inf, int(np.gcd.reduce(counts)),
    )  # fmt: skip


def some_gpus(case: Case, job: int, seed: int) -> list[int]:
    """Return GPUs for a job, of as many nodes as chance will have it."""
    gpus, rng = case.cluster.gpu_node.size, np.random.default_rng(seed)
    asked = int(case.scenarios.gpus[case.row, job])
    first = int(rng.integers(gpus - asked + 1))
    side_by_side = list(range(first, first + asked))
    return side_by_side if rng.random() < 0.5 else sorted(rng.permutation(gpus)[:asked].tolist())


@given(planned_cases(), st.integers(0, 11), st.integers(0, 2**32 - 1))
def test_a_plan_takes_as_long_as_its_links_say(case: Case, at: int, seed: int) -> None:
    job = at % int(case.scenarios.jobs[case.row])
    gpus = some_gpus(case, job, seed)
    assert on_gpus(compiled(case), case.row, job, gpus) == pytest.approx(
        slowdown(first_state(*case), job, gpus), rel=1e-9
    )


@given(cases(), st.integers(0, 11), st.integers(0, 2**32 - 1))
def test_a_data_parallel_plan_is_a_ring(case: Case, at: int, seed: int) -> None:
    job = at % int(case.scenarios.jobs[case.row])
    ring = case._replace(rules=case.rules._replace(ring=True))
    shape, ones = case.scenarios.gpus.shape, (case.scenarios.gpus > 0).astype(np.int32)
    none = np.zeros(shape)
    scenarios = case.scenarios._replace(pipeline=ones, tensor=ones, fixed_s=none, edge_bytes=none, tensor_bytes=none)
    planned = ring._replace(scenarios=scenarios)
    gpus = some_gpus(case, job, seed)
    assert on_gpus(compiled(planned), case.row, job, gpus) == pytest.approx(
        on_gpus(compiled(ring), case.row, job, gpus), rel=1e-9
    )


def test_stages_that_each_lie_on_one_node_sum_gradients_inside_it() -> None:
    """Two stages of four: on 4 + 4 GPUs no ring crosses, on 6 + 2 the second does; edges cross in both."""
    it = Iteration(4, 2, 1, 1.0, 0.0, gradient_bytes=8e9, edge_bytes=1e9, tensor_bytes=0.0)
    assert iteration_s(it, 1.0, 1.0, 100e9, 10e9, 4) == pytest.approx(1.0 + 0.1 + 12e9 / 100e9)
    assert iteration_s(it, 1.0, 1.0, 100e9, 10e9, 2) == pytest.approx(1.0 + 0.1 + 12e9 / 10e9)
    assert iteration_s(it, 1.0, 2.0, 100e9, 10e9, 8) == pytest.approx(0.5 + 0.01 + 0.12)


def test_the_best_plan_is_of_the_fewest_gpus_that_cost_no_time() -> None:
    def plan(gpus: int, work_s: float) -> JobPlan:
        return JobPlan(Iteration(gpus, 1, 1, 1.0, 0.0, 0.0, 0.0, 0.0), work_s)

    fixed, smaller, late, larger = plan(8, 100.0), plan(4, 100.0), plan(2, 101.0), plan(16, 60.0)
    assert best_plan((fixed, late, larger)) == fixed
    assert best_plan((fixed, late, smaller, larger)) == smaller
    assert best_plan((fixed, plan(8, 90.0), larger)).work_s == 90.0
    away = plan(4, 95.0)._replace(away_bytes=1e9)
    assert best_plan((fixed, smaller, away)) == smaller
    assert best_plan((fixed, smaller, away), offload=True) == away
    assert best_plan((away, plan(4, 96.0))) == away  # the first may always be taken


def test_a_job_that_runs_by_another_plan_has_its_gpus_time_and_memory_and_the_same_error_of_its_estimate() -> None:
    fixed = JobPlan(Iteration(8, 1, 1, 1.0, 0.0, 4e9, 0.0, 0.0), 100.0, 16e9)
    other = JobPlan(Iteration(1, 2, 2, 1.5, 0.1, 1e9, 2e8, 3e9), 80.0, 30e9)
    ids, gpus, work_s, submit_s = ("a", "b"), np.array([8, 1], np.int32), np.array([100.0, 5.0]), np.zeros(2)
    jobs = workload_of(ids, gpus, work_s, submit_s, plans=((fixed, other), ()))
    jobs.estimate_s[0] = 50.0

    found = with_layout(jobs, "best")

    assert found.gpus.tolist() == [4, 1]
    assert found.work_s.tolist() == [80.0, 5.0]
    assert found.estimate_s.tolist() == [40.0, 5.0]
    assert found.compute_s[0] == 1.5
    assert found.node_needs is not None
    assert [needs.gpu_memory_bytes for needs in found.node_needs] == [30e9, 0.0]
    assert found.plans == ((other, fixed), ())
    assert with_layout(jobs, "fixed").estimate_s.tolist() == [50.0, 5.0]


def test_a_job_that_puts_state_away_needs_room_for_it_in_host_memory() -> None:
    fixed = JobPlan(Iteration(8, 1, 1, 1.0, 0.0, 4e9, 0.0, 0.0), 100.0, 32e9)
    away = JobPlan(Iteration(4, 1, 1, 1.0, 0.0, 4e9, 0.0, 0.0), 100.0, 30e9, away_bytes=12e9)
    ids, gpus, work_s, submit_s = ("a", "b"), np.array([8, 8], np.int32), np.full(2, 100.0), np.zeros(2)
    needs = (ANYTHING, ANYTHING._replace(host_memory_bytes_per_gpu=64e9))
    jobs = workload_of(ids, gpus, work_s, submit_s, plans=((fixed, away),) * 2, needs=needs)
    found = {layout: with_layout(jobs, layout).node_needs for layout in LAYOUTS}
    rooms = {name: [it.host_memory_bytes_per_gpu for it in of or ()] for name, of in found.items()}
    assert rooms == {"fixed": [0.0, 64e9], "best": [0.0, 64e9], "offload": [12e9, 64e9]}


def data_parallel_plan(gpus: int, work_s: float, memory_bytes: float, away_bytes: float) -> JobPlan:
    return JobPlan(Iteration(gpus, 1, 1, 1.0, 0.0, 0.0, 0.0, 0.0), work_s, memory_bytes, away_bytes)


AMOUNTS = st.sampled_from((0.0, 1e9, 2e10, 8e10))
OWN_NEEDS = st.builds(NodeNeeds, st.sampled_from(((), ("a100", "h100"))), AMOUNTS, st.sampled_from((0.0, 8.0)), AMOUNTS)
SOME_PLANS = st.lists(
    st.builds(data_parallel_plan, st.integers(1, 8), st.floats(1.0, 100.0), AMOUNTS, AMOUNTS), max_size=4
).map(tuple)


@given(OWN_NEEDS, SOME_PLANS, st.lists(st.sampled_from(("write and read", *LAYOUTS)), max_size=4))
def test_a_job_needs_what_its_row_and_the_plan_that_it_runs_by_need(
    tmp_path_factory: pytest.TempPathFactory, own: NodeNeeds, plans: tuple[JobPlan, ...], steps: list[str]
) -> None:
    gpus, work_s = (plans[0].gpus, plans[0].work_s) if plans else (1, 1.0)
    jobs = workload_of(
        ("a",), np.array([gpus], np.int32), np.array([work_s]), np.zeros(1), plans=(plans,), needs=(own,)
    )
    for step in steps:
        if step in LAYOUTS:
            jobs = with_layout(jobs, step)
        else:
            path: Path = tmp_path_factory.getbasetemp() / "jobs.csv"
            write_trace(jobs, path)
            jobs = read_trace(path)
        assert jobs.node_needs is not None
        first = jobs.plans[0][0] if plans and jobs.plans else None
        assert jobs.node_needs[0] == NodeNeeds(
            own.gpu_types,
            max(own.gpu_memory_bytes, first.memory_bytes if first else 0.0),
            own.cpus_per_gpu,
            max(own.host_memory_bytes_per_gpu, first.away_bytes if first else 0.0),
        )
