"""`longshore evaluate --objective`: what ranks, what is tuned for it, and what is reported."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longshore.agents.heuristics import FACTORS, HEURISTICS, PATIENT, patient_of_least_cost, patient_with_factor
from longshore.agents.registry import find_policy
from longshore.cluster.files.errors import PluginError
from longshore.cluster.model.outcome import weighting_of
from longshore.cluster.model.problem import ORDERS
from longshore.eval.answer import sentences
from longshore.eval.comparison import compare
from longshore.eval.every_order import COMMON
from longshore.eval.setting import is_heuristic
from tests.checkout import SMALL
from tests.command_line import Command
from tests.eval.answers import Answer, advice, run, trace
from tests.eval.runs import CLUSTER_GPUS, finishes, outcome, scenarios
from tests.policies_under_test import untrained_candidates


@pytest.mark.full
@pytest.mark.parametrize(("text", "field"), [("p99-jct", "p99_jct_s"), ("slowdown", "mean_slowdown")])
def test_all_orders_are_ranked_by_the_objective_with_patient_tuned_for_it(
    text: str, field: str, longshore: Command, tmp_path: Path
) -> None:
    options = ("--trace", trace(tmp_path, 900), "--cluster", SMALL, "--runs", 2, "--objective", text)
    answer = Answer(longshore, tmp_path, *options, page=True)
    figures, title = answer.figures, weighting_of(text).title
    means = [row["mean"][field] for row in figures["ranking"] if row["ended"]]
    assert means == sorted(means)
    assert figures["objective"] == field
    assert figures["facts"]["objective"] == title
    tuned = dict(reversed(it.split(" under ")) for it in figures["facts"]["tuned"].split(", on")[0].split(", "))
    assert tuned.keys() == ORDERS.keys()
    pairs = [(row["order"], row["policy"]) for row in figures["ranking"]]
    each = [(order, policy) for order in ORDERS for policy in HEURISTICS]
    assert sorted(pairs) == sorted([*each, *tuned.items()])
    # Nothing of the past that it was tuned on is run; the answer says so, and the report and JSON.
    assert "windows come from all of it" not in str(figures["facts"])
    sentence = f"Objective: {title}. Tuned for it: {figures['facts']['tuned']}."
    assert sentence in figures["answer"]["sentences"]
    assert all(sentence in " ".join(text.split()) for text in (answer.out, answer.page))
    # Lower bounds are known of makespan and mean JCT only.
    assert figures["bound"] == {field: None}
    assert figures["ranking"][0]["above_bound_percent"] is None
    assert "is not known" in " ".join(answer.out.split())
    assert "no scheduler can have" not in answer.out


@pytest.mark.full
def test_a_weighting_ranks_by_its_geometric_mean(longshore: Command, tmp_path: Path) -> None:
    options = ("--trace", trace(tmp_path, 900), "--cluster", SMALL, "--runs", 2, "--order", "shortest", "--waiting")
    answer = Answer(longshore, tmp_path, *options, "--objective", "mean-jct:3,slowdown:1", page=True)
    assert answer.figures["objective"] == "weighted_objective"
    assert "weighted geometric mean of mean-jct:3,slowdown:1" in answer.figures["facts"]["objective"]
    assert "objective: weighted geometric mean of mean-jct:3,slowdown:1" in answer.out
    assert f"tuned for the objective: {answer.figures['facts']['tuned']}" in " ".join(answer.out.split())
    means = [policy["mean"]["weighted_objective"]["value"] for policy in answer.figures["policies"].values()]
    assert means == sorted(means)
    assert re.search(r"patient@[\d.]+ under shortest, on the first 70 %", answer.figures["facts"]["tuned"])
    assert any(name.startswith("patient@") for name in answer.figures["policies"])


@pytest.mark.full
def test_without_an_objective_nothing_is_tuned_and_no_column_is_added(longshore: Command, tmp_path: Path) -> None:
    options = ("--trace", trace(tmp_path, 500), "--cluster", SMALL, "--runs", 1)
    figures = Answer(longshore, tmp_path, *options).figures
    assert not figures["facts"].keys() & {"objective", "tuned"}
    assert {row["policy"] for row in figures["ranking"]} == HEURISTICS.keys()
    assert not any("mean_slowdown" in row["mean"] for row in figures["ranking"])
    assert "mean_slowdown" not in figures["policies"]["pack"]["mean"]


def test_a_short_trace_has_no_past_to_tune_on(longshore: Command, tmp_path: Path) -> None:
    options = ("--trace", trace(tmp_path, 200), "--cluster", SMALL, "--runs", 1, "--objective", "mean-jct")
    figures = Answer(longshore, tmp_path, *options).figures
    assert "tuned" not in figures["facts"]
    assert "too few to keep the first 70 %" in figures["facts"]["part of the trace"]


def test_a_mistyped_objective_is_refused_in_one_line(longshore: Command) -> None:
    done = longshore("evaluate", "--objective", "meanjct")
    assert done.status == 2
    expected = "longshore: --objective: there is no objective 'meanjct'; did you mean 'mean-jct'?"
    assert done.err.splitlines()[-1] == expected


@pytest.mark.full
def test_a_policy_that_is_no_heuristic_is_compared_with_the_best_that_is_one(tmp_path: Path) -> None:
    grid, problem = run(tmp_path, windows=9)
    taught = grid._replace(is_users_objective=True, heuristics=frozenset({"pack"}))  # as if the others had been trained
    found = advice(taught, problem)
    assert found.chosen.policy != "pack"
    early = ~grid.is_reported
    costs = dict(zip(grid.candidates, grid.cost[:, early].mean(axis=1), strict=True))
    assert found.heuristic == min((one for one in costs if one.policy == "pack"), key=costs.__getitem__)
    expected = f"Of heuristics alone, {found.heuristic} was the best: mean JCT of the choice against it "
    assert (expected in " ".join(sentences(found))) == (found.heuristic not in COMMON)
    for changed in (taught._replace(is_users_objective=False), taught._replace(heuristics=grid.heuristics)):
        assert advice(changed, problem).heuristic is None


@pytest.mark.parametrize("text", ["slowdown", "mean-jct:1,p99-jct:2"])
def test_an_objective_that_is_no_column_becomes_the_first(text: str) -> None:
    weighting, base = weighting_of(text), finishes(8)
    runs = {"pack": outcome(base), "ppo": outcome(base * 0.9)}
    found = compare(runs, scenarios(8), CLUSTER_GPUS, heuristics=["pack"], objective=weighting)
    assert found.policies == ("ppo", "pack")
    assert (found.objective, found.objective_metric.name, found.objective_metric.title) == (
        0,
        weighting.field,
        weighting.title,
    )
    alike = compare(runs, scenarios(8), CLUSTER_GPUS, heuristics=["pack"], objective="p99_jct_s")
    weighted = compare(runs, scenarios(8), CLUSTER_GPUS, heuristics=["pack"], objective=weighting_of("p99-jct"))
    assert [metric.name for metric in weighted.metrics] == [metric.name for metric in alike.metrics]
    assert weighted.objective == alike.objective
    assert np.array_equal(weighted.values, alike.values)


def test_patient_with_a_factor_is_a_policy_by_its_name() -> None:
    assert find_policy("patient@0.8") == patient_with_factor(0.8)
    assert find_policy(f"patient@{PATIENT.patience}").patience == PATIENT.patience  # type: ignore[attr-defined]
    for wrong in ("patient@", "patient@0", "patient@-1", "patient@1e9", "patient@fast"):
        with pytest.raises(PluginError, match="no factor after '@'"):
            find_policy(wrong)


@pytest.mark.full
def test_a_heuristic_stays_one_with_another_factor_and_no_other_policy_becomes_one() -> None:
    assert all(map(is_heuristic, (*HEURISTICS.values(), patient_with_factor(0.7))))
    assert not is_heuristic(replace(PATIENT, name="theirs"))
    assert not is_heuristic(untrained_candidates(waiting=True))


def test_the_factor_of_least_cost_is_taken() -> None:
    for best in FACTORS:
        assert patient_of_least_cost(lambda policy, best=best: abs(policy.patience - best)) == patient_with_factor(best)  # type: ignore[misc]
