"""Run times predicted from jobs that have ended."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.model.workload import Workload, first_jobs, sample_windows, workload_of
from longshore.cluster.traces.read import read_trace
from longshore.cluster.traces.write import write_trace
from longshore.cluster.workloads.estimates import (
    DECAY,
    DEFAULT_ESTIMATE_S,
    RECENT_JOBS,
    Alike,
    WorkPredictions,
    predict_works,
    with_estimates,
)
from tests.command_line import Command

TIMES_S = st.one_of(st.floats(1e-3, 1e6), st.sampled_from([1.0, 10.0, 1e-300, 1e11]))
JOBS = st.lists(
    st.tuples(
        st.sampled_from([1, 2, 8]),
        TIMES_S,
        st.sampled_from([0.0, 1e-3, 10.0, 1e3, 1e6]),
        st.sampled_from(["", "ada", "ben"]),
        st.sampled_from(["", "bert", "ada"]),
    ),
    min_size=1,
    max_size=60,
)


def workload(drawn: list[tuple[int, float, float, str, str]]) -> Workload:
    gpus, work_s, gaps_s, users, names = zip(*drawn, strict=True)
    return workload_of(
        ("a",) * len(drawn), np.array(gpus, np.int32), np.array(work_s), np.cumsum(gaps_s), users=users, names=names
    )


def of(jobs: Workload) -> WorkPredictions:
    return predict_works(jobs.gpus, jobs.work_s, jobs.submit_s, jobs.users, jobs.names)


def plain(jobs: Workload, job: int) -> tuple[float, int, int]:
    """Return the definition for one job: estimate, level and count."""
    users, names = jobs.users or ("",) * jobs.jobs, jobs.names or ("",) * jobs.jobs
    past = [i for i in range(jobs.jobs) if jobs.submit_s[i] + jobs.work_s[i] < jobs.submit_s[job]]
    past.sort(key=lambda i: (jobs.submit_s[i] + jobs.work_s[i], i))
    levels = [
        [i for i in past if names[job] and (users[i], names[i]) == (users[job], names[job])],
        [i for i in past if users[job] and (users[i], jobs.gpus[i]) == (users[job], jobs.gpus[job])],
        [i for i in past if jobs.gpus[i] == jobs.gpus[job]],
        past,
    ]
    for level, alike in enumerate(levels):
        if alike:
            newest = alike[::-1][:RECENT_JOBS]
            weights = [DECAY**age for age in range(len(newest))]
            logs = [math.log(jobs.work_s[i]) for i in newest]
            mean = sum(w * x for w, x in zip(weights, logs, strict=True)) / sum(weights)
            return math.exp(mean), level, len(newest)
    return DEFAULT_ESTIMATE_S, -1, 0


@given(JOBS)
def test_predictions_are_those_of_the_definition(drawn: list[tuple[int, float, float, str, str]]) -> None:
    jobs = workload(drawn)
    found = of(jobs)
    expected = [plain(jobs, job) for job in range(jobs.jobs)]
    assert np.allclose(found.estimate_s, [it[0] for it in expected], rtol=1e-9, atol=0.0)
    assert found.alike.tolist() == [it[1] for it in expected]
    assert found.ended.tolist() == [it[2] for it in expected]


@given(JOBS, st.data())
def test_neither_its_own_run_time_nor_later_ends_change_a_prediction(
    drawn: list[tuple[int, float, float, str, str]], data: st.DataObject
) -> None:
    jobs = workload(drawn)
    at = data.draw(st.integers(0, jobs.jobs - 1))
    later = jobs.submit_s + jobs.work_s >= jobs.submit_s[at]
    factors = data.draw(st.lists(st.floats(1.0, 1e3), min_size=jobs.jobs, max_size=jobs.jobs))
    changed = replace(jobs, work_s=np.where(later, jobs.work_s * factors, jobs.work_s))
    assert of(changed).estimate_s[at] == of(jobs).estimate_s[at]
    cut = first_jobs(jobs, at + 1)  # and what is submitted later does not exist yet
    assert of(cut).estimate_s[at] == of(jobs).estimate_s[at]


@given(JOBS)
def test_a_prediction_lies_among_the_run_times_that_it_is_from(
    drawn: list[tuple[int, float, float, str, str]],
) -> None:
    jobs = workload(drawn)
    found = of(jobs)
    known = found.ended > 0
    least, most = jobs.work_s.min() * (1 - 1e-9), jobs.work_s.max() * (1 + 1e-9)
    assert ((found.estimate_s[known] >= least) & (found.estimate_s[known] <= most)).all()
    assert (found.estimate_s[~known] == DEFAULT_ESTIMATE_S).all()


@given(JOBS)
def test_what_users_and_names_are_called_does_not_matter(drawn: list[tuple[int, float, float, str, str]]) -> None:
    jobs = workload(drawn)
    assert jobs.users is not None
    assert jobs.names is not None
    renamed = replace(
        jobs,
        users=tuple(it and f"\u00fc {it}\r" for it in jobs.users),
        names=tuple(it and it * 50 for it in jobs.names),
    )
    assert np.array_equal(of(renamed).estimate_s, of(jobs).estimate_s)


def test_who_repeats_a_run_is_known_after_the_first() -> None:
    jobs = workload([(1, 100.0, 0.0, "ada", "bert"), (8, 9.0, 0.0, "ben", "gpt"), (8, 1.0, 1e3, "ada", "bert")])
    assert of(jobs).estimate_s[2] == pytest.approx(100.0)
    assert list(Alike)[of(jobs).alike[2]] is Alike.USER_AND_NAME


def test_the_last_run_counts_more_than_the_ones_before() -> None:
    jobs = workload([(1, 10.0, 0.0, "ada", ""), (1, 1000.0, 0.0, "ada", ""), (1, 1.0, 1e4, "ada", "")])
    mean = (math.log(1000.0) + DECAY * math.log(10.0)) / (1 + DECAY)
    assert of(jobs).estimate_s[2] == pytest.approx(math.exp(mean))


def test_of_names_without_users_the_name_is_enough_and_without_both_the_gpus() -> None:
    gpus, work_s, submit_s = np.array([1, 1, 1], np.int32), np.array([5.0, 50.0, 1.0]), np.array([0.0, 0.0, 1e3])
    named = predict_works(gpus, work_s, submit_s, None, ("vgg", "bert", "vgg"))
    assert named.estimate_s[2] == pytest.approx(5.0)
    assert list(Alike)[predict_works(gpus, work_s, submit_s).alike[2]] is Alike.GPUS


def test_history_is_better_than_the_class_mean_where_users_repeat_themselves() -> None:
    rng = np.random.default_rng(0)
    jobs, users = 3000, rng.integers(0, 40, 3000)
    work_s = np.exp(rng.normal(8.0, 1.5, 40)[users] + rng.normal(0.0, 0.3, jobs))
    submit_s = np.cumsum(rng.exponential(600.0, jobs))
    drawn = workload_of(
        tuple(map(str, range(jobs))), np.ones(jobs, np.int32), work_s, submit_s, users=tuple(map(str, users))
    )
    off = {
        kind: np.median(np.abs(np.log(with_estimates(drawn, kind).estimate_s / work_s)))
        for kind in ("class-mean", "history")
    }
    assert off["history"] < 0.4 < 0.8 < off["class-mean"]


def test_inspect_says_how_far_each_kind_of_estimate_is_off(longshore: Command, tmp_path: Path) -> None:
    jobs = workload([(1, 100.0 * (1 + i % 2), 1e3, f"u{i % 2}", "") for i in range(50)])
    write_trace(jobs, tmp_path / "jobs.csv")
    done = longshore("trace", "inspect", tmp_path / "jobs.csv", "--estimates")
    assert done.status == 0, done.err
    lines = {line.split()[0]: line for line in done.out.splitlines() if line.startswith("  ")}
    assert {"exact", "log-normal", "class-mean", "history"} <= lines.keys()
    assert "0.00 (1 x)" in lines["history"]
    assert "0.35" in lines["class-mean"]
    assert "estimates" not in longshore("trace", "inspect", tmp_path / "jobs.csv").out


@given(JOBS)
def test_windows_and_files_keep_users_and_names(
    tmp_path_factory: pytest.TempPathFactory, drawn: list[tuple[int, float, float, str, str]]
) -> None:
    jobs = workload(drawn)
    path = tmp_path_factory.mktemp("trace") / "jobs.csv"
    write_trace(jobs, path)
    back = read_trace(path)
    assert (back.users, back.names) == (jobs.users, jobs.names)
    size = max(1, jobs.jobs // 2)
    (window,) = sample_windows(jobs, size, 1, np.random.default_rng(0), cluster_gpus=8)
    assert window.users is not None
    assert len(window.users) == size
    assert np.array_equal(of(back).estimate_s, of(jobs).estimate_s)


def test_a_trace_without_users_is_written_without_them(tmp_path: Path) -> None:
    jobs = workload_of(("a",), np.array([1], np.int32), np.array([5.0]), np.array([0.0]))
    write_trace(jobs, tmp_path / "jobs.csv")
    assert "user" not in (tmp_path / "jobs.csv").read_text()
    assert read_trace(tmp_path / "jobs.csv").users is None
