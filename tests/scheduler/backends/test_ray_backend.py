"""What the Ray backend does on a real Ray, beside what every backend does (tests/contracts/test_backends.py)."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from longshore.cluster.files.errors import InputError
from longshore.cluster.model.placement import Placement, Share
from longshore.scheduler.backends.ray.backend import RayBackend, RaySettings
from longshore.scheduler.backends.ray.launcher import QUEUE, gpu_indices_in
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.model.states import Run
from tests.scheduler.backends.attempts import (
    kill_supervisor,
    lives,
    number_in,
    output_of,
    own_folder,
    random_placements,
    shell_attempt,
    until,
    wait_for_end,
    wait_until_running,
)
from tests.scheduler.backends.ray_cluster import GPUS, RayCluster, backend_of, end_attempts
from tests.scheduler.served import Served

pytestmark = pytest.mark.full

LAYOUT = Layout(list("abcd"), [GPUS] * 4)
ON_A: Placement = (Share("a", (2,)),)
TWO_NODES: Placement = (Share("a", (0, 3)), Share("c", (1,)))
SAY_GPU = "echo $LONGSHORE_NODE $(echo $CUDA_VISIBLE_DEVICES | cut -d, -f$((LOCAL_RANK + 1)))"


@pytest.fixture
def backend(ray_cluster: RayCluster) -> Iterator[RayBackend]:
    yield backend_of(ray_cluster)
    end_attempts(ray_cluster)


def test_random_placements_are_what_ranks_see_from_inside(ray_cluster: RayCluster, backend: RayBackend) -> None:
    rng = np.random.default_rng(5)
    for _ in range(5):  # 22 placements
        asked = [(shell_attempt(SAY_GPU), placement) for placement in random_placements(rng, LAYOUT)]
        for attempt, placement in asked:
            backend.launch(attempt, placement)
        for attempt, placement in asked:
            chosen = [f"{share.node} {gpu}" for share in placement for gpu in share.gpus]
            assert wait_for_end(backend, attempt).run is Run.EXITED
            assert output_of(backend, attempt, len(chosen)) == chosen
        # Ray is in no hurry to try again what it could not give at once.
        until(lambda: not any((ray_cluster.folder / QUEUE).iterdir()))


def test_ranks_on_several_nodes_know_each_other(backend: RayBackend) -> None:
    attempt = shell_attempt(
        "echo $RANK $WORLD_SIZE $LOCAL_RANK $LOCAL_WORLD_SIZE $LONGSHORE_GPUS; echo $MASTER_ADDR:$MASTER_PORT"
    )
    backend.launch(attempt, TWO_NODES)
    wait_for_end(backend, attempt)
    places, meeting = zip(*(reported.split("\n") for reported in output_of(backend, attempt, 3)), strict=True)
    assert places == ("0 3 0 2 0,3", "1 3 1 2 0,3", "2 3 0 1 1")
    assert len(set(meeting)) == 1


def test_ranks_get_nothing_of_rays_environment(backend: RayBackend) -> None:
    attempt = shell_attempt("env | grep -c -e RAY -e GRANTED; nice")
    backend.launch(attempt, ON_A)
    wait_for_end(backend, attempt)
    assert output_of(backend, attempt, 1) == ["0\n0"]


def test_a_rank_that_fails_stops_those_on_other_nodes(backend: RayBackend) -> None:
    attempt = shell_attempt("[ $RANK = 2 ] && exit 3; exec sleep 1000")
    backend.launch(attempt, TWO_NODES)
    status = wait_for_end(backend, attempt)
    assert (status.run, status.reason) == (Run.EXITED, "rank failed")
    assert {end.rank: (end.code, end.signal) for end in status.ends} == {0: (0, 15), 1: (0, 15), 2: (3, 0)}


def test_a_job_that_ignores_term_is_killed_after_its_grace(backend: RayBackend) -> None:
    attempt = shell_attempt("trap '' TERM; while :; do sleep 1; done", grace_s=0.5)
    backend.launch(attempt, TWO_NODES)
    wait_until_running(backend, attempt)
    backend.cancel(attempt.name, "no longer wanted")
    status = wait_for_end(backend, attempt)
    assert (status.run, status.reason) == (Run.EXITED, "cancelled")
    assert sorted((end.rank, end.signal) for end in status.ends) == [(0, 9), (1, 9), (2, 9)]


def test_an_attempt_that_is_cancelled_while_it_waits_for_its_gpus_never_starts(
    backend: RayBackend, tmp_path: Path
) -> None:
    first, second, third = (
        shell_attempt("exec sleep 1000"),
        shell_attempt(f"touch {tmp_path}/started"),
        shell_attempt("true"),
    )
    backend.launch(first, ON_A)
    wait_until_running(backend, first)
    backend.launch(second, (Share("a", (2, 3)),))
    backend.cancel(second.name, "no longer wanted")
    status = wait_for_end(backend, second)
    backend.launch(third, (Share("a", (3,)),))
    assert wait_for_end(backend, third).run is Run.EXITED
    assert (status.run, status.reason, status.ends) == (Run.EXITED, "cancelled", ())
    assert not (tmp_path / "started").exists()


def test_a_gpu_is_free_again_whenever_attempts_on_it_are_cancelled(backend: RayBackend) -> None:
    for turn in range(12):
        attempt = shell_attempt("exec sleep 1000")
        backend.launch(attempt, ON_A)
        time.sleep(0.03 * turn)
        backend.cancel(attempt.name, "no longer wanted")
        until(lambda: backend.is_proven_gone(attempt.name))  # noqa: B023
    last = shell_attempt("true")
    backend.launch(last, ON_A)
    assert wait_for_end(backend, last).run is Run.EXITED


def test_an_attempt_that_was_granted_other_gpus_refuses_to_run(
    ray_cluster: RayCluster, backend: RayBackend, tmp_path: Path
) -> None:
    first, second = shell_attempt("exec sleep 1000"), shell_attempt(f"touch {tmp_path}/started")
    backend.launch(first, ON_A)
    wait_until_running(backend, first)
    backend.launch(second, ON_A)
    until(lambda: second.name in waiting(ray_cluster))
    path = own_folder(ray_cluster.folder, second) / "spec.json"
    spec = json.loads(path.read_text())  # which names another GPU once Ray has been asked for this one
    path.write_text(json.dumps({**spec, "ranks": [["a", 3]]}))
    backend.cancel(first.name, "make room")
    status = wait_for_end(backend, second)
    assert (status.run, status.reason) == (Run.LOST, "node fault: misplaced: a gives GPUs [2], not [3]")
    assert not (tmp_path / "started").exists()


def waiting(cluster: RayCluster) -> list[str]:
    """Return the attempts whose GPUs Ray has been asked for and has not given yet."""
    groups = cluster.ask("/api/v0/placement_groups?detail=1&limit=1000")["data"]["result"]["result"]
    return [group["name"] for group in groups if group["state"] == "PENDING"]


def test_a_lost_supervisor_ends_the_attempt_on_all_nodes_and_what_it_left_behind(
    ray_cluster: RayCluster, backend: RayBackend
) -> None:
    attempt = shell_attempt("setsid env -i sh -c 'echo $$ > far$0.pid; sleep 1000; true' $RANK > /dev/null 2>&1 & wait")
    backend.launch(attempt, TWO_NODES)
    wait_until_running(backend, attempt)
    left = [number_in(own_folder(ray_cluster.folder, attempt) / "work" / f"far{rank}.pid") for rank in range(3)]
    kill_supervisor(ray_cluster.folder, attempt, "part-1")
    status = wait_for_end(backend, attempt)
    assert (status.run, status.reason[:21]) == (Run.LOST, "a supervisor was lost")
    assert not [pid for pid in left if lives(pid)]


def test_only_resources_of_the_node_that_are_there_once_are_its_gpus() -> None:
    assert gpu_indices_in({"gpu_a_3": 1.0, "gpu_a_0": 1.0, "CPU": 4.0, "gpu_a_1": 2.0, "gpu_ab_2": 1.0}, "a") == [0, 3]
    assert gpu_indices_in({"gpu_a_1_2": 1.0, "gpu_a_1": 1.0}, "a_1") == [2]


def test_a_token_that_cannot_be_read_is_named(ray_cluster: RayCluster, tmp_path: Path) -> None:
    settings = RaySettings(address=ray_cluster.address, token=tmp_path / "none")
    with pytest.raises(InputError, match="none: the token of Ray cannot be read"):
        RayBackend.build(settings, tmp_path, LAYOUT)


@pytest.mark.full
def test_a_scheduler_that_is_killed_finds_its_job_on_ray_again(ray_cluster: RayCluster, tmp_path: Path) -> None:
    nodes = ", ".join(f"{{type: slot, name: {name}}}" for name in ray_cluster.nodes)
    (tmp_path / "cluster.yaml").write_text(
        f"node_types: {{slot: {{gpus: {GPUS}, peak_flops: 1e12, memory_bytes: 1e9}}}}\nracks: [{{nodes: [{nodes}]}}]\n"
    )
    settings = f"{{address: '{ray_cluster.address}', token: '{ray_cluster.token}'}}"
    (tmp_path / "c.yaml").write_text(
        f"cluster: cluster.yaml\nfolder: {tmp_path}/here\nbackend: {{name: ray, settings: {settings}}}\n"
    )
    served = Served(tmp_path, "--config", "c.yaml")
    try:
        served.start()
        job = served.submit(
            "--gpus", "6", "--", "sh", "-c", f"{SAY_GPU}; touch runs; while [ ! -e go ]; do sleep 0.05; done"
        )
        until((tmp_path / "runs").exists)

        served.end(9)
        (tmp_path / "go").touch()
        served.start()

        assert served.ended(job) == "succeeded"
        reported = served.call("status", job).stdout
        assert "attempt 2" not in reported
        assert "a:0,1,2,3" in reported
        assert served.call("logs", job, "--rank", "3").stdout == "a 3\n"
    finally:
        served.end()
