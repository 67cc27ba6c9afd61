import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longshore.cluster.files.errors import InputError
from longshore.cluster.model.workload import Workload, describe, workload_of
from longshore.cluster.traces.read import read_trace
from longshore.cluster.traces.write import write_trace

DATA = Path(__file__).parents[2].parent / "shared" / "data" / "traces"
FIELDS = ("gpus", "work_s", "submit_s", "estimate_s", "compute_s", "parameter_bytes")

times = st.floats(1e-3, 1e9)
jobs = st.tuples(
    st.text(st.characters(exclude_categories=["Cs"]), max_size=6),
    st.integers(1, 2**31 - 1),
    times,
    times,
    st.floats(1e-6, 1e3),
    st.floats(0, 1e15),
)


def workload(gpus: list[int], work_s: list[float], submit_s: list[float]) -> Workload:
    names = tuple(f"j{index}" for index in range(len(gpus)))
    return workload_of(names, np.array(gpus, np.int32), np.array(work_s), np.array(submit_s), left_out=2)


def test_figures_are_as_worked_by_hand() -> None:
    got = describe(workload([8, 1, 8, 2], [3600, 7200, 1800, 3600], [0, 100, 100, 400]))
    assert (got.jobs, got.left_out, got.span_s) == (4, 2, 400)
    assert got.sizes == ((1, 1), (2, 1), (8, 2))
    assert got.gpu_hours == 8 + 2 + 4 + 2
    assert dict(got.work_s)[0.5] == got.mean_work_s - 450 == 3600
    assert got.gap_variation == pytest.approx(np.std([100, 0, 300]) / (400 / 3))
    assert got.offered_load(16) == 16 * 3600 / (400 * 16)


def test_twice_the_gpus_are_offered_half_the_load() -> None:
    got = describe(workload([3, 5], [10, 20], [0, 7]))
    assert got.offered_load(4) == 2 * got.offered_load(8)


def test_jobs_that_come_at_once_offer_an_infinite_load_and_no_gap_variation() -> None:
    got = describe(workload([1, 2], [5, 5], [3, 3]))
    assert math.isinf(got.offered_load(8))
    assert math.isnan(got.gap_variation)


def test_a_cluster_without_gpus_and_a_workload_without_jobs_are_wrong_use() -> None:
    with pytest.raises(ValueError, match="gpus is 0"):
        describe(workload([1], [1], [0])).offered_load(0)
    with pytest.raises(ValueError, match="no job"):
        describe(workload([], [], []))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.lists(jobs, min_size=1, max_size=8))
def test_a_workload_that_is_written_is_read_back_to_the_last_bit(
    tmp_path: Path, rows: list[tuple[str, int, float, float, float, float]]
) -> None:
    names, gpus, work_s, submit_s, compute_s, volume = zip(*rows, strict=True)
    before = workload_of(
        tuple(names),
        np.array(gpus, np.int32),
        np.array(work_s),
        np.array(submit_s),
        compute_s=np.array(compute_s),
        parameter_bytes=np.array(volume),
    )
    write_trace(before, tmp_path / "jobs.csv")
    after = read_trace(tmp_path / "jobs.csv")
    assert after.ids == before.ids
    assert all(np.array_equal(getattr(after, field), getattr(before, field)) for field in FIELDS)


def test_a_folder_that_is_not_there_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be written"):
        write_trace(workload([1], [1], [0]), tmp_path / "none" / "jobs.csv")


@pytest.mark.skipif(not DATA.is_dir(), reason="the folder of real traces, ../shared/data, is not here")
@pytest.mark.parametrize(
    ("name", "gpus", "load"), [("itp_cluster03.csv", 192, 0.73), ("philly_vc_2869ce.muri.csv", 64, 0.80)]
)
def test_the_load_of_a_real_trace_is_the_known_one(name: str, gpus: int, load: float) -> None:
    assert round(describe(read_trace(DATA / name)).offered_load(gpus), 2) == load


@pytest.mark.skipif(not DATA.is_dir(), reason="the folder of real traces, ../shared/data, is not here")
@pytest.mark.parametrize("name", ["itp_cluster10.csv", "philly_vc_2869ce.muri.csv", "openb_pod_list_default.csv"])
def test_a_real_trace_that_is_converted_stays_the_same(name: str, tmp_path: Path) -> None:
    before = read_trace(DATA / name)
    write_trace(before, tmp_path / "jobs.csv")
    after = read_trace(tmp_path / "jobs.csv")
    assert after.ids == before.ids
    assert all(np.array_equal(getattr(after, field), getattr(before, field)) for field in FIELDS)


@given(st.lists(st.floats(0.0, 1e300), min_size=2, max_size=6))
def test_figures_are_numbers_whatever_the_times(submit_s: list[float]) -> None:
    """Also where they are so near that their mean is 0, or so far that their squares are infinite; warnings fail."""
    submit_s = sorted(submit_s)
    variation = describe(workload([1] * len(submit_s), [1.0] * len(submit_s), submit_s)).gap_variation
    assert math.isnan(variation) if submit_s[0] == submit_s[-1] else 0.0 <= variation <= len(submit_s)


def test_gaps_of_the_smallest_numbers_vary_as_others_do() -> None:
    got = describe(workload([1, 1, 1], [1, 1, 1], [0, 5e-324, 5e-324]))
    assert got.gap_variation == describe(workload([1, 1, 1], [1, 1, 1], [0, 7, 7])).gap_variation
