"""What becomes of attempts when parts of a real Ray die, hang or forget."""

import os
import signal
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from longshore.cluster.files.errors import BackendError
from longshore.cluster.model.placement import Placement, Share
from longshore.scheduler.backends.protocol import Attempt, CannotHonourError
from longshore.scheduler.backends.ray.backend import RayBackend
from longshore.scheduler.backends.ray.launcher import ALIVE, QUEUE
from longshore.scheduler.model.states import Run
from tests.scheduler.backends.attempts import (
    kill_guard,
    kill_supervisor,
    lives,
    number_in,
    own_folder,
    shell_attempt,
    until,
    wait_for_end,
    wait_until_running,
)
from tests.scheduler.backends.ray_cluster import RayCluster, backend_of, end_attempts

pytestmark = pytest.mark.full

ON_A: Placement = (Share("a", (2,)),)
ON_D: Placement = (Share("d", (1, 2)),)
ON_A_AND_D: Placement = (Share("a", (1,)), Share("d", (1,)))


@pytest.fixture
def backend(ray_cluster: RayCluster) -> Iterator[RayBackend]:
    yield backend_of(ray_cluster)
    ray_cluster.heal()
    end_attempts(ray_cluster)


def age_marker(cluster: RayCluster, attempt: Attempt, part: str) -> None:
    """Let as much time have passed since a killed supervisor showed that it lives as shows that it does not."""
    for marker in ("claim.json", f"{part}/started.json"):
        os.utime(own_folder(cluster.folder, attempt) / marker, (0, 0))


def taking(backend: RayBackend) -> dict[str, bool]:
    """Whether each node takes jobs."""
    return {node.name: node.takes_jobs for node in backend.observe()}


def test_a_job_lives_on_without_its_nodes_daemon_and_ends_as_ever_when_that_is_back(
    ray_cluster: RayCluster, backend: RayBackend
) -> None:
    attempt = shell_attempt("while [ ! -e go ]; do sleep 0.05; done; exit 9")
    backend.launch(attempt, ON_D)
    wait_until_running(backend, attempt)
    ray_cluster.kill_node("d")
    until(lambda: taking(backend) == {"a": True, "b": True, "c": True, "d": False})
    assert all(gpu.healthy for gpu in backend.observe()[3].gpus)
    assert (backend.status(attempt.name).run, backend.is_proven_gone(attempt.name)) == (Run.RUNNING, False)
    ray_cluster.heal()
    assert backend.status(attempt.name).run is Run.RUNNING
    (own_folder(ray_cluster.folder, attempt) / "work" / "go").touch()
    assert [end.code for end in wait_for_end(backend, attempt).ends][:1] == [9]


def test_a_node_that_is_lost_with_its_processes_stops_the_others_and_is_free_only_when_it_is_back(
    ray_cluster: RayCluster, backend: RayBackend
) -> None:
    attempt = shell_attempt(
        "[ $RANK = 0 ] && exec sleep 1000; setsid sh -c 'echo $$ > far.pid; sleep 1000; true' & wait"
    )
    backend.launch(attempt, ON_A_AND_D)
    far = number_in(own_folder(ray_cluster.folder, attempt) / "work" / "far.pid")
    wait_until_running(backend, attempt)
    ray_cluster.kill_node("d")
    kill_guard(ray_cluster.folder, attempt, "part-1")
    kill_supervisor(ray_cluster.folder, attempt, "part-1")
    age_marker(ray_cluster, attempt, "part-1")
    until((own_folder(ray_cluster.folder, attempt) / "part-0" / "exit.json").exists)
    assert (backend.status(attempt.name).run, backend.is_proven_gone(attempt.name)) == (Run.UNREACHABLE, False)
    assert lives(far)
    ray_cluster.heal()
    status = wait_for_end(backend, attempt)
    assert (status.run, status.reason) == (Run.LOST, "node fault: Ray lost node d")
    assert not lives(far)


def test_an_attempt_whose_claim_makes_no_sense_holds_up_no_other(ray_cluster: RayCluster, backend: RayBackend) -> None:
    broken, fine = shell_attempt("true"), shell_attempt("exit 3")
    backend.launch(broken, ON_A)
    wait_for_end(backend, broken)
    until(lambda: not (ray_cluster.folder / QUEUE / broken.name).exists())
    claim = own_folder(ray_cluster.folder, broken) / "claim.json"
    content = claim.read_bytes()
    claim.write_text("{}")
    (ray_cluster.folder / QUEUE / broken.name).touch()
    living = launcher(ray_cluster)
    backend.launch(fine, ON_D)
    assert wait_for_end(backend, fine).ends[0].code == 3
    assert running_launchers(ray_cluster) == [living]
    claim.write_bytes(content)


def test_gpus_of_a_node_that_ray_does_not_have_cannot_be_given(ray_cluster: RayCluster, backend: RayBackend) -> None:
    larger = RayBackend(ray_cluster.folder, {"a": 4, "e": 4}, address=ray_cluster.address, token=ray_cluster.token)
    attempt = shell_attempt("true")
    with pytest.raises(CannotHonourError, match="Ray has 0 living nodes with the label of node e"):
        larger.launch(attempt, (Share("a", (0,)), Share("e", (0,))))
    assert taking(larger) == {"a": True, "e": False}
    assert backend.status(attempt.name).run is Run.ABSENT
    backend.cancel(attempt.name, "elsewhere")
    assert backend.is_proven_gone(attempt.name)


def test_where_the_launcher_is_killed_the_next_one_holds_the_gpus_of_what_runs(
    ray_cluster: RayCluster, backend: RayBackend
) -> None:
    first, second = shell_attempt("while [ ! -e go ]; do sleep 0.05; done"), shell_attempt("true")
    backend.launch(first, ON_A)
    wait_until_running(backend, first)
    doomed = launcher(ray_cluster)
    os.kill(doomed.pid, signal.SIGKILL)
    until(lambda: ray_cluster.ask(f"/api/jobs/{doomed.job}")["status"] == "FAILED")
    fresh = backend_of(ray_cluster)
    fresh.launch(second, ON_A)
    until(lambda: sorted(group_states(ray_cluster, first, second)) == ["CREATED", "PENDING"])
    assert (fresh.status(first.name).run, fresh.status(second.name).run) == (Run.RUNNING, Run.PENDING)
    (own_folder(ray_cluster.folder, first) / "work" / "go").touch()
    assert wait_for_end(fresh, first).run is Run.EXITED
    assert wait_for_end(fresh, second).run is Run.EXITED


def test_a_launcher_that_hangs_is_replaced(ray_cluster: RayCluster, backend: RayBackend) -> None:
    attempt = shell_attempt("true")
    hung = launcher(ray_cluster)
    os.kill(hung.pid, signal.SIGSTOP)
    os.utime(ray_cluster.folder / ALIVE, (0, 0))
    backend.launch(attempt, ON_A)
    assert wait_for_end(backend, attempt).run is Run.EXITED
    until(lambda: not lives(hung.pid))


class Driver(NamedTuple):
    """A driver of Ray."""

    job: str
    pid: int


def launcher(cluster: RayCluster) -> Driver:
    """Return the launcher that runs for a folder, once it does."""
    backend_of(cluster).observe()
    return until(lambda: running_launchers(cluster))[0]


def running_launchers(cluster: RayCluster) -> list[Driver]:
    """Return the launchers that run for the folder of a cluster."""
    jobs = [job for job in cluster.ask("/api/jobs/") if job["status"] == "RUNNING" and job["driver_info"]]
    own = [job for job in jobs if job["entrypoint"].endswith(f" {cluster.folder}")]
    return [Driver(job["submission_id"], int(job["driver_info"]["pid"])) for job in own]


def group_states(cluster: RayCluster, *attempts: Attempt) -> list[str]:
    """Return the states of what Ray has been asked for, for some attempts."""
    groups = cluster.ask("/api/v0/placement_groups?detail=1&limit=1000")["data"]["result"]["result"]
    names = [attempt.name for attempt in attempts]
    return [group["state"] for group in groups if group["name"] in names and group["state"] != "REMOVED"]


def test_a_hung_ray_hangs_no_call(ray_cluster: RayCluster, backend: RayBackend) -> None:
    running, late = shell_attempt("exec sleep 1000"), shell_attempt("true")
    backend.launch(running, ON_A)
    wait_until_running(backend, running)
    os.kill(ray_cluster.dashboard(), signal.SIGSTOP)
    try:
        fresh = backend_of(ray_cluster, deadline_s=1.0)  # of what will not come
        with pytest.raises(BackendError, match="does not answer"):
            fresh.observe()
        with pytest.raises(BackendError, match="did not answer"):
            fresh.launch(late, ON_D)
        reported = fresh.statuses((running.name, late.name))
        assert [reported[one.name].run for one in (running, late)] == [Run.RUNNING, Run.ABSENT]
        fresh.cancel(running.name, "no longer wanted")
        assert wait_for_end(fresh, running).reason == "cancelled"
    finally:
        os.kill(ray_cluster.dashboard(), signal.SIGCONT)


def test_only_a_whole_record_of_the_end_counts_and_without_one_the_attempt_is_lost(
    ray_cluster: RayCluster, backend: RayBackend
) -> None:
    attempt = shell_attempt("true")
    backend.launch(attempt, ON_A)
    wait_for_end(backend, attempt)
    folder = own_folder(ray_cluster.folder, attempt)
    for torn in (b"", b'{"attempt": "ls', b"{}"):
        (folder / "part-0" / "exit.json").write_bytes(torn)
        assert (backend.status(attempt.name).run, backend.is_proven_gone(attempt.name)) == (Run.UNREACHABLE, False)
    (folder / "part-0" / "exit.json").unlink()
    age_marker(ray_cluster, attempt, "part-0")
    assert wait_for_end(backend, attempt).run is Run.LOST
