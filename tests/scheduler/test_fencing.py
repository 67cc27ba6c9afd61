"""Jobs on a node that has gone silent: with leases they go on elsewhere, and nothing is given away that is used."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from longshore.scheduler.control import attempt_driver
from longshore.scheduler.health.evidence import NodeReport
from longshore.scheduler.health.monitor import FENCED, Leases, Monitor
from longshore.scheduler.model.states import AttemptState, JobState, Run, Status
from longshore.scheduler.service.running_scheduler import RunningScheduler
from longshore.scheduler.store.nodes import ALARM
from longshore.scheduler.store.schema import Liveness
from tests.scheduler.breaking import Place, breaks
from tests.scheduler.fenced import NODES, Fenced

OVER = (AttemptState.RELEASED, AttemptState.CLOSED)


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
    kills, stays = RunningScheduler.take_report, zombie.copy()
    trial.silent.clear()
    for _ in range(20):
        trial.living[node] |= stays
        answer = kills(RunningScheduler(trial.scheduler), node, NodeReport(boot_id="b1", attempts=tuple(stays)))
        assert answer.kill == tuple(stays)
        trial.wait(1.0, 1.0)
        trial.living[node] |= stays
        trial.scheduler.parts.monitor.reports.add(
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


def test_a_scheduler_that_leads_again_knows_what_a_new_one_would(trial: Fenced) -> None:
    """Another one may have led meanwhile, and started jobs on nodes that were fenced."""
    job = trial.start(2)
    (node,) = trial.nodes_of(job)
    trial.cut_off(node)
    trial.tried_again(job)
    old, fence = trial.scheduler.parts.monitor, trial.scheduler.valid_lease_token
    assert fence is not None
    assert old.health.fenced == {node}
    new = Monitor(trial.way, "obedient", trial.layout, trial.types, 1.0, Leases(lambda: trial.later_s))
    now_s = trial.now_s()
    for monitor in (old, new):
        monitor.load(trial.store, fence + 1, now_s)
    assert old.health == new.health
    known = ("_rows", "_faulty", "_fenced", "_at_once", "_accused_at_once", "_polled_s", "_kept_s", "_fence")
    assert [vars(old)[name] for name in known] == [vars(new)[name] for name in known]


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


def test_gpus_of_a_job_that_cannot_be_handled_are_freed_once_its_node_is_fenced(
    trial: Fenced, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = trial.start(4)
    gone, left = trial.nodes_of(job)
    breaks(Place(attempt_driver, "_decide_outcome"), lambda: job, monkeypatch)
    trial.cut_off(gone)
    trial.living[gone].clear()
    trial.wait(120.0, 1.0)
    assert trial.job(job).state is not JobState.HELD  # the agent of the other node sees it
    trial.living[left].clear()
    trial.wait(120.0, 1.0)
    assert trial.held() == []
    assert trial.job(job).state is JobState.HELD
