"""A simulated cluster behind the interface of the real backends, with its rings; for tests and benchmarks.

The simulation decides when GPUs fail and how long a ring takes; the scheduler chooses who takes an empty seat. Compared
with a real ring this one leaves out:

- How a fault is found. All are, `detection_s` after the first; no member is silent, suspected, or only slow.
- Processes. Members that failed are proven gone when their fault is found, and a new member has its seat at once. No
  process fails on a healthy GPU, and a member whose GPU is back by then continues there. There are no warm spares.
- Patience. A stopped ring continues with fewer members if no answer arrives before the clock moves.
- Seats with fixed numbers. As in the simulator, the ring runs through its GPUs in their order, and a seat that the
  ring continues without lies behind all members.
- Steps. `formed` is called when there is a ring whose computing times are to be recorded.
- A coordinator that can be killed, or that the scheduler cannot reach.

Source: SPEC F5 to F10; docs/decisions/0015.
"""

import math
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Self

import numpy as np

from ..cluster.files.errors import BackendError, InputError
from ..cluster.kernels.structures import push, remove
from ..cluster.model.placement import Placement
from ..cluster.placing import make_job_due, take_gpu
from ..cluster.simulator.engine import (
    handle_events,
    move_clock,
    next_event_s,
    reset,
    start,
    submit_due,
    toggle_due_sources,
)
from ..cluster.simulator.faults import has_live_member
from ..cluster.simulator.jobs import continue_after_switch, count_progress, finish, stop_after_fault
from ..cluster.simulator.seats import compute_s, held_ring_iteration_s
from ..cluster.state.holding import claim_gpu, give_up_gpu, held_gpus, is_struck
from ..cluster.state.state import Simulation
from ..ring.wire import EmptySeat, MemberOffer, NoMemberOffer, RingReport, SeatRequest
from ..scheduler.backends.protocol import (
    Attempt,
    Backend,
    CannotHonourError,
    Capabilities,
    GpuView,
    MemberPlace,
    NodeView,
    RefusedError,
)
from ..scheduler.model.gpu_index import Layout
from ..scheduler.model.states import EndedBy, RankEnd, Run, Status

ROW = 0


@dataclass(slots=True)
class _Ring:
    """A ring of the simulation, with a member for each rank that is in use."""

    name: str  # of its attempt
    job: int
    ranks: list[int]  # GPU of each
    left: set[int] = field(default_factory=set)  # ranks whose members are gone
    generation: int = 1
    asks: bool = False  # it stands still until its request for members is answered
    empty: list[int] = field(default_factory=list)  # GPUs that failed, of the seats for which it asks
    before_s: float = 0.0  # iteration time before that
    held: int = 0  # GPUs of a running ring before others were added at this moment; 0 if none were
    seat_request: SeatRequest | None = None  # its last report of empty seats, if that still holds
    wake: Callable[[], object] | None = None  # of its connection


class SimulatedConnection:
    """A connection to a simulated ring, as `RingConnection`.

    Args:
        backend: Of the ring.
        ring: The ring.
        wake: Called when there is news.
    """

    def __init__(self, backend: "SimulatedBackend", ring: _Ring, wake: Callable[[], object]) -> None:
        self._backend, self._ring = backend, ring
        ring.wake = wake

    @property
    def is_open(self) -> bool:
        """Return True: its coordinator always answers."""
        return True

    @property
    def seat_request(self) -> SeatRequest | None:
        """The empty seats of the ring; None while it stands still with a fault not found yet, and once it is over."""
        return self._backend.seat_request_of(self._ring)

    def hints(self) -> list[str]:
        """Return nothing: there is no script."""
        return []

    def send(self, message: MemberOffer | NoMemberOffer) -> bool:
        """Let the ring continue without a member for its empty seats, if there is none."""
        if isinstance(message, NoMemberOffer):
            self._backend.give_up_seats(self._ring)
        return True

    def close(self) -> None:
        """Close the connection."""
        self._ring.wake = None


PROGRESS = {"step": 1.0}  # a simulated job never stands still


class SimulatedBackend(Backend):
    """Runs attempts in a simulation, whose clock moves only by `handle_events`.

    Jobs are those of the simulation's scenario: an attempt's job is named by `of_job`, and its start time is now. By
    rules that switch, an attempt with seats has a ring, whose empty seats the scheduler fills.

    Args:
        sim: The simulation, with true run times and faults; its row 0 is reset.
        layout: Names of its nodes.
    """

    capabilities = Capabilities(exact_gpus=True, atomic_gang=True, enforced=True, runs_rings=True)

    def __init__(self, sim: Simulation, layout: Layout) -> None:
        if sim.rules.switching and sim.rules.spares > 0.0:
            raise ValueError(f"the scheduler has no pool of spares, but the rules have {sim.rules.spares}")
        self.sim, self.layout = sim, layout
        self.formed: Callable[[int], object] = lambda job: (
            None
        )  # called with the job of a ring that begins or continues
        self._rings: dict[str, _Ring] = {}  # by attempt
        self._present: dict[int, _Ring] = {}  # by job, those that are not over
        self.of_job: dict[str, int] = {}  # job of the scenario, by the id that it was submitted under
        self._number: dict[str, tuple[int, int]] = {}  # job and how often it had stopped, by attempt
        reset(sim, ROW, 0)

    @classmethod
    def build(cls, settings: object, folder: Path, layout: Layout) -> Self:
        """Refuse: a simulation cannot be chosen in a configuration.

        Raises:
            InputError: Always.
        """
        raise InputError("a simulated backend has no configuration", "make it of a simulation")

    @property
    def launches(self) -> int:
        """Return how many attempts were started."""
        return len(self._number)

    @property
    def now_s(self) -> float:
        """Time of the simulation."""
        return float(self.sim.state.now_s[ROW])

    def next_event_time_s(self) -> float:
        """Return the time of the next event, inf for none."""
        self._continue_rings()
        return float(next_event_s(self.sim, ROW))

    def process_moment(self, time_s: float) -> None:
        """Process all events of the next moment."""
        sim = self.sim
        if not sim.rules.switching:
            handle_events(sim, ROW, time_s)
            return
        self._continue_rings()
        move_clock(sim, ROW, time_s)
        self._end_held()
        if sim.state.finished[ROW] < sim.scenarios.jobs[sim.state.scenario[ROW]]:
            toggle_due_sources(sim, ROW)
            self._end_held()
            submit_due(sim, ROW)

    def _end_held(self) -> None:
        """End what is over now, and act on the faults that are found now; as the simulator's `end_held`."""
        sim, state = self.sim, self.sim.state
        while state.running[ROW] > 0 and state.end_s[ROW, state.run_heap[ROW, 0]] <= state.now_s[ROW]:
            job = int(state.run_heap[ROW, 0])
            if not is_struck(sim, ROW, job):
                finish(sim, ROW, job)
                self._end_ring(job)
            elif not self._request_members(job):
                stop_after_fault(sim, ROW, job)
                self._end_ring(job)

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
        """Start an attempt; again, this does nothing.

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
        make_job_due(self.sim, ROW, job)
        for gpu in gpus:
            take_gpu(self.sim, ROW, gpu)
        state.shadow_s[ROW] = math.inf  # reservations are the scheduler's
        start(self.sim, ROW)
        self._number[attempt.name] = (job, int(state.stops[ROW, job]))
        if attempt.seats:
            self._begin_ring(attempt.name, job, gpus)

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

    def cancel(self, name: str, reason: str) -> None:
        """Do nothing: a job of a simulation runs until it ends."""

    def is_proven_gone(self, name: str) -> bool:
        """Return whether an attempt has ended."""
        return self.status(name).run in (Run.EXITED, Run.ABSENT)

    def logs(self, name: str, rank: int, offset: int, max_bytes: int) -> tuple[bytes, int]:
        """Return nothing: a job of a simulation writes nothing."""
        del name, rank, max_bytes
        return b"", offset

    def forget(self, name: str) -> None:
        """Do nothing."""

    def ring_report(self, name: str) -> RingReport | None:
        """Return the state of an attempt's ring; None without a ring."""
        ring = self._rings.get(name)
        if ring is None:
            return None
        order = [rank for _, rank in self._members(ring)] if self._is_present(ring) else []
        seats = int(self.sim.scenarios.gpus[self.sim.state.scenario[ROW], ring.job])
        phase = ("stopping" if self._stands_still(ring) else "running") if order else "lost"
        if not order and self.sim.state.finish_s[ROW, ring.job] > 0.0:
            phase = "done"
        gone = {str(rank): "its GPU failed" for rank in sorted(ring.left)}
        return RingReport(phase, ring.generation, seats, order + [-1] * (seats - len(order)), [], 0, gone, [])

    def retire_members(self, name: str, gpus: Collection[tuple[str, int]], reason: str) -> bool:
        """Return whether a ring continues without members whose GPUs have failed, which are gone by themselves.

        Raises:
            BackendError: If one of the GPUs is healthy.
        """
        del reason
        ring, state = self._rings.get(name), self.sim.state
        if ring is None or not self._is_present(ring):
            return False
        for place in gpus:
            gpu = self.layout.number(*place)
            if state.gpu_job[ROW, gpu] == ring.job and state.gpu_down[ROW, gpu] == 0:
                raise BackendError(f"{name}: GPU {place[1]} of {place[0]} is healthy, and no member leaves it")
        return True

    def connect_to_ring(self, name: str, wake: Callable[[], object]) -> SimulatedConnection:
        """Return a connection to the ring of an attempt.

        Raises:
            BackendError: If it has none.
        """
        return SimulatedConnection(self, self._ring_of(name), wake)

    def ring_places(self, name: str) -> list[MemberPlace] | None:
        """Return all GPUs that the ring of an attempt was ever given, by rank; None if it has none."""
        ring = self._rings.get(name)
        if ring is None:
            return None
        return [
            MemberPlace(*self.layout.node_and_index(gpu), is_used=rank not in ring.left, is_left=rank in ring.left)
            for rank, gpu in enumerate(ring.ranks)
        ]

    def add_to_ring(self, name: str, rank: int, node: str, gpu: int) -> None:
        """Add a GPU to a ring; again, this does nothing.

        Raises:
            BackendError: If it is over or has no empty seat, the GPU is not free, or the rank is not the next.
        """
        ring, number, state = self._ring_of(name), self.layout.number(node, gpu), self.sim.state
        if rank < len(ring.ranks) and ring.ranks[rank] == number:
            return
        if rank != len(ring.ranks):
            raise BackendError(f"{name}: GPU {gpu} of {node} cannot be of rank {rank}, as {len(ring.ranks)} is next")
        if state.gpu_job[ROW, number] >= 0 or state.gpu_down[ROW, number] > 0:
            raise BackendError(f"{name}: GPU {gpu} of {node} is not free")
        if not self._is_present(ring) or not (ring.empty if self._stands_still(ring) else state.short[ROW, ring.job]):
            raise BackendError(f"{name} has no seat for GPU {gpu} of {node}")
        ring.ranks.append(number)
        ring.held = 0 if ring.asks else ring.held or held_gpus(self.sim, ROW, ring.job)
        claim_gpu(self.sim, ROW, ring.job, number)
        if ring.asks:
            del ring.empty[0]
        else:
            ring.generation += 1
            state.short[ROW, ring.job] -= 1
            state.shrunk[ROW] -= state.short[ROW, ring.job] == 0
        self._notify(ring)
        if ring.asks and not ring.empty:
            self._continue_ring(ring)

    def seat_request_of(self, ring: _Ring) -> SeatRequest | None:
        """Return the empty seats of a ring, as `seat_request` of its connection."""
        if not self._is_present(ring) or (self._stands_still(ring) and not ring.asks):
            return None
        if ring.seat_request is None:
            members = self._members(ring)
            ring.seat_request = SeatRequest(
                generation=ring.generation,
                empty=list(self._empty_seats(ring, members)),
                order=[rank for _, rank in members],
                step_s=ring.before_s if ring.asks else float(held_ring_iteration_s(self.sim, ROW, ring.job)),
                compute_s={str(rank): float(compute_s(self.sim, ROW, ring.job, gpu)) for gpu, rank in members},
                nodes={str(rank): self.layout.node_and_index(gpu)[0] for gpu, rank in members},
            )
        return ring.seat_request

    def give_up_seats(self, ring: _Ring) -> None:
        """Let a ring that stands still continue without the members for which it asks."""
        if self._is_present(ring) and ring.asks:
            state = self.sim.state
            state.shrunk[ROW] += state.short[ROW, ring.job] == 0
            state.short[ROW, ring.job] += len(ring.empty)
            ring.empty.clear()
            self._continue_ring(ring)

    def _begin_ring(self, name: str, job: int, gpus: Collection[int]) -> None:
        """Give an attempt that has just started a ring."""
        self._rings[name] = self._present[job] = _Ring(name, job, list(gpus))
        self.formed(job)

    def _request_members(self, job: int) -> bool:
        """Let the ring of a job ask for members in place of those that have died; False if it has none, or is lost.

        Source: SPEC F5 to F10; the simulator's side is `heed` of cluster/simulator/faults.py.
        """
        ring, sim = self._present.get(job), self.sim
        if ring is None or not has_live_member(sim, ROW, job):
            return False
        state = sim.state
        ring.before_s = float(held_ring_iteration_s(sim, ROW, job))
        count_progress(sim, ROW, job, state.struck_s[ROW, job], held_gpus(sim, ROW, job))
        for gpu, rank in self._members(ring):
            if state.died[ROW, gpu] == 1:
                state.died[ROW, gpu] = 0
                if state.gpu_down[ROW, gpu] > 0:
                    give_up_gpu(sim, ROW, job, gpu)
                    ring.left.add(rank)
                    ring.empty.append(gpu)
        ring.generation += 1
        ring.asks = True
        if not ring.empty:
            self._continue_ring(ring)
            return True
        remove(state.end_s, state.run_heap, state.run_place, state.running, ROW, job)
        state.end_s[ROW, job] = math.inf  # until the request is answered
        push(state.end_s, state.run_heap, state.run_place, state.running, ROW, job)
        self._notify(ring)
        return True

    def _end_ring(self, job: int) -> None:
        """Drop the ring of a job that has ended, or was stopped."""
        self._present.pop(job, None)

    def _continue_rings(self) -> None:
        """Let rings continue: with the members that were added, and without those that were requested in vain."""
        for ring in list(self._present.values()):
            if ring.asks:
                self.give_up_seats(ring)
            if ring.held:
                count_progress(self.sim, ROW, ring.job, self.sim.state.now_s[ROW], ring.held)
                ring.held = 0
                self._continue_ring(ring)

    def _continue_ring(self, ring: _Ring) -> None:
        """Let a ring continue with the GPUs that it holds."""
        ring.asks = False
        continue_after_switch(self.sim, ROW, ring.job)
        self._notify(ring)
        self.formed(ring.job)

    def _notify(self, ring: _Ring) -> None:
        """Wake the reader of the ring's connection."""
        ring.seat_request = None
        if ring.wake is not None:
            ring.wake()

    def _ring_of(self, name: str) -> _Ring:
        if name not in self._rings:
            raise BackendError(f"{name} has no ring")
        return self._rings[name]

    def _is_present(self, ring: _Ring) -> bool:
        return self._present.get(ring.job) is ring

    def _stands_still(self, ring: _Ring) -> bool:
        return bool(is_struck(self.sim, ROW, ring.job))

    def _members(self, ring: _Ring) -> list[tuple[int, int]]:
        """Return GPU and rank of each member, in the order of the ring."""
        rank_of = {gpu: rank for rank, gpu in enumerate(ring.ranks) if rank not in ring.left}
        held = np.flatnonzero(self.sim.state.gpu_job[ROW] == ring.job).tolist()
        return [(gpu, rank_of[gpu]) for gpu in held]

    def _empty_seats(self, ring: _Ring, members: list[tuple[int, int]]) -> Iterator[EmptySeat]:
        """Yield the empty seats: those of members that have just died, then those that it continued without."""
        first, last = members[0][1], members[-1][1]
        for at, place in enumerate(ring.empty):
            before = [rank for gpu, rank in members if gpu < place]
            after = [rank for gpu, rank in members if gpu > place]
            yield EmptySeat(len(before) + at, before[-1] if before else last, after[0] if after else first)
        seats = len(members) + len(ring.empty)
        for seat in range(seats, seats + int(self.sim.state.short[ROW, ring.job])):
            yield EmptySeat(seat, last, first)
