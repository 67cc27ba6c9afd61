"""Jobs on a node that has gone silent: with leases they go on elsewhere, and nothing is given away that is used."""

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from longshore.cluster.files.errors import BackendError
from longshore.scheduler.control.facade import Control
from longshore.scheduler.control.reconciler import Reconciler
from longshore.scheduler.health.monitor import Monitor
from longshore.scheduler.health.monitoring.leases import FENCED, Leases
from longshore.scheduler.health.reports import NodeReport
from longshore.scheduler.model.run import Run, Status
from longshore.scheduler.model.states import AttemptState, JobState
from longshore.scheduler.store.database.schema import Liveness
from longshore.scheduler.store.rows.nodes import ALARM, list_nodes
from tests.scheduler.obedient import Obedient
from tests.scheduler.trials import Trial

NODES = {f"n{node}": 2 for node in range(5)}
OVER = (AttemptState.RELEASED, AttemptState.CLOSED)


class Cut(Obedient):
    """A backend that says nothing of attempts on nodes that are cut off, as real ones do."""

    def __init__(self, nodes: Mapping[str, int]) -> None:
        super().__init__(nodes)
        self.cut: set[str] = set()  # attempts

    def status(self, name: str) -> Status:
        return Status(Run.UNREACHABLE) if name in self.cut else super().status(name)

    def released(self, name: str) -> bool:
        return name not in self.cut and super().released(name)

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
                    told = NodeReport(boot_id="b1", attempts=tuple(sorted(self.living[node])))
                    answer = Control(self.scheduler).take_report(node, told)
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


@pytest.fixture(params=[True])
def trial(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Fenced]:
    made = Fenced(tmp_path, fencing=request.param)
    yield made
    made.close()


def test_a_job_on_a_node_that_vanished_goes_on_elsewhere_once_its_lease_has_run_out(trial: Fenced) -> None:
    job = trial.start(2)
    (node,) = trial.nodes_of(job)
    trial.cut_off(node)
    trial.wait(11.0, 1.0)
    assert [it.state for it in trial.attempts(job)] == [AttemptState.RUNNING]
    trial.living[node].clear()  # the guard has killed it
    trial.tried_again(job)
    first, second = trial.attempts(job)
    assert first.state in OVER
    assert f"{node} was fenced: its lease ran out" in first.cause
    assert node not in [share.node for share in second.placement]
    assert trial.told(FENCED) == 1
    assert trial.job(job).stops_infra == 1


@pytest.mark.parametrize("trial", [False], indirect=True)
def test_without_leases_it_waits_for_the_node(trial: Fenced) -> None:
    job = trial.start(2)
    trial.cut_off(trial.nodes_of(job)[0])
    trial.wait(300.0, 5.0)
    assert [it.state for it in trial.attempts(job)] == [AttemptState.RUNNING]
    assert trial.told(FENCED) == 0


def test_a_gang_is_over_only_when_the_agents_of_its_other_nodes_see_nothing_of_it(trial: Fenced) -> None:
    job = trial.start(4)
    gone, left = trial.nodes_of(job)
    trial.cut_off(gone)
    trial.living[gone].clear()
    trial.wait(60.0, 1.0)
    assert [it.state for it in trial.attempts(job)] == [AttemptState.DRAINING]
    trial.living[left].clear()
    trial.tried_again(job)


def test_a_node_that_comes_back_takes_no_job_while_something_given_up_lives_there(trial: Fenced) -> None:
    job = trial.start(2)
    (node,) = trial.nodes_of(job)
    trial.cut_off(node)
    trial.tried_again(job)
    zombie = trial.living[node]
    assert zombie  # a process that could not be killed
    kills, stays = Control.take_report, zombie.copy()
    trial.silent.clear()
    for _ in range(20):
        trial.living[node] |= stays
        answer = kills(Control(trial.scheduler), node, NodeReport(boot_id="b1", attempts=tuple(stays)))
        assert answer.kill == tuple(stays)
        trial.wait(1.0, 1.0)
        trial.living[node] |= stays
        trial.scheduler.parts.monitor.reports.take(
            node, NodeReport(boot_id="b1", attempts=tuple(stays)), trial.now_s(), "", trial.later_s
        )
        assert trial.liveness(node) is Liveness.DOWN
    trial.scheduler.close()
    trial.scheduler = trial.fresh()
    trial.living[node] = stays.copy()
    trial.scheduler.tick()
    assert trial.liveness(node) is Liveness.DOWN  # the next scheduler knows it, too
    trial.living[node] = set()
    trial.wait(3.0, 1.0)
    assert trial.liveness(node) is Liveness.UP


def test_a_scheduler_that_takes_over_waits_for_a_whole_lease(trial: Fenced) -> None:
    job = trial.start(2)
    trial.cut_off(trial.nodes_of(job)[0])
    trial.wait(11.0, 1.0)
    trial.scheduler.close()
    trial.scheduler = trial.fresh()
    trial.wait(12.0, 1.0)
    assert [it.state for it in trial.attempts(job)] == [AttemptState.RUNNING]
    trial.wait(4.0, 1.0)
    assert trial.attempts(job)[0].state in OVER


@pytest.mark.parametrize("set_by_s", [-3600.0, 3600.0])
def test_a_clock_that_is_set_changes_no_lease(trial: Fenced, set_by_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    """The wall clock of the scheduler is set; neither that of leases nor that of what agents see changes."""
    job = trial.start(2)
    real = trial.now_s
    monkeypatch.setattr(trial, "now_s", lambda: real() + set_by_s)
    trial.backend.now_s = trial.now_s
    trial.scheduler.parts = replace(trial.scheduler.parts, now_s=trial.now_s)
    trial.wait(30.0, 1.0)
    assert trial.told(FENCED) == 0
    assert [it.state for it in trial.attempts(job)] == [AttemptState.RUNNING]
    assert {trial.liveness(node) for node in NODES} == {Liveness.UP}
    trial.cut_off(trial.nodes_of(job)[0])
    trial.wait(12.0, 1.0)
    assert len(trial.attempts(job)) == 1
    trial.wait(4.0, 1.0)
    assert trial.attempts(job)[0].state in OVER


def test_while_many_nodes_fall_silent_at_once_none_is_declared(tmp_path: Path) -> None:
    """60 of 100 at once: the network is the likelier cause, and one alarm is raised."""
    nodes = {f"n{node}": 1 for node in range(100)}
    with closing(Fenced(tmp_path, fencing=True, nodes=nodes)) as trial:
        jobs = [trial.start(2) for _ in range(3)]
        silent = {node for job in jobs for node in trial.nodes_of(job)}
        for node in [*silent, *(node for node in nodes if node not in silent)][:60]:
            trial.cut_off(node)
        trial.wait(40.0, 1.0)
        assert (trial.told(FENCED), trial.told(ALARM), trial.told("down")) == (0, 1, 0)
        assert all([it.state for it in trial.attempts(job)] == [AttemptState.RUNNING] for job in jobs)
        trial.silent.clear()
        trial.backend.cut.clear()
        trial.wait(3.0, 1.0)
        assert {trial.liveness(node) for node in nodes} == {Liveness.UP}


def test_what_does_not_run_yet_is_left_to_the_backend(trial: Fenced) -> None:
    """Its processes may begin later, so that no lease proves anything of them."""
    job = trial.submit("x", gpus=2)
    launch = trial.backend.launch
    trial.backend.launch = lambda attempt, _placement: trial.backend.known.setdefault(attempt.name, Status(Run.PENDING))  # type: ignore[assignment, method-assign]
    trial.until(lambda: trial.attempts(job) and trial.attempts(job)[-1].state is AttemptState.LAUNCHED)
    trial.backend.cut.add(trial.name(job))
    trial.silent.update(trial.nodes_of(job))
    trial.wait(60.0, 1.0)
    assert len(trial.attempts(job)) == 1
    trial.backend.launch = launch  # type: ignore[method-assign]
