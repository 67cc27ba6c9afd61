"""Jobs and GPUs in quarantine: who runs on, who starts elsewhere, and what a further scheduler knows."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from longshore.scheduler.health.quarantining import clear_quarantine, quarantine
from longshore.scheduler.model.gpu_index import Clears, HardwarePlace, QuarantineFinding
from longshore.scheduler.model.states import JobState
from longshore.scheduler.rules.quarantine import BY_HAND
from tests.scheduler.obedient import Obedient
from tests.scheduler.trials import Trial

NODES = {"a": 2, "b": 2}


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    backend = Obedient(NODES)
    made = Trial(tmp_path, NODES, lambda: backend, "obedient")
    yield made
    made.close()


def put(trial: Trial, *places: HardwarePlace) -> None:
    for place in places:
        fleet = trial.scheduler.parts.monitor.fleet
        found = QuarantineFinding(place, BY_HAND, "noise", "", "look", Clears.OPERATOR, trial.now_s())
        trial.store.write(partial(quarantine, fleet=fleet, finding=found, now_s=trial.now_s(), writer="t"))


def held_by(trial: Trial, job: str) -> set[tuple[str, int]]:
    return {(it.node, it.gpu) for it in trial.held() if it.job_id == job}


def test_no_job_starts_in_quarantine_those_that_run_run_on_and_it_outlives_the_scheduler(trial: Trial) -> None:
    first = trial.submit("one", gpus=2)
    trial.runs(first)
    where = held_by(trial, first)
    put(trial, *(HardwarePlace(*gpu) for gpu in where))
    left = {("a", 0), ("a", 1), ("b", 0), ("b", 1)} - where
    put(trial, HardwarePlace(*min(left)))
    second, third = trial.submit("two"), trial.submit("three")
    trial.runs(second)
    for _ in range(2):
        trial.wait(30.0)
        assert trial.job(first).state is JobState.RUNNING
        assert (held_by(trial, second), trial.job(third).state) == ({max(left)}, JobState.QUEUED)
        trial.scheduler.close()
        trial.crash()

    trial.store.write(
        lambda tx: clear_quarantine(tx, HardwarePlace(*min(left)), "operator", "", trial.now_s(), writer="t")
    )
    trial.runs(third)
    assert held_by(trial, third) == {min(left)}


def test_a_link_in_quarantine_is_given_to_no_job_and_its_ends_one_by_one_are(trial: Trial) -> None:
    put(trial, HardwarePlace("a", 0, "a", 1), HardwarePlace("b", 0, "b", 1))
    pair = trial.submit("pair", gpus=2, shape={"nodes": 1, "gpus_per_node": 2})
    singles = [trial.submit("one"), trial.submit("two")]
    for job in singles:
        trial.runs(job)
    assert {gpu for job in singles for gpu in held_by(trial, job)} == {("a", 0), ("b", 0)}
    assert trial.job(pair).state is JobState.QUEUED
