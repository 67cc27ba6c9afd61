"""A scheduler whose nodes have agents with leases, and a backend whose nodes can be cut off."""

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from longshore.cluster.files.errors import BackendError
from longshore.scheduler.control.reconciler import Reconciler
from longshore.scheduler.health.evidence import NodeReport
from longshore.scheduler.health.monitor import Leases, Monitor
from longshore.scheduler.model.states import JobState, Run, Status
from longshore.scheduler.service.running_scheduler import RunningScheduler
from longshore.scheduler.store.nodes import list_nodes
from longshore.scheduler.store.schema import Liveness
from tests.scheduler.obedient import Obedient
from tests.scheduler.trials import Trial

NODES = {f"n{node}": 2 for node in range(5)}


class Cut(Obedient):
    """A backend that says nothing of attempts on nodes that are cut off, as real ones do."""

    def __init__(self, nodes: Mapping[str, int]) -> None:
        super().__init__(nodes)
        self.cut: set[str] = set()  # attempts

    def status(self, name: str) -> Status:
        return Status(Run.UNREACHABLE) if name in self.cut else super().status(name)

    def is_proven_gone(self, name: str) -> bool:
        return name not in self.cut and super().is_proven_gone(name)

    def cancel(self, name: str, reason: str) -> None:
        if name not in self.cut:
            super().cancel(name, reason)

    def forget(self, name: str) -> None:
        if name in self.cut:
            raise BackendError("the node does not answer")


class Fenced(Trial):
    """A scheduler whose nodes have agents that guard them; time passes for all as the test says."""

    def __init__(self, folder: Path, *, fencing: bool, nodes: Mapping[str, int] = NODES) -> None:
        self.backend, self.fencing = Cut(nodes), fencing
        self.living: dict[str, set[str]] = {node: set() for node in nodes}  # attempts, on each node
        self.silent: set[str] = set()
        super().__init__(folder, nodes, lambda: self.backend, "obedient")
        self.backend.now_s = self.now_s
        self.scheduler = self.fresh()
        self.wait(5.0, 1.0)

    def fresh(self) -> Reconciler:
        made = self.another()
        leases = Leases(lambda: self.later_s) if self.fencing else None
        monitor = Monitor(self.way, "obedient", self.layout, self.types, 1.0, leases)
        made.parts = replace(made.parts, monitor=monitor)
        made._external_jobs._parts = made.unknown_attempts._parts = made.parts
        return made

    def tick(self, times: int = 1) -> None:
        """Let agents report, and the scheduler look."""
        for _ in range(times):
            for node in self.nodes:
                if node not in self.silent:
                    reported = NodeReport(boot_id="b1", attempts=tuple(sorted(self.living[node])))
                    answer = RunningScheduler(self.scheduler).take_report(node, reported)
                    self.living[node] -= set(answer.kill)
            self.scheduler.tick()

    def start(self, gpus: int) -> str:
        job = self.submit("x", gpus=gpus)
        self.until(lambda: self.job(job).state is JobState.RUNNING)
        name = self.name(job)
        for share in self.attempts(job)[-1].placement:
            self.living[share.node].add(name)
        return job

    def name(self, job: str) -> str:
        return f"ls-{job}-{len(self.attempts(job))}"

    def nodes_of(self, job: str) -> list[str]:
        return [share.node for share in self.attempts(job)[-1].placement]

    def tried_again(self, job: str) -> None:
        """Let time pass until a job has a second attempt."""
        for _ in range(120):
            if len(self.attempts(job)) == 2:
                return
            self.wait(1.0, 1.0)
        raise AssertionError("it is not tried again")

    def cut_off(self, node: str) -> None:
        self.silent.add(node)
        self.backend.cut |= self.living[node]

    def liveness(self, node: str) -> Liveness:
        with self.store.read() as tx:
            return next(row.liveness for row in list_nodes(tx) if row.name == node)

    def told(self, word: str) -> int:
        return sum(event.now == word for event in self.events())
