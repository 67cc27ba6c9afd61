"""Jobs with plans as the scheduler takes them: their placements are scored by what the plans do."""

import json
import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from longshore.cluster.files.errors import InputError
from longshore.cluster.model.workload import Iteration, iteration_s, reference_iteration_s
from longshore.scheduler.control.state_cache import job_request_of
from longshore.scheduler.mirror.cluster_mirror import ROW, ClusterMirror, JobRequest, MirrorCall, MirrorOrigin, Spread
from longshore.scheduler.mirror.journal import decode_record, encode_record
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.model.job import JobRow
from longshore.scheduler.model.job_spec import JobFile
from tests.plain_run import busy_case

from .live_run import site_of

FIGURES = st.floats(0.0, 1e15)
SPREADS = st.builds(Spread, st.integers(1, 4), st.integers(1, 4), *[FIGURES] * 3)
PLAN: dict[str, Any] = {
    "data": 2, "pipeline": 2, "micro_batch": 1, "batch": 8,
    "stages": [{"layers": ["first"]}, {"layers": ["second"]}],
    "iteration": {
        "compute_s": 0.5, "fixed_s": 0.125, "gradient_bytes": 1e9, "edge_bytes": 2e9, "tensor_bytes": 0.0,
    },
}  # fmt: skip


@given(SPREADS, st.sampled_from([(), (1, 3)]))
def test_what_is_stored_with_a_decision_has_the_plan(spread: Spread, types: tuple[int, ...]) -> None:
    asked = JobRequest("one", 16 * spread.pipeline * spread.tensor, 60.0, 0.0, types=types, spread=spread)
    (call,) = decode_record(json.loads(encode_record(0, [MirrorCall("submit", (asked,))]))).calls
    assert call == MirrorCall("submit", (asked,))


@pytest.mark.parametrize(
    "spread",
    [(0, 1, 0.0, 0.0, 0.0), (1, -1, 0.0, 0.0, 0.0), (3, 1, 0.0, 0.0, 0.0), (1, 1, -1.0, 0.0, 0.0),
     (1, 1, 0.0, math.inf, 0.0), (1, 1, 0.0, 0.0, math.nan), (1, 1, 0.0), "plan", None],
)  # fmt: skip
def test_a_stored_plan_that_cannot_be_is_refused(spread: object) -> None:
    reported = ["one", 4, 60.0, 0.0, 0, 1.0, 0.0, [], spread]
    with pytest.raises(InputError):
        decode_record({"number": 0, "calls": [["submit", reported]]})


def test_a_job_without_a_plan_is_stored_as_ever() -> None:
    (entry,) = json.loads(encode_record(0, [MirrorCall("submit", (JobRequest("one", 4, 60.0, 0.0),))]))["calls"]
    assert entry == ["submit", ["one", 4, 60.0, 0.0, 0, 1.0, 0.0]]


def test_a_cluster_that_learns_of_its_first_plan_keeps_all_else_and_its_copy_is_the_same() -> None:
    mirror = ClusterMirror(site_of(busy_case(ring=True)), MirrorOrigin(0.0))
    mirror.begin(0.0)
    mirror.submit(JobRequest("ring", 2, 60.0, 0.0))
    planned = JobRequest("planned", 2, 60.0, 0.0, spread=Spread(2, 1, 0.0, 1e9, 0.0))
    mirror.submit(planned)
    assert list(mirror.origin_now().queue) == ["ring", "planned"]
    copy = ClusterMirror.from_snapshot(mirror.snapshot())
    for it in (mirror, copy):
        assert it.request("planned") == planned
        assert it.request("ring").spread is None
        assert it.sim.scenarios.pipeline[ROW, [it.slot("ring"), it.slot("planned")]].tolist() == [0, 2]
    again = ClusterMirror(mirror.site, mirror.origin_now())
    assert again.request("planned") == planned


def request_of_file(content: dict[str, Any]) -> JobRequest:
    """Return what a job file asks for on a cluster of five nodes of two GPUs."""
    job = JobFile.model_validate(content)
    row = dict.fromkeys(JobRow._fields) | {
        "id": "job", "spec": job.model_dump(mode="json"), "gpus": job.all_gpus, "estimate_s": 60.0, "submitted_s": 0.0,
        "priority": 0,
    }  # fmt: skip
    return job_request_of(JobRow(**row), Layout([f"n{it}" for it in range(5)], [2] * 5))  # type: ignore[arg-type]


@pytest.mark.parametrize(("gpus", "grain"), [((0, 1, 2, 3), 2), ((0, 2, 4, 6), 1)])
def test_a_placement_of_a_job_file_is_scored_by_its_plan(gpus: tuple[int, ...], grain: int) -> None:
    site = site_of(busy_case(ring=True))
    mirror = ClusterMirror(site, MirrorOrigin(0.0))
    mirror.begin(0.0)
    mirror.submit(request_of_file({"command": ["train"], "plan": PLAN}))
    assert mirror.find_due_job() == "job"
    assert mirror.carry_out("job", gpus)
    did, cluster, rules = Iteration(2, 2, 1, 0.5, 0.125, 1e9, 2e9, 0.0), site.cluster, site.rules
    nodes = cluster.gpu_node[list(gpus)]
    taken_s = iteration_s(
        did, 1.0, float(cluster.speed[nodes].min()), float(cluster.intra_bytes_per_s[nodes].min()),
        float(cluster.nic_bytes_per_s[nodes].min()), grain,
    )  # fmt: skip
    links = rules.reference_intra_bytes_per_s, rules.reference_nic_bytes_per_s
    assert mirror.progress("job").slowdown == pytest.approx(
        taken_s / reference_iteration_s(did, rules.reference_gpus, *links), rel=1e-9
    )


@pytest.mark.parametrize("spares", [0, 1])
def test_spares_do_not_change_by_what_placements_are_scored(spares: int) -> None:
    plan = {**PLAN, "data": 4, "pipeline": 1, "stages": [{"layers": ["a", "b"]}]}
    asked = request_of_file({"command": ["train"], "plan": plan, "failover": "switch", "spares": spares})
    assert asked.gpus == 4 + spares
    assert asked.spread == Spread(1, 1, 0.125, 2e9, 0.0)
    assert asked.parameter_bytes == 1e9


def test_a_plan_that_says_nothing_of_its_placement_is_a_ring() -> None:
    reported = {name: value for name, value in PLAN.items() if name != "iteration"}
    asked = request_of_file({"command": ["train"], "plan": reported, "compute_s": 2.0, "parameter_bytes": 3.0})
    assert (asked.spread, asked.compute_s, asked.parameter_bytes) == (None, 2.0, 3.0)


@pytest.mark.parametrize("name", ["compute_s", "fixed_s", "gradient_bytes", "edge_bytes", "tensor_bytes"])
@pytest.mark.parametrize("value", [-1.0, math.inf, math.nan, "much", None, 1e300])
def test_figures_of_a_plan_that_cannot_be_are_refused(name: str, value: object) -> None:
    plan = PLAN | {"iteration": PLAN["iteration"] | {name: value}}
    with pytest.raises(ValidationError):
        JobFile.model_validate({"command": ["train"], "plan": plan})
