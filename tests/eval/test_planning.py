"""What evaluate says of plans."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longshore.cluster.files.errors import InputError
from longshore.cluster.model.problem import BEST, FIXED
from longshore.eval.asides import LayoutFigures, layout_comparison, layouts_in_words
from longshore.eval.setting import setting_of
from tests.eval.answers import ASKED, answer

FILE = """\
node_types:
  v100: {gpus: 8, peak_flops: 125e12, memory_bytes: 32e9, hazard_per_s: 2e-6}
racks: [{nodes: [{type: v100, count: 4}]}]
faults: {model: exponential}
"""
# By its first plan a job of 16 GPUs waits for the network most of the time; the other needs half of them.
SLOW = "16x1x1 work_s=4000 compute_s=0.5 gradient_bytes=1.25e10|1x8x1 work_s=3500 compute_s=2 edge_bytes=1e8"
REQUEST = replace(ASKED, policies=("pack",), heuristics=False, workloads=2, runs=2)


def planned_trace(folder: Path, *, cell: str = SLOW) -> Path:
    path = folder / "planned.csv"
    large = [i % 3 == 0 for i in range(400)]
    rows = [f"16,4000,{i * 60},{cell}\n" if it else f"2,{900 + i},{i * 60},\n" for i, it in enumerate(large)]
    path.write_text("gpus,work_s,submit_s,plans\n" + "".join(rows))
    return path


def cluster_file(folder: Path, text: str = FILE) -> Path:
    path = folder / "c.yaml"
    path.write_text(text)
    return path


def test_changes_are_of_sums_over_windows() -> None:
    fixed = LayoutFigures(np.array([7200.0, 3600.0, 3600.0, 3600.0]), np.full(4, 1e6), np.full(4, 9e5))
    best = LayoutFigures(np.array([3600.0, 3600.0, 1800.0, 1800.0]), np.full(4, 9e5), np.full(4, 8e5))
    found = layout_comparison(
        "pack", {FIXED: fixed, BEST: best}, np.array([0, 0, 1, 1]), jobs=384, planned=300, changed=40
    )
    assert found.percent["mean_jct_s"].value[0] == pytest.approx(-40.0)
    assert found.percent["held_gpu_s"].value[0] == pytest.approx(-10.0)
    assert found.percent["mean_jct_s"].low[0] < -40.0 < found.percent["mean_jct_s"].high[0]
    assert "the mean JCT changes by -40.0 %" in layouts_in_words(found)
    assert "from 1.25 h to 0.75 h" in layouts_in_words(found)
    assert "of 384 jobs 300 have plans, and 40 run by another one" in layouts_in_words(found)


def test_the_gain_of_plans_is_reported_for_a_trace_with_plans(tmp_path: Path) -> None:
    out, report = tmp_path / "o.json", tmp_path / "o.html"
    request = replace(
        REQUEST, trace=planned_trace(tmp_path), cluster=cluster_file(tmp_path), json_out=out, report=report,
        estimates="log-normal",
    )  # fmt: skip
    printed = answer(request)
    figures = json.loads(out.read_text())["what_planning_saves"]
    assert "what planning saves: under pack, with the best plan of each job" in printed
    assert "what planning saves" in report.read_text()
    assert figures["best"]["gpu_hours_planned"] < figures["fixed"]["gpu_hours_planned"]
    assert figures["best"]["gpu_hours_held"] < figures["fixed"]["gpu_hours_held"]
    assert figures["best"]["mean_jct_s"] < figures["fixed"]["mean_jct_s"]
    change = 100.0 * (figures["best"]["mean_jct_s"] / figures["fixed"]["mean_jct_s"] - 1.0)
    assert figures["jct_change_percent"][0] == pytest.approx(change)
    assert figures["changed"] == figures["planned"] > 0


def test_the_gain_of_offload_is_reported_where_plans_put_state_away(tmp_path: Path) -> None:
    out = tmp_path / "o.json"
    cell = SLOW + "|1x4x1 work_s=3600 compute_s=2 edge_bytes=1e8 away_bytes=1e10"
    trace, cluster = planned_trace(tmp_path, cell=cell), cluster_file(tmp_path)
    printed = answer(replace(REQUEST, trace=trace, cluster=cluster, json_out=out))
    figures = json.loads(out.read_text())
    planning, offload = figures["what_planning_saves"], figures["what_offload_saves"]
    assert (
        "what offload saves: under pack, with the best plan of each job, which may put state away, in place of"
        in printed
    )
    assert offload["best"] == planning["best"]
    assert offload["offload"]["gpu_hours_planned"] < offload["best"]["gpu_hours_planned"]
    assert offload["changed"] == planning["changed"]
    setting = setting_of(replace(REQUEST, trace=trace, cluster=cluster, plans="offload"))
    assert set(setting.layouts) == {"fixed", "best", "offload"}
    assert setting.problem.scenarios.gpus.max() == 4


def test_plans_that_no_node_has_room_for_stop_no_evaluation_by_others(tmp_path: Path) -> None:
    out = tmp_path / "o.json"
    trace = planned_trace(tmp_path, cell=SLOW + "|1x4x1 work_s=3600 compute_s=2 edge_bytes=1e8 away_bytes=1e10")
    cluster = cluster_file(tmp_path, FILE.replace("hazard_per_s", "host_memory_bytes: 16e9, hazard_per_s"))
    printed = answer(replace(REQUEST, trace=trace, cluster=cluster, json_out=out))
    assert "what planning saves: under pack" in printed
    assert "what offload saves: unknown: the nodes of this cluster have no room for some of the plans" in printed
    assert json.loads(out.read_text())["what_offload_saves"] == {}
    with pytest.raises(InputError, match="of host memory each, and the cluster has 0 of these"):
        setting_of(replace(REQUEST, trace=trace, cluster=cluster, plans="offload"))


def test_no_gain_of_offload_is_reported_where_no_plan_puts_state_away(tmp_path: Path) -> None:
    request = replace(REQUEST, trace=planned_trace(tmp_path), cluster=cluster_file(tmp_path), plans="offload")
    printed = answer(request)
    assert "what planning saves" in printed
    assert "offload saves" not in printed


def test_both_layouts_meet_the_same_arrivals_faults_and_errors_of_estimates(tmp_path: Path) -> None:
    request = replace(
        REQUEST, trace=planned_trace(tmp_path), cluster=cluster_file(tmp_path), estimates="log-normal", plans="best"
    )
    setting = setting_of(request)
    fixed, best = (setting.layouts[name].scenarios for name in (FIXED, BEST))
    assert setting.problem.scenarios.gpus.tolist() == best.gpus.tolist() != fixed.gpus.tolist()
    assert fixed.submit_s.tolist() == best.submit_s.tolist()
    assert fixed.fault_seed.tolist() == best.fault_seed.tolist()
    np.testing.assert_allclose(fixed.estimate_s / fixed.work_s, best.estimate_s / best.work_s, rtol=1e-12)
    assert setting.facts["plans of jobs"] == "best"


def test_no_gain_of_plans_is_reported_for_a_trace_without_plans(tmp_path: Path) -> None:
    request = replace(REQUEST, trace=planned_trace(tmp_path, cell=""), cluster=cluster_file(tmp_path))
    assert setting_of(request).layouts == {}
    assert setting_of(request).problem.scenarios.pipeline.size == 0
    assert "planning saves" not in answer(request)


@pytest.mark.parametrize("cluster", [None, "run_time: {model: simple}\n"])
def test_plans_need_the_ring_model(cluster: str | None, tmp_path: Path) -> None:
    file = None if cluster is None else cluster_file(tmp_path, FILE + cluster)
    with pytest.raises(InputError, match="have plans, and the simple model"):
        setting_of(replace(REQUEST, trace=planned_trace(tmp_path), cluster=file))


def test_a_job_is_not_cut_below_its_plan(tmp_path: Path) -> None:
    request = replace(REQUEST, trace=planned_trace(tmp_path), cluster=cluster_file(tmp_path), max_gpus=8)
    with pytest.raises(InputError, match="asks 16 GPUs by its plan, more than 8"):
        setting_of(request)
