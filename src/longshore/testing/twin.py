"""The real scheduler on a simulated clock and a simulated cluster: what it decides can be compared with a simulation.

Source: DESIGN, twin test.
"""

from collections.abc import Iterable

import numpy as np
from sqlalchemy import Connection

from ..cluster.simulator.seats import compute_s
from ..scheduler.control.reconciler import Reconciler
from ..scheduler.control.state_cache import Parts
from ..scheduler.health.monitor import Monitor
from ..scheduler.mirror.cluster_mirror import ClusterSite
from ..scheduler.model.gpu_index import Layout
from ..scheduler.model.states import AttemptState
from ..scheduler.placement.placer import Placer
from ..scheduler.store.attempts import attempts_of
from ..scheduler.store.database import Store
from ..scheduler.store.events import events_after
from ..scheduler.store.jobs import NewJob, insert_job
from ..scheduler.store.nodes import put_compute_records
from ..scheduler.store.schema import compute_record
from .simulated import ROW, SimulatedBackend

TWIN_WRITER = "twin"
EVERY_EVENT = 1 << 40
TWIN_RETRY = {"infra": 1000}  # of each job: a simulation may have any number of faults
Start = tuple[float, int, tuple[int, ...]]  # time, job of the scenario and its GPUs, ascending


class Twin:
    """A scheduler whose jobs run in a simulation.

    Args:
        backend: The simulation, with true run times and faults.
        site: What policies know of the cluster.
        store: An empty store.
        placer: That decides.
        owner: Of the scheduler's lease.
    """

    def __init__(
        self, backend: SimulatedBackend, site: ClusterSite, store: Store, placer: Placer, owner: str = TWIN_WRITER
    ) -> None:
        self.backend = backend
        kinds = site.cluster.node_type.tolist()
        self._type_of = dict(zip(backend.layout.nodes, map(node_type_name, kinds), strict=True))
        monitor = Monitor(backend, "simulated", backend.layout, self._type_of)
        self.parts = Parts(
            store=store, backend=backend, backend_name="simulated", site=site, layout=backend.layout, placer=placer,
            now_s=lambda: backend.now_s, owner=owner, monitor=monitor, wake=self._wake,
        )  # fmt: skip
        self.scheduler = Reconciler(self.parts)
        self._is_woken = False
        backend.formed = self._record_compute_times

    @property
    def is_over(self) -> bool:
        """Whether all jobs have ended."""
        sim = self.backend.sim
        return bool(sim.state.finished[ROW] == sim.scenarios.jobs[ROW])

    def run(self) -> None:
        """Let the scheduler tick at each moment at which something happens, until all jobs have ended.

        Raises:
            RuntimeError: If the scheduler gives up a job that the simulation has not ended: that would wait for ever.
        """
        self.tick()
        while not self.is_over:
            self.process_next_moment()
            self.tick()
            self._check_all_live()

    def _check_all_live(self) -> None:
        sim, cache = self.backend.sim, self.scheduler.cache
        unfinished = int(sim.state.submitted[ROW]) - int(sim.state.finished[ROW])
        if cache is not None and len(cache.table.jobs) < unfinished:
            raise RuntimeError(f"of {unfinished} jobs that have not ended the scheduler has given up some")

    def tick(self) -> None:
        """Let the scheduler do all that is to be done now."""
        self.scheduler.tick()
        while self.scheduler.is_behind or self._is_woken:
            self._is_woken = False
            self.scheduler.tick()

    def _wake(self) -> None:
        self._is_woken = True

    def _record_compute_times(self, job: int) -> None:
        """Record how long a job computes on the node types of its ring, which the simulation knows.

        Real jobs report their steps instead. Of types that the ring has left nothing is known, as in a simulation.
        """
        self._wake()  # a scheduler ticks every second, and so sees that it runs long before anything else happens
        sim, mean_s = self.backend.sim, dict[str, list[float]]()
        for gpu in np.flatnonzero(sim.state.gpu_job[ROW] == job).tolist():
            kind = node_type_name(int(sim.cluster.node_type[sim.cluster.gpu_node[gpu]]))
            mean_s.setdefault(kind, []).append(float(compute_s(sim, ROW, job, gpu)))
        records = {kind: (1, sum(times_s) / len(times_s), ()) for kind, times_s in mean_s.items()}

        def put(tx: Connection) -> None:
            tx.execute(compute_record.delete().where(compute_record.c.job_id == id_of(job)))
            put_compute_records(tx, id_of(job), records)

        self.parts.store.write(put)

    def process_next_moment(self) -> None:
        """Process all events of the next moment, and submit its jobs."""
        state = self.backend.sim.state
        before = int(state.submitted[ROW])
        self.backend.process_moment(self.backend.next_event_time_s())
        self.submit(range(before, int(state.submitted[ROW])))

    def submit(self, jobs: Iterable[int]) -> None:
        """Submit jobs of the scenario, now."""
        new = [self._new_job(job) for job in jobs]
        for one in new:
            self.backend.of_job[one.id] = job_of(one.id)
        self.parts.store.write(lambda tx: [insert_job(tx, one, writer=TWIN_WRITER) for one in new])

    def _new_job(self, job: int) -> NewJob:
        of = self.backend.sim.scenarios
        gpus, estimate_s = int(of.gpus[ROW, job]), float(of.estimate_s[ROW, job])
        spec = {
            "gpus": gpus, "command": ["true"], "estimate_s": estimate_s,
            "compute_s": float(of.compute_s[ROW, job]), "parameter_bytes": float(of.parameter_bytes[ROW, job]),
            "retry": TWIN_RETRY, "failover": "switch" if self.backend.sim.rules.switching else "restart",
        }  # fmt: skip
        owner = f"user {of.line[ROW, job]}" if of.line.size else TWIN_WRITER
        return NewJob(id_of(job), "job", owner, spec, 0, gpus, estimate_s, self.backend.now_s)


def node_type_name(node_type: int) -> str:
    """Return the name of a node type."""
    return f"type {node_type}"


def id_of(job: int) -> str:
    """Return the id under which a job of the scenario is submitted."""
    return f"{job:026d}"


def job_of(job_id: str) -> int:
    """Return the job of the scenario with an id."""
    return int(job_id)


def starts_of(store: Store, layout: Layout) -> list[Start]:
    """Return all starts in the order in which the scheduler decided on them."""
    with store.read() as tx:
        reserved = [event for event in events_after(tx, 0, EVERY_EVENT) if event.now == AttemptState.RESERVED]
        rows = {
            (row.job_id, row.number): row
            for job in {each.job_id for each in reserved}
            for row in attempts_of(tx, job or "")
        }
    placed = [(each.at_s, rows[each.job_id or "", each.number or 0]) for each in reserved]
    return [(at_s, job_of(row.job_id), layout.numbers(row.placement)) for at_s, row in placed]
