"""What becomes of jobs on a node that is dead: nothing is given away, and the next scheduler knows what was found."""

import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.scheduler.health.evidence import AgentPort, NodeReport, probe_ports
from longshore.scheduler.health.monitor import FENCED
from longshore.scheduler.model.states import AttemptState, Contact, ProbeVerdict
from longshore.scheduler.service.running_scheduler import RunningScheduler
from longshore.scheduler.store.nodes import NodeRow, list_nodes
from longshore.scheduler.store.schema import Liveness
from tests.scheduler.fenced import Fenced

LOCAL = "127.0.0.1"
PATIENCE_S = 180.0


class Doors(Fenced):
    """A scheduler whose nodes have agents with real agent_ports, all in this process."""

    def __init__(self, folder: Path, *, fencing: bool) -> None:
        self.agent_ports: dict[str, AgentPort] = {}
        super().__init__(folder, fencing=fencing)
        self.agent_ports = {node: AgentPort(node, "b1") for node in self.nodes}
        self.comes_true(
            lambda: all(len(it) == 3 for it in RunningScheduler(self.scheduler).successful_probers().values())
        )

    def tick(self, times: int = 1) -> None:
        for _ in range(times):
            control = RunningScheduler(self.scheduler)
            for node in self.nodes:
                if node not in self.silent:
                    port = self.agent_ports[node].port if node in self.agent_ports else 0
                    reported = NodeReport(boot_id="b1", attempts=tuple(sorted(self.living[node])), agent_port=port)
                    self.living[node] -= set(control.take_report(node, reported, LOCAL).kill)
                    orders = control.monitor.witnesses.orders_for(node)
                    results = probe_ports([it.probe for it in orders], 30.0)
                    control.record_port_probes(
                        node, {it.id: result for it, result in zip(orders, results, strict=True)}
                    )
            self.scheduler.tick()

    def comes_true(self, is_so: object) -> None:
        """Let a second pass for all clocks but the real one, again and again, until something has come true."""
        give_up = time.monotonic() + PATIENCE_S
        while not is_so():  # type: ignore[operator]
            assert time.monotonic() < give_up, "it did not come true"
            self.wait(1.0, 1.0)
            time.sleep(0.02)

    def row(self, node: str) -> NodeRow:
        with self.store.read() as tx:
            return next(row for row in list_nodes(tx) if row.name == node)

    def end(self) -> None:
        for agent_port in self.agent_ports.values():
            agent_port.close()
        self.close()


@pytest.fixture(params=[False])
def trial(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Doors]:
    made = Doors(tmp_path, fencing=request.param)
    yield made
    made.end()


def test_jobs_on_a_dead_node_keep_their_gpus_and_go_on_when_it_answers(trial: Doors) -> None:
    job = trial.start(2)
    (node,) = trial.nodes_of(job)
    trial.cut_off(node)
    trial.agent_ports[node].close()
    trial.comes_true(lambda: trial.row(node).verdict is ProbeVerdict.GONE)
    trial.wait(120.0, 1.0)
    (row,) = trial.attempts(job)
    assert (row.state, row.contact) == (AttemptState.RUNNING, Contact.UNKNOWN)
    others = trial.submit("x", gpus=10)  # all that there are
    trial.wait(20.0, 1.0)
    assert trial.attempts(others) == []

    trial.silent.clear()
    trial.backend.cut.clear()
    trial.comes_true(lambda: trial.row(node).liveness is Liveness.UP)
    trial.tick(3)
    (row,) = trial.attempts(job)
    assert (row.state, row.contact, trial.job(job).stops_infra) == (AttemptState.RUNNING, Contact.OK, 0)


def test_the_next_scheduler_knows_who_found_what_and_that_the_node_is_dead(trial: Doors) -> None:
    node = next(iter(trial.nodes))
    trial.silent.add(node)
    trial.agent_ports[node].close()
    trial.comes_true(lambda: trial.row(node).verdict is ProbeVerdict.GONE)
    found = trial.row(node).found
    assert found.startswith("the scheduler is refused, ")
    trial.scheduler.close()
    trial.scheduler = trial.fresh()
    trial.wait(30.0, 1.0)
    assert (trial.row(node).verdict, trial.row(node).found) == (ProbeVerdict.GONE, found)
    assert trial.told("dead") == 1
    trial.silent.clear()
    trial.comes_true(lambda: trial.row(node).liveness is Liveness.UP)
    assert (trial.row(node).verdict, trial.row(node).found) == (ProbeVerdict.NONE, "")


@pytest.mark.parametrize("trial", [True], indirect=True)
def test_a_dead_node_is_fenced_by_its_lease_alone_and_no_sooner(trial: Doors) -> None:
    job = trial.start(2)
    (node,) = trial.nodes_of(job)
    trial.cut_off(node)
    trial.living[node].clear()
    trial.agent_ports[node].close()
    silent_s = trial.later_s
    trial.comes_true(lambda: trial.row(node).verdict is ProbeVerdict.GONE)
    if trial.later_s - silent_s < 12.0:
        assert trial.told(FENCED) == 0
        assert len(trial.attempts(job)) == 1
    trial.tried_again(job)
    assert trial.later_s - silent_s > 12.0
    assert trial.told(FENCED) == 1


def test_an_agent_that_only_has_lost_the_scheduler_is_not_dead(trial: Doors) -> None:
    node = next(iter(trial.nodes))
    trial.silent.add(node)
    trial.comes_true(lambda: trial.row(node).verdict is ProbeVerdict.REACHED)
    assert trial.row(node).liveness is Liveness.DOWN
    assert (trial.told("dead"), trial.told("unreachable")) == (0, 1)
