"""A cluster that is simulated, behind the interface of the real ones; for trials, tests and benchmarks."""

import math
from collections.abc import Callable, Collection

from ...cluster.files.errors import BackendError
from ...cluster.model.placement import Placement
from ...cluster.placing import begin_picks, take_gpu
from ...cluster.simulator.endings import finish_held, stop_after_fault
from ...cluster.simulator.engine import (
    begin_moment,
    change_sources,
    live_through,
    next_time_s,
    reset,
    start,
    submit_due,
)
from ...cluster.state.holding import is_struck
from ...cluster.state.state import Simulation
from ...ring.wire import Report
from ..model.gpu_index import Layout
from ..model.states import EndedBy, RankEnd, Run, Status
from .protocol import Attempt, CannotHonourError, Capabilities, GpuView, MemberPlace, NodeView, RefusedError
from .simulated_rings import ROW, SimulatedDesk, SimulatedRings

PROGRESS = {"step": 1.0}  # a simulated job never stands still


class SimulatedBackend:
    """Runs attempts in a simulation, whose clock moves only when it is told to.

    Jobs are those of the simulation's scenario: an attempt's job is named by `of_job`, and its start time is now. By
    rules that switch, an attempt with seats has a ring, whose empty seats the scheduler fills (simulated_rings.py).

    Args:
        sim: The simulation, with true run times and faults; its row 0 is reset.
        layout: Names of its nodes.
    """

    capabilities = Capabilities(exact_gpus=True, atomic_gang=True, enforced=True)

    def __init__(self, sim: Simulation, layout: Layout) -> None:
        if sim.rules.switching and sim.rules.spares > 0.0:
            raise ValueError(f"the scheduler has no pool of spares, but the rules have {sim.rules.spares}")
        self.sim, self.layout, self.rings = sim, layout, SimulatedRings(sim, layout)
        self.of_job: dict[str, int] = {}  # job of the scenario, by the id that it was submitted under
        self._number: dict[str, tuple[int, int]] = {}  # job and how often it had stopped, by attempt
        reset(sim, ROW, 0)

    @property
    def launches(self) -> int:
        """Return how many attempts were started."""
        return len(self._number)

    @property
    def now_s(self) -> float:
        """Time of the simulation."""
        return float(self.sim.state.now_s[ROW])

    def next_s(self) -> float:
        """Return when something happens next, inf for never."""
        self.rings.go_on()
        return float(next_time_s(self.sim, ROW))

    def live_through(self, time_s: float) -> None:
        """Let everything happen that happens at the next moment."""
        sim = self.sim
        if not sim.rules.switching:
            live_through(sim, ROW, time_s)
            return
        self.rings.go_on()
        begin_moment(sim, ROW, time_s)
        self._end_held()
        if sim.state.finished[ROW] < sim.scenarios.jobs[sim.state.scenario[ROW]]:
            change_sources(sim, ROW)
            self._end_held()
            submit_due(sim, ROW)

    def _end_held(self) -> None:
        """End what is over now, and act on the faults that are found now; as the simulator's `end_held`."""
        sim, state = self.sim, self.sim.state
        while state.running[ROW] > 0 and state.end_s[ROW, state.run_heap[ROW, 0]] <= state.now_s[ROW]:
            job = int(state.run_heap[ROW, 0])
            if not is_struck(sim, ROW, job):
                finish_held(sim, ROW, job)
                self.rings.end(job)
            elif not self.rings.heed(job):
                stop_after_fault(sim, ROW, job)
                self.rings.end(job)

    def observe(self) -> tuple[NodeView, ...]:
        """Return all nodes."""
        down = self.sim.state.gpu_down[ROW] > 0
        first, seen = 0, []
        for node, gpus in self.layout.nodes.items():
            healthy = tuple(GpuView(index, healthy=not down[first + index]) for index in range(gpus))
            seen.append(NodeView(node, healthy, self.now_s, slots=True))
            first += gpus
        return tuple(seen)

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        """Start an attempt; again, it does nothing.

        Raises:
            CannotHonourError: If one of the GPUs is not free.
            RefusedError: If it has seats, and no job of the simulation outlives a fault.
            BackendError: If the job is not one of the scenario.
        """
        if attempt.name in self._number:
            return
        if attempt.job not in self.of_job:
            raise BackendError(f"no job of the simulation is {attempt.job}")
        if attempt.seats and not self.sim.rules.switching:
            raise RefusedError("no job of this simulation outlives a fault: let its rules switch")
        job, gpus, state = self.of_job[attempt.job], self.layout.numbers(placement), self.sim.state
        if any(state.gpu_job[ROW, gpu] >= 0 or state.gpu_down[ROW, gpu] > 0 for gpu in gpus):
            raise CannotHonourError(f"a GPU of {placement} is not free")
        begin_picks(self.sim, ROW, job)
        for gpu in gpus:
            take_gpu(self.sim, ROW, gpu)
        state.shadow_s[ROW] = math.inf  # reservations are the scheduler's
        start(self.sim, ROW)
        self._number[attempt.name] = (job, int(state.stops[ROW, job]))
        if attempt.seats:
            self.rings.begin(attempt.name, job, gpus)

    def status(self, name: str) -> Status:
        """Return what is known of an attempt."""
        if name not in self._number:
            return Status(Run.ABSENT)
        (job, stops), state = self._number[name], self.sim.state
        if state.stops[ROW, job] > stops:
            return Status(Run.EXITED, (RankEnd(0, 0, 9, self.now_s),), EndedBy.NODE_FAULT, progress=PROGRESS)
        if state.finish_s[ROW, job] > 0.0:
            return Status(Run.EXITED)
        return Status(Run.RUNNING, started_s=float(state.start_s[ROW, job]))

    def statuses(self, names: tuple[str, ...]) -> dict[str, Status]:
        """Return what is known of many attempts."""
        return {name: self.status(name) for name in names}

    def cancel(self, name: str, reason: str) -> None:
        """Do nothing: a job of a simulation runs until it ends."""

    def released(self, name: str) -> bool:
        """Say whether an attempt has ended."""
        return self.status(name).run in (Run.EXITED, Run.ABSENT)

    def logs(self, name: str, rank: int, offset: int, most: int) -> tuple[bytes, int]:
        """Return nothing: a job of a simulation writes nothing."""
        del name, rank, most
        return b"", offset

    def forget(self, name: str) -> None:
        """Do nothing."""

    def ring(self, name: str) -> Report | None:
        """Return how the ring of an attempt stands, as `Seats` has it."""
        return self.rings.ring(name)

    def retire(self, name: str, gpus: Collection[tuple[str, int]], reason: str) -> bool:
        """Let the members on some GPUs leave the ring of an attempt, as `Seats` has it."""
        return self.rings.retire(name, gpus, reason)

    def desk(self, name: str, wake: Callable[[], object]) -> SimulatedDesk:
        """Return a desk for the ring of an attempt, as `Seats` has it."""
        return self.rings.desk(name, wake)

    def places(self, name: str) -> list[MemberPlace] | None:
        """Return all GPUs that the ring of an attempt was ever given, as `Seats` has it."""
        return self.rings.places(name)

    def add(self, name: str, rank: int, node: str, gpu: int) -> None:
        """Let a ring have one GPU more, as `Seats` has it."""
        self.rings.add(name, rank, node, gpu)
