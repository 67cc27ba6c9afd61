"""Each format on a few rows whose jobs are worked out by hand."""

import json
from pathlib import Path

import numpy as np
import pytest

from longshore.cluster.model.topology import NodeNeeds
from longshore.cluster.model.workload import DEFAULT_COMPUTE_S, DEFAULT_PARAMETER_BYTES, Workload
from longshore.cluster.traces.read import detect_format, read_trace
from longshore.cluster.traces.write import write_trace
from tests.cluster.traces.small_traces import EXAMPLES, KALOS, MURI, OWN, SEREN, SWF, written


def jobs_of(workload: Workload) -> list[tuple[str, int, float, float]]:
    rows = zip(workload.ids, workload.gpus, workload.work_s, workload.submit_s, strict=True)
    return [(name, int(gpus), float(work_s), float(submit_s)) for name, gpus, work_s, submit_s in rows]


RECOGNISED = [name for name in EXAMPLES if name != "tiresias"]  # which differs from muri in its unit alone


@pytest.mark.parametrize("name", RECOGNISED)
def test_a_format_is_recognised_and_read_as_worked_by_hand(name: str, tmp_path: Path) -> None:
    content, jobs, left_out = EXAMPLES[name]
    path = written(tmp_path, content)
    workload = read_trace(path)
    assert (detect_format(path), jobs_of(workload), workload.left_out) == (name, jobs, left_out)


@pytest.mark.parametrize("name", RECOGNISED)
def test_a_byte_order_mark_crlf_and_a_trailing_blank_line_change_nothing(name: str, tmp_path: Path) -> None:
    content, jobs, left_out = EXAMPLES[name]
    dressed = "\ufeff" + content.replace("\r\n", "\n").replace("\n", "\r\n") + "\r\n"
    path = written(tmp_path, dressed)
    assert detect_format(path) == name
    assert (jobs_of(read_trace(path)), read_trace(path).left_out) == (jobs, left_out)


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - {"philly", "swf"}))
def test_the_order_of_columns_does_not_matter(name: str, tmp_path: Path) -> None:
    content, jobs, _ = EXAMPLES[name]
    backwards = "\n".join(",".join(reversed(line.split(","))) for line in content.splitlines())
    assert jobs_of(read_trace(written(tmp_path, backwards), trace_format=name)) == jobs


def test_rows_that_were_submitted_together_keep_their_order(tmp_path: Path) -> None:
    rows = "".join(f"j{index},1,5,{index % 2}\n" for index in range(6))
    workload = read_trace(written(tmp_path, "id,gpus,work_s,submit_s\n" + rows))
    assert workload.ids == ("j0", "j2", "j4", "j1", "j3", "j5")


def test_seren_and_kalos_give_the_time_between_start_and_end(tmp_path: Path) -> None:
    seren, kalos = read_trace(written(tmp_path, SEREN)), read_trace(written(tmp_path, KALOS))
    assert (seren.work_s[0], kalos.work_s[0]) == (117, 70)


@pytest.mark.parametrize(
    ("attempts", "gpus"),
    [
        ([["g0", "g1"], []], 2),  # the last has no detail
        ([[], ["g0"], ["g0", "g1", "g2"], ["g0"]], 3),
    ],
)
def test_a_philly_job_has_the_gpus_of_its_largest_attempt(attempts: list[list[str]], gpus: int, tmp_path: Path) -> None:
    times = {"start_time": "2017-10-09 07:01:00", "end_time": "2017-10-09 07:02:00"}
    tries = [times | {"detail": [{"ip": "m1", "gpus": names}] if names else []} for names in attempts]
    job = {"jobid": "a", "submitted_time": "2017-10-09 07:00:00", "attempts": tries}
    assert jobs_of(read_trace(written(tmp_path, json.dumps([job])))) == [("a", gpus, 60 * len(attempts), 0)]


def test_muri_gives_compute_time_and_the_size_of_known_models(tmp_path: Path) -> None:
    workload = read_trace(written(tmp_path, MURI))
    assert np.array_equal(workload.compute_s, [1.01, 0.107])
    assert np.array_equal(workload.parameter_bytes, [4 * 11_689_512, DEFAULT_PARAMETER_BYTES])


def test_the_requested_time_of_swf_is_the_estimate(tmp_path: Path) -> None:
    assert np.array_equal(read_trace(written(tmp_path, SWF)).estimate_s, [300, 50])


def test_cells_left_empty_in_our_own_csv_take_defaults(tmp_path: Path) -> None:
    workload = read_trace(written(tmp_path, OWN))
    assert np.array_equal(workload.estimate_s, [7.5, 20])
    assert np.array_equal(workload.parameter_bytes, [8e6, DEFAULT_PARAMETER_BYTES])
    assert np.array_equal(workload.compute_s, [DEFAULT_COMPUTE_S] * 2)


def test_jobs_without_an_id_are_named_after_their_lines(tmp_path: Path) -> None:
    path = tmp_path / "t.csv"
    path.write_text("gpus,submit_s,work_s\n2,0,60\n\n1,30,10\n")

    workload = read_trace(path)

    assert workload.ids == ("line-2", "line-4")
    assert workload.gpus.tolist() == [2, 1]


def test_timestamps_of_sia_may_be_seconds(tmp_path: Path) -> None:
    content = "timestamp,duration,num_gpus,gpu_time,cluster\n700,5,1,5,x\n100,5,1,5,x\n"
    assert np.array_equal(read_trace(written(tmp_path, content)).submit_s, [0, 600])


def test_a_trace_longer_than_a_chunk_is_read_whole(tmp_path: Path) -> None:
    rows = 140_000
    content = "id,gpus,work_s,submit_s\n" + "".join(f"{row},1,{row + 1},{row}\n" for row in range(rows))
    workload = read_trace(written(tmp_path, content))
    assert workload.jobs == rows
    assert np.array_equal(workload.work_s, np.arange(1, rows + 1))


KNOWN = {
    "acme": (("uf794",), ("Other",)),
    "helios": (("u", "u"), None),
    "itp": (None, None),
    "longshore": (None, None),
    "muri": (None, ("resnet18", "strange")),
    "openb": (None, None),
    "philly": (("u",), None),
    "philly_sia": (None, None),
    "swf": (("1", "1"), ("1", "1")),
}  # users and names of the jobs of EXAMPLES


@pytest.mark.parametrize("name", KNOWN)
def test_users_and_names_are_read_where_a_format_has_them(tmp_path: Path, name: str) -> None:
    workload = read_trace(written(tmp_path, EXAMPLES[name][0]))
    assert (workload.users, workload.names) == KNOWN[name]


MIB = 2.0**20
NEEDED = {
    "acme": (KALOS, [NodeNeeds(cpus_per_gpu=15.0)]),
    "helios": (EXAMPLES["helios"][0], [NodeNeeds(cpus_per_gpu=2.0), NodeNeeds(cpus_per_gpu=0.5)]),
    "openb": (
        EXAMPLES["openb"][0].replace("p3,1,1,4,1000,,", "p3,32000,65536,4,1000,V100M16|V100M32,"),
        [NodeNeeds((), 0.0, 0.001, MIB), NodeNeeds(("V100M16", "V100M32"), 0.0, 8.0, 16384 * MIB)],
    ),
    "longshore": (
        "gpus,work_s,submit_s,gpu_types,gpu_memory_bytes,cpus_per_gpu,host_memory_bytes_per_gpu\n"
        "1,5,0,,,,\n2,5,1, a100 | h100 ,80e9,4,16e9\n",
        [NodeNeeds(), NodeNeeds(("a100", "h100"), 80e9, 4.0, 16e9)],
    ),
}  # what whole jobs ask for, divided by their GPUs


@pytest.mark.parametrize("name", NEEDED)
def test_a_format_tells_what_jobs_need_for_each_gpu(name: str, tmp_path: Path) -> None:
    content, needs = NEEDED[name]
    assert read_trace(written(tmp_path, content), trace_format=name).needs == tuple(needs)


@pytest.mark.parametrize("name", sorted(set(EXAMPLES) - set(NEEDED)))
def test_other_formats_tell_of_no_needs(name: str, tmp_path: Path) -> None:
    assert read_trace(written(tmp_path, EXAMPLES[name][0]), trace_format=name).needs is None


@pytest.mark.parametrize("name", NEEDED)
def test_needs_are_written_and_read_back(name: str, tmp_path: Path) -> None:
    workload = read_trace(written(tmp_path, NEEDED[name][0]), trace_format=name)
    write_trace(workload, tmp_path / "own.csv")
    assert read_trace(tmp_path / "own.csv").needs == workload.needs
