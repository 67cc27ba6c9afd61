"""What becomes of sbatch users' jobs when the scheduler is away or slow, or parts of a real Slurm fail."""

import os
import signal
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.slurm_cluster import SlurmCluster
from longshore.scheduler.backends.slurm.commands import SlurmTimes
from longshore.scheduler.model.states import AttemptState, JobState
from tests.scheduler.backends.attempts import until
from tests.scheduler.backends.slurm_users import Site, block, heal, held_gpus_of, holding_slurm

# Refuses any change of a request for GPUs while a file is there.
REFUSING = """
local modify = slurm_job_modify
function slurm_job_modify(job, ...)
  local file = io.open("{flag}")
  if not file then return modify(job, ...) end
  file:close()
  if job.tres_per_node ~= nil and string.find(job.tres_per_node, ":i%d") then return slurm.ERROR end
  return modify(job, ...)
end
return slurm.SUCCESS
"""


@pytest.fixture(scope="module")
def holding() -> Iterator[SlurmCluster]:
    """A Slurm that holds jobs, and refuses their updates while there is a file `refuse`."""
    with holding_slurm() as cluster:
        plugin = cluster.root / "etc" / "job_submit.lua"
        refusing = REFUSING.format(flag=cluster.root / "refuse")
        plugin.write_text(plugin.read_text().removesuffix("return slurm.SUCCESS\n") + refusing)
        cluster.start()
        yield cluster


@pytest.fixture
def site(holding: SlurmCluster, tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, holding)
    yield site
    site.end()
    heal(holding)


@contextmanager
def silent(path: Path) -> Iterator[None]:
    """Accept whoever comes to a socket, and never answer."""
    path.unlink()
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))
        listener.listen()
        yield
    path.unlink()


def test_a_job_that_comes_while_no_scheduler_answers_is_held_and_stored_later(site: Site) -> None:
    site.socket.unlink()
    dead = site.sbatch("--gres=gpu:2")
    assert site.slurm_says(dead) == "PENDING"
    site.restart()
    with silent(site.socket):
        hung = site.sbatch("--gres=gpu:2")
        rested = site.sbatch("--gres=gpu:2")  # for which nobody is asked any more
        assert site.slurm_says(hung) == "PENDING"
    for number in (dead, hung, rested):
        site.state_becomes(number, JobState.SUCCEEDED)


def test_what_could_not_be_refused_at_once_is_refused_later_with_a_word_why(site: Site) -> None:
    site.socket.unlink()
    number = site.sbatch("--nodes=3", "--gres=gpu:1")
    site.ticks_until(lambda: site.slurm_says(number) == "CANCELLED")
    assert "3x1:wrap refused: 3 nodes with 1 GPUs each are requested, and there are 2" in site.shown(number)
    assert not site.jobs()


def test_an_update_that_fails_half_way_leaves_the_job_held_and_is_tried_again(site: Site) -> None:
    refuse = site.cluster.root / "refuse"
    refuse.touch()
    number = site.sbatch("--gres=gpu:2", script="sleep 300")
    site.ticks_until(lambda: "ReqNodeList=a" in site.shown(number) or "ReqNodeList=b" in site.shown(number))
    site.ticks_until(lambda: site.attempts(number)[0].state is AttemptState.RESERVED)
    assert "Priority=0" in site.shown(number)
    refuse.unlink()
    row = site.state_becomes(number, JobState.RUNNING)
    assert row.attempt == 1


@pytest.mark.full
def test_a_job_that_was_given_other_gpus_is_ended_as_misplaced_and_runs_again_where_it_was_to(
    site: Site,
) -> None:
    blocker = block(site)
    number = site.sbatch("--gres=gpu:1", "--requeue", script="sleep 300")
    site.ticks_until(lambda: number in site.jobs() and site.jobs()[number].state is JobState.STARTING)
    site.ticks_until(lambda: site.attempts(number)[0].state is AttemptState.LAUNCHED)
    (share,) = site.attempts(number)[0].placement
    other = next(gpu for gpu in range(4) if gpu not in share.gpus)
    site.cluster.call("scontrol", "update", f"JobId={number}", f"Gres=gpu:i{other}:1")  # which adds to what it has
    site.cluster.call("scancel", blocker)
    site.ticks_until(lambda: len(site.attempts(number)) == 2)
    first = site.attempts(number)[0]
    assert (first.outcome, first.cause[:10]) == ("infrastructure", "misplaced:")
    site.state_becomes(number, JobState.RUNNING)
    assert sum(len(share.gpus) for share in site.attempts(number)[1].placement) == len(held_gpus_of(site)) == 1


@pytest.mark.full
def test_a_job_whose_node_is_lost_runs_again_elsewhere_and_never_twice_at_a_time(site: Site) -> None:
    site.slurm_times = SlurmTimes(stray_s=1.0)  # KillWait is 2 s here
    site.restart()
    out = site.cluster.root / "run" / "lives"
    out.mkdir(exist_ok=True)
    out.chmod(0o777)
    script = f"exec 9>{out}/lock; flock -n 9 || touch {out}/twice; echo $SLURMD_NODENAME >> {out}/starts; sleep 300"
    number = site.sbatch("--gres=gpu:4", "--requeue", script=script)
    site.state_becomes(number, JobState.RUNNING)
    (node,) = (share.node for share in site.attempts(number)[0].placement)
    site.cluster.lose_node(node)
    site.ticks_until(lambda: site.attempts(number)[0].state is AttemptState.DRAINING)
    assert len(held_gpus_of(site)) == 4  # its processes may live on
    site.cluster.start_node(node)
    site.ticks_until(lambda: len(site.attempts(number)) == 2)
    site.state_becomes(number, JobState.RUNNING)
    until(lambda: len((out / "starts").read_text().splitlines()) == 2)
    assert not (out / "twice").exists()
    assert site.attempts(number)[0].outcome == "infrastructure"


def test_a_scheduler_that_was_killed_between_update_and_release_goes_on_with_the_same_placement(site: Site) -> None:
    refuse = site.cluster.root / "refuse"
    refuse.touch()
    number = site.sbatch("--gres=gpu:2")
    site.ticks_until(lambda: number in site.jobs() and site.attempts(number))
    before = site.attempts(number)[0].placement
    site.restart()
    refuse.unlink()
    site.state_becomes(number, JobState.SUCCEEDED)
    assert [attempt.placement for attempt in site.attempts(number)] == [before]


@pytest.mark.full
def test_a_hung_controller_hides_the_jobs_and_ends_none(site: Site) -> None:
    number = site.sbatch("--gres=gpu:2", script="sleep 300")
    site.state_becomes(number, JobState.RUNNING)
    site.slurm_times = SlurmTimes(deadline_s=1.0, rest_s=1.0)  # of what will not come
    site.restart()
    os.kill(site.cluster.pid("slurmctld"), signal.SIGSTOP)
    try:
        site.ticks_until(lambda: site.attempts(number)[0].contact == "unknown")
    finally:
        os.kill(site.cluster.pid("slurmctld"), signal.SIGCONT)
    site.ticks_until(lambda: site.attempts(number)[0].contact == "ok")
    assert site.jobs()[number].state is JobState.RUNNING
