import io
import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from longshore.agents.checkpoint import network_of, save_policy, schema_of
from longshore.cluster.errors import InputError
from longshore.envs.problems import Regime
from longshore.eval.command import EvaluationRequest, evaluate_request, same_jobs
from longshore.eval.terminal import Tell
from tests.eval.runs import scenarios
from tests.test_cli import HETERO64, register

ASKED = EvaluationRequest(
    policies=(), trace=None, cluster=None, faults=None, regime=Regime(), workloads=3, runs=None, load=None, seed=1,
    heuristics=True, report=None, json_out=None, command="longshore evaluate", date="2026-11-21",
)  # fmt: skip


def silent(first: str) -> AbstractContextManager[Tell]:
    del first
    return nullcontext(lambda text: None)


def answer(request: EvaluationRequest) -> str:
    console = Console(file=io.StringIO(), width=160, markup=False)
    evaluate_request(request, console, silent)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def figures(request: EvaluationRequest, at: Path) -> dict[str, Any]:
    answer(replace(request, json_out=at / "figures.json"))
    document: dict[str, Any] = json.loads((at / "figures.json").read_text())
    return document


def untrained(path: Path, *, waiting: bool = False) -> Path:
    schema = schema_of(
        algorithm="ppo", network="set", action="node", observation="full", waiting=waiting, node_gpus=(8,) * 8
    )
    save_policy(path, schema, network_of(schema))
    return path


def test_what_is_left_out_is_said_and_why() -> None:
    said = answer(ASKED)
    assert "3 scenarios of 64 jobs, 11 policies" in said
    assert "left out: consolidate, eft-wait, patient, which differ from others only with --waiting" in said
    waiting = answer(replace(ASKED, regime=Regime(waiting=True), workloads=1))
    assert "14 policies" in waiting
    assert "left out" not in waiting


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
    register(tmp_path, "theirs = their_policies:POLICY")
    (tmp_path / "their_policies.py").write_text(
        "from dataclasses import replace\nfrom longshore.agents.heuristics import EFT\n"
        "POLICY = replace(EFT, name='theirs')\n"
    )
    monkeypatch.syspath_prepend(str(tmp_path))
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


def test_two_checkpoints_of_one_name_are_refused(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    paths = untrained(tmp_path / "a" / "mine.zip"), untrained(tmp_path / "mine.zip")
    with pytest.raises(InputError, match="two policies have one name"):
        answer(replace(ASKED, policies=tuple(map(str, paths))))


def test_a_short_trace_is_played_whole_and_that_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    trace = tmp_path / "short.csv"
    trace.write_text("id,gpus,work_s,submit_s\n" + "".join(f"j{i},{1 + i % 8},3600,{i * 60}\n" for i in range(40)))
    request = replace(ASKED, trace=trace, cluster=HETERO64, runs=2, policies=("pack", "eft"), heuristics=False)
    said = answer(request)
    assert "2 scenarios of 40 jobs" in said
    assert "only 40 jobs, too few" in caplog.text
    assert "no intervals" in said  # one window only, however often it is drawn


def test_scenarios_with_the_same_jobs_share_a_label() -> None:
    drawn = scenarios(4)
    drawn.work_s[1] *= 2.0
    labels = same_jobs(drawn)
    assert labels[0] == labels[2] == labels[3] != labels[1]
    assert np.unique(labels).size == 2
