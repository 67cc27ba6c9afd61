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
from longshore.scheduler.model.states import JobState
from tests.scheduler.obedient import WELL, Obedient
from tests.scheduler.obedient_trial import obedient_trial
from tests.scheduler.trials import Trial, Way


class Recorded(BackgroundRounds):
    """Rounds in which all is well, and whose limits are kept."""

    def __init__(self, folder: Path) -> None:
        super().__init__(WarmNodes(lambda node: NodeSetup(node, folder, slots=True)), lambda: None)
        self.limits_s: list[float] = []

    def begin(self, name: str, nodes: Iterable[str], work: RoundWork, limit_s: float = ROUND_LIMIT_S) -> bool:
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
