"""What evaluate says of restart against switch."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longshore.agents.protocol import Policy
from longshore.cluster.model.outcome import Outcome
from longshore.cluster.model.problem import Problem, Rules
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.eval import asides, comparison
from longshore.eval.asides import RESTART, SWITCH, FaultCosts, handling_comparison, handling_in_words
from tests.eval.answers import ASKED, answer

FILE = """\
node_types:
  v100: {gpus: 2, peak_flops: 125e12, memory_bytes: 32e9, hazard_per_s: 2e-6}
racks: [{nodes: [{type: v100, count: 8}]}]
faults: {model: exponential, detection_s: 12, HANDLING}
"""
QUIET = FILE.replace("2e-6", "0").replace("HANDLING", "handling: switch")


def held(lost_gpu_s: list[float], jct_s: list[float]) -> FaultCosts:
    none = np.zeros(len(jct_s))
    return FaultCosts(np.array(lost_gpu_s), np.array(jct_s), none + 4.0, none + 1.0)


def test_ratios_are_of_sums_and_draws_of_one_window_are_one_unit() -> None:
    both = {RESTART: held([4e5, 0.0, 8e5, 6e5], [100.0] * 4), SWITCH: held([1e5, 1e5, 2e5, 1e5], [90.0] * 4)}
    found = handling_comparison("pack", both, np.array([0, 0, 1, 1]))
    assert (found.lost.value[0], found.units) == (5 / 18, 2)
    assert found.lost.low[0] < 5 / 18 < found.lost.high[0]
    assert [end[0] for end in found.jct_percent] == pytest.approx([-10.0, -10.0, -10.0])
    assert "jobs that switch lose 34.7 GPU-hours" in handling_in_words(found)
    assert "the mean JCT changes by -10.0 % [-10.0, -10.0]" in handling_in_words(found)


@pytest.mark.parametrize("handling", ["handling: switch, spares: 0.1", "handling: restart"])
def test_where_gpus_fail_the_gain_of_switching_is_reported(handling: str, tmp_path: Path) -> None:
    cluster, out = tmp_path / "c.yaml", tmp_path / "o.json"
    cluster.write_text(FILE.replace("HANDLING", handling))
    request = replace(ASKED, cluster=cluster, policies=("pack",), heuristics=False, json_out=out)
    printed = answer(request)
    figures = json.loads(out.read_text())["restart_or_switch"]
    assert "restart or switch: under pack, jobs that switch lose" in printed
    assert figures["switch"]["gpu_hours_lost"] < figures["restart"]["gpu_hours_lost"]
    assert figures["lost_ratio"][0] == pytest.approx(
        figures["switch"]["gpu_hours_lost"] / figures["restart"]["gpu_hours_lost"]
    )
    assert figures["restart"]["switches"] == 0.0 < figures["switch"]["switches"]


def test_where_nothing_fails_no_gain_of_switching_is_reported(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(QUIET)
    assert read_cluster(tmp_path / "c.yaml").rules.switching
    request = replace(ASKED, cluster=tmp_path / "c.yaml", policies=("pack",), heuristics=False)
    assert "restart or switch" not in answer(request)


SLOW = FILE.replace("2e-6", "0").replace(
    "HANDLING", "handling: switch, slow: {a_node_day: 2, factor: 4, lasts_s: 14400}, backups: BACKUPS"
)


def test_where_nodes_become_slow_the_gain_of_backups_is_reported(tmp_path: Path) -> None:
    cluster, out = tmp_path / "c.yaml", tmp_path / "o.json"
    cluster.write_text(SLOW.replace("BACKUPS", "2"))
    printed = answer(replace(ASKED, cluster=cluster, policies=("pack",), heuristics=False, json_out=out))
    figures = json.loads(out.read_text())["what_backups_save"]
    assert "what backups save: under pack, backups for up to 2 GPUs of a job change the mean JCT by -" in printed
    assert figures["jct_change_percent"][0] < 0.0
    assert figures["jct_change_percent"][0] == pytest.approx(
        100.0 * (figures["mean_jct_s"]["with"] / figures["mean_jct_s"]["without"] - 1.0)
    )
    assert figures["backups"] > 0.0 < figures["backup_gpu_hours"]


@pytest.mark.parametrize("is_endless", [True, False])
@pytest.mark.parametrize(
    ("text", "key", "fails"),
    [
        (FILE.replace("HANDLING", "handling: switch"), "restart_or_switch", lambda rules: not rules.switching),
        (SLOW.replace("BACKUPS", "2"), "what_backups_save", lambda rules: rules.backups == 0),
    ],
)
def test_where_jobs_do_not_all_end_in_the_other_way_the_answer_is_whole_and_the_gain_unknown(
    text: str, key: str, fails: Callable[[Rules], bool], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *,
    is_endless: bool,
) -> None:  # fmt: skip
    def run_one(problem: Problem, policy: Policy) -> Outcome | None:
        outcome = comparison.run_one(problem, policy)
        if outcome is None or not fails(problem.rules):
            return outcome
        return None if is_endless else outcome._replace(finished=outcome.finished - 1)

    monkeypatch.setattr(asides, "run_one", run_one)
    cluster, out = tmp_path / "c.yaml", tmp_path / "o.json"
    cluster.write_text(text)
    printed = answer(replace(ASKED, cluster=cluster, policies=("pack",), heuristics=False, json_out=out))
    figures = json.loads(out.read_text())
    assert figures[key] == {}
    assert f"{key.replace('_', ' ')}: unknown" in printed
    assert "pack" in figures["policies"]


def test_without_backups_no_gain_of_them_is_reported(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(SLOW.replace("BACKUPS", "0"))
    request = replace(ASKED, cluster=tmp_path / "c.yaml", policies=("pack",), heuristics=False)
    assert "backups" not in answer(request)
