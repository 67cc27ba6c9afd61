"""A round of checks lasts as long as the job's own sample may, whatever limit its owner chose."""

from collections.abc import Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from longshore.preflight.check import RoundReport
from longshore.preflight.context import NodeSetup
from longshore.preflight.rounds import ROUND_LIMIT_S, BackgroundRounds, RoundWork
from longshore.preflight.warm import WarmNodes
from longshore.scheduler.control.node_checks import NodeChecks
from longshore.scheduler.control.state_cache import Parts
from longshore.scheduler.model.states import AttemptState, JobState, Run, Status
from longshore.scheduler.rules.attempts import START_LIMIT_S
from tests.scheduler.obedient import WELL, Obedient
from tests.scheduler.obedient_trial import obedient_trial
from tests.scheduler.trials import Trial, Way

PENDING = Status(Run.PENDING)


class Recorded(BackgroundRounds):
    """Rounds in which all is well, and whose limits are kept."""

    def __init__(self, folder: Path) -> None:
        super().__init__(WarmNodes(lambda node: NodeSetup(node, folder, slots=True)), lambda: None)
        self.limits_s: list[float] = []
        self.has_room = True

    def begin(self, name: str, nodes: Iterable[str], work: RoundWork, limit_s: float = ROUND_LIMIT_S) -> bool:
        if not self.has_room:
            return False
        names = tuple(nodes)
        self.limits_s.append(limit_s)
        return super().begin(name, names, lambda _: RoundReport(names, (), 0.1), limit_s)


class Sampling(Trial):
    def parts(self, way: Way, owner: str) -> Parts:
        self.rounds = Recorded(self.folder)
        return replace(super().parts(way, owner), checks=NodeChecks(self.rounds, "auto", slots=True))


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Sampling]:
    with obedient_trial(Sampling, tmp_path, {"a": 2}) as made:
        yield made
        made.rounds.close()


@pytest.mark.parametrize("sample_s", [None, 1.0, 250.0, 600.0])
def test_the_limit_of_a_round_has_room_for_the_sample(trial: Sampling, sample_s: float | None) -> None:
    fields: dict[str, Any] = {} if sample_s is None else {"sample": {"command": ["check"], "limit_s": sample_s}}
    job = trial.submit("x", **fields)
    trial.runs(job)
    assert trial.rounds.limits_s == [ROUND_LIMIT_S + (sample_s or 0.0)]
    assert isinstance(trial.way.backend, Obedient)
    trial.way.backend.end(WELL)
    assert trial.ends(job).state is JobState.SUCCEEDED


def test_the_time_for_a_start_begins_when_the_checks_have_passed(
    trial: Sampling, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = trial.way.backend
    assert isinstance(backend, Obedient)
    monkeypatch.setattr(backend, "launch", lambda attempt, _: backend.known.setdefault(attempt.name, PENDING))
    trial.later_s, trial.rounds.has_room = -400.0, False  # it waits for its checks longer than a start may take
    job = trial.submit("x")
    trial.until(lambda: trial.attempts(job))
    trial.later_s, trial.rounds.has_room = 0.0, True
    trial.until(lambda: trial.attempts(job)[-1].state is AttemptState.LAUNCHED)
    trial.wait(START_LIMIT_S - 60.0, 10.0)
    assert [row.state for row in trial.attempts(job)] == [AttemptState.LAUNCHED]
    trial.wait(120.0, 10.0)
    assert trial.attempts(job)[0].state not in (AttemptState.LAUNCHED, AttemptState.RUNNING)
