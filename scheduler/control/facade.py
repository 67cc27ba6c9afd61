"""The running scheduler as the API and the dashboard see it; they know nothing of its loop."""

import time
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ...cluster.model.topology import Cluster
from ..health.evidence import AgentReport, NodeReport, PortState
from ..health.fault_report import FaultReport, fault_report, learned_from, read_fault_history
from ..health.monitor import NO_LEASE, Granted, Monitor
from ..health.quarantining import QuarantineOutcome, quarantine
from ..health.step_monitor import StepFigures
from ..model.gpu_index import QuarantineFinding
from ..model.job import name_of
from ..placement.placer import Mode
from ..store.attempts import held_gpus
from .job_errors import JobErrors
from .reconciler import Reconciler
from .unknown_attempts import UnknownAttempts


class PolicyStatus(NamedTuple):
    """What decides at the moment: a policy or the heuristic."""

    name: str | None  # of the policy, None for the heuristic alone
    fallback: str  # name of the heuristic
    mode: Mode
    version: str
    deadline_s: float  # for one decision

    @property
    def decides(self) -> str:
        """Name of the policy, or of the heuristic where there is none."""
        return self.name or self.fallback


class RunningScheduler:
    """A running scheduler as pages and routes see it. Any thread may use it.

    Args:
        reconciler: The scheduler's loop.
    """

    def __init__(self, reconciler: Reconciler) -> None:
        self._reconciler = reconciler

    def now_s(self) -> float:
        """Return the present as Unix time."""
        return self._reconciler.parts.now_s()

    def leads(self) -> bool:
        """Return whether this scheduler leads."""
        return self._reconciler.cache is not None

    @property
    def policy(self) -> PolicyStatus:
        """What decides at the moment: a policy or the heuristic."""
        placer = self._reconciler.parts.placer
        return PolicyStatus(placer.policy, placer.fallback.name, placer.mode, placer.version, placer.deadline_s)

    @property
    def held_back(self) -> str:
        """Why no job may start at the moment, "" if jobs may."""
        return self._reconciler.held_back

    @property
    def errors(self) -> JobErrors:
        """Errors that the scheduler met while it handled single jobs."""
        return self._reconciler.errors

    @property
    def checked(self) -> frozenset[str]:
        """Jobs whose nodes are being checked before they start."""
        return self._reconciler.parts.checks.checked

    def why_not_launched(self, job: str) -> str:
        """Return why the backend has not started a job yet, "" if it was not asked or did not refuse."""
        cache = self._reconciler.cache
        return "" if cache is None else cache.launches.why_not(job)

    @property
    def unknown_attempts(self) -> UnknownAttempts:
        """The attempts that the backend has and the store does not."""
        return self._reconciler.unknown_attempts

    @property
    def monitor(self) -> Monitor:
        """What is known of nodes, of their agents, and of the steps of jobs."""
        return self._reconciler.parts.monitor

    def last_reports(self) -> Mapping[str, AgentReport]:
        """Return the last report of each node's agent."""
        return self._reconciler.parts.monitor.reports.last()

    def take_report(self, node: str, report: NodeReport, address: str = "") -> Granted:
        """Take the report of a node's agent, with where it came from, and return what it is answered."""
        monitor, reconciler = self._reconciler.parts.monitor, self._reconciler
        monitor.reports.take(node, report, self.now_s(), address, time.monotonic())
        if monitor.leases is None or report.attempts is None:
            return NO_LEASE
        token = reconciler.token
        if token is None:
            return NO_LEASE
        granted = monitor.leases.grant(node, token, lambda: reconciler.token == token)
        return granted._replace(kill=self._given_up(node, report.attempts) if monitor.is_down(node) else ())

    def reached_by(self) -> Mapping[str, Sequence[str]]:
        """Return who reached the agent of each node: nodes, and "" for this scheduler."""
        return self._reconciler.parts.monitor.witnesses.reached_by()

    def record_port_probes(self, node: str, results: Mapping[str, PortState]) -> None:
        """Take the results of an agent's probes, by the id of each order."""
        for order, result in results.items():
            self._reconciler.parts.monitor.witnesses.record_result(node, order, result)

    def _given_up(self, node: str, attempts: Sequence[str]) -> tuple[str, ...]:
        """Return those of some attempts that hold no GPU of a node."""
        with self._reconciler.parts.store.read() as tx:
            held = {name_of(gpu.job_id, gpu.number) for gpu in held_gpus(tx) if gpu.node == node}
        return tuple(name for name in attempts if name not in held)

    def fenced_nodes(self) -> frozenset[str]:
        """Return the nodes whose leases have run out, as this scheduler knows them."""
        return self._reconciler.parts.monitor.health.fenced

    def quarantine(self, finding: QuarantineFinding, writer: str) -> QuarantineOutcome:
        """Put what was found to be broken into quarantine, unless the rules are against it.

        Raises:
            InputError: If the cluster has no such node or GPU.
        """
        parts, now_s = self._reconciler.parts, self.now_s()
        return parts.store.write(lambda tx: quarantine(tx, parts.monitor.fleet, finding, now_s, writer=writer))

    def fault_report(self) -> FaultReport:
        """Return the fault history in the store, and the fault rates that policies estimate from it."""
        parts = self._reconciler.parts
        with parts.store.read() as tx:
            past = read_fault_history(tx, self.now_s())
        beliefs = learned_from(parts.site, parts.layout, past)
        return fault_report(past, beliefs, parts.layout, parts.monitor.fleet.types)

    def cluster(self) -> Cluster:
        """Return the cluster of the cluster file."""
        return self._reconciler.parts.site.cluster

    def step_figures(self) -> Mapping[str, StepFigures]:
        """Return what is known of the steps of each job that runs."""
        return self._reconciler.parts.monitor.steps.figures

    def average_iteration_s(self, job: str) -> float | None:
        """Return the mean of the last step times of a job's slowest node, None before there are any.

        Source: SPEC F3.
        """
        figures = self.step_figures().get(job)
        return None if figures is None or figures.average is None else figures.average.iteration_s
