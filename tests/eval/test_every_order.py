"""`longshore evaluate` without --order: every order with every heuristic."""

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from pathlib import Path

import numpy as np
import pytest

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.protocol import Policy
from longshore.cluster.files.errors import EndlessError, InputError
from longshore.cluster.model.outcome import Outcome
from longshore.cluster.model.problem import ORDERS, Problem, Scenarios
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.cluster.presets.problems import Regime, cluster_problem
from longshore.cluster.traces.read import read_trace
from longshore.eval import comparison
from longshore.eval.answer import answer_document, headline, ranking_rows, report_sections, sentences
from longshore.eval.every_order import COMMON, Candidate, every_order, run_grid, window_numbers
from tests.checkout import DATA, SMALL, needs_data
from tests.command_line import Command
from tests.envs.random_run import small_problem
from tests.eval.answers import Answer, advice, run, trace
from tests.eval.runs import scenarios

PHILLY = DATA / "traces" / "philly_vc_2869ce.muri.csv"


def test_a_trace_and_a_cluster_are_enough_for_an_answer(longshore: Command, tmp_path: Path) -> None:
    answer = Answer(longshore, tmp_path, "--trace", trace(tmp_path, 800), "--cluster", SMALL, "--runs", 2, page=True)
    figures = answer.figures
    recommended = figures["answer"]
    pair = f"order {recommended['order']} with policy {recommended['policy']}"
    begin = f"Run {pair}, with an ageing bound of 7 days: the mean JCT is "
    assert recommended["headline"].startswith(begin)
    assert recommended["headline"] in answer.page
    # What is gained stands first; what was run comes after it.
    assert " ".join(answer.out.split()).startswith(recommended["headline"])
    assert "scenarios of 96 jobs" in answer.out
    # Every order with every policy, waiting ones too; best first.
    pairs = [(row["order"], row["policy"]) for row in figures["ranking"]]
    assert sorted(pairs) == sorted((order, policy) for order in ORDERS for policy in HEURISTICS)
    means = [row["mean"]["mean_jct_s"] for row in figures["ranking"] if row["ended"]]
    assert means == sorted(means)
    # Windows that chose are not those that are reported.
    assert recommended["chosen_on_other_windows"]
    assert (recommended["windows"], recommended["windows_reported"]) == (8, 4)
    assert "which the choice did not use" in answer.out
    # Nobody is below what is possible.
    assert figures["bound"]["mean_jct_s"] > 0
    assert all(row["above_bound_percent"] >= 0 for row in figures["ranking"] if row["ended"])
    assert "above what is possible" in answer.page
    # The figures of a month, and where it loses.
    assert figures["saved_hours"]["monthly"]
    assert "job-hours" in answer.out
    assert re.search(r"It loses to easy \+ pack in \d of 4 windows", answer.out) or recommended["order"] == "easy"
    assert {part["what"] for part in figures["parts"]} >= {"mean number of jobs waiting", "mean GPUs of a job"}
    # What stood in the figures of one order stands there still, for the order that is recommended.
    assert figures["objective"] == "mean_jct_s"
    assert recommended["policy"] in figures["policies"]
    assert figures["facts"]["order"].startswith(f"{recommended['order']}, ageing bound 168 h; policies may wait")
    assert "windows come from all of it" in figures["facts"]["part of the trace"]
    assert "Run times were known exactly" in answer.out


@pytest.mark.full
def test_the_same_call_gives_the_same_answer(longshore: Command, tmp_path: Path) -> None:
    options = ("--trace", trace(tmp_path, 500), "--cluster", SMALL, "--runs", 1, "--seed", 3)
    one, other = (Answer(longshore, tmp_path, *options) for _ in range(2))
    same = [{name: part for name, part in answer.figures.items() if name != "facts"} for answer in (one, other)]
    assert same[0] == same[1]


def test_the_figures_of_a_pair_are_those_of_its_order_alone(longshore: Command, tmp_path: Path) -> None:
    options = ("--trace", trace(tmp_path, 300), "--cluster", SMALL, "--runs", 2, "--workloads", 3)
    every = Answer(longshore, tmp_path, *options).figures
    assert not every["answer"]["chosen_on_other_windows"]  # 3 windows are too few to leave some out
    alone = Answer(longshore, tmp_path, *options, "--order", "easy", "--waiting", "--ageing", "7d", "--policy", "pack")
    assert "answer" not in alone.figures
    row = next(row for row in every["ranking"] if (row["order"], row["policy"]) == ("easy", "pack"))
    for name, value in alone.figures["policies"]["pack"]["mean"].items():
        if name in row["mean"]:
            assert row["mean"][name] == pytest.approx(value["value"])


@pytest.mark.full
def test_a_batch_is_ranked_by_makespan_and_saves_by_workload(longshore: Command, tmp_path: Path) -> None:
    answer = Answer(longshore, tmp_path, "--cluster", SMALL, "--arrivals", "batch", "--workloads", 6, page=True)
    assert answer.figures["objective"] == "makespan_s"
    assert list(answer.figures["bound"]) == ["makespan_s"]
    assert not answer.figures["saved_hours"]["monthly"]
    assert "a workload" in answer.out
    assert "a month" not in answer.out
    assert "of 6 workloads" in answer.out
    assert "mean JCT is" in answer.out


def test_no_policy_waits_where_that_is_forbidden(longshore: Command, tmp_path: Path) -> None:
    options = ("--trace", trace(tmp_path, 400), "--cluster", SMALL, "--runs", 1, "--no-waiting", "--ageing", "12h")
    answer = Answer(longshore, tmp_path, *options)
    assert not {row["policy"] for row in answer.figures["ranking"]} & {"patient", "eft-wait", "consolidate"}
    assert "ageing bound of 12 h" in answer.out
    assert "policies may not wait" in answer.figures["facts"]["order"]


@pytest.mark.full
def test_a_single_window_makes_nothing_sure(longshore: Command, tmp_path: Path) -> None:
    answer = Answer(longshore, tmp_path, "--trace", trace(tmp_path, 60), "--cluster", SMALL, "--runs", 2, page=True)
    assert "One window gives no interval: nothing is sure." in answer.out
    assert "That flatters it" in answer.out
    assert all(end is None for end in list(answer.figures["saved_hours"]["job_hours"].values())[1:])


def test_named_policies_are_run_without_the_heuristics_beside_what_is_common(
    longshore: Command, tmp_path: Path
) -> None:
    options = ("--trace", trace(tmp_path, 500), "--cluster", SMALL, "--runs", 1, "--policy", "eft", "--no-heuristics")
    answer = Answer(longshore, tmp_path, *options)
    assert {row["policy"] for row in answer.figures["ranking"]} == {"eft", "pack"}
    assert "part of the trace" not in answer.figures["facts"]  # a policy that is named may have been trained


@pytest.mark.full
@needs_data
def test_a_philly_trace_has_an_answer(longshore: Command, tmp_path: Path) -> None:
    answer = Answer(longshore, tmp_path, "--trace", PHILLY, "--cluster", SMALL, "--runs", 2)
    assert answer.figures["answer"]["windows"] > 8
    assert all(row["above_bound_percent"] > 0 for row in answer.figures["ranking"] if row["ended"])
    easy = next(row for row in answer.figures["ranking"] if (row["order"], row["policy"]) == ("easy", "pack"))
    assert easy["relative_percent"]["easy+pack"]["value"] == 0.0


def test_the_earlier_windows_choose_and_the_later_report(tmp_path: Path) -> None:
    found = advice(*run(tmp_path, windows=9))
    grid = found.grid
    early = grid.unit < 4
    assert found.units == 5
    assert (grid.is_reported == ~early).all()
    best = grid.cost[:, early].mean(axis=1).argmin()
    assert found.chosen == grid.candidates[best]
    assert found.mean[best] == grid.cost[best, ~early].mean()
    assert found.saving is not None
    easy = grid.candidates.index(COMMON[-1])
    saved_s = (grid.figures.jct_s[easy] - grid.figures.jct_s[best])[~early].sum()
    assert np.sign(found.saving.jct.value) == np.sign(saved_s)


def test_windows_are_numbered_as_they_come() -> None:
    drawn = scenarios(5)
    work_s = drawn.work_s * np.array([9.0, 9.0, 1.0, 5.0, 5.0])[:, None]
    labelled: Scenarios = drawn._replace(work_s=work_s)
    assert window_numbers(labelled).tolist() == [0, 0, 1, 2, 2]


def test_what_did_not_end_has_no_figure_to_compare_with(tmp_path: Path) -> None:
    grid, problem = run(tmp_path, windows=8)
    finished = grid.figures.finished.copy()
    finished[grid.candidates.index(COMMON[-1]), 0] = False
    cut = grid._replace(figures=grid.figures._replace(finished=finished))
    found = advice(cut, problem)
    assert found.saving is None
    assert found.window_groups == ()
    assert "Under easy + pack a run was cut off before all jobs ended" in " ".join(sentences(found))
    last = ranking_rows(found)[-1]
    assert last.candidate == COMMON[-1]
    assert set(last.cells) == {"-"}
    assert all(line.versus[-1].text == "-" for line in ranking_rows(found))
    assert "easy+pack" not in answer_document(found, math.inf)["ranking"][0]["relative_percent"]
    assert "common today" in report_sections(found, math.inf)


def test_an_order_and_policy_under_which_a_job_would_never_end_is_not_chosen_and_the_others_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    best = run(tmp_path, windows=8)[0]
    endless = {best.candidates[best.chosen], COMMON[-1]}

    def run_all(
        problem: Problem, policies: Sequence[Policy], on_progress: Callable[[str, int], None]
    ) -> dict[str, Outcome]:
        if Candidate(list(ORDERS)[problem.rules.order], policies[0].name) in endless:
            raise EndlessError("faults stopped a job", "lower them")
        return comparison.run_all(problem, policies, on_progress)

    monkeypatch.setattr("longshore.eval.every_order.run_all", run_all)
    grid, problem = run(tmp_path, windows=8)
    assert grid.candidates == best.candidates
    assert grid.candidates[grid.chosen] not in endless
    assert {candidate for candidate, has in zip(grid.candidates, grid.ended, strict=True) if not has} == endless
    found = advice(grid, problem)
    assert [line.candidate for line in ranking_rows(found) if set(line.cells) == {"-"}] == sorted(
        endless, key=grid.candidates.index
    )
    answer_document(found, math.inf)
    report_sections(found, math.inf)


def test_faults_that_keep_a_job_from_ever_ending_are_no_outcome() -> None:
    problem = small_problem(1, faults=1e5)
    problem = problem._replace(rules=problem.rules._replace(checkpoint_s=math.inf))
    assert comparison.run_one(problem, HEURISTICS["pack"]) is None


def test_where_no_heuristic_ends_under_the_best_order_that_is_an_error(
    longshore: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def run_all(
        problem: Problem, policies: Sequence[Policy], on_progress: Callable[[str, int], None]
    ) -> dict[str, Outcome]:
        if policies[0].name == "pack":
            raise EndlessError("faults stopped a job", "lower them")
        return comparison.run_all(problem, policies, on_progress)

    monkeypatch.setattr("longshore.eval.every_order.run_all", run_all)
    policy = SMALL.parents[1] / "checkpoints" / "traces.zip"
    options = ("--trace", trace(tmp_path, 300), "--cluster", SMALL, "--runs", 1, "--policy", policy)
    done = longshore("evaluate", *options, "--no-heuristics")
    assert done.status == 2
    assert "--no-heuristics" in done.err.splitlines()[-1]


def test_what_was_requested_holds_under_every_order() -> None:
    regime = Regime("fifo", ageing_s=60.0, waiting=True, oracle=True, turns=True)
    assert {field.name for field in fields(Regime) if getattr(regime, field.name) == field.default} == {"order"}
    regimes = every_order(regime)
    assert [each.order for each in regimes] == list(ORDERS)
    assert {replace(each, order="fifo") for each in regimes} == {regime}


def test_where_nothing_ends_that_is_an_error(tmp_path: Path) -> None:
    setup = read_cluster(SMALL)
    regimes = every_order(Regime(waiting=True))
    problem = cluster_problem(setup, [read_trace(trace(tmp_path, 40))], regimes[0], runs=1, seed=1)
    short = problem._replace(rules=problem.rules._replace(limit_s=10.0))
    with pytest.raises(InputError, match="cut off before all jobs ended; lower the fault rate or the load"):
        run_grid(short, regimes, [HEURISTICS["pack"]])


def test_words_fit_what_is_common_today(tmp_path: Path) -> None:
    found = advice(*run(tmp_path, windows=8, policies=("pack",)))
    assert found.chosen.policy == "pack"
    text = " ".join(sentences(found))
    assert "nan" not in text
    assert ("ageing" in headline(found, 3600.0)) == (found.chosen.order != "fifo")
    for against in found.against:
        lower = -float(against.percent.value[found.chosen_row])
        is_in_headline = f"{lower:.0f} % lower than under {against.rival}" in headline(found, 3600.0)
        assert is_in_headline == (against.rival in COMMON and lower >= 0.5)
    if found.chosen in COMMON:
        assert "Many clusters run this already" in headline(found, math.inf)
    assert str(Candidate("easy", "pack")) == "easy + pack"
