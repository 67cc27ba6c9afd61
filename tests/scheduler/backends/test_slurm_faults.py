"""What becomes of attempts when parts of a real Slurm die, hang or forget."""

import os
import signal
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from benchmarks.slurm_cluster import SlurmCluster
from longshore.cluster.files.errors import BackendError
from longshore.cluster.model.placement import Placement, Share
from longshore.scheduler.backends.protocol import Attempt
from longshore.scheduler.backends.slurm.backend import SlurmBackend
from longshore.scheduler.model.states import Run
from tests.scheduler.backends.attempts import (
    age_marker,
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
from tests.scheduler.backends.slurm_backends import IMPATIENT, ON_A, backend_of

pytestmark = pytest.mark.full

ON_D: Placement = (Share("d", (1, 2)),)


@pytest.fixture
def backend(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[SlurmBackend]:
    yield backend_of(slurm_cluster, tmp_path)
    slurm_cluster.heal()


@pytest.fixture
def mortal(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[SlurmCluster]:
    """A Slurm whose controller may lose its memory; the numbers that it gives anew would trouble a shared one."""
    cluster = SlurmCluster(tmp_path / "slurm", slurm_cluster.nodes)
    try:
        cluster.start()
        yield cluster
        cluster.end_jobs()
    finally:
        cluster.end()


def slurm_says(cluster: SlurmCluster, attempt: Attempt) -> str:
    return cluster.call("squeue", "-h", "-t", "all", "-n", attempt.name, "-o", "%T").strip()


def taking(backend: SlurmBackend) -> dict[str, bool]:
    """Whether each node takes jobs."""
    return {node.name: node.takes_jobs for node in backend.observe()}


def test_a_job_lives_on_without_its_nodes_daemon_and_can_be_ended(
    slurm_cluster: SlurmCluster, backend: SlurmBackend
) -> None:
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, ON_D)
    wait_until_running(backend, attempt)
    slurm_cluster.lose_node("d")
    until(lambda: taking(backend) == {"a": True, "b": True, "c": True, "d": False})
    assert all(gpu.healthy for gpu in backend.observe()[3].gpus)
    assert slurm_says(slurm_cluster, attempt) == "NODE_FAIL"
    assert (backend.status(attempt.name).run, backend.is_proven_gone(attempt.name)) == (Run.RUNNING, False)
    backend.cancel(attempt.name, "its node is down")
    assert [end.signal for end in wait_for_end(backend, attempt).ends] == [15, 15]


def test_a_job_whose_nodes_daemon_is_restarted_runs_on_to_its_own_end(
    slurm_cluster: SlurmCluster, backend: SlurmBackend, tmp_path: Path
) -> None:
    attempt = shell_attempt(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 9")
    backend.launch(attempt, (Share("d", (1,)),))
    wait_until_running(backend, attempt)
    slurm_cluster.kill("slurmd.d")
    assert backend.status(attempt.name).run is Run.RUNNING
    slurm_cluster.start_node("d")
    until(lambda: taking(backend)["d"])
    assert (backend.status(attempt.name).run, backend.is_proven_gone(attempt.name)) == (Run.RUNNING, False)
    (tmp_path / "go").touch()
    assert [end.code for end in wait_for_end(backend, attempt).ends] == [9]


def test_gpus_of_a_lost_node_are_free_only_when_it_is_back_and_nothing_lives_there(
    slurm_cluster: SlurmCluster, backend: SlurmBackend, tmp_path: Path
) -> None:
    attempt = shell_attempt("setsid sh -c 'echo $$ > far.pid; sleep 1000; true' & wait")
    backend.launch(attempt, ON_D)
    far = number_in(own_folder(tmp_path, attempt) / "work" / "far.pid")
    wait_until_running(backend, attempt)
    slurm_cluster.lose_node("d")
    kill_guard(tmp_path, attempt, "part-0")
    kill_supervisor(tmp_path, attempt, "part-0")
    age_marker(tmp_path, attempt)
    until(lambda: backend.status(attempt.name).reason.startswith("Slurm reports NODE_FAIL"))
    assert (backend.status(attempt.name).run, backend.is_proven_gone(attempt.name)) == (Run.UNREACHABLE, False)
    assert lives(far)
    slurm_cluster.start_node("d")
    status = wait_for_end(backend, attempt)
    assert (status.run, status.reason) == (Run.LOST, "a supervisor was lost")
    assert not lives(far)


def test_an_administrator_can_vouch_that_a_node_is_switched_off(
    slurm_cluster: SlurmCluster, backend: SlurmBackend, tmp_path: Path
) -> None:
    attempt = shell_attempt("exec sleep 1000")
    backend.launch(attempt, ON_D)
    wait_until_running(backend, attempt)
    kill_supervisor(tmp_path, attempt, "part-0")
    slurm_cluster.lose_node("d", "fenced: power cut")
    age_marker(tmp_path, attempt)
    assert wait_for_end(backend, attempt).run is Run.LOST


def test_a_job_that_the_controller_forgot_is_missed_only_in_a_complete_view_and_runs_once(
    mortal: SlurmCluster, tmp_path: Path
) -> None:
    backend = backend_of(mortal, tmp_path)
    attempt = shell_attempt(f"echo started >> {tmp_path}/starts")
    backend.launch(attempt, ON_A)
    mortal.kill("slurmctld")
    mortal.start_controller("-c")  # without its memory, which it had no time to save
    other_process = mortal.call(
        "sbatch", "--parsable", "-J", attempt.name, "-w", "d", "-o", "/dev/null", "--wrap", "exec sleep 1000"
    )
    assert int(other_process) <= 3  # The number of the forgotten job is given anew.
    seen = [backend.status(attempt.name).run]
    while seen[-1] is not Run.ABSENT:
        assert seen[-1] in (Run.PENDING, Run.UNREACHABLE)
        seen.append(until(lambda: backend.status(attempt.name).run))
    assert backend.observe()
    backend.launch(attempt, ON_A)
    assert wait_for_end(backend, attempt).run is Run.EXITED
    assert (tmp_path / "starts").read_text() == "started\n"


def test_attempts_of_any_age_start_once_at_most_though_the_controller_is_killed(
    mortal: SlurmCluster, tmp_path: Path
) -> None:
    backend, attempts = backend_of(mortal, tmp_path), {}
    for gpu, age_s in enumerate((5.0, 2.0, 1.0, 0.0)):
        attempt = shell_attempt(
            f"echo started >> {tmp_path}/starts{gpu}; while [ ! -e {tmp_path}/go ]; do sleep 0.1; done"
        )
        attempts[attempt.name] = (attempt, (Share("a", (gpu,)),))
        backend.launch(*attempts[attempt.name])
        time.sleep(age_s)  # so that they are of 8, 3, 1 and 0 s
    mortal.kill("slurmctld")
    mortal.start_controller()
    (tmp_path / "go").touch()
    until(lambda: not isinstance(looked(backend), BackendError))
    ends = [partial(ended, mortal, backend, *each) for each in attempts.values()]
    until(lambda: all(end() for end in ends))
    for gpu, name in enumerate(attempts):
        starts = tmp_path / f"starts{gpu}"
        if backend.status(name).run is Run.EXITED or starts.exists():
            assert starts.read_text() == "started\n"


def ended(cluster: SlurmCluster, backend: SlurmBackend, attempt: Attempt, placement: Placement) -> bool:
    """Do what the scheduler and an administrator do about an attempt, and say whether it has ended."""
    if "drain" in cluster.call("sinfo", "-h", "-N", "-o", "%N %T"):  # the same number twice: docs/slurm.md, Limits
        cluster.call("scontrol", "update", f"NodeName={placement[0].node}", "State=RESUME")
    if backend.status(attempt.name).run is Run.ABSENT:
        backend.launch(attempt, placement)
    return backend.status(attempt.name).run in (Run.EXITED, Run.LOST) and backend.is_proven_gone(attempt.name)


def looked(backend: SlurmBackend) -> object:
    """Return what it sees, or why it does not."""
    try:
        return backend.observe()
    except BackendError as error:
        return error


def test_a_running_job_outlives_the_controller(mortal: SlurmCluster, tmp_path: Path) -> None:
    backend = backend_of(mortal, tmp_path)
    attempt = shell_attempt(f"while [ ! -e {tmp_path}/go ]; do sleep 0.05; done; exit 9")
    backend.launch(attempt, ON_A)
    wait_until_running(backend, attempt)
    mortal.kill("slurmctld")
    fresh = backend_of(mortal, tmp_path, IMPATIENT)
    assert fresh.status(attempt.name).run is Run.RUNNING
    with pytest.raises(BackendError):
        fresh.observe()
    (tmp_path / "go").touch()
    assert [end.code for end in wait_for_end(fresh, attempt).ends] == [9]
    mortal.start_controller()


def test_a_job_that_slurm_runs_again_does_not_start_a_second_time(
    slurm_cluster: SlurmCluster, backend: SlurmBackend, tmp_path: Path
) -> None:
    attempt = shell_attempt(f"echo started >> {tmp_path}/starts; exec sleep 1000")
    backend.launch(attempt, ON_A)
    wait_until_running(backend, attempt)
    job = slurm_cluster.call("squeue", "-h", "-n", attempt.name, "-o", "%A").strip()
    slurm_cluster.call("scontrol", "update", f"JobId={job}", "Requeue=1")
    slurm_cluster.call("scontrol", "requeue", job)
    status = wait_for_end(backend, attempt)
    assert (status.run, status.reason) == (Run.LOST, "stopped by Slurm")
    until(lambda: slurm_says(slurm_cluster, attempt) == "FAILED")
    assert (tmp_path / "starts").read_text() == "started\n"


def test_a_hung_controller_hangs_no_call(slurm_cluster: SlurmCluster, backend: SlurmBackend, tmp_path: Path) -> None:
    running, ended, late = shell_attempt("exec sleep 1000"), shell_attempt("true"), shell_attempt("true")
    backend.launch(running, ON_A)
    wait_until_running(backend, running)
    backend.launch(ended, ON_A)
    backend.cancel(ended.name, "it waits")
    os.kill(slurm_cluster.pid("slurmctld"), signal.SIGSTOP)
    try:
        with pytest.raises(BackendError, match="did not answer"):
            backend_of(slurm_cluster, tmp_path, IMPATIENT).observe()
        fresh = backend_of(slurm_cluster, tmp_path, IMPATIENT)
        with pytest.raises(BackendError, match="did not answer"):
            fresh.launch(late, ON_D)
        reported = fresh.statuses((running.name, ended.name, late.name))
        assert [reported[one.name].run for one in (running, ended, late)] == [
            Run.RUNNING,
            Run.EXITED,
            Run.UNREACHABLE,
        ]
        fresh.cancel(running.name, "no longer wanted")
        assert wait_for_end(fresh, running).reason == "cancelled"
    finally:
        os.kill(slurm_cluster.pid("slurmctld"), signal.SIGCONT)


def test_only_a_whole_record_of_the_end_counts_and_without_one_the_attempt_is_lost(
    slurm_cluster: SlurmCluster, backend: SlurmBackend, tmp_path: Path
) -> None:
    attempt = shell_attempt("true")
    backend.launch(attempt, ON_A)
    wait_for_end(backend, attempt)
    record = own_folder(tmp_path, attempt) / "part-0" / "exit.json"
    for torn in (b"", b'{"attempt": "ls', b"{}"):
        record.write_bytes(torn)
        assert (backend.status(attempt.name).run, backend.is_proven_gone(attempt.name)) == (Run.UNREACHABLE, False)
    record.unlink()
    until(lambda: slurm_says(slurm_cluster, attempt) == "COMPLETED")
    assert wait_for_end(backend, attempt).run is Run.LOST


def test_a_part_that_never_started_on_a_lost_node_holds_nothing(
    slurm_cluster: SlurmCluster, backend: SlurmBackend, tmp_path: Path
) -> None:
    attempt = shell_attempt("exec sleep 1000")
    slurm_cluster.kill("slurmd.d")
    backend.launch(attempt, (Share("a", (1,)), Share("d", (1,))))
    until((own_folder(tmp_path, attempt) / "claim.json").exists)
    slurm_cluster.lose_node("d")
    assert wait_for_end(backend, attempt).run is Run.LOST
