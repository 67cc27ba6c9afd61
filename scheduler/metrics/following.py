"""Counters of what happens: read from the store's events and decisions, from where the last scrape ended."""

from threading import Lock

from prometheus_client import CollectorRegistry, Counter, Histogram
from sqlalchemy import Connection

from ..control.job_errors import ERROR
from ..health.step_monitor import HEALTH, SlowWord
from ..model.states import JobState
from ..policy_host.misses import Miss
from ..store.opening import Store
from ..store.queries import last_decision_seq, opened_before, queued_at, slim_decisions_after
from ..store.rows.attempts import get_attempt
from ..store.rows.checkpoints import SAVED
from ..store.rows.decisions import DecisionRow
from ..store.rows.events import EventRow, events_after, last_seq
from ..store.rows.jobs import CHANGE as JOB_CHANGE
from ..store.rows.nodes import ALARM
from ..store.rows.nodes import CHANGE as NODE_CHANGE

MOST = 1000  # rows read at once
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
        self._by = Counter("longshore_decisions", "Decisions, by who was obeyed.", ["by"], registry=registry)
        self._misses = Counter(
            "longshore_policy_misses", "Decisions at which the policy was not heard.", ["reason"], registry=registry
        )
        self._agreement = Counter(
            "longshore_policy_agreement", "Decisions at which the policy was heard, by whether the heuristic agreed.",
            ["mode", "agrees"], registry=registry,
        )  # fmt: skip
        self._alarms = Counter(
            "longshore_node_alarms", "How often so many nodes fell silent at once that the fault was not theirs.",
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

    def follow(self) -> None:
        """Count what is new.

        Raises:
            StoreUnreachableError: If the store does not answer; the next call goes on from the same place.
        """
        with self._one, self._store.read() as tx:
            while events := events_after(tx, self._event, MOST):
                for event in events:
                    self._count_event(tx, event)
                    self._event = event.seq
            while decisions := slim_decisions_after(tx, self._decision, MOST):
                for decision in decisions:
                    self._count_decision(decision)
                    self._decision = decision.seq

    def _count_event(self, tx: Connection, event: EventRow) -> None:
        if event.kind == NODE_CHANGE and event.now == ALARM:
            self._alarms.inc()
        if event.kind == HEALTH:
            self._verdicts.labels(event.now).inc()
        if event.kind == ERROR:
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
        number = opened_before(tx, job, event.seq)
        attempt = None if number is None else get_attempt(tx, job, number)
        if attempt is not None:
            self._attempts.labels(event.now, attempt.outcome).inc()

    def _count_decision(self, row: DecisionRow) -> None:
        told = row.explanation
        self._took.observe(row.took_s)
        by_policy = told.get("obeyed") == row.policy != told.get("fallback")
        self._by.labels("policy" if by_policy else "heuristic").inc()
        if told.get("kind"):
            self._misses.labels(str(told["kind"])).inc()
        if told.get("agrees") is not None:
            self._agreement.labels(row.mode, "yes" if told["agrees"] else "no").inc()
