import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longshore.agents.learned.checkpoint import save_policy, schema_of, untrained_network
from longshore.agents.registry import find_policy
from longshore.cluster.files.errors import InputError
from longshore.cluster.model.problem import same_jobs_labels
from longshore.cluster.presets.named import NAMED
from longshore.cluster.presets.problems import Regime, training_key
from longshore.cluster.traces.read import read_trace
from longshore.cluster.workloads.estimates import with_estimates
from longshore.eval.command import make_names_distinct
from longshore.eval.setting import EvaluationRequest, setting_of
from longshore.training.problems import PRESETS
from tests.checkout import HETERO64
from tests.eval.answers import ASKED, answer
from tests.eval.runs import scenarios
from tests.packages import install

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"


def figures(request: EvaluationRequest, at: Path) -> dict[str, Any]:
    answer(replace(request, json_out=at / "figures.json"))
    document: dict[str, Any] = json.loads((at / "figures.json").read_text())
    return document


def short_trace(at: Path) -> Path:
    """Write 40 jobs of 1 to 8 GPUs, and one that never ran."""
    rows = "".join(f"j{i},{1 + i % 8},3600,{i * 60}\n" for i in range(40))
    (at / "short.csv").write_text("id,gpus,work_s,submit_s\n" + rows + "never,1,0,9\n")
    return at / "short.csv"


def untrained(path: Path, *, waiting: bool = False) -> Path:
    schema = schema_of(
        algorithm="ppo", network="set", action="node", observation="full", waiting=waiting, node_gpus=(8,) * 8
    )
    save_policy(path, schema, untrained_network(schema))
    return path


def test_heuristics_that_are_not_run_are_listed_with_the_reason() -> None:
    printed = answer(ASKED)
    assert "3 scenarios of 64 jobs, 11 policies" in printed
    assert "not run: consolidate, eft-wait, patient" in printed
    waiting = answer(replace(ASKED, regime=Regime(waiting=True), workloads=1))
    assert "14 policies" in waiting
    assert "not run" not in waiting


def test_a_checkpoint_challenges_every_heuristic(tmp_path: Path) -> None:
    mine = untrained(tmp_path / "mine.zip")
    document = figures(replace(ASKED, policies=(str(mine),), report=tmp_path / "report.html"), tmp_path)
    assert not document["policies"]["mine"]["heuristic"]
    assert sum(policy["heuristic"] for policy in document["policies"].values()) == 11
    assert document["facts"]["policy mine"] == "learned: ppo, set network, node actions"
    assert "mine against" in (tmp_path / "report.html").read_text()


def test_a_policy_of_another_package_is_a_challenger_and_never_the_bar(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    text = (
        "from dataclasses import replace\nfrom longshore.agents.heuristics import EFT\n"
        "POLICY = replace(EFT, name='theirs')\n"
    )
    install(tmp_path / "a", monkeypatch, "policies", {"theirs": "their_policies:POLICY"}, their_policies=text)
    document = figures(replace(ASKED, policies=("theirs", "pack", "theirs")), tmp_path)
    assert not document["policies"]["theirs"]["heuristic"]
    assert document["policies"]["pack"]["heuristic"]
    assert document["best_heuristic"] != "theirs"


def test_the_bar_is_a_heuristic_that_was_named_and_else_eft(tmp_path: Path) -> None:
    alone = replace(ASKED, heuristics=False)
    assert set(figures(replace(alone, policies=("pack", "spread")), tmp_path)["policies"]) == {"pack", "spread"}
    mine = untrained(tmp_path / "mine.zip")
    assert set(figures(replace(alone, policies=(str(mine),)), tmp_path)["policies"]) == {"mine", "eft"}


def test_policies_that_would_wait_but_may_not_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    mine = untrained(tmp_path / "mine.zip", waiting=True)
    answer(replace(ASKED, policies=(str(mine), "patient"), heuristics=False, workloads=1))
    assert "mine, patient would wait for better GPUs, but may not" in caplog.text


def test_a_checkpoint_may_not_take_the_name_of_a_heuristic(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'pack' is the name of a heuristic; rename the checkpoint"):
        answer(replace(ASKED, policies=(str(untrained(tmp_path / "pack.zip")),)))


def named(*names: str) -> list[str]:
    return [policy.name for policy in make_names_distinct([(name, find_policy(name)) for name in names])]


def test_checkpoints_of_one_name_get_the_names_of_their_folders(tmp_path: Path) -> None:
    def best(*folders: str) -> str:
        tmp_path.joinpath(*folders).mkdir(parents=True, exist_ok=True)
        return str(untrained(tmp_path.joinpath(*folders, "best.zip")))

    one, two, deeper = best("runs", "one"), best("runs", "two"), best("others", "two")
    mine = str(untrained(tmp_path / "mine.zip"))
    assert named(one, mine) == ["best", "mine"]
    assert named(one, mine, two) == ["one/best", "mine", "two/best"]
    assert named(one, two, deeper) == ["runs/one/best", "runs/two/best", "others/two/best"]
    # Where names of folders differ only in what is not shown, those above tell the checkpoints apart.
    odd = best("a", "x\udce9\x1b"), best("b", "x\udce9 ")
    assert named(*odd) == ["a/x\\udce9 /best", "b/x\\udce9 /best"]
    document = figures(replace(ASKED, policies=(one, two), heuristics=False, workloads=1), tmp_path)
    assert set(document["policies"]) == {"one/best", "two/best", "eft"}


def test_one_checkpoint_by_two_paths_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    untrained(tmp_path / "mine.zip")
    with pytest.raises(InputError, match="--policy"):
        answer(replace(ASKED, policies=("mine.zip", "./mine.zip")))


def test_a_use_that_differs_from_the_training_is_logged_in_one_line(caplog: pytest.LogCaptureFixture) -> None:
    alone = replace(ASKED, policies=(str(CHECKPOINTS / "hetero64.zip"),), heuristics=False, workloads=1)
    answer(replace(alone, regime=Regime(oracle=True)))  # as it was trained
    assert "trained under" not in caplog.text
    answer(replace(alone, regime=Regime("easy", ageing_s=3600.0), estimates="class-mean"))
    (remark,) = (line for line in caplog.text.splitlines() if "trained under" in line)
    for differs in ("order fifo (here order easy)", "ageing", "estimates exact", "true fault rates"):
        assert differs in remark
    assert "waiting" not in remark


@pytest.mark.parametrize("preset", [name for name, it in NAMED.items() if it.draw is not None])
def test_what_a_preset_draws_is_run_and_was_met_by_no_training(preset: str) -> None:
    setting = setting_of(replace(ASKED, preset=preset))
    draw = NAMED[preset].draw
    assert draw is not None
    trained = draw(3, training_key(1), Regime())
    assert setting.problem.cluster.gpu_node.size == trained.cluster.gpu_node.size
    assert setting.problem.scenarios.jobs.tolist() == trained.scenarios.jobs.tolist()
    assert not np.isin(setting.problem.scenarios.fault_seed, trained.scenarios.fault_seed).any()


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"preset": "history"}, "--preset"),
        ({"preset": "philly"}, "--trace"),
        ({"preset": "traces"}, "--trace"),
        ({"preset": "patent4", "trace": HETERO64}, "--trace"),
        ({"preset": "patent4", "cluster": HETERO64}, "--cluster"),
        ({"preset": "philly", "trace": HETERO64, "cluster": HETERO64}, "--cluster"),
        ({"preset": "hetero64", "load": 0.5}, "--load"),
    ],
)
def test_what_does_not_go_with_a_preset_is_refused(changes: dict[str, Any], field: str) -> None:
    with pytest.raises(InputError, match=field):
        answer(replace(ASKED, **changes))


def test_every_preset_that_can_be_trained_on_has_a_name_here() -> None:
    assert NAMED.keys() == PRESETS.keys()
    for name, preset in PRESETS.items():
        assert (preset.orders, preset.waiting) == ((NAMED[name].order,), NAMED[name].waiting)
        assert preset.needs_trace == (NAMED[name].draw is None and name != "history")


def test_a_short_trace_is_run_whole_and_that_is_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    request = replace(
        ASKED, trace=short_trace(tmp_path), cluster=HETERO64, runs=2, policies=("pack", "eft"), heuristics=False
    )
    printed = answer(request)
    assert "2 scenarios of 40 jobs" in printed
    assert "only 40 jobs, too few" in caplog.text
    assert "no intervals" in printed  # one window only, however often it is drawn


def test_fewer_windows_than_requested_are_logged(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = tmp_path / "long.csv"  # 300 jobs in its last 30 %: 3 windows of 96
    rows = "".join(f"j{i},{1 + i % 8},{3600 + i},{i * 60}\n" for i in range(1000))
    trace.write_text("id,gpus,work_s,submit_s\n" + rows)
    for cluster in (None, HETERO64):
        setting = setting_of(replace(ASKED, trace=trace, cluster=cluster, workloads=None, runs=2))
        assert setting.facts["windows"] == "3 of 24 windows: more would overlap"
        assert (
            np.unique(same_jobs_labels(setting.problem.scenarios)).size * 2 == setting.problem.scenarios.jobs.size == 6
        )
    assert "3 of 24 windows: more would overlap" in caplog.text
    assert "windows" not in setting_of(replace(ASKED, trace=trace, workloads=3)).facts


def test_scenarios_with_the_same_jobs_share_a_label() -> None:
    drawn = scenarios(4)
    drawn.work_s[1] *= 2.0
    labels = same_jobs_labels(drawn)
    assert labels[0] == labels[2] == labels[3] != labels[1]
    assert np.unique(labels).size == 2


def test_estimates_change_what_policies_know_and_nothing_else() -> None:
    plain, other = (setting_of(replace(ASKED, estimates=kind)).problem.scenarios for kind in (None, "log-normal"))
    again = setting_of(replace(ASKED, estimates="log-normal")).problem.scenarios
    assert np.array_equal(plain.estimate_s, plain.work_s)
    assert not np.isclose(other.estimate_s, plain.estimate_s).any()
    assert np.array_equal(other.estimate_s, again.estimate_s)
    for name, values in plain._asdict().items():
        assert name == "estimate_s" or np.array_equal(values, getattr(other, name)), name


def test_the_runs_of_a_window_share_its_estimates(tmp_path: Path) -> None:
    request = replace(ASKED, trace=short_trace(tmp_path), cluster=HETERO64, runs=3, estimates="log-normal")
    problem, _, facts, *_ = setting_of(request)
    assert np.ptp(problem.scenarios.estimate_s, axis=0).max() == 0.0
    assert facts["estimates"] == "log-normal, sigma 0.5"


@pytest.mark.parametrize("cluster", [None, HETERO64])
def test_history_knows_the_users_and_the_jobs_before_a_window(cluster: Path | None, tmp_path: Path) -> None:
    rows = "".join(f"{1 + i % 8},{600 + 7 * i},{i * 300},u{i % 5}\n" for i in range(400))
    (tmp_path / "users.csv").write_text("gpus,work_s,submit_s,user\n" + rows)
    trace = with_estimates(read_trace(tmp_path / "users.csv"), "history")
    known = dict(zip(trace.work_s.tolist(), trace.estimate_s.tolist(), strict=True))

    request = replace(ASKED, trace=tmp_path / "users.csv", cluster=cluster, workloads=2, runs=2, estimates="history")
    problem, _, facts, *_ = setting_of(request)

    drawn = problem.scenarios
    for work_s, estimate_s in zip(drawn.work_s.ravel().tolist(), drawn.estimate_s.ravel().tolist(), strict=True):
        assert estimate_s == known[work_s]
    assert facts["estimates"] == "history"


def test_what_is_not_run_as_recorded_is_among_the_facts(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    request = replace(ASKED, trace=short_trace(tmp_path), runs=1, policies=("eft",), heuristics=False)
    facts = figures(replace(request, max_gpus=6), tmp_path)["facts"]
    assert facts["jobs cut"] == "10 of 40 jobs need more than 6 GPUs, and get 6"
    assert facts["jobs dropped"].startswith("1 rows ")
    assert facts["part of the trace"].startswith("only 40 jobs")
    assert facts["jobs cut"] in caplog.text
    assert "jobs cut" not in figures(request, tmp_path)["facts"]


@pytest.mark.parametrize("cluster", [None, HETERO64])
def test_a_cut_beyond_the_cluster_lets_too_large_jobs_be_refused(cluster: Path | None, tmp_path: Path) -> None:
    trace = tmp_path / "large.csv"
    trace.write_text("id,gpus,work_s,submit_s\na,1,100,0\nbig,99,100,5\n")
    with pytest.raises(InputError, match="job big asks 65 GPUs of a cluster that has 64"):
        setting_of(replace(ASKED, trace=trace, cluster=cluster, max_gpus=65))
    assert setting_of(replace(ASKED, trace=trace, cluster=cluster)).problem.scenarios.gpus.max() == 48


def test_policies_that_a_load_overwhelms_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    request = replace(ASKED, cluster=HETERO64, policies=("eft", "pack"), heuristics=False, workloads=12)
    calm = figures(replace(request, load=0.3), tmp_path)["facts"]["overload"]
    assert "overload" not in caplog.text
    heavy = figures(replace(request, load=3.0), tmp_path)["facts"]["overload"]
    most = r"\((9|10|11|12) of 12 scenarios\)"
    assert not re.search(most, calm)
    assert re.fullmatch(rf"eft {most}, pack {most}", heavy)
    assert "overload: the queue grew until the last submission" in caplog.text
    assert heavy in caplog.text


@pytest.mark.parametrize("changes", [{"workloads": 10**5, "runs": 100}, {"workloads": 10**9, "cluster": None}])
def test_what_no_memory_holds_is_refused_before_it_is_made(changes: dict[str, Any]) -> None:
    with pytest.raises(InputError, match="GiB of memory, more than 10; lower --workloads, --runs or --jobs"):
        setting_of(replace(ASKED, **({"cluster": HETERO64} | changes)))


@pytest.mark.full
def test_pictures_of_the_report_are_files_of_their_own(tmp_path: Path) -> None:
    printed = answer(replace(ASKED, pictures=tmp_path / "new" / "pictures"))
    written = {path.name: path.read_bytes() for path in (tmp_path / "new" / "pictures").iterdir()}
    assert "pictures" in printed
    assert written.keys() == {"differences.svg", "workloads.svg", "jct.svg", "use.svg", "gantt.png"}
    assert written["gantt.png"].startswith(b"\x89PNG")
    assert all(b"<svg" in data for name, data in written.items() if name.endswith(".svg"))
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--pictures"):
        answer(replace(ASKED, pictures=tmp_path / "file"))
