"""Training by an objective that a user asks for: advantages, validation, the margin, and what the folder keeps."""

import math
from pathlib import Path

import numpy as np
import pytest
from pydantic import ValidationError

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.files.errors import InputError
from longshore.cluster.model.outcome import weighting_of
from longshore.cluster.model.problem import Problem
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.simulator.simulation import simulation_of
from longshore.training import run
from longshore.training.config import TrainingConfig, with_objective
from longshore.training.distil import mean_log_cost
from longshore.training.group import CollectedRuns, group_advantages
from longshore.training.problems import GroupParameters, Sizes
from longshore.training.validation import Validation, run_for_costs
from tests.envs.random_run import small_problem
from tests.policies_under_test import untrained_candidates
from tests.training.groups import config, learner_of
from tests.training.tensorboard_names import PAGE, shown

RUNS = 4


def over_time() -> Problem:
    return hetero64(8, 5, jobs=16, load=0.85)


def gains_of(folder: Path, problem: Problem, objective: str | None, **own: float) -> tuple[np.ndarray, CollectedRuns]:
    parameters = GroupParameters(groups=2, runs=RUNS, **own)  # type: ignore[arg-type]
    learner = learner_of(folder, problem, config(1, group=parameters, objective=objective))
    found = learner.collector.collect(learner.network, np.repeat(np.arange(2), RUNS), 11)
    return learner._advantages(found), found


def relative(values: np.ndarray) -> np.ndarray:
    grouped = values.reshape(-1, RUNS)
    return np.asarray(grouped / grouped.mean(axis=1, keepdims=True))


def test_with_all_later_time_the_first_decision_of_a_run_is_credited_with_its_slowdown(tmp_path: Path) -> None:
    gains, found = gains_of(tmp_path, over_time(), "slowdown", group_horizon=math.inf)
    firsts = np.unique(found.record.row, return_index=True)[1]
    better = 1.0 - relative(found.figures.mean_slowdown).reshape(-1)
    assert np.corrcoef(gains[firsts], better)[0, 1] == pytest.approx(1.0)
    jct = 1.0 - relative(found.figures.mean_jct_s).reshape(-1)
    assert np.corrcoef(jct, better)[0, 1] < 0.999  # something else than the mean JCT


@pytest.mark.parametrize("objective", ["p99-jct", "makespan"])
def test_all_decisions_of_a_run_share_in_what_is_no_sum_over_jobs(objective: str, tmp_path: Path) -> None:
    gains, found = gains_of(tmp_path, over_time(), objective, group_horizon=4.0)
    cost = found.figures.p99_jct_s if objective == "p99-jct" else found.figures.makespan_s
    assert gains == pytest.approx(group_advantages(relative(cost)).reshape(-1)[found.record.row])


def test_what_is_usual_for_traces_can_be_requested_by_its_weights(tmp_path: Path) -> None:
    usual, _ = gains_of(tmp_path / "usual", over_time(), None, group_horizon=4.0, group_tail=0.15)
    asked, _ = gains_of(tmp_path / "asked", over_time(), "mean-jct:0.85,p99-jct:0.15", group_horizon=4.0)
    assert asked == pytest.approx(usual)


def test_an_objective_counts_for_batches_too(tmp_path: Path) -> None:
    gains, found = gains_of(tmp_path, small_problem(), "mean-jct", group_horizon=4.0)
    assert gains == pytest.approx(group_advantages(relative(found.figures.mean_jct_s)).reshape(-1)[found.record.row])


@pytest.mark.parametrize(
    ("objective", "name"),
    [("p99-jct", "p99_jct_h"), ("slowdown", "mean_slowdown"), ("mean-jct,slowdown", "weighted_objective")],
)
def test_validation_and_the_margin_go_by_the_objective(objective: str, name: str) -> None:
    problem, weighting = over_time(), weighting_of(objective)
    policy = untrained_candidates(waiting=False)
    found = Validation(problem, weighting=weighting)
    score = found.score(policy)
    cost, best = (
        run_for_costs(simulation_of(problem, rows=8), it, problem, weighting) for it in (policy, HEURISTICS[found.best])
    )
    assert score.mean_s == pytest.approx(cost.mean())
    assert score.percent == pytest.approx(100.0 * (cost.mean() / best.mean() - 1.0))
    reported, value = found.reported_mean(score)
    assert reported == name
    assert value == pytest.approx(cost.mean() / (3600.0 if name.endswith("_h") else 1.0))
    assert f"`validation/{name}`" in PAGE.read_text(encoding="utf-8")
    assert mean_log_cost(policy, [problem], 0.5, weighting) == pytest.approx(np.log(cost).mean())


def test_a_configuration_keeps_its_objective_and_older_ones_have_none() -> None:
    asked = with_objective(config(1), "slowdown:3,mean-jct:1")
    assert asked.objective == "mean-jct:1,slowdown:3"
    assert asked.name == "hetero64-group-mean-jct1-slowdown3-0"
    assert TrainingConfig.model_validate_json(asked.model_dump_json()) == asked
    older = config(1).model_dump(mode="json")
    del older["objective"]
    assert TrainingConfig.model_validate(older) == config(1)
    assert config(1).name == "hetero64-group-0"
    with pytest.raises(ValidationError, match="there is no objective 'speed'"):
        TrainingConfig.model_validate(older | {"objective": "speed"})
    with pytest.raises(InputError, match="a2c minimises what its reward pays"):
        with_objective(config(1, algorithm="a2c"), "makespan")


@pytest.mark.full
def test_a_continued_run_by_an_objective_ends_the_same(tmp_path: Path) -> None:
    sizes = Sizes(64, 16)
    by = config(2500, objective="p99-jct")
    whole = run.train(by, tmp_path / "whole", sizes=sizes)
    assert whole.folder.name == "hetero64-group-p99-jct-0"
    assert "validation/p99_jct_h" in shown(whole.folder)
    run.train(config(1200, objective="p99-jct"), tmp_path / "parts", sizes=sizes)
    assert run.train(by, tmp_path / "parts", sizes=sizes).finished
