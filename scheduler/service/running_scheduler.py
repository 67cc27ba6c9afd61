"""What the API and the dashboard see of the scheduler that runs: they know nothing of its loop."""

import time
from collections.abc import Mapping, Sequence

from ...cluster.model.topology import Cluster
from ..control.adoption import UnknownAttempts
from ..control.job_errors import JobErrors
from ..control.reconciler import Reconciler
from ..health.evidence import AgentReport, NodeReport, PortState
from ..health.fault_report import FaultReport, fault_report, learn_beliefs, read_fault_history
from ..health.monitor import NO_LEASE, Granted, Monitor
from ..health.quarantining import QuarantineOutcome, quarantine
from ..health.step_monitor import StepFigures
from ..model.gpu_index import QuarantineFinding
from ..model.job import attempt_name
from ..placement.placer import Placer
from ..store.attempts import held_gpus


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
    def another_leads(self) -> bool:
        """Whether another scheduler leads, which alone has the reports of agents and what it concluded from them."""
        return self._reconciler.another_leads

    @property
    def placer(self) -> Placer:
        """What decides at the moment: a policy or the heuristic."""
        return self._reconciler.parts.placer

    @property
    def why_held_back(self) -> str:
        """Why no job may start at the moment, "" if jobs may."""
        return self._reconciler.why_held_back

    @property
    def errors(self) -> JobErrors:
        """Errors that the scheduler met while it handled single jobs."""
        return self._reconciler.errors

    @property
    def jobs_being_checked(self) -> frozenset[str]:
        """Jobs whose nodes are being checked before they start."""
        return self._reconciler.parts.checks.jobs_being_checked

    def why_not_launched(self, job: str) -> str:
        """Return why the backend has not started a job yet, "" if it did or has not refused."""
        cache = self._reconciler.cache
        return "" if cache is None else cache.launches.why_not_launched(job)

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
        monitor.reports.add(node, report, self.now_s(), address, time.monotonic())
        if monitor.leases is None or report.attempts is None:
            return NO_LEASE
        token = reconciler.valid_lease_token
        if token is None:
            return NO_LEASE
        granted = monitor.leases.grant(node, token, lambda: reconciler.valid_lease_token == token)
        return granted._replace(
            kill=self._attempts_without_gpus(node, report.attempts) if monitor.is_down(node) else ()
        )

    def successful_probers(self) -> Mapping[str, Sequence[str]]:
        """Return who reached the agent of each node: nodes, and "" for this scheduler."""
        return self._reconciler.parts.monitor.witnesses.successful_probers()

    def record_port_probes(self, node: str, results: Mapping[str, PortState]) -> None:
        """Take the results of an agent's probes, by the id of each order."""
        for order, result in results.items():
            self._reconciler.parts.monitor.witnesses.record_result(node, order, result)

    def _attempts_without_gpus(self, node: str, attempts: Sequence[str]) -> tuple[str, ...]:
        """Return those of some attempts that hold no GPU of a node."""
        with self._reconciler.parts.store.read() as tx:
            held = {attempt_name(gpu.job_id, gpu.number) for gpu in held_gpus(tx) if gpu.node == node}
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
        beliefs = learn_beliefs(parts.site, parts.layout, past)
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
