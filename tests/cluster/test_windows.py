"""Windows of workloads."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.files.errors import InputError
from longshore.cluster.model.topology import NodeNeeds
from longshore.cluster.model.workload import (
    Workload,
    describe,
    first_jobs,
    sample_windows,
    scaled_to_load,
    with_gpus_cut,
    workload_of,
)


def workload(jobs: int, seed: int = 0) -> Workload:
    rng = np.random.default_rng(seed)
    ids = tuple(f"j{i}" for i in range(jobs))
    gpus = rng.integers(1, 65, jobs).astype(np.int32)
    return workload_of(ids, gpus, rng.uniform(1, 1e5, jobs), np.cumsum(rng.exponential(100, jobs)))


FRACTIONS = st.floats(0, 1)


@given(st.integers(1, 12), st.integers(1, 30), st.integers(0, 9))
def test_disjoint_windows_share_no_job_and_are_as_many_as_there_are(size: int, count: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    windows = sample_windows(workload(100), size, count, rng, cluster_gpus=64, disjoint=True)
    jobs = [job for window in windows for job in window.ids]
    assert len(set(jobs)) == len(jobs)
    assert len(windows) == min(count, 100 // size)


@given(st.integers(20, 200), FRACTIONS, st.integers(0, 20))
def test_windows_of_parts_that_do_not_overlap_share_no_job(jobs: int, fraction: float, seed: int) -> None:
    whole, rng = workload(jobs), np.random.default_rng(seed)
    ids: list[set[str]] = []
    for first, last in ((0.0, fraction), (fraction, 1.0)):
        try:
            windows = sample_windows(whole, 3, 20, rng, first=first, last=last, cluster_gpus=64)
        except InputError:
            windows = []
        ids.append({job for window in windows for job in window.ids})
    assert not ids[0] & ids[1]


@given(st.integers(1, 12), st.integers(0, 9), st.integers(1, 64), st.floats(0.1, 2))
def test_a_window_is_consecutive_jobs_with_gpus_cut_at_the_load(size: int, seed: int, most: int, load: float) -> None:
    whole, rng = workload(12, seed), np.random.default_rng(seed)
    for window in sample_windows(whole, size, 5, rng, max_gpus=most, load=load, cluster_gpus=64):
        start = whole.ids.index(window.ids[0])
        assert window.ids == whole.ids[start : start + size]
        assert window.gpus.tolist() == np.minimum(whole.gpus[start : start + size], most).tolist()
        assert np.array_equal(window.work_s, whole.work_s[start : start + size])
        assert window.submit_s[0] == 0
        if size > 1:
            assert np.isclose(describe(window).offered_load(64), load)


def test_without_a_load_the_gaps_stay_as_they_were() -> None:
    whole = workload(30)
    (window,) = sample_windows(whole, 10, 1, np.random.default_rng(3), first=0.5, cluster_gpus=64)
    start = whole.ids.index(window.ids[0])
    assert start >= 15
    assert np.allclose(np.diff(window.submit_s), np.diff(whole.submit_s[start : start + 10]))


def test_every_start_of_the_part_is_drawn() -> None:
    windows = sample_windows(workload(20), 4, 400, np.random.default_rng(0), first=0.25, last=0.75, cluster_gpus=8)
    assert {window.ids[0] for window in windows} == {f"j{i}" for i in range(5, 12)}


def test_the_load_is_work_over_what_the_cluster_can_do() -> None:
    jobs = workload_of(("a", "b"), np.array([2, 4], dtype=np.int32), np.array([30.0, 10.0]), np.array([0.0, 50.0]))
    assert describe(jobs).offered_load(4) == 100 / 200
    assert scaled_to_load(jobs, 1.0, 4).submit_s.tolist() == [0, 25]


def test_a_batch_has_no_load_to_scale() -> None:
    batch = workload_of(("a", "b"), np.array([2, 4], dtype=np.int32), np.array([30.0, 10.0]), np.zeros(2))
    assert describe(batch).offered_load(4) == float("inf")
    assert not scaled_to_load(batch, 0.5, 4).submit_s.any()


def test_cutting_gpus_leaves_the_original_alone() -> None:
    whole = workload(10)
    before = whole.gpus.copy()
    with_gpus_cut(whole, 2)
    assert np.array_equal(whole.gpus, before)


def test_what_cannot_be_drawn_is_refused() -> None:
    rng, whole = np.random.default_rng(0), workload(10)
    with pytest.raises(InputError, match="the trace has 5 jobs, a window 6"):
        sample_windows(whole, 6, 1, rng, first=0.5, cluster_gpus=8)
    with pytest.raises(ValueError, match="fraction"):
        sample_windows(whole, 2, 1, rng, last=1.5, cluster_gpus=8)
    with pytest.raises(ValueError, match="at least 1 job"):
        sample_windows(whole, 0, 1, rng, cluster_gpus=8)
    with pytest.raises(ValueError, match="more than 0"):
        scaled_to_load(whole, float("nan"), 8)


def test_the_first_jobs_keep_their_own_needs() -> None:
    needs = tuple(NodeNeeds((name,)) for name in ("a", "b", "c"))
    jobs = workload_of(("x", "y", "z"), np.ones(3, np.int32), np.ones(3), np.arange(3.0), needs=needs)
    assert first_jobs(jobs, 2).needs == needs[:2]
