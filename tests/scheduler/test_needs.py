"""Live jobs that need GPUs of certain nodes: where they run, what is refused, and what is said while they wait."""

from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from longshore.cluster.files.errors import PluginError
from longshore.cluster.model.topology import NodeNeeds, NodeOffer
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.scheduler.mirror.cluster_mirror import ClusterMirror, JobRequest, MirrorCall, MirrorOrigin
from longshore.scheduler.mirror.journal import decode_record, encode_record, record_to_json
from longshore.scheduler.mirror.vacant_seats import PlacementShape, fit_to_shape
from longshore.scheduler.model.job_spec import JobFile
from longshore.scheduler.model.states import JobState
from longshore.scheduler.service.service import layout_of, site_of
from longshore.scheduler.settings import SchedulerSettings
from tests.scheduler.conftest import Here
from tests.scheduler.served import Served
from tests.scheduler.trials import Trial, reason

CLUSTER = """\
node_types:
  v100: {gpus: 2, peak_flops: 125e12, memory_bytes: 32e9, cpus: 8}
  a100: {gpus: 2, peak_flops: 312e12, memory_bytes: 80e9, cpus: 32, host_memory_bytes: 512e9}
racks:
  - nodes:
      - {type: v100, name: old}
      - {type: a100, name: new}
"""


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    """Real processes on a node of one GPU and one of two, whose types are called of1 and of2."""
    with closing(Trial(tmp_path, {"small": 1, "big": 2})) as made:
        yield made


def of_type(*types: str) -> dict[str, Any]:
    return {"needs": {"gpu_types": types}}


def node_of(trial: Trial, job: str) -> str:
    (share,) = trial.attempts(job)[-1].placement
    return share.node


def test_jobs_run_on_the_nodes_that_suit_them(trial: Trial) -> None:
    small, either = trial.submit("sleep 60", **of_type("of1")), trial.submit("sleep 60", **of_type("of1", "of2"))
    big = trial.submit("sleep 60", **of_type("of2"))
    for job in (small, either, big):
        trial.runs(job)

    assert [node_of(trial, job) for job in (small, either, big)] == ["small", "big", "big"]


def test_a_job_that_waits_for_its_nodes_stops_no_other_and_says_what_is_missing(trial: Trial) -> None:
    first, second = (trial.submit("sleep 60", **of_type("of1")) for _ in range(2))
    others = [trial.submit("sleep 60", **of_type("of2")) for _ in range(2)]
    for job in (first, *others):
        trial.runs(job)

    assert trial.job(second).state is JobState.QUEUED
    assert reason(trial, second) == "it asks for 1 GPU of type of1, and none of these are free"


def test_a_scheduler_that_goes_on_after_a_crash_keeps_to_what_jobs_need(trial: Trial) -> None:
    first, second = (trial.submit("sleep 60", **of_type("of1")) for _ in range(2))
    trial.runs(first)
    trial.crash()
    trial.tick(20)

    assert trial.job(second).state is JobState.QUEUED
    assert trial.job(first).state is JobState.RUNNING


def test_a_job_that_no_node_of_a_changed_cluster_suits_fails_with_the_reason(trial: Trial) -> None:
    job = trial.submit("exit 0", gpus=2, **of_type("of1"))

    trial.until(lambda: trial.job(job).state is JobState.FAILED)

    assert trial.job(job).cause == "it asks for 2 GPUs of type of1, and the cluster has 1 of these"


@pytest.mark.parametrize(
    ("needs", "nodes"),
    [
        ({}, {"old": 2, "new": 2}),
        ({"gpu_types": ["a100"]}, {"new": 2}),
        ({"gpu_types": ["a100", "v100"]}, {"old": 2, "new": 2}),
        ({"gpu_types": ["h100"]}, {}),
        ({"gpu_memory_bytes": 32e9}, {"old": 2, "new": 2}),
        ({"gpu_memory_bytes": 33e9}, {"new": 2}),
        ({"gpu_types": ["v100"], "gpu_memory_bytes": 33e9}, {}),
        ({"cpus_per_gpu": 4}, {"old": 2, "new": 2}),  # a node's share for each of its GPUs
        ({"cpus_per_gpu": 5}, {"new": 2}),
        ({"host_memory_bytes_per_gpu": 256e9}, {"old": 2, "new": 2}),  # of `old` the file does not tell
        ({"host_memory_bytes_per_gpu": 257e9}, {"old": 2}),
    ],
)
def test_a_node_suits_a_job_whose_needs_its_type_meets(
    needs: dict[str, Any], nodes: dict[str, int], tmp_path: Path
) -> None:
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    layout = layout_of(read_cluster(tmp_path / "cluster.yaml"))
    job = JobFile.model_validate({"command": ["true"], "needs": needs})

    assert layout.nodes_for(job.node_needs) == nodes


def test_needs_are_reported_in_plain_words() -> None:
    assert NodeNeeds().words == ""
    assert NodeNeeds(("a100", "h100"), 80e9).words == "of type a100 or h100 with 80 GB"
    assert NodeNeeds((), 0.0, 8.0, 64e9).words == "with 8 CPUs each with 64 GB of host memory each"
    assert NodeOffer("a100").meets(NodeNeeds(("a100",), 80e9, 8.0, 64e9))


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    folder = tmp_path_factory.mktemp("served")
    (folder / "cluster.yaml").write_text(CLUSTER)
    it = Served(folder, "--cluster", "cluster.yaml", "--folder", "state")
    it.start()
    yield it
    it.end()


@pytest.mark.full
def test_explain_says_in_plain_words_what_a_job_waits_for(served: Served) -> None:
    fills = served.add("sleep", "1000", gpus=2, **of_type("a100"))
    waits = served.submit("--gpus", "2", "--gpu-type", "a100", "--gpu-memory", "80", "--", "true")
    runs = served.add("true")

    assert served.ended(runs) == "succeeded"
    reported = served.call("explain", waits).stdout
    assert "it asks for 2 GPUs of type a100 with 80 GB, and none of these are free" in reported
    assert {share["node"] for share in served.told("explain", fills)[0]["placement"]} == {"new"}
    served.cancel(fills)
    assert served.ended(waits) == "succeeded"


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["--gpu-type", "h100"], "the job asks for 1 GPU of type h100, and the cluster has none of these"),
        (
            ["--gpus", "4", "--gpu-memory", "80"],
            "the job asks for 4 GPUs with 80 GB, and the cluster has 2 of these",
        ),
        (["--gpu-memory", "-1"], "--gpu-memory"),
        (["--gpu-type", ""], "--gpu-type"),
    ],
)
def test_needs_that_no_node_can_meet_are_refused_in_one_line(
    served: Served, options: list[str], words: str, here: Here
) -> None:
    done = here(served, "submit", *options, "--", "true")

    assert done.status == 2
    assert words in done.err
    assert done.err.count("\n") == 1


@pytest.fixture
def mirror(tmp_path: Path) -> ClusterMirror:
    """A live cluster with a job that needs the second node type."""
    (tmp_path / "cluster.yaml").write_text(CLUSTER)
    site = site_of(read_cluster(tmp_path / "cluster.yaml"), SchedulerSettings(folder=tmp_path))
    made = ClusterMirror(site, MirrorOrigin(0.0))
    made.submit(JobRequest("needy", 2, 60.0, 0.0, types=(1,)))
    return made


def test_a_live_cluster_and_its_copies_place_a_job_where_its_needs_are_met(mirror: ClusterMirror) -> None:
    for each in (
        mirror,
        ClusterMirror.from_snapshot(mirror.snapshot()),
        ClusterMirror(mirror.site, mirror.origin_now()),
    ):
        assert each.request("needy").types == (1,)
        assert each.suitable_gpus("needy").tolist() == [False, False, True, True]
        assert each.find_due_job() == "needy"
        assert each.sim.state.free[0].tolist() == [0, 2]
        with pytest.raises(PluginError, match="GPU 1 is of a node that does not suit job needy"):
            each.carry_out("needy", (1, 2))
        assert each.carry_out("needy", (2, 3))
        assert each.find_due_job() is None
        assert each.sim.state.free[0].tolist() == [2, 0]


def test_a_job_of_new_needs_disturbs_no_other(mirror: ClusterMirror) -> None:
    mirror.find_due_job()
    assert mirror.carry_out("needy", (2, 3))
    mirror.submit(JobRequest("any", 1, 60.0, 0.0))
    mirror.submit(JobRequest("old", 2, 60.0, 0.0, types=(0,)))

    assert mirror.gpus_of_job("needy") == (2, 3)
    assert mirror.find_due_job() == "any"
    assert mirror.carry_out("any", (0,))
    assert mirror.find_due_job() is None  # one GPU of `old` is left
    mirror.finish("any")
    mirror.begin(1.0)
    assert mirror.find_due_job() == "old"


def test_what_jobs_need_is_kept_in_the_journal_and_omitted_where_there_is_nothing() -> None:
    calls = [MirrorCall("submit", (JobRequest("a", 1, 60.0, 0.0, types=types),)) for types in ((1,), ())]
    written = record_to_json(encode_record(0, calls))
    reported: Any = written["calls"]

    assert [len(call[1]) for call in reported] == [8, 7]
    assert decode_record(written).calls == tuple(calls)


def test_a_form_is_fitted_to_nodes_that_suit_the_job(mirror: ClusterMirror) -> None:
    assert fit_to_shape(mirror, "needy", (), PlacementShape(1)) == (2, 3)
    assert fit_to_shape(mirror, "needy", (), PlacementShape(2)) == ()
