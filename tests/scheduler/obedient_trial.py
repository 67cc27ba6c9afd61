"""Trials of the scheduler over a backend that does at once what it is asked."""

import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any, TypeVar

from longshore.scheduler.backends.protocol import Backend
from longshore.scheduler.control.reconciler import Reconciler
from tests.scheduler.obedient import Obedient
from tests.scheduler.trials import SIMPLE, Trial, Way

TrialT = TypeVar("TrialT", bound=Trial)
BEGAN_S = time.time()


class StillTrial(Trial):
    """A trial whose clock moves only on request: a rest is never over because a machine is slow."""

    def now_s(self) -> float:
        return BEGAN_S + self.later_s


class ReportingWay(Way):
    """A way to a backend whose jobs report their steps."""

    def __init__(self, backend: Backend) -> None:
        super().__init__(backend)
        self.capabilities = replace(self.capabilities, reads_steps=True)

    def step_lines(self, *arguments: Any) -> Any:
        assert isinstance(self.backend, Obedient)
        return self.backend.step_lines(*arguments)


class ReportingTrial(Trial):
    """A trial whose jobs report their steps."""

    def another(self, owner: str | None = None) -> Reconciler:
        self.way = ReportingWay(self.obedient)
        return super().another(owner)

    @property
    def obedient(self) -> Obedient:
        assert isinstance(self.way.backend, Obedient)
        return self.way.backend


@contextmanager
def obedient_trial(
    kind: type[TrialT], folder: Path, nodes: Mapping[str, int], run_time: str = SIMPLE
) -> Iterator[TrialT]:
    """Make a trial of a kind in a folder, whose backend has the trial's clock; it is closed in the end."""
    backend = Obedient(nodes)
    with closing(kind(folder, nodes, lambda: backend, "obedient", run_time)) as trial:
        backend.now_s = trial.now_s
        yield trial
