"""A scheduler with real attempts, whose clock and whose way to the backend the test has in its hands."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Self, TypeVar

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.files.errors import BackendError
from longshore.cluster.files.processes import Process, environment, living, this_process_name
from longshore.cluster.model.placement import Placement
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.scheduler.backends.building import full_name
from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.backends.protocol import Attempt, Backend, Capabilities, NodeView
from longshore.scheduler.control.reconciler import DEFAULT_TIMING, Reconciler
from longshore.scheduler.control.state_cache import Parts
from longshore.scheduler.health.monitor import Monitor
from longshore.scheduler.metrics import StoreCollector
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.model.job import JobRow, ReservationRow, new_job_id
from longshore.scheduler.model.job_spec import JobFile
from longshore.scheduler.model.states import FINAL, Desired, JobState, Status
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.service.queue_now import QueueNow, why_jobs_wait
from longshore.scheduler.service.running_scheduler import RunningScheduler
from longshore.scheduler.service.service import layout_of, node_types_of, site_of
from longshore.scheduler.settings import SchedulerSettings
from longshore.scheduler.store.attempts import AttemptRow, attempts_of, held_gpus
from longshore.scheduler.store.database import open_store
from longshore.scheduler.store.events import EventRow, events_after
from longshore.scheduler.store.jobs import NewJob, get_job, insert_job, set_desired
from tests.scheduler.backends.attempts import end_all

ValueT = TypeVar("ValueT")
PATIENCE_S = 180.0

SIMPLE, RING = "{model: simple, node_penalty: 0.05}", "{model: ring}"
CLUSTER = """\
name: trial
node_types:
{types}
racks:
  - nodes:
{nodes}
run_time: {run_time}
"""


class KilledError(BaseException):
    """The scheduler was killed at this point; nobody catches it but the test."""


class Way(Backend):
    """The way to a backend, on which calls can be lost, refused, slow, or the last ones of a scheduler.

    Args:
        backend: Where it leads.
    """

    def __init__(self, backend: Backend) -> None:
        self.backend = backend
        known = backend.capabilities
        self.capabilities = Capabilities(known.exact_gpus, known.atomic_gang, known.enforced, known.known_in)
        self.before: Callable[[str], None] = lambda _call: None  # reported the name of each call before it is made
        self.after: Callable[[str], None] = lambda _call: None  # and when it has been made
        self.silent_s: dict[str, float] = {}  # last answer of each silent node

    @classmethod
    def build(cls, settings: object, folder: Path, layout: Layout) -> Self:
        return cls(LocalBackend(folder, layout.nodes))

    def _call(self, name: str, call: Callable[[], ValueT]) -> ValueT:
        self.before(name)
        value = call()
        self.after(name)
        return value

    def observe(self) -> tuple[NodeView, ...]:
        seen = self._call("observe", self.backend.observe)
        return tuple(replace(node, seen_s=self.silent_s.get(node.name, node.seen_s)) for node in seen)

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        self._call("launch", lambda: self.backend.launch(attempt, placement))

    def status(self, name: str) -> Status:
        return self._call("status", lambda: self.backend.status(name))

    def statuses(self, names: tuple[str, ...]) -> dict[str, Status]:
        return self._call("statuses", lambda: self.backend.statuses(names))

    def cancel(self, name: str, reason: str) -> None:
        self._call("cancel", lambda: self.backend.cancel(name, reason))

    def is_proven_gone(self, name: str) -> bool:
        return self._call("is_proven_gone", lambda: self.backend.is_proven_gone(name))

    def logs(self, name: str, rank: int, offset: int, max_bytes: int) -> tuple[bytes, int]:
        return self.backend.logs(name, rank, offset, max_bytes)

    def forget(self, name: str) -> None:
        self._call("forget", lambda: self.backend.forget(name))


def failing(*calls: str) -> Callable[[str], None]:
    """Return what lets calls fail as a backend does that answers with status 500."""

    def fail(call: str) -> None:
        if call in calls:
            raise BackendError("status 500")

    return fail


class Trial:
    """A scheduler that ticks on request, with jobs as real processes unless another backend is given.

    Args:
        folder: Of everything.
        nodes: GPUs of each node.
        make: Makes the backend, anew for each scheduler.
        name: Of the backend.
        run_time: Model of the cluster file.
    """

    def __init__(
        self, folder: Path, nodes: Mapping[str, int], make: Callable[[], Backend] | None = None, name: str = "local",
        run_time: str = SIMPLE,
    ) -> None:  # fmt: skip
        self.folder, self.nodes, self.backend_name = folder, dict(nodes), name
        self.make = make or (lambda: LocalBackend(folder, self.nodes))
        path = folder / "cluster.yaml"
        path.write_text(_cluster_file(self.nodes, run_time))
        setup = read_cluster(path)
        self.layout, self.types = layout_of(setup), node_types_of(setup)
        self.site = site_of(setup, SchedulerSettings(folder=folder))
        self.store = open_store(f"sqlite:///{folder / 'store.db'}")
        self.later_s = 0.0  # by how much the scheduler's clock is ahead of the real one
        self.way, self.times = Way(self.make()), DEFAULT_TIMING
        self.scheduler = self.another()

    def now_s(self) -> float:
        return time.time() + self.later_s

    def parts(self, way: Way, owner: str) -> Parts:
        monitor = Monitor(way, self.backend_name, self.layout, self.types)
        placer = Placer(HEURISTICS["pack"])
        return Parts(
            store=self.store, backend=way, backend_name=full_name(self.backend_name, way), site=self.site,
            layout=self.layout, placer=placer, now_s=self.now_s, owner=owner, monitor=monitor,
        )  # fmt: skip

    def another(self, owner: str | None = None) -> Reconciler:
        """Return another scheduler of the same store, as another process would be; proven dead if nobody is named."""
        return Reconciler(self.parts(self.way, owner or proven_dead()), self.times)

    def crash(self) -> None:
        """Go on as another process would that finds what a killed one has left."""
        silent_s = self.way.silent_s
        self.way = Way(self.make())
        self.way.silent_s = silent_s
        self.scheduler = self.another()

    def submit(self, script: str, gpus: int = 1, **spec: object) -> str:
        """Submit a shell script, which runs once for each GPU."""
        fields = {"command": ["sh", "-c", script], "gpus": gpus, "grace_s": 2.0, **spec}
        job = JobFile.model_validate(fields)
        new = NewJob(
            new_job_id(self.now_s()), job.name, "ada", job.model_dump(mode="json"), 0, job.all_gpus, 60.0, self.now_s()
        )
        self.store.write(lambda tx: insert_job(tx, new, writer="api"))
        return new.id

    def wish(self, job: str, desired: Desired) -> None:
        self.store.write(lambda tx: set_desired(tx, job, desired, at_s=self.now_s(), writer="api"))

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            self.scheduler.tick()

    def wait(self, seconds: float, step_s: float = 5.0) -> None:
        """Let time pass on the scheduler's clock, with a look after each step."""
        for _ in range(round(seconds / step_s)):
            self.later_s += step_s
            self.tick()

    def until(self, is_so: Callable[[], object]) -> None:
        """Let the scheduler look until something has come true."""
        give_up = time.monotonic() + PATIENCE_S
        while not is_so():
            assert time.monotonic() < give_up, "it did not come true"
            self.tick()
            time.sleep(0.02)  # for the jobs: a tick takes several milliseconds of a core

    def runs(self, job: str) -> None:
        self.until(lambda: self.job(job).state is JobState.RUNNING)

    def ends(self, job: str) -> JobRow:
        """Return a job that has ended, with nothing left of it to be cleaned up."""
        self.until(lambda: self.job(job).state in FINAL and self.attempts(job)[-1].state == "closed")
        return self.job(job)

    def job(self, job: str) -> JobRow:
        with self.store.read() as tx:
            row = get_job(tx, job)
        assert row is not None
        return row

    def attempts(self, job: str) -> list[AttemptRow]:
        with self.store.read() as tx:
            return attempts_of(tx, job)

    def held(self) -> list[ReservationRow]:
        with self.store.read() as tx:
            return held_gpus(tx)

    def events(self, job: str | None = None) -> list[EventRow]:
        with self.store.read() as tx:
            return events_after(tx, 0, 1 << 40, job)

    def gauge(self, name: str) -> float:
        """Return what a gauge without labels tells."""
        gauges = StoreCollector(self.store, self.layout, self.types, self.now_s).collect()
        (value,) = [sample.value for gauge in gauges for sample in gauge.samples if sample.name == name]
        return float(value)

    def close(self) -> None:
        self.scheduler.parts.placer.end()
        self.store.close()


@contextmanager
def local_trial(folder: Path, nodes: Mapping[str, int]) -> Iterator[Trial]:
    """A trial whose jobs are real processes, which are gone afterwards."""
    it = Trial(folder, nodes)
    yield it
    it.close()
    end_all(folder)


def proven_dead() -> str:
    """Return the owner of a lease whom everybody can see to be gone."""
    return re.sub(r"(?<= start )[0-9]+", "0", this_process_name())


def processes_of(job: str) -> list[Process]:
    """Return the living processes of a job, by their environment."""
    mark = f"ls-{job}-".encode()
    return [
        it for it in living() if environment(it, b"LONGSHORE_ATTEMPT").get(b"LONGSHORE_ATTEMPT", b"").startswith(mark)
    ]


def _cluster_file(nodes: Mapping[str, int], run_time: str) -> str:
    sizes = sorted(set(nodes.values()))
    rates = "memory_bytes: 1e9, intra_bytes_per_s: 10e9, nic_bytes_per_s: 10e9"
    flops = {size: 1e12 if run_time == SIMPLE else 1e12 * size for size in sizes}
    types = [f"  of{size}: {{gpus: {size}, peak_flops: {flops[size]}, {rates}}}" for size in sizes]
    lines = [f"      - {{type: of{gpus}, name: {node}}}" for node, gpus in nodes.items()]
    return CLUSTER.format(types="\n".join(types), nodes="\n".join(lines), run_time=run_time)


def reason(trial: Trial, job: str) -> str:
    """Return why a job waits, as users read it."""
    queue = QueueNow(SchedulerSettings(folder=trial.folder), trial.layout, RunningScheduler(trial.scheduler))
    with trial.store.read() as tx:
        return why_jobs_wait(tx, [trial.job(job)], queue.read(tx, trial.now_s()))[job].reason
