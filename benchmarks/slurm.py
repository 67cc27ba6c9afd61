"""A real Slurm of 4 nodes of 4 GPUs under the live scheduler, with 60 jobs of 1 to 8 GPUs placed at random.

Meanwhile the daemon of one node is killed and later restarted, and the controller is restarted. Each rank reports from
inside which GPU it got.
"""

import statistics
import sys
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from longshore.agents.registry import find_policy
from longshore.cluster.files.errors import BackendError
from longshore.cluster.model.placement import Placement
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.scheduler.backends.protocol import Attempt
from longshore.scheduler.backends.slurm.backend import SlurmBackend
from longshore.scheduler.control.reconciler import Reconciler
from longshore.scheduler.control.state_cache import Parts
from longshore.scheduler.health.monitor import Monitor
from longshore.scheduler.model.job import JobRow
from longshore.scheduler.model.states import FINAL, JobState, Run
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.service.own_cluster import default_cluster
from longshore.scheduler.service.service import layout_of, site_of
from longshore.scheduler.settings import SchedulerSettings
from longshore.scheduler.store.attempts import get_attempt
from longshore.scheduler.store.database import Store, open_store
from longshore.scheduler.store.jobs import NewJob, get_job, insert_job

from .harness import Row, main, progress
from .slurm_cluster import SlurmCluster, why_not

JOBS = 60
SEED = 7
PATIENCE_S = 400.0
TICK_S = 0.1
MOST_MS = 50
COMMAND = "date +%s.%N; echo $LONGSHORE_NODE $(echo $CUDA_VISIBLE_DEVICES | cut -d, -f$((LOCAL_RANK + 1))); exec sleep "


class Timed(SlurmBackend):
    """The backend, with a stopwatch on launches."""

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        """Start an attempt, and note how long that took the first time."""
        begin_s = time.perf_counter()
        super().launch(attempt, placement)
        self.took_s.setdefault(attempt.name, time.perf_counter() - begin_s)

    took_s: dict[str, float]


class Stay(NamedTuple):
    """A rank on its GPU."""

    gpu: str
    begin_s: float
    end_s: float


def submit_all(store: Store, jobs: int) -> list[str]:
    """Put jobs into the store and return their ids."""
    rng = np.random.default_rng(SEED)
    names = [f"{number:026}" for number in range(jobs)]
    for name in names:
        gpus, sleep_s = int(rng.integers(1, 9)), float(rng.uniform(0.2, 3.0))
        spec = {
            "gpus": gpus, "command": ["sh", "-c", f"{COMMAND}{sleep_s:.2f}"], "estimate_s": sleep_s, "grace_s": 1.0,
            "retry": {"ambiguous": 20},
        }  # fmt: skip
        new = NewJob(name, "job", "benchmark", spec, 0, gpus, sleep_s, time.time())
        store.write(partial(insert_job, new=new, writer="api"))
    return names


def rows_of(store: Store, names: list[str]) -> list[JobRow]:
    """Return the jobs as they stand."""
    with store.read() as tx:
        return [row for name in names if (row := get_job(tx, name)) is not None]


def run(scheduler: Reconciler, store: Store, names: list[str], cluster: SlurmCluster) -> None:
    """Let the scheduler run all jobs to their ends, while parts of Slurm die and come back."""
    jobs, doomed, until_s = len(names), f"slurmd.{cluster.nodes[-1]}", time.monotonic() + PATIENCE_S
    faults: list[tuple[int, Callable[[], None]]] = [
        (jobs // 6, lambda: cluster.kill(doomed)),
        (jobs // 3, cluster.restart_controller),
        (2 * jobs // 3, lambda: cluster.start_node(cluster.nodes[-1])),
    ]
    while (ended := sum(row.state in FINAL for row in rows_of(store, names))) < jobs and time.monotonic() < until_s:
        if faults and ended >= faults[0][0]:
            progress(f"{ended} of {jobs} jobs have ended: fault {4 - len(faults)} of 3")
            faults.pop(0)[1]()
        scheduler.tick()
        time.sleep(TICK_S)


def stays_of(backend: SlurmBackend, row: JobRow, number: int, placement: Placement) -> tuple[bool, list[Stay]]:
    """Return whether the ranks of an attempt that ended saw the GPUs that were decided, and how long they stayed."""
    name = f"ls-{row.id}-{number}"
    chosen = [f"{share.node} {gpu}" for share in placement for gpu in share.gpus]
    status = backend.status(name)
    ended_s = {end.rank: end.ended_s for end in status.ends}
    exact, stays = status.run is Run.EXITED, []
    for rank, gpu in enumerate(chosen):
        lines = reported(backend, name, rank)
        if lines[1:] != [gpu]:
            exact = False
            progress(f"{name}: rank {rank} reports {lines}, not {gpu}; {status}")
        if lines:
            stays.append(Stay(gpu, float(lines[0]), ended_s.get(rank, float(lines[0]))))
    return exact, stays


def reported(backend: SlurmBackend, name: str, rank: int) -> list[str]:
    """Return what a rank printed; nothing of one that never started."""
    try:
        return backend.logs(name, rank, 0, 1000)[0].decode().splitlines()
    except BackendError:
        return []


def overlaps(stays: list[Stay]) -> int:
    """Return how often two ranks were on one GPU at the same time."""
    ordered = sorted(stays)
    return sum(one.gpu == other.gpu and other.begin_s < one.end_s for one, other in pairwise(ordered))


def measure(jobs: int = JOBS) -> Iterator[Row]:
    """Yield how many of some jobs came through, on which GPUs, and how long launches took."""
    if why := why_not():
        sys.exit(f"no Slurm here: {why}")
    with TemporaryDirectory(prefix="longshore-") as name:
        folder = Path(name)
        setup = read_cluster(default_cluster(folder))
        layout = layout_of(setup)
        cluster = SlurmCluster(folder / "slurm", list(layout.nodes))
        store = open_store(f"sqlite:///{folder / 'longshore.db'}")
        try:
            cluster.start()
            backend = Timed(folder, layout.nodes, conf=cluster.conf)
            backend.took_s = {}
            site = site_of(setup, SchedulerSettings(folder=folder))
            placer = Placer(find_policy("spread"))
            monitor = Monitor(backend, "slurm", layout, {})
            parts = Parts(
                store=store, backend=backend, backend_name="slurm", site=site, layout=layout, placer=placer,
                now_s=time.time, owner="benchmark", monitor=monitor,
            )  # fmt: skip
            scheduler = Reconciler(parts)
            scheduler.tick()
            names = submit_all(store, jobs)
            begin_s = time.perf_counter()
            run(scheduler, store, names, cluster)
            yield from rows(store, backend, names, time.perf_counter() - begin_s)
            cluster.heal()
        finally:
            cluster.end()
            store.close()


def rows(store: Store, backend: Timed, names: list[str], whole_s: float) -> Iterator[Row]:
    """Yield what came of the jobs."""
    exact, unequal, again, stays = 0, 0, 0, []
    jobs = rows_of(store, names)
    for row in jobs:
        for number in range(1, row.attempt + 1):
            with store.read() as tx:
                attempt = get_attempt(tx, row.id, number)
            if attempt is None:
                continue
            is_exact, stayed = stays_of(backend, row, number, attempt.placement)
            stays += stayed
            if number == row.attempt:
                exact += is_exact
                unequal += len({len(share.gpus) for share in attempt.placement}) > 1
        again += row.attempt - 1
    yield Row("jobs that ended well", sum(row.state is JobState.SUCCEEDED for row in jobs), "jobs", least=len(names))
    yield Row("jobs whose ranks saw the GPUs that were decided", exact, "jobs", least=len(names))
    yield Row("of these with unequal counts per node", unequal, "jobs")
    yield Row("two ranks on one GPU at the same time", overlaps(stays), "times", most=0)
    yield Row("attempts that were lost with the node", again, "attempts")
    yield Row("launch, median", statistics.median(backend.took_s.values()) * 1000.0, "ms", most=MOST_MS)
    yield Row("launch, longest", max(backend.took_s.values()) * 1000.0, "ms")
    yield Row("whole run", whole_s, "s")


if __name__ == "__main__":
    main(measure)
