"""What a user asks to be least: how it is written, and how figures are weighed."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.files.errors import InputError
from longshore.cluster.model.outcome import (
    OBJECTIVES,
    Outcome,
    RunMetrics,
    Weighting,
    metrics,
    usual_weighting,
    weighting_of,
    weighting_of_figure,
)

WEIGHTS = st.dictionaries(st.sampled_from(sorted(OBJECTIVES)), st.floats(1e-3, 1e3), min_size=1)


def figures(**values: float) -> Any:
    return SimpleNamespace(**{OBJECTIVES[name].field: np.array([value]) for name, value in values.items()})


@given(WEIGHTS)
def test_shares_sum_to_one_and_what_is_written_reads_as_the_same(weights: dict[str, float]) -> None:
    found = weighting_of(",".join(f"{name}:{weight}" for name, weight in weights.items()))
    assert sum(found.weight(name) for name in found.weights) == pytest.approx(1.0)
    total = sum(weights.values())
    assert [found.weight(name) for name in weights] == pytest.approx([weight / total for weight in weights.values()])
    assert weighting_of(found.text).text == found.text


@pytest.mark.parametrize("name", OBJECTIVES)
def test_a_single_figure_is_that_figure(name: str) -> None:
    drawn = np.random.default_rng(0).uniform(1.0, 1e6, (len(RunMetrics._fields), 5))
    found = RunMetrics(*drawn)
    assert weighting_of(name) == weighting_of(f"{name}:7") == weighting_of_figure(name)
    assert weighting_of_figure(name).cost(found) is getattr(found, OBJECTIVES[name].field)


@given(WEIGHTS, st.sampled_from(sorted(OBJECTIVES)), st.floats(0.1, 10.0))
def test_a_figure_counts_by_its_weight_whatever_its_unit(weights: dict[str, float], name: str, factor: float) -> None:
    weighting = weighting_of(",".join(f"{one}:{weight}" for one, weight in weights.items()))
    before = dict.fromkeys(OBJECTIVES, 1.0) | {"mean-jct": 7e4, "p99-jct": 3e5, "slowdown": 2.0, "makespan": 1e6}
    after = before | {name: factor * before[name]}
    ratio = float((weighting.cost(figures(**after)) / weighting.cost(figures(**before)))[0])
    assert ratio == pytest.approx(factor ** weighting.weight(name))


def test_what_is_usual_hangs_on_whether_jobs_arrive_over_time() -> None:
    assert usual_weighting(np.zeros((2, 3))) == weighting_of_figure("makespan")
    assert usual_weighting(np.array([[0.0, 5.0]])) == weighting_of_figure("mean-jct")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("mean_jct", "there is no objective 'mean_jct'; did you mean 'mean-jct'?"),
        ("slow", "there is no objective 'slow'; did you mean 'slowdown'?"),
        ("", "there is no objective ''; known: "),
        ("mean-jct,mean-jct", "mean-jct stands there twice"),
        ("mean-jct:0", "'mean-jct:0' has no weight from 0.001 to 1000"),
        ("mean-jct:nan,p99-jct:1", "'mean-jct:nan' has no weight"),
        ("mean-jct:a lot", "'mean-jct:a lot' has no weight"),
    ],
)
def test_what_is_no_objective_is_refused(text: str, problem: str) -> None:
    with pytest.raises(InputError, match="--objective: ") as caught:
        weighting_of(text)
    assert problem in str(caught.value)


@pytest.mark.parametrize(
    ("text", "title", "is_time"),
    [
        ("p99-jct", "p99 JCT", True),
        ("slowdown", "mean slowdown", False),
        ("makespan,slowdown", "weighted objective", False),
    ],
)
def test_an_objective_knows_what_tables_call_it(text: str, title: str, is_time: bool) -> None:  # noqa: FBT001
    found: Weighting = weighting_of(text)
    assert (found.title, found.is_time) == (title, is_time)


def test_the_slowdown_is_over_the_work_or_ten_minutes() -> None:
    none = np.zeros((1, 3))
    outcome = Outcome(
        finish_s=np.array([[1500.0, 4000.0, 0.0]]), first_start_s=none, stops=none.astype(np.int32), lost_s=none,
        wait_s=none, makespan_s=np.array([4000.0]), busy_gpu_s=np.zeros(1), down_gpu_s=np.zeros(1),
        overhead_gpu_s=np.zeros(1), finished=np.full(1, 2, np.int32), job_events=np.ones(1, np.int64),
        decisions=np.ones(1, np.int64), switches=np.zeros(1, np.int64), slowed=np.zeros(1, np.int64),
        backups=np.zeros(1, np.int64), backup_gpu_s=np.zeros(1),
    )  # fmt: skip
    work_s = np.array([[6.0, 1000.0, 0.0]])
    known = (outcome, np.array([2], np.int32), np.ones((1, 3), np.int32), np.array([[300.0, 0.0, 0.0]]), 4)
    assert metrics(*known, work_s).mean_slowdown[0] == pytest.approx((1200.0 / 600.0 + 4.0) / 2.0)
