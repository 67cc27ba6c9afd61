"""The scheduler over a real Slurm, when parts of either of them fail."""

import os
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks.slurm_cluster import SlurmCluster
from longshore.cluster.model.placement import Placement
from longshore.scheduler.backends.protocol import Attempt
from longshore.scheduler.backends.slurm.backend import SlurmBackend
from longshore.scheduler.control.node_checks import NodeChecks
from longshore.scheduler.health.monitor import DOWN_MISSES, NODE_POLL_S
from longshore.scheduler.model.job import JobRow, new_job_id
from longshore.scheduler.model.states import AttemptState, JobState
from longshore.scheduler.store.attempts import AttemptRow, attempts_of
from longshore.scheduler.store.jobs import NewJob, get_job, insert_job
from tests.scheduler.backends.attempts import age_marker, kill_supervisor, shell_attempt
from tests.scheduler.backends.slurm_users import Site, block, held_gpus_of

pytestmark = pytest.mark.full


class Killed(BaseException):
    """The scheduler was killed."""


class Dying(SlurmBackend):
    """Is killed with its scheduler, before or after it has launched something."""

    dies: str = ""

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        """Launch, and be killed."""
        if self.dies == "before":
            raise Killed
        super().launch(attempt, placement)
        if self.dies == "after":
            raise Killed


class Jobs:
    """Jobs that are asked of a scheduler by its API."""

    def __init__(self, site: Site) -> None:
        self.site = site

    def submit(self, script: str, gpus: int = 1, **fields: object) -> str:
        """Submit a job that runs a shell script, and return its id."""
        spec = {"gpus": gpus, "command": ["sh", "-c", script], "grace_s": 1.0, "retry": {"ambiguous": 0}, **fields}
        new = NewJob(new_job_id(time.time()), "job", "ann", spec, 0, gpus, 60.0, time.time())
        self.site.store.write(lambda tx: insert_job(tx, new, writer="api"))
        return new.id

    def row(self, job: str) -> JobRow:
        """Return a job as it stands."""
        with self.site.store.read() as tx:
            row = get_job(tx, job)
        assert row is not None
        return row

    def attempts(self, job: str) -> list[AttemptRow]:
        """Return its attempts."""
        with self.site.store.read() as tx:
            return attempts_of(tx, job)

    def becomes(self, job: str, state: JobState) -> JobRow:
        """Let the scheduler work until a job is in a state, and return it."""
        self.site.ticks_until(lambda: self.row(job).state is state)
        return self.row(job)


@pytest.fixture
def site(slurm_cluster: SlurmCluster, tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, slurm_cluster, takes_sbatch=False)
    yield site
    for path in (tmp_path / "attempts").iterdir():
        site.backend.cancel(path.name, "the test is over")
    site.end()
    slurm_cluster.heal()


@pytest.fixture
def jobs(site: Site) -> Jobs:
    return Jobs(site)


@pytest.mark.parametrize("dies", ["before", "after"])
def test_a_scheduler_that_is_killed_around_a_launch_leaves_one_start_to_the_next(
    site: Site, jobs: Jobs, tmp_path: Path, dies: str
) -> None:
    dying = Dying(tmp_path, site.layout.nodes, conf=site.cluster.conf)
    dying.dies = dies
    site.begin(dying)
    job = jobs.submit(f"echo started >> {tmp_path}/starts")
    with pytest.raises(Killed):
        jobs.becomes(job, JobState.STARTING)
    assert jobs.attempts(job)[0].state is AttemptState.RESERVED
    site.restart()
    assert jobs.becomes(job, JobState.SUCCEEDED).attempt == 1
    assert (tmp_path / "starts").read_text() == "started\n"


@pytest.mark.parametrize("fit", [True, False])
def test_checks_travel_with_the_command_of_a_job_and_one_that_fails_lets_it_be_tried_again(
    site: Site, jobs: Jobs, tmp_path: Path, *, fit: bool
) -> None:
    site.checks = NodeChecks(slots=fit)  # without slots a GPU is looked for, and there is none
    site.restart()
    paths = os.pathsep.join([str(Path(sys.executable).parent), os.environ["PATH"]])
    kept = {"PATH": paths, "PYTHONPATH": os.environ.get("PYTHONPATH", ""), "OMP_NUM_THREADS": "1"}
    job = jobs.submit(f"echo $RANK >> {tmp_path}/ranks", preflight="auto", environment=kept)
    if fit:
        assert jobs.becomes(job, JobState.SUCCEEDED).attempt == 1
        assert (tmp_path / "ranks").read_text() == "0\n"
    else:
        site.ticks_until(lambda: len(jobs.attempts(job)) > 0 and jobs.attempts(job)[0].ended_s is not None)
        found = jobs.attempts(job)[0]
        assert (found.outcome, jobs.row(job).state) == ("again", JobState.QUEUED)
        assert "requested another run (exit code 75)" in found.cause
        assert not (tmp_path / "ranks").exists()
        assert b"count.type" in site.backend.logs(f"ls-{job}-1", 0, 0, 10_000)[0]


def test_an_attempt_with_other_gpus_ends_as_misplaced_and_the_job_is_tried_again(site: Site, jobs: Jobs) -> None:
    blocker = block(site)
    job = jobs.submit("exec sleep 1000")
    site.ticks_until(lambda: [row.state for row in jobs.attempts(job)] == [AttemptState.LAUNCHED])
    (share,) = jobs.attempts(job)[0].placement
    number = site.cluster.call("squeue", "-h", "-n", f"ls-{job}-1", "-o", "%A").strip()
    other = next(gpu for gpu in range(4) if gpu not in share.gpus)
    site.cluster.call("scontrol", "update", f"JobId={number}", f"Gres=gpu:i{other}:1")  # which adds to what it has
    site.cluster.call("scancel", blocker)
    site.ticks_until(lambda: len(jobs.attempts(job)) == 2)
    first = jobs.attempts(job)[0]
    assert (first.outcome, first.cause[:10]) == ("infrastructure", "misplaced:")
    jobs.becomes(job, JobState.RUNNING)
    (again,) = jobs.attempts(job)[1].placement
    assert [(row.node, row.gpu) for row in held_gpus_of(site)] == [(again.node, gpu) for gpu in again.gpus]


def test_a_job_of_a_node_that_is_switched_off_runs_again_on_another(site: Site, jobs: Jobs, tmp_path: Path) -> None:
    job = jobs.submit("exec sleep 1000", gpus=4)
    jobs.becomes(job, JobState.RUNNING)
    (share,) = jobs.attempts(job)[0].placement
    attempt = replace(shell_attempt(""), name=f"ls-{job}-1")
    site.cluster.kill(f"slurmd.{share.node}")
    kill_supervisor(tmp_path, attempt, "part-0")
    site.cluster.lose_node(share.node, "fenced: power cut")
    age_marker(tmp_path, attempt)
    site.ticks_until(lambda: len(jobs.attempts(job)) == 2)
    jobs.becomes(job, JobState.RUNNING)
    assert jobs.attempts(job)[0].outcome == "infrastructure"
    assert share.node not in {other.node for other in jobs.attempts(job)[1].placement}
    assert len(held_gpus_of(site)) == 4


def is_silent(site: Site, node: str) -> bool:
    """Say whether Slurm has heard of other nodes since it last did of this one."""
    seen = {each.name: each.seen_s for each in site.backend.observe()}
    return seen[node] < max(seen.values()) - 1.0


@pytest.mark.full
def test_a_job_that_was_to_start_on_a_node_that_is_lost_starts_on_another(site: Site, jobs: Jobs) -> None:
    blocker = block(site)
    job = jobs.submit("exec sleep 1000", gpus=4)
    site.ticks_until(lambda: [row.state for row in jobs.attempts(job)] == [AttemptState.LAUNCHED])
    (share,) = jobs.attempts(job)[0].placement
    site.cluster.kill(f"slurmd.{share.node}")
    site.cluster.call("scancel", blocker)
    site.ticks_until(lambda: is_silent(site, share.node))
    for _ in range(DOWN_MISSES):
        site.later_s += NODE_POLL_S
        time.sleep(1.1)  # Slurm is asked once a second
        site.scheduler.tick()
    site.ticks_until(lambda: len(jobs.attempts(job)) == 2)
    jobs.becomes(job, JobState.RUNNING)
    first, second = jobs.attempts(job)
    assert (first.outcome, jobs.row(job).stops_infra) == ("requested", 0)
    assert share.node not in {other.node for other in second.placement}
    assert len(held_gpus_of(site)) == 4
