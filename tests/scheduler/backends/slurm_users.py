"""A real Slurm whose users submit by sbatch, and a scheduler that places their jobs."""

import os
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from benchmarks.slurm_cluster import SlurmCluster, why_no_plugin, why_not
from longshore.agents.registry import find_policy
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.scheduler.backends.slurm.backend import SlurmBackend
from longshore.scheduler.backends.slurm.commands import SLURM_TIMES
from longshore.scheduler.control.node_checks import NodeChecks
from longshore.scheduler.control.reconciler import DEFAULT_TIMING, Reconciler
from longshore.scheduler.control.state_cache import Parts
from longshore.scheduler.health.monitor import Monitor
from longshore.scheduler.model.job import JobRow, ReservationRow
from longshore.scheduler.model.states import Desired, JobState
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.service.service import layout_of, node_types_of, site_of
from longshore.scheduler.settings import SchedulerSettings
from longshore.scheduler.store.attempts import AttemptRow, attempts_of, held_gpus
from longshore.scheduler.store.database import Store, open_store
from longshore.scheduler.store.jobs import list_jobs, set_desired
from tests.support import processes

NOBODY = 65534
PATIENCE_S = 180.0
CLUSTER = """\
name: two
node_types: {{slots: {{gpus: 4, peak_flops: 1e12, memory_bytes: 1e9, intra_bytes_per_s: 10e9, nic_bytes_per_s: 10e9}}}}
racks: [{{nodes: [{nodes}]}}]
run_time: {{model: simple, node_penalty: 0.05}}
"""


MORE = """\
JobSubmitPlugins=lua
PartitionName=other Nodes=ALL Default=NO MaxTime=INFINITE State=UP OverSubscribe=NO
"""


@contextmanager
def holding_slurm() -> Iterator[SlurmCluster]:
    """A Slurm of two nodes that holds jobs, in a folder that all users can read; not started yet."""
    if why := why_not() or why_no_plugin():
        pytest.skip(why)
    root = Path(tempfile.mkdtemp(prefix="longshore-"))
    root.chmod(0o755)
    cluster = SlurmCluster(root / "slurm", "ab", MORE)
    try:
        cluster.hold_jobs(cluster.root / "run" / "sbatch.sock")
        yield cluster
    finally:
        cluster.end()
        shutil.rmtree(root, ignore_errors=True)


def heal(cluster: SlurmCluster) -> None:
    """End all jobs, and let all of it run."""
    cluster.call("scancel", "-u", "nobody")
    cluster.heal()


def held_gpus_of(site: "Site") -> list[ReservationRow]:
    """Return the GPUs that are not free for the scheduler."""
    with site.store.read() as tx:
        return held_gpus(tx)


def block(site: "Site") -> str:
    """Let no other job start on any node, and return the number of the job that does that."""
    options = ("--parsable", f"--nodes={len(site.cluster.nodes)}", "--ntasks-per-node=16", "--output=/dev/null")
    number = site.cluster.call("sbatch", *options, "--wrap", "sleep 1000").strip()
    site.ticks_until(lambda: site.is_in_slurm(number, "RUNNING"))
    return number


class Site:
    """A scheduler over a Slurm, and what its users do.

    Args:
        folder: For all that the scheduler writes.
        cluster: The Slurm.
        takes_sbatch: Whether it places what users submit by sbatch.
    """

    def __init__(self, folder: Path, cluster: SlurmCluster, *, takes_sbatch: bool = True) -> None:
        self.folder, self.cluster, self._takes_sbatch = folder, cluster, takes_sbatch
        self.socket = cluster.root / "run" / "sbatch.sock"
        names = ", ".join(f"{{type: slots, name: {name}}}" for name in cluster.nodes)
        (folder / "cluster.yaml").write_text(CLUSTER.format(nodes=names))
        self.store: Store = open_store(f"sqlite:///{folder / 'longshore.db'}")
        self.later_s = 0.0  # by how much the scheduler's clock is ahead
        self.times, self.slurm_times = DEFAULT_TIMING, SLURM_TIMES  # of the next scheduler
        self.checks = NodeChecks(slots=True)  # likewise
        self.begin()

    def begin(self, backend: SlurmBackend | None = None) -> None:
        """Start the scheduler, or another one in its place."""
        setup = read_cluster(self.folder / "cluster.yaml")
        self.layout = layout = layout_of(setup)
        sbatch_socket = self.socket if self._takes_sbatch else None
        self.backend = backend or SlurmBackend(
            self.folder, layout.nodes, conf=self.cluster.conf, sbatch_socket=sbatch_socket, times=self.slurm_times
        )
        monitor = Monitor(self.backend, "slurm", layout, node_types_of(setup))
        site, placer = site_of(setup, SchedulerSettings(folder=self.folder)), Placer(find_policy("spread"))
        self.scheduler = Reconciler(
            Parts(
                store=self.store,
                backend=self.backend,
                backend_name="slurm",
                site=site,
                layout=layout,
                placer=placer,
                now_s=self.now_s,
                owner="test",
                monitor=monitor,
                checks=self.checks,
            ),
            self.times,
        )

    def now_s(self) -> float:
        """Return the time by the scheduler's clock."""
        return time.time() + self.later_s

    def restart(self) -> None:
        """End the scheduler, and start another one that knows nothing but the store and the folder."""
        self.scheduler.close()
        self.begin()

    def end(self) -> None:
        """End it all but the Slurm."""
        self.scheduler.close()
        self.store.close()

    def sbatch(self, *options: str, script: str = "true", user: int = NOBODY) -> str:
        """Submit a script as a user does, and return the job's number."""
        done = self.try_sbatch(*options, script=script, user=user)
        assert done.returncode == 0, done.stderr
        return done.stdout.strip()

    def try_sbatch(self, *options: str, script: str = "true", user: int = NOBODY) -> processes.CompletedProcess[str]:
        """Submit a script as a user does."""
        line = ["sbatch", "--parsable", "--chdir=/tmp", "--output=/dev/null", *options, "--wrap", script]
        return self.as_user(*line, user=user)

    def as_user(self, *line: str, user: int = NOBODY) -> processes.CompletedProcess[str]:
        """Run one of Slurm's commands as a user."""
        environment = {"PATH": os.environ["PATH"], "SLURM_CONF": str(self.cluster.conf)}
        return processes.run(
            line, env=environment, cwd="/tmp", user=user, group=user, extra_groups=(), capture_output=True,
            timeout_s=PATIENCE_S, check=False,
        )  # fmt: skip

    def jobs(self) -> dict[str, JobRow]:
        """Return the jobs of the store by their numbers in Slurm."""
        with self.store.read() as tx:
            rows = list_jobs(tx, limit=200)
        return {str(row.spec["external"]["number"]): row for row in rows}  # type: ignore[index]

    def want(self, number: str, desired: Desired) -> None:
        """Wish something of a job as the API does."""
        job = self.jobs()[number].id
        self.store.write(lambda tx: set_desired(tx, job, desired, at_s=time.time(), writer="api"))

    def attempts(self, number: str) -> list[AttemptRow]:
        """Return the attempts of a job."""
        with self.store.read() as tx:
            return attempts_of(tx, self.jobs()[number].id)

    def ticks_until(self, check: Callable[[], object]) -> None:
        """Let the scheduler work until something holds."""
        until_s = time.monotonic() + PATIENCE_S
        self.scheduler.tick()
        while not check():
            assert time.monotonic() < until_s, "it did not come true"
            time.sleep(0.05)
            self.scheduler.tick()

    def state_becomes(self, number: str, state: JobState) -> JobRow:
        """Let the scheduler work until a job is in a state, and return it."""
        self.ticks_until(lambda: number in self.jobs() and self.jobs()[number].state is state)
        return self.jobs()[number]

    def slurm_says(self, number: str) -> str:
        """Return the state of a job in Slurm's words."""
        return self.cluster.call("squeue", "-h", "-a", "-t", "all", "-j", number, "-o", "%T").strip()

    def is_in_slurm(self, number: str, state: str) -> bool:
        """Say whether a job is in a state in Slurm's words."""
        return self.slurm_says(number) == state

    def shown(self, number: str) -> str:
        """Return what Slurm says of a job."""
        return self.cluster.call("scontrol", "show", "--details", "job", number)
