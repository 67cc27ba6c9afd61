"""A scheduler that ticks on request, with real rings on this machine."""

import os
import sys
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TypeVar

import pytest
from sqlalchemy import Connection

from longshore.cluster.model.placement import Placement
from longshore.preflight.context import NodeSetup
from longshore.preflight.rounds import BackgroundRounds
from longshore.preflight.warm import WarmNodes
from longshore.ring.wire import RingReport
from longshore.scheduler.backends.protocol import Backend, MemberPlace, NodeView, RingConnection, StepLines
from longshore.scheduler.control.node_checks import NodeChecks
from longshore.scheduler.control.state_cache import Parts, StateCache
from longshore.scheduler.model.job import attempt_name
from longshore.scheduler.store.events import EventRow
from tests.scheduler.served_rings import SCRIPT
from tests.scheduler.trials import KilledError, Trial, Way

Gpu = tuple[str, int]
RING_PATIENCE_S = 240.0
T = TypeVar("T")
CHANGING = ("write", "retire_members", "connect_to_ring", "add_to_ring")
LATER_S = 4000.0  # until a ring may have as many GPUs again


class RingWay(Way):
    """The way to a backend that has rings."""

    def __init__(self, backend: Backend, broken: Collection[Gpu] = ()) -> None:
        super().__init__(backend)
        moves = backend.capabilities.moves_coordinators
        self.capabilities = replace(self.capabilities, reads_steps=True, runs_rings=True, moves_coordinators=moves)
        self.broken = set(broken)

    def observe(self) -> tuple[NodeView, ...]:
        """Return all nodes; some GPUs are broken."""

        def seen(node: NodeView) -> NodeView:
            gpus = (replace(it, healthy=(node.name, it.index) not in self.broken) for it in node.gpus)
            return replace(node, gpus=tuple(gpus))

        return tuple(map(seen, super().observe()))

    def step_lines(self, name: str, placement: Placement, before: Sequence[StepLines]) -> list[StepLines]:
        return self.backend.step_lines(name, placement, before)

    def ring_report(self, name: str) -> RingReport | None:
        return self.backend.ring_report(name)

    def retire_members(self, name: str, gpus: Collection[Gpu], reason: str) -> bool:
        return self._call("retire_members", lambda: self.backend.retire_members(name, gpus, reason))

    def connect_to_ring(self, name: str, wake: Callable[[], object]) -> RingConnection:
        return self._call("connect_to_ring", lambda: self.backend.connect_to_ring(name, wake))

    def ring_places(self, name: str) -> Sequence[MemberPlace] | None:
        return self._call("ring_places", lambda: self.backend.ring_places(name))

    def add_to_ring(self, name: str, rank: int, node: str, gpu: int) -> None:
        self._call("add_to_ring", lambda: self.backend.add_to_ring(name, rank, node, gpu))

    def move_coordinator(self, name: str, silent_s: float) -> str:
        return self._call("move_coordinator", lambda: self.backend.move_coordinator(name, silent_s))


class RingTrial(Trial):
    """A trial whose jobs are rings; see `Trial`.

    Args:
        folder: Of everything.
        nodes: GPUs of each node.
        make: Makes the backend, anew for each scheduler; by default the local one.
        name: Of the backend.
        checks: Whether GPUs are checked before jobs get them.
    """

    way: RingWay

    def __init__(
        self, folder: Path, nodes: Mapping[str, int], make: Callable[[], Backend] | None = None, name: str = "local",
        *, checks: bool = False,
    ) -> None:  # fmt: skip
        self._checks, self._rounds = checks, list[BackgroundRounds]()
        super().__init__(folder, nodes, make, name)
        self.way = RingWay(self.make())
        self.scheduler = self.another()

    def parts(self, way: Way, owner: str) -> Parts:
        parts = super().parts(way, owner)
        if not self._checks:
            return parts
        rounds = BackgroundRounds(WarmNodes(lambda node: NodeSetup(node, self.folder, slots=True)), lambda: None)
        self._rounds.append(rounds)
        return replace(parts, checks=NodeChecks(rounds, "auto", slots=True))

    def _end_rounds(self) -> None:
        while self._rounds:
            self._rounds.pop().close()

    def close(self) -> None:
        self.scheduler.close_ring_connections()
        self._end_rounds()
        super().close()

    def crash(self) -> None:
        """Go on as another process would that finds what a killed one has left."""
        self.scheduler.close_ring_connections()  # as the end of its process does
        self._end_rounds()
        self.way = RingWay(self.make(), self.way.broken)
        self.scheduler = self.another()

    def until(self, is_so: Callable[[], object]) -> None:
        """Let the scheduler look until something has come true; members import PyTorch first."""
        until_s = time.monotonic() + RING_PATIENCE_S
        while not is_so():
            assert time.monotonic() < until_s, "it did not come true"
            self.tick()
            time.sleep(0.1)  # what rings do takes seconds, and a tick milliseconds of a core

    def submit_ring(
        self, seats: int, steps: int = 10**6, variables: Mapping[str, str] | None = None, **spec: object
    ) -> str:
        """Submit a ring of real members, with variables for their script."""
        (self.folder / "train.py").write_text(SCRIPT)
        environment = {"PATH": os.environ["PATH"], "STEPS": str(steps), "OMP_NUM_THREADS": "1", **(variables or {})}
        if "PYTHONPATH" in os.environ:
            environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
        fields = {
            "command": [sys.executable, "train.py"],
            "folder": str(self.folder),
            "environment": environment,
            **spec,
        }
        return self.submit("", seats, failover="switch", **fields)

    def name(self, job: str) -> str:
        return attempt_name(job, self.attempts(job)[-1].number)

    def report(self, job: str) -> RingReport | None:
        return self.way.backend.ring_report(self.name(job))

    def is_whole(self, job: str) -> bool:
        """Say whether the ring runs with all its seats."""
        report = self.report(job)
        return report is not None and report.phase == "running" and -1 not in report.order

    def used(self, job: str) -> set[Gpu]:
        """Return the GPUs on which the ring has members, or will have some."""
        return {(it.node, it.gpu) for it in self.way.backend.ring_places(self.name(job)) or () if it.is_used}

    def holds(self, job: str) -> set[Gpu]:
        """Return the GPUs that are reserved for a job."""
        return {(it.node, it.gpu) for it in self.held() if it.job_id == job}

    def is_settled(self, job: str) -> bool:
        """Say whether a ring is whole on just the GPUs that it holds."""
        return self.is_whole(job) and self.used(job) == self.holds(job)

    def seats_of(self, job: str) -> list[EventRow]:
        """Return what was reported of a ring's seats."""
        return [it for it in self.events(job) if it.kind == "seat"]

    def lose(self, job: str, place: Gpu) -> None:
        """Let the member on a GPU leave for good, though the GPU is well."""
        until_s = time.monotonic() + RING_PATIENCE_S
        while not self.way.backend.retire_members(self.name(job), [place], "taken away by the test"):
            assert time.monotonic() < until_s

    def assert_arrays_are_as_the_store(self) -> None:
        """What the scheduler reckons with is what another one would read."""
        cache = self.scheduler.cache
        assert cache is not None
        fresh = StateCache(self.scheduler.parts, cache.fence, self.scheduler.errors)
        gpus = range(self.layout.gpus)
        assert [cache.mirror.holder(gpu) for gpu in gpus] == [fresh.mirror.holder(gpu) for gpu in gpus]
        mine, theirs = cache.mirror.sim.state, fresh.mirror.sim.state
        for field in ("free", "usable", "busy", "gpu_down"):
            assert (getattr(mine, field) == getattr(theirs, field)).all(), field


class Points:
    """Counts the moments before and after calls that change anything, and does something at one of them."""

    def __init__(
        self, trial: RingTrial, monkeypatch: pytest.MonkeyPatch, number: int, do: Callable[[], object]
    ) -> None:
        self._number, self._do, self._real = number, do, trial.store.write
        self.passed, self.is_armed = 0, True
        monkeypatch.setattr(trial.store, "write", self._write)
        trial.way.before = trial.way.after = self._pass

    def _pass(self, call: str) -> None:
        if not self.is_armed or call not in CHANGING:
            return
        self.passed += 1
        if self.passed == self._number:
            self.is_armed = False
            self._do()

    def _write(self, work: Callable[[Connection], T]) -> T:
        self._pass("write")
        value = self._real(work)
        self._pass("write")
        return value


def killed() -> None:
    raise KilledError


def look_or_die(trial: RingTrial) -> None:
    try:
        trial.tick()
    except KilledError:
        trial.crash()
