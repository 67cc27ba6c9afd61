from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks.slurm_cluster import GPUS, SlurmCluster
from longshore.cluster.files.errors import BackendError, InputError
from longshore.cluster.model.placement import Placement, Share
from longshore.scheduler.backends.building import build
from longshore.scheduler.backends.shared_folder.backend import AttemptRecords, ClaimMarker, PartRecord, proven_status
from longshore.scheduler.backends.slurm.backend import SlurmBackend
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.model.states import RankEnd, Run
from tests.scheduler.backends.attempts import (
    kill_supervisor,
    lives,
    number_in,
    output_of,
    own_folder,
    random_placements,
    shell_attempt,
    wait_for_end,
    wait_until_running,
)

NODES = dict.fromkeys("abcd", GPUS)
LAYOUT = Layout(list(NODES), list(NODES.values()))
TWO_NODES: Placement = (Share("a", (0, 3)), Share("c", (1,)))
SAY_GPU = "echo $LONGSHORE_NODE $(echo $CUDA_VISIBLE_DEVICES | cut -d, -f$((LOCAL_RANK + 1)))"


@pytest.fixture
def backend(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[SlurmBackend]:
    yield SlurmBackend(tmp_path, NODES, conf=slurm_cluster.conf)
    slurm_cluster.end_jobs()


def test_random_placements_are_what_ranks_see_from_inside(backend: SlurmBackend) -> None:
    placements = random_placements(np.random.default_rng(5), LAYOUT)
    attempts = [shell_attempt(SAY_GPU) for _ in placements]
    for attempt, placement in zip(attempts, placements, strict=True):
        backend.launch(attempt, placement)
    for attempt, placement in zip(attempts, placements, strict=True):
        chosen = [f"{share.node} {gpu}" for share in placement for gpu in share.gpus]
        assert wait_for_end(backend, attempt).run is Run.EXITED
        assert output_of(backend, attempt, len(chosen)) == chosen


def test_ranks_on_several_nodes_know_each_other(backend: SlurmBackend) -> None:
    attempt = shell_attempt(
        "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $LONGSHORE_GPUS; echo $MASTER_ADDR:$MASTER_PORT"
    )
    backend.launch(attempt, TWO_NODES)
    wait_for_end(backend, attempt)
    places, meeting = zip(*(reported.split("\n") for reported in output_of(backend, attempt, 3)), strict=True)
    assert places == ("0 3 0 2 0,3", "1 3 1 2 0,3", "2 3 0 1 1")
    assert len(set(meeting)) == 1


def test_a_rank_that_fails_stops_those_on_other_nodes(backend: SlurmBackend) -> None:
    attempt = shell_attempt("[ $RANK = 2 ] && exit 3; exec sleep 1000")
    backend.launch(attempt, TWO_NODES)
    status = wait_for_end(backend, attempt)
    assert (status.run, status.reason) == (Run.EXITED, "rank failed")
    assert {end.rank: (end.code, end.signal) for end in status.ends} == {0: (0, 15), 1: (0, 15), 2: (3, 0)}


def test_a_job_that_ignores_term_is_killed_after_its_grace(backend: SlurmBackend) -> None:
    attempt = shell_attempt("trap '' TERM; while :; do sleep 1; done", grace_s=0.5)
    backend.launch(attempt, TWO_NODES)
    wait_until_running(backend, attempt)
    backend.cancel(attempt.name, "no longer wanted")
    status = wait_for_end(backend, attempt)
    assert (status.run, status.reason) == (Run.EXITED, "cancelled")
    assert sorted((end.rank, end.signal) for end in status.ends) == [(0, 9), (1, 9), (2, 9)]


def test_an_attempt_that_slurm_was_made_to_give_other_gpus_refuses_to_run(
    slurm_cluster: SlurmCluster, backend: SlurmBackend, tmp_path: Path
) -> None:
    first, second = shell_attempt("exec sleep 1000"), shell_attempt(f"touch {tmp_path}/started")
    for attempt in (first, second):
        backend.launch(attempt, (Share("a", (2,)),))
    job = slurm_cluster.call("squeue", "-h", "-n", second.name, "-o", "%A").strip()
    slurm_cluster.call("scontrol", "update", f"JobId={job}", "Gres=gpu:i0:1")  # which adds to what it asked for
    backend.cancel(first.name, "make room")
    status = wait_for_end(backend, second)
    assert (status.run, status.reason) == (Run.LOST, "node fault: misplaced: a gives GPUs [0, 2], not [2]")
    assert not (tmp_path / "started").exists()


def test_what_slurms_own_cancel_ends_is_never_taken_for_done(
    slurm_cluster: SlurmCluster, backend: SlurmBackend
) -> None:
    attempt = shell_attempt("trap 'exit 0' TERM; while :; do sleep 0.05; done")
    backend.launch(attempt, TWO_NODES)
    wait_until_running(backend, attempt)
    slurm_cluster.call("scancel", "--name", attempt.name)
    status = wait_for_end(backend, attempt)
    assert (status.run, status.reason) == (Run.LOST, "stopped by Slurm")


def test_an_attempt_that_is_cancelled_in_slurm_before_its_start_is_lost(
    slurm_cluster: SlurmCluster, backend: SlurmBackend
) -> None:
    first, second = shell_attempt("exec sleep 1000"), shell_attempt("true")
    for attempt in (first, second):
        backend.launch(attempt, (Share("a", (2,)),))
    slurm_cluster.call("scancel", "--name", second.name)
    status = wait_for_end(backend, second)
    assert status.run is Run.LOST
    assert "CANCELLED" in status.reason


def test_a_lost_supervisor_ends_the_attempt_on_all_nodes_and_what_it_left_behind(
    backend: SlurmBackend, tmp_path: Path
) -> None:
    attempt = shell_attempt("setsid env -i sh -c 'echo $$ > far$0.pid; sleep 1000; true' $RANK > /dev/null 2>&1 & wait")
    backend.launch(attempt, TWO_NODES)
    wait_until_running(backend, attempt)
    left = [number_in(own_folder(tmp_path, attempt) / "work" / f"far{rank}.pid") for rank in range(3)]
    kill_supervisor(tmp_path, attempt, "part-1")
    status = wait_for_end(backend, attempt)
    assert (status.run, status.reason[:21]) == (Run.LOST, "a supervisor was lost")
    assert not [pid for pid in left if lives(pid)]


def test_a_job_of_which_only_some_ranks_ran_has_not_succeeded_though_these_ended_well() -> None:
    claim = ClaimMarker(attempt="ls-x-1", job=1, parts=2, ranks=2, token="", address="", revoked="")
    ran = PartRecord(started_s=1.0, ends=(RankEnd(0, 0, 0, 2.0),), exited=True)
    late = PartRecord(exited=True, reason="cancelled")  # its node was away, and came back after the job was cancelled
    status = proven_status(AttemptRecords(is_launched=True, claim=claim, parts=(ran, late)))
    assert status is not None
    assert (status.run, status.reason) == (Run.LOST, "only 1 of 2 ranks ran; cancelled")


def test_a_configuration_chooses_the_slurm_and_what_its_jobs_are_submitted_with(
    slurm_cluster: SlurmCluster, tmp_path: Path
) -> None:
    built = build("slurm", {"conf": str(slurm_cluster.conf), "partition": "nowhere"}, tmp_path, LAYOUT)

    assert [node.name for node in built.observe()] == list(NODES)
    with pytest.raises(BackendError, match="partition"):
        built.launch(shell_attempt("true"), (Share("a", (0,)),))


def test_options_that_would_change_the_placement_are_refused(slurm_cluster: SlurmCluster, tmp_path: Path) -> None:
    with pytest.raises(InputError, match="--gres=gpu:4"):
        SlurmBackend(tmp_path, NODES, conf=slurm_cluster.conf, options=["--gres=gpu:4"])
