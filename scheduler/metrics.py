"""Metrics of one service for Prometheus: counters of events, gauges of the moment, and step times.

Source: SPEC K11; docs/operate.md, Metrics, explains each, and a test compares the two.
"""

import collections
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version
from threading import Lock

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, Info, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import Connection

from ..cluster.files.disk_space import DiskSpace
from .control.job_errors import ERROR_EVENT
from .health.step_monitor import HEALTH, SlowWord, StepFigures
from .model.gpu_index import Layout
from .model.job_spec import stored_job_or_default
from .model.states import JobState
from .policy_host.process import Miss
from .store.attempts import (
    SAVED,
    DecisionRow,
    GpuState,
    count_unknown,
    decision_rows_after,
    draining_attempts,
    get_attempt,
    last_decision_seq,
    occupied_gpus,
)
from .store.database import Store, StoreUnreachableError
from .store.events import EventRow, attempt_opened_before, events_after, last_seq, lease_takeovers, queued_at
from .store.jobs import CHANGE as JOB_CHANGE
from .store.jobs import count_jobs, longest_wait_since
from .store.nodes import ALARM, closed_nodes, faulty_gpus, list_nodes, quarantined_gpus
from .store.nodes import CHANGE as NODE_CHANGE
from .store.schema import Liveness

MAX_ROWS_READ = 1000  # rows read at once
WAITS_S = (1, 5, 15, 60, 300, 900, 3600, 4 * 3600, 12 * 3600, 24 * 3600, 3 * 24 * 3600)
DECISIONS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0)


class Following:
    """Counts what is new in a store since this object was made.

    Args:
        store: The store.
        registry: Where the counters are registered.
    """

    def __init__(self, store: Store, registry: CollectorRegistry) -> None:
        self._store, self._one = store, Lock()
        with store.read() as tx:
            self._event, self._decision = last_seq(tx), last_decision_seq(tx)
        self._waits = Histogram(
            "longshore_queue_wait_seconds", "Time in the queue before each start.", buckets=WAITS_S, registry=registry
        )
        self._attempts = Counter(
            "longshore_attempts", "Attempts that have ended: what became of the job, and the exit class.",
            ["outcome", "class"], registry=registry,
        )  # fmt: skip
        self._took = Histogram(
            "longshore_decision_seconds", "Time of each decision.", buckets=DECISIONS_S, registry=registry
        )
        self._by = Counter("longshore_decisions", "Decisions, by who decided.", ["by"], registry=registry)
        self._misses = Counter(
            "longshore_policy_misses", "Decisions without a usable answer of the policy.", ["reason"], registry=registry
        )
        self._agreement = Counter(
            "longshore_policy_agreement", "Decisions with an answer of the policy, by whether the heuristic agreed.",
            ["mode", "agrees"], registry=registry,
        )  # fmt: skip
        self._alarms = Counter(
            "longshore_node_alarms", "How often too many nodes fell silent at once for the fault to be theirs.",
            registry=registry,
        )  # fmt: skip
        self._verdicts = Counter(
            "longshore_step_verdicts", "What was found of the steps of jobs.", ["verdict"], registry=registry
        )  # fmt: skip
        self._held = Counter(
            "longshore_jobs_held_for_errors", "Jobs that were held since the scheduler could not handle them.",
            registry=registry,
        )  # fmt: skip
        self._saved = Counter("longshore_checkpoints", "Checkpoints that were registered.", registry=registry)
        for word in SlowWord:
            self._verdicts.labels(word.value)
        for by in ("policy", "heuristic"):
            self._by.labels(by)
        for miss in Miss:
            self._misses.labels(miss.value)

    def count_new(self) -> None:
        """Count what is new.

        Raises:
            StoreUnreachableError: If the store does not answer; the next call goes on from the same place.
        """
        with self._one, self._store.read() as tx:
            while events := events_after(tx, self._event, MAX_ROWS_READ):
                for event in events:
                    self._count_event(tx, event)
                    self._event = event.seq
            while decisions := decision_rows_after(tx, self._decision, MAX_ROWS_READ):
                for decision in decisions:
                    self._count_decision(decision)
                    self._decision = decision.seq

    def _count_event(self, tx: Connection, event: EventRow) -> None:
        if event.kind == NODE_CHANGE and event.now == ALARM:
            self._alarms.inc()
        if event.kind == HEALTH:
            self._verdicts.labels(event.now).inc()
        if event.kind == ERROR_EVENT:
            self._held.inc()
        if event.kind == SAVED:
            self._saved.inc()
        if event.job_id is None:
            return
        if event.kind == JOB_CHANGE and event.now == JobState.STARTING.value:
            entered_s = queued_at(tx, event.job_id, event.seq)
            if entered_s is not None:
                self._waits.observe(max(0.0, event.at_s - entered_s))
        elif event.kind == JOB_CHANGE and event.was == JobState.STOPPING.value:
            self._count_end(tx, event, event.job_id)

    def _count_end(self, tx: Connection, event: EventRow, job: str) -> None:
        """Count an attempt by what became of its job, which is written in the transaction that releases it."""
        number = attempt_opened_before(tx, job, event.seq)
        attempt = None if number is None else get_attempt(tx, job, number)
        if attempt is not None:
            self._attempts.labels(event.now, attempt.outcome).inc()

    def _count_decision(self, row: DecisionRow) -> None:
        explanation = row.explanation
        self._took.observe(row.took_s)
        by_policy = explanation.get("decided_by") == row.policy != explanation.get("fallback")
        self._by.labels("policy" if by_policy else "heuristic").inc()
        if explanation.get("kind"):
            self._misses.labels(str(explanation["kind"])).inc()
        if explanation.get("agrees") is not None:
            self._agreement.labels(row.mode, "yes" if explanation["agrees"] else "no").inc()


LEAKS_AFTER_S = 60.0  # beyond a job's grace; killing takes seconds


class StoreCollector(Collector):
    """Reads the store whenever it is scraped.

    Args:
        store: Where everything stands.
        layout: Of the cluster.
        types: Node type of each node.
        now_s: Unix time.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        types: Mapping[str, str],
        now_s: Callable[[], float],
    ) -> None:
        self._store, self._layout, self._types, self._now_s = store, layout, types, now_s

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not read the store."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return all gauges; of a store that does not answer, only that it does not."""
        found: list[Metric] = []
        try:
            with self._store.read() as tx:
                found = [
                    self._jobs_gauge(tx),
                    self._gpus_gauge(tx),
                    *self._attempt_gauges(tx),
                    self._oldest_wait_gauge(tx),
                    self._lease_counter(tx),
                    self._nodes_gauge(tx),
                ]
        except StoreUnreachableError:
            found = []
        yield GaugeMetricFamily("longshore_store_up", "1 if the store answers.", value=float(bool(found)))
        yield from found

    def _jobs_gauge(self, tx: Connection) -> Metric:
        jobs = GaugeMetricFamily("longshore_jobs", "Jobs by state.", labels=["state"])
        for state, count in count_jobs(tx).items():
            jobs.add_metric([state.value], count)
        return jobs

    def _gpus_gauge(self, tx: Connection) -> Metric:
        counts = collections.Counter({(state, kind): 0 for state in GpuState for kind in set(self._types.values())})
        states = {(gpu.node, gpu.gpu): gpu.state for gpu in occupied_gpus(tx)}
        states.update(dict.fromkeys(faulty_gpus(tx), GpuState.OUT))
        closed, broken = closed_nodes(tx), quarantined_gpus(tx, self._layout.nodes)
        for node, gpus in self._layout.nodes.items():
            for gpu in range(gpus):
                is_out = node in closed or (node, gpu) in broken
                empty = GpuState.OUT if is_out else GpuState.FREE
                counts[states.get((node, gpu), empty), self._types[node]] += 1
        family = GaugeMetricFamily("longshore_gpus", "GPUs by state and node type.", labels=["state", "type"])
        for (state, kind), count in sorted(counts.items()):
            family.add_metric([state.value.replace(" ", "_"), kind], count)
        return family

    def _nodes_gauge(self, tx: Connection) -> Metric:
        counts = collections.Counter(dict.fromkeys((*map(str, Liveness), "out_of_service"), 0))
        rows = {row.name: row for row in list_nodes(tx)}
        for row in (rows[name] for name in self._layout.nodes if name in rows):
            counts["out_of_service" if row.out_of_service else str(row.liveness)] += 1
        family = GaugeMetricFamily("longshore_nodes", "Nodes by state.", labels=["state"])
        for state, count in counts.items():
            family.add_metric([state], count)
        return family

    def _attempt_gauges(self, tx: Connection) -> Iterable[Metric]:
        now_s = self._now_s()
        leaking = sum(
            drain.gpus
            for drain in draining_attempts(tx)
            if now_s - drain.since_s > stored_job_or_default(drain.spec).grace_s + LEAKS_AFTER_S
        )
        text = "GPUs of attempts that were to be gone, by their grace and a minute more."
        yield GaugeMetricFamily("longshore_gpus_leaking", text, value=leaking)
        text = "Open attempts that cannot be reached."
        yield GaugeMetricFamily("longshore_contact_unknown", text, value=count_unknown(tx))

    def _oldest_wait_gauge(self, tx: Connection) -> Metric:
        since_s = longest_wait_since(tx)
        oldest_s = 0.0 if since_s is None else max(0.0, self._now_s() - since_s)
        text = "Time that the job has waited that came into the queue first; 0 if none waits."
        return GaugeMetricFamily("longshore_queue_oldest_seconds", text, value=oldest_s)

    def _lease_counter(self, tx: Connection) -> Metric:
        text = "How often each lease was taken, over the life of the store."
        family = CounterMetricFamily("longshore_lease_takeovers", text, labels=["name"])
        for name, takeovers in lease_takeovers(tx).items():
            family.add_metric([name], takeovers)
        return family


class Stepping(Collector):
    """Tells of running jobs only, so that no label outlives its job.

    Args:
        figures: Returns how the steps of each job stand.
    """

    def __init__(self, figures: Callable[[], Mapping[str, StepFigures]]) -> None:
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        """Return nothing: which jobs there are is known at a scrape."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the gauge."""
        family = GaugeMetricFamily("longshore_step_seconds", "Present step time of running jobs.", labels=["job_id"])
        for job, it in self._figures().items():
            if it.step_s is not None:
                family.add_metric([job], it.step_s)
        yield family


TICKS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
COMMITS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class SchedulerMetrics:
    """Metrics of a scheduler.

    Args:
        store: Its store.
        layout: Of the cluster.
        types: Node type of each node.
        leads: Says whether this scheduler leads.
        steps: Returns how the steps of each job stand.
        room: On its disks.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        types: Mapping[str, str],
        leads: Callable[[], bool],
        steps: Callable[[], Mapping[str, StepFigures]],
        room: DiskSpace,
    ) -> None:
        self.registry = CollectorRegistry()
        self._ended = time.monotonic()  # of the last tick
        self.reconcile_s = Histogram(
            "longshore_reconcile_seconds", "Time of each pass of the reconcile loop.", buckets=TICKS_S,
            registry=self.registry,
        )  # fmt: skip
        self.commit_s = Histogram(
            "longshore_store_commit_seconds", "Time of each transaction that writes, with all that share it.",
            buckets=COMMITS_S, registry=self.registry,
        )  # fmt: skip
        lag_s = Gauge(
            "longshore_reconcile_lag_seconds", "Time since the last pass of the reconcile loop ended.",
            registry=self.registry,
        )  # fmt: skip
        lag_s.set_function(lambda: time.monotonic() - self._ended)
        free = Gauge(
            "longshore_disk_free_bytes", "Room left where the scheduler writes, without its reserve.",
            registry=self.registry,
        )  # fmt: skip
        free.set_function(lambda: _free_bytes_or_nan(room))
        least = Gauge(
            "longshore_disk_least_free_bytes", "With less room no job is admitted and none starts.",
            registry=self.registry,
        )  # fmt: skip
        least.set(room.least_free_bytes)
        leader = Gauge("longshore_leader", "1 if this scheduler holds the lease.", registry=self.registry)
        leader.set_function(lambda: float(leads()))
        Info("longshore_build", "Version of Longshore.", registry=self.registry).info({"version": version("longshore")})
        ProcessCollector(registry=self.registry)
        self._following = Following(store, self.registry)
        self.registry.register(StoreCollector(store, layout, types, time.time))
        self.registry.register(Stepping(steps))

    @contextmanager
    def timed_tick(self) -> Iterator[None]:
        """Time a pass of the reconcile loop; one that fails does not end the lag."""
        with self.reconcile_s.time():
            yield
        self._ended = time.monotonic()

    def scrape(self) -> bytes:
        """Return all metrics in Prometheus' text format; without a store, those that need none."""
        with suppress(StoreUnreachableError):  # longshore_store_up shows it
            self._following.count_new()
        return generate_latest(self.registry)


def _free_bytes_or_nan(room: DiskSpace) -> float:
    """Return the room that is left, nan where nothing can be seen."""
    try:
        return float(room.free_bytes())
    except OSError:
        return float("nan")
