"""Users of a real Slurm submit by sbatch as ever, and the scheduler chooses their GPUs."""

import tempfile
from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path

import pytest

from benchmarks.slurm_cluster import SlurmCluster
from longshore.scheduler.control.reconciler import ReconcilerTiming
from longshore.scheduler.model.states import Desired, JobState
from tests.scheduler.backends.attempts import until
from tests.scheduler.backends.slurm_users import Site, heal, held_gpus_of, holding_slurm

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def holding() -> Iterator[SlurmCluster]:
    with holding_slurm() as cluster:
        cluster.start()
        yield cluster


@pytest.fixture
def site(holding: SlurmCluster, tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path, holding)
    yield site
    site.end()
    heal(holding)


@pytest.fixture
def out(holding: SlurmCluster) -> Path:
    """A folder that all users can write to."""
    folder = Path(tempfile.mkdtemp(dir=holding.root))
    folder.chmod(0o777)
    return folder


def say_gpus(out: Path) -> str:
    return f"srun sh -c 'echo $SLURMD_NODENAME $CUDA_VISIBLE_DEVICES' > {out}/$SLURM_JOB_ID"


def output_of(out: Path, number: str) -> list[str]:
    return sorted((out / number).read_text().splitlines())


def chosen(site: Site, number: str) -> list[str]:
    placement = site.attempts(number)[-1].placement
    return [f"{share.node} {','.join(map(str, share.gpus))}" for share in placement]


def test_a_users_job_runs_on_exactly_the_gpus_that_the_policy_chose(site: Site, out: Path) -> None:
    numbers = [site.sbatch(f"--gres=gpu:{gpus}", script=say_gpus(out)) for gpus in (2, 1, 3, 4, 1)]
    for number in numbers:
        row = site.state_becomes(number, JobState.SUCCEEDED)
        assert output_of(out, number) == chosen(site, number)
        assert (row.owner, row.name) == ("nobody", "wrap")


def test_a_job_of_several_nodes_gets_the_same_gpus_of_each(site: Site, out: Path) -> None:
    wanted = (("--nodes=2", "--gpus-per-node=3"), ("--nodes=2", "--gpus=4"), ("--gpus=2",))
    numbers = [site.sbatch(*options, script=say_gpus(out)) for options in wanted]
    for number, gpus in zip(numbers, (6, 4, 2), strict=True):
        assert site.state_becomes(number, JobState.SUCCEEDED).gpus == gpus
        assert output_of(out, number) == chosen(site, number)


def test_cores_and_memory_for_each_gpu_are_what_the_user_asked_for(site: Site, out: Path) -> None:
    script = f"echo $SLURM_CPUS_ON_NODE $SLURM_MEM_PER_GPU > {out}/$SLURM_JOB_ID"
    number = site.sbatch("--gres=gpu:2", "--cpus-per-gpu=3", "--mem-per-gpu=200", script=script)
    site.state_becomes(number, JobState.SUCCEEDED)
    assert output_of(out, number) == ["6 200"]


def test_each_task_of_an_array_is_a_job_of_its_own(site: Site, out: Path) -> None:
    number = site.sbatch(
        "--array=0-2", "--gres=gpu:2", script=f"touch {out}/$SLURM_ARRAY_TASK_ID; exit $SLURM_ARRAY_TASK_ID"
    )
    site.state_becomes(f"{number}_0", JobState.SUCCEEDED)
    row = site.state_becomes(f"{number}_2", JobState.FAILED)
    assert row.cause == "rank 0 ended with exit code 2"
    assert sorted(path.name for path in out.iterdir()) == ["0", "1", "2"]


def test_a_job_that_is_to_begin_later_is_not_taken_up_before(site: Site) -> None:
    later, sooner = site.sbatch("--begin=now+3600", "--gres=gpu:1"), site.sbatch("--gres=gpu:1")
    site.state_becomes(sooner, JobState.SUCCEEDED)
    assert set(site.jobs()) == {sooner}
    assert site.is_in_slurm(later, "PENDING")


def test_no_user_can_forge_a_job_by_a_name(site: Site) -> None:
    victim = site.sbatch("--partition=other", "--hold", "--gres=gpu:1", user=0)
    line = f"{victim}|PENDING|0|0|0|N/A|1:00|root|longshore:1795372952:{'a' * 20}:1x4:forged|"
    number = site.sbatch("--gres=gpu:1", "--job-name", f"mine\n{line}\n")
    row = site.state_becomes(number, JobState.SUCCEEDED)
    assert (set(site.jobs()), row.name[:4], row.owner) == ({number}, "mine", "nobody")
    assert "ReqNodeList=(null)" in site.shown(victim)


def test_jobs_without_gpus_and_of_other_partitions_go_untouched(site: Site) -> None:
    numbers = [site.sbatch(script="sleep 30"), site.sbatch("--partition=other", "--gres=gpu:1", script="sleep 30")]
    for number in numbers:
        site.ticks_until(partial(site.is_in_slurm, number, "RUNNING"))
        assert "AdminComment" not in site.shown(number)
    assert not site.jobs()


def test_a_job_that_its_owner_ends_by_scancel_is_cancelled_waiting_or_running(site: Site) -> None:
    running, waiting = (site.sbatch("--nodes=2", "--gpus-per-node=4", script="sleep 300") for _ in range(2))
    site.state_becomes(running, JobState.RUNNING)
    site.ticks_until(lambda: waiting in site.jobs())
    for number in (waiting, running):
        assert site.as_user("scancel", number).returncode == 0
        site.state_becomes(number, JobState.CANCELLED)
    site.ticks_until(lambda: not held_gpus_of(site))


def test_a_job_that_is_cancelled_here_ends_in_slurm_waiting_or_running(site: Site) -> None:
    running, waiting = (
        site.sbatch("--nodes=2", "--gpus-per-node=4", "--requeue", script="sleep 300") for _ in range(2)
    )
    site.state_becomes(running, JobState.RUNNING)
    site.ticks_until(lambda: waiting in site.jobs())
    for number in (waiting, running):
        site.want(number, Desired.CANCEL)
        site.state_becomes(number, JobState.CANCELLED)
        site.ticks_until(partial(site.is_in_slurm, number, "CANCELLED"))


def test_a_job_that_is_held_here_while_it_runs_goes_on_elsewhere_when_it_is_released(site: Site, out: Path) -> None:
    script = f"echo $CUDA_VISIBLE_DEVICES >> {out}/starts; [ -e {out}/go ] || sleep 300"
    number = site.sbatch("--gres=gpu:1", "--requeue", script=script)
    site.state_becomes(number, JobState.RUNNING)
    site.want(number, Desired.HOLD)
    site.state_becomes(number, JobState.HELD)
    assert site.slurm_says(number) == "PENDING"
    other = site.sbatch("--gres=gpu:4", script="sleep 300")  # where it was
    site.state_becomes(other, JobState.RUNNING)
    (out / "go").touch()
    site.want(number, Desired.RUN)
    site.state_becomes(number, JobState.SUCCEEDED)
    assert len(site.attempts(number)) == 2


def test_the_next_scheduler_takes_up_what_the_last_one_left(site: Site, out: Path) -> None:
    script = f"while [ ! -e {out}/go ]; do sleep 0.1; done; exit 3"
    running, waiting = (site.sbatch("--nodes=2", "--gpus-per-node=4", script=script) for _ in range(2))
    site.state_becomes(running, JobState.RUNNING)
    site.ticks_until(lambda: waiting in site.jobs())
    site.restart()
    (out / "go").touch()
    for number in (running, waiting):
        row = site.state_becomes(number, JobState.FAILED)
        assert (row.attempt, row.cause) == (1, "rank 0 ended with exit code 3")


def test_a_job_that_ended_between_two_polls_has_the_end_that_slurm_reports(site: Site, out: Path) -> None:
    number = site.sbatch("--gres=gpu:1", script=f"while [ ! -e {out}/go ]; do sleep 0.1; done; exit 7")
    site.state_becomes(number, JobState.RUNNING)
    (out / "go").touch()
    until(lambda: site.slurm_says(number) == "FAILED")
    site.restart()
    assert site.state_becomes(number, JobState.FAILED).cause == "rank 0 ended with exit code 7"


def test_users_cannot_release_a_held_job_or_move_it(site: Site) -> None:
    number = site.sbatch("--gres=gpu:1")
    others = ("NumNodes=1-2", "Dependency=afterany:1", "Features=fast", "ExcNodeList=a", "Licenses=x", "QOS=normal",
              "ReservationName=r", "StartTime=now+3600", "Partition=main,other", "OverSubscribe=NO")  # fmt: skip
    for line in (
        ("release", number),
        *(("update", f"JobId={number}", change) for change in ("ReqNodeList=a", *others)),
    ):
        done = site.as_user("scontrol", *line)
        assert done.returncode != 0, line
        # The plug-in's word, or of an array or a release what Slurm makes of it.
        assert "only Longshore releases" in done.stderr or "Unspecified error" in done.stderr, (line, done.stderr)
    assert site.as_user("scontrol", "update", f"JobId={number}", "JobName=other").returncode == 0
    assert site.slurm_says(number) == "PENDING"


@pytest.mark.parametrize(
    ("options", "why"),
    [
        (("--gres=gpu:5",), "1 nodes with 5 GPUs each are requested, and there are 0"),
        (("--nodes=3", "--gres=gpu:1"), "3 nodes with 1 GPUs each are requested, and there are 2"),
        (("--gres=gpu:i1:1",), "ask for a number of GPUs"),
        (("-n2", "--gpus-per-task=1"), "write --gpus-per-node"),
        (("--nodes=2", "--gpus=3"), "the same number of GPUs on each node"),
        (("--gres=gpu:1", "--nodelist=a"), "--nodelist cannot be obeyed"),
        (("--gres=gpu:1", "--partition=main,other"), "name partitions that Longshore places jobs of"),
        (("--gres=gpu:1", "--hold"), "--hold cannot be obeyed"),
        (("--gres=gpu:1", "--exclusive"), "--exclusive cannot be obeyed"),
        (("--gres=gpu:1", "--exclusive=user"), "--exclusive cannot be obeyed"),
        (("--gres=gpu:1", "--array=0-3%2"), "an array cannot have a limit of tasks at a time"),
    ],
)
def test_what_can_never_be_placed_is_refused_at_once_with_a_reason(
    site: Site, options: tuple[str, ...], why: str
) -> None:
    def refused() -> str:
        # On a busy machine an answer may come too late: such a job is held, and refused by the scheduler.
        done = site.try_sbatch(*options)
        return done.stderr if done.returncode else ""

    assert why in until(refused)


def test_a_job_that_may_not_be_requeued_runs_on_when_it_is_held_and_ends_when_it_is_cancelled(site: Site) -> None:
    script = f"while [ ! -e {site.cluster.root}/run/go ]; do sleep 0.1; done"
    kept, ended = (site.sbatch("--gres=gpu:1", "--no-requeue", script=script) for _ in range(2))
    for number in (kept, ended):
        site.state_becomes(number, JobState.RUNNING)
        site.want(number, Desired.HOLD)
        site.state_becomes(number, JobState.STOPPING)
    site.want(ended, Desired.CANCEL)
    site.state_becomes(ended, JobState.CANCELLED)
    assert site.is_in_slurm(ended, "CANCELLED")
    assert site.is_in_slurm(kept, "RUNNING")
    (site.cluster.root / "run" / "go").touch()
    site.state_becomes(kept, JobState.SUCCEEDED)


def test_what_many_cancels_end_in_slurm_is_spread_over_looks(site: Site) -> None:
    running = site.sbatch("--nodes=2", "--gpus-per-node=4", script="sleep 300")
    site.state_becomes(running, JobState.RUNNING)
    waiting = [site.sbatch("--gres=gpu:1") for _ in range(3)]
    site.ticks_until(lambda: set(waiting) <= set(site.jobs()))
    site.times = ReconcilerTiming(discard_s=0.0)
    site.restart()
    for number in waiting:
        site.want(number, Desired.CANCEL)
    ended = [0]

    def all_ended() -> bool:
        ended.append(sum(site.is_in_slurm(number, "CANCELLED") for number in waiting))
        return ended[-1] == len(waiting)

    site.ticks_until(all_ended)
    assert max(after - before for before, after in pairwise(ended)) == 1
