"""A real cluster as the arrays that policies read: the state of a simulation to which real events are applied."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.files.errors import PluginError
from ...cluster.model.problem import LINED, PER_JOB, PLANNED, FaultProcess, Rules
from ...cluster.model.topology import Cluster, with_need_classes
from ...cluster.placing import picked_slowdown, take_gpu, undo_picks
from ...cluster.queue.expected import expected_run_s
from ...cluster.queue.order import may_wait, next_ageing_s, turn_to
from ...cluster.queue.turns import LEADING, PASSING, rebuild_lines
from ...cluster.simulator import engine, faults, jobs
from ...cluster.simulator.live import (
    count_stay_from,
    empty_simulation,
    move_to_line,
    move_to_rank_place,
    put_job_before,
    reinsert_in_line,
    requeue_first,
    requeue_last,
    resume_run,
    withdraw,
)
from ...cluster.state.beliefs import observe_faults
from ...cluster.state.holding import claim_gpu, give_up_gpu
from ...cluster.state.state import Simulation

OF_JOBS = ("jobs", *PER_JOB, *PLANNED, *LINED)  # the arrays of scenarios that a snapshot has
ROW = 0  # of the simulation that holds the cluster


class ClusterSite(NamedTuple):
    """The fixed part of a mirrored cluster."""

    cluster: Cluster
    rules: Rules
    process: FaultProcess  # of imagined futures
    hazard_per_s: NDArray[np.float64]  # (gpus,) as policies know it before any fault
    type_names: tuple[str, ...] = ()  # of the node types, by number; none where no job asks for a type


class Spread(NamedTuple):
    """The layout of a job with a plan on its GPUs: the columns PLANNED of scenarios."""

    pipeline: int  # stages
    tensor: int
    fixed_s: float  # of an iteration, the same wherever it lies
    edge_bytes: float  # between stages
    tensor_bytes: float  # that a GPU sends to others of its tensor-parallel group

    def fits_gpus(self, gpus: int) -> bool:
        """Return whether a job of this number of GPUs can lie like this."""
        figures = self[2:]
        degrees = self.pipeline * self.tensor if min(self[:2]) > 0 else 0
        return degrees > 0 and gpus % degrees == 0 and all(0.0 <= figure < np.inf for figure in figures)


@dataclass(frozen=True, slots=True)
class JobRequest:
    """What a job requests when it is submitted."""

    job: str
    gpus: int
    estimate_s: float  # run time on the reference placement
    submitted_s: float
    rank: int = 0  # jobs of a lower rank stand before those of a higher one in the queue
    compute_s: float = 1.0  # of an iteration at speed 1
    parameter_bytes: float = 0.0
    types: tuple[int, ...] = ()  # numbers of the node types that suit it, all if there are none
    spread: Spread | None = None  # None for a job without a plan, which is a ring
    user: str = ""  # its owner: users of one rank take turns


@dataclass(frozen=True, slots=True)
class JobRecord:
    """What has happened to a job, complete enough to continue from."""

    guess_s: float  # the estimate, doubled each time the job outlived it
    entered_s: float  # when it last came into the queue
    saved_s: float = 0.0  # work that checkpoints hold
    wait_s: float = 0.0  # total time of its finished stays in the queue
    stops: int = 0
    first_start_s: float = -1.0  # -1 before
    start_s: float = 0.0  # last start
    overhead_s: float = 0.0  # restart cost of the run in progress
    slowdown: float = 1.0  # run time over work on its placement
    gpus: tuple[int, ...] = ()  # that it runs on, in the order of their picks; none while it waits
    came_back: bool = False  # it was stopped, and waits before others of its rank


@dataclass(frozen=True, slots=True)
class ExpectedStart:
    """What is expected of a start."""

    slowdown: float  # run time over work
    end_s: float


class Beliefs(NamedTuple):
    """What was learned of fault rates: the fields of the state of these names (cluster/state/state.py)."""

    gpu_hazard_per_s: tuple[float, ...]  # by GPU, all others by node
    node_hazard_per_s: tuple[float, ...]
    lemon: tuple[int, ...]
    observed_s: tuple[float, ...]
    observed_faults: tuple[float, ...]
    observed_gpu_s: tuple[float, ...]
    failed_s: tuple[float, ...]


class QueueTurn(NamedTuple):
    """The last turns of a user in the queue, of the jobs of one rank: when, and their numbers, 0 for none."""

    user: str
    rank: int
    led_s: float  # a job of theirs started that passed none
    led: int
    started_s: float  # a job of theirs started
    started: int


class MirrorOrigin(NamedTuple):
    """A cluster at one moment, from which a mirror begins."""

    now_s: float
    jobs: Sequence[tuple[JobRequest, JobRecord]] = ()  # in the order of submission
    queue: Sequence[str] = ()  # those that wait, in the order of the queue
    down: Sequence[int] = ()  # GPUs out of service, each as often as it was taken out
    # All jobs so far, and the sum of their estimates: the mean is the measure of time in what policies see. Of these
    # jobs alone where that is more.
    estimates: tuple[int, float] = (0, 0.0)
    beliefs: Beliefs | None = None  # None where nothing was observed yet, or nothing is learned
    turns: Sequence[QueueTurn] = ()  # of users


class MirrorCall(NamedTuple):
    """A call of a method of ClusterMirror."""

    method: str
    arguments: tuple[object, ...]


class MirrorSnapshot(NamedTuple):
    """All that a live cluster holds, to the bit: an independent copy."""

    site: ClusterSite
    names: list[str]  # of jobs, by slot; what else they ask for stands in the arrays
    types: list[tuple[int, ...]]  # of node types that suit each class of jobs
    lines: dict[tuple[str, int], int]  # of jobs, by user and rank
    slot: dict[str, int]  # of the jobs in the system
    scenarios: dict[str, NDArray[np.generic]]  # of jobs
    state: dict[str, NDArray[np.generic]]

    @property
    def job_slots(self) -> int:
        """Slots of jobs."""
        return int(self.scenarios["rank"].shape[1])

    @property
    def has_plans(self) -> bool:
        """Whether any of its jobs may have a plan."""
        return self.scenarios["pipeline"].size > 0

    def requests(self) -> list[JobRequest]:
        """Return the requests of its jobs, by slot."""
        users = {line: user for (user, _), line in self.lines.items()}
        names = ("gpus", "estimate_s", "submit_s", "rank", "compute_s", "parameter_bytes")
        columns = [self.scenarios[name][0].tolist() for name in names]
        types = [self.types[kind] for kind in self.scenarios["needs"][0]]
        spreads: list[Spread | None] = [None] * len(types)
        if self.has_plans:
            plans = zip(*(self.scenarios[name][0].tolist() for name in PLANNED), strict=True)
            spreads = [Spread(*plan) if plan[0] else None for plan in plans]
        of = [users.get(line, "") for line in self.scenarios["line"][0]] if self.lines else [""] * len(types)
        return [JobRequest(*values) for values in zip(self.names, *columns, types, spreads, of, strict=False)]

    def copy_into(self, sim: Simulation) -> None:
        """Copy its numbers into a simulation of one row with as much room."""
        for part, arrays in ((sim.scenarios, self.scenarios), (sim.state, self.state)):
            for name, array in arrays.items():
                getattr(part, name)[...] = array


MIN_SLOTS = 16384  # jobs
JOB_TIMES = ("guess_s", "entered_s", "saved_s", "wait_s", "first_start_s", "start_s", "overhead_s", "slowdown")


class ClusterMirror:
    """The one row of a simulation that a real cluster drives.

    Jobs get slots in the order of submission. When none are left, those of ended jobs are reclaimed, and the others
    move up in the same order.
    """

    def __init__(self, site: ClusterSite, origin: MirrorOrigin) -> None:
        self.site = site
        self.origin = origin  # where it began
        self.changes = 0  # number of calls that changed it
        self.journal: list[MirrorCall] | None = None  # these, if recorded for another mirror or for replay
        self._load_origin(origin)

    def _load_origin(self, origin: MirrorOrigin, also: JobRequest | None = None) -> None:
        requests = [request for request, _ in origin.jobs] + ([] if also is None else [also])
        self._types = list(dict.fromkeys([(), *(request.types for request in requests)]))  # of each class
        # The first class of needs takes every node.
        self.site = self.site._replace(cluster=with_need_classes(self.site.cluster, map(frozenset, self._types[1:])))
        room = max(MIN_SLOTS, 2 * len(origin.jobs), 2 * len(origin.turns))  # there are as many lines of users as jobs
        self.sim = _empty_simulation(self.site, room, has_plans=any(request.spread for request in requests))
        engine.reset(self.sim, ROW, 0)
        self._requests: list[JobRequest] = []  # by slot
        self._slot: dict[str, int] = {}  # of the jobs in the system, in the order of submission
        self._lines: dict[tuple[str, int], int] = {}  # by user and rank, where users take turns
        state = self.sim.state
        state.now_s[ROW], state.moment[ROW] = origin.now_s, 0
        state.source_count[ROW] = 0  # the real cluster decides what fails, and when
        state.observed_s[ROW] = origin.now_s if self.site.rules.estimated_hazards else 0.0
        journal, self.journal = self.journal, None  # a follower does the same by itself
        for gpu in origin.down:
            self.take_out(gpu)
        self.journal = journal
        for name, values in origin.beliefs._asdict().items() if origin.beliefs else ():
            getattr(state, name)[ROW] = values
        for request, progress in origin.jobs:
            self._load_job(request, progress)
        if origin.estimates[0] > state.estimated[ROW]:
            state.estimated[ROW], state.estimates_s[ROW] = origin.estimates
        for job in origin.queue:
            slot = self._slot[job]
            requeue_last(self.sim, ROW, slot, state.entered_s[ROW, slot])
        if self._takes_turns:
            self._load_turns(origin)

    @property
    def _takes_turns(self) -> bool:
        return bool(self.sim.rules.turns)

    def _load_turns(self, origin: MirrorOrigin) -> None:
        """Restore the turns of users, and let jobs that came back go before others."""
        state, lines = self.sim.state, self.sim.state.line_head.shape[1]
        for turn in origin.turns:
            line = self._turn_line_of(turn.user, turn.rank)
            for rotation, at_s, number in ((LEADING, turn.led_s, turn.led), (PASSING, turn.started_s, turn.started)):
                state.turn_s[ROW, rotation * lines + line] = at_s
                state.turn_number[ROW, rotation * lines + line] = number
        state.turns[ROW] = max((max(turn.led, turn.started) for turn in origin.turns), default=0)
        for request, progress in origin.jobs:
            state.came_back[ROW, self._slot[request.job]] = progress.came_back
        rebuild_lines(self.sim, ROW)

    def _turn_line_of(self, user: str, rank: int) -> int:
        """Return the line of a user's jobs of a rank, 0 for all where users take no turns."""
        return self._lines.setdefault((user, rank), len(self._lines)) if self._takes_turns else 0

    def _lacks_line(self, user: str, rank: int) -> bool:
        """Return whether there is no line for a user's jobs of a rank, and no room for one."""
        return self._takes_turns and len(self._lines) == self.job_slots and (user, rank) not in self._lines

    @property
    def job_slots(self) -> int:
        """Slots of jobs."""
        return int(self.sim.scenarios.gpus.shape[1])

    @property
    def is_full(self) -> bool:
        """Whether the next job needs slots to be reclaimed, for which the mirror is rebuilt."""
        return len(self._requests) == self.job_slots

    @property
    def now_s(self) -> float:
        """The present."""
        return float(self.sim.state.now_s[ROW])

    def _journal_call(self, method: str, *arguments: object) -> None:
        self.changes += 1
        if self.journal is not None:
            self.journal.append(MirrorCall(method, arguments))

    def begin(self, now_s: float) -> None:
        """Let time pass to a moment at which something happens."""
        self._journal_call("begin", now_s)
        engine.move_clock(self.sim, ROW, now_s)

    def submit(self, request: JobRequest) -> None:
        """Put a job into the queue, behind all others of its rank."""
        self._journal_call("submit", request)
        slot = self._write_request(request)
        engine.submit_next_job(self.sim, ROW)
        count_stay_from(self.sim, ROW, slot, min(request.submitted_s, self.now_s))
        move_to_rank_place(self.sim, ROW, slot)

    def come_back(self, request: JobRequest, progress: JobRecord) -> None:
        """Put a stopped job back into the queue, before all others of its rank."""
        self._journal_call("come_back", request, progress)
        slot = self._load_job(request, progress, is_new=False)
        requeue_first(self.sim, ROW, slot, progress.entered_s)
        move_to_rank_place(self.sim, ROW, slot)

    def rejoin(self, request: JobRequest, progress: JobRecord) -> None:
        """Put a job back into the queue, behind all others of its rank."""
        self._journal_call("rejoin", request, progress)
        slot = self._load_job(request, progress, is_new=False)
        requeue_last(self.sim, ROW, slot, progress.entered_s)
        move_to_rank_place(self.sim, ROW, slot)

    def give_place(self, job: str, rank: int, after: str | None) -> None:
        """Give a job a rank; one that waits goes right before another one that does, None for the end of the queue."""
        slot = self._slot[job]
        if after is not None and self.sim.state.run_place[ROW, self._slot[after]] >= 0:
            raise ValueError(f"job {after} does not wait")
        self._journal_call("give_place", job, rank, after)
        if self._lacks_line(self._requests[slot].user, rank):
            self._make_room()
            slot = self._slot[job]
        self._requests[slot] = replace(self._requests[slot], rank=rank)
        if self._takes_turns:
            move_to_line(self.sim, ROW, slot, self._turn_line_of(self._requests[slot].user, rank), rank)
        self.sim.scenarios.rank[0, slot] = rank
        if self.sim.state.run_place[ROW, slot] < 0:
            put_job_before(self.sim, ROW, slot, -1 if after is None else self._slot[after])
            reinsert_in_line(self.sim, ROW, slot)

    def queue_neighbours(self, job: str) -> tuple[str | None, str | None]:
        """Return the jobs right before and behind a waiting one in the queue, None where there is none."""
        state, slot = self.sim.state, self._slot[job]
        before, after = int(state.previous_job[ROW, slot]), int(state.next_job[ROW, slot])
        return None if before < 0 else self._requests[before].job, None if after < 0 else self._requests[after].job

    def finish(self, job: str) -> None:
        """End a running job."""
        self._journal_call("finish", job)
        jobs.finish(self.sim, ROW, self._slot.pop(job))

    def stop(self, job: str, kept: float | None = None) -> None:
        """Put a running job back into the queue, before all others of its rank.

        Args:
            job: The job.
            kept: Seconds of its run that its checkpoints hold; None if it reported nothing, as if there were a
                checkpoint in each interval of the cluster.
        """
        # A job may claim anything, and work without end would never be outlived by an estimate.
        kept = None if kept is None or not math.isfinite(kept) else kept
        self._journal_call("stop", job, kept)
        slot = self._slot[job]
        ran_s = max(self.now_s - float(self.sim.state.start_s[ROW, slot]), 0.0)
        kept_s = jobs.checkpointed_run_s(self.sim, ROW, slot) if kept is None else min(max(kept, 0.0), ran_s)
        jobs.stop(self.sim, ROW, slot, kept_s)
        move_to_rank_place(self.sim, ROW, slot)

    def withdraw(self, job: str) -> None:
        """Take a waiting job out of the queue for good."""
        self._journal_call("withdraw", job)
        withdraw(self.sim, ROW, self._slot.pop(job))

    def claim(self, job: str, gpu: int) -> None:
        """Give a running job a free GPU more.

        Raises:
            PluginError: If the job does not run, or the GPU is not free.
        """
        state = self.sim.state
        if not self.has(job) or state.run_place[ROW, self._slot[job]] < 0:
            raise PluginError(f"job {job} does not run")
        if not 0 <= gpu < state.gpu_job.shape[1] or state.gpu_job[ROW, gpu] >= 0 or state.gpu_down[ROW, gpu] > 0:
            raise PluginError(f"GPU {gpu} is not free")
        self._journal_call("claim", job, gpu)
        claim_gpu(self.sim, ROW, self._slot[job], gpu)

    def give_up(self, job: str, gpu: int) -> None:
        """Take a GPU from a running job: it is free, unless it is out of service.

        Raises:
            PluginError: If the job does not run on it.
        """
        if not self.has(job) or gpu not in self.gpus_of_job(job) or self.sim.state.run_place[ROW, self._slot[job]] < 0:
            raise PluginError(f"job {job} does not run on GPU {gpu}")
        self._journal_call("give_up", job, gpu)
        give_up_gpu(self.sim, ROW, self._slot[job], gpu)

    def take_out(self, gpu: int) -> None:
        """Take a GPU out of service once more; a job on it goes on."""
        self._journal_call("take_out", gpu)
        state = self.sim.state
        faults.take_gpus_out(self.sim, ROW, gpu, gpu + 1)
        state.source_failed[ROW, gpu], state.source_since_s[ROW, gpu] = 1, state.now_s[ROW]

    def fail(self, gpus: Sequence[int]) -> None:
        """Let policies learn that faults took these GPUs, which have just been taken out of service."""
        self._journal_call("fail", tuple(gpus))
        for gpu in gpus:
            observe_faults(self.sim, ROW, gpu, gpu + 1)

    def bring_back(self, gpu: int) -> None:
        """Undo one `take_out`."""
        self._journal_call("bring_back", gpu)
        state = self.sim.state
        faults.bring_gpus_back(self.sim, ROW, gpu, gpu + 1)
        if state.gpu_down[ROW, gpu] == 0:
            state.source_failed[ROW, gpu], state.source_since_s[ROW, gpu] = 0, state.now_s[ROW]

    def hide(self, nodes: Sequence[int]) -> None:
        """Let no job be placed on these nodes until they are shown again; jobs on them run on."""
        self._journal_call("hide", nodes)
        first_gpu = self.site.cluster.first_gpu
        for node in nodes:
            faults.take_gpus_out(self.sim, ROW, first_gpu[node], first_gpu[node + 1])

    def show(self, nodes: Sequence[int]) -> None:
        """Undo one `hide`."""
        self._journal_call("show", nodes)
        first_gpu, state = self.site.cluster.first_gpu, self.sim.state
        for node in nodes:
            first, after = first_gpu[node], first_gpu[node + 1]
            faults.bring_gpus_back(self.sim, ROW, first, after)
            # A copy that was made while they were hidden knows them as out of service.
            state.source_failed[ROW, first:after] &= state.gpu_down[ROW, first:after] > 0

    def find_due_job(self) -> str | None:
        """Return the job of the decision that is due, None if there is none at this moment."""
        return self.current_job if engine.find_due_job(self.sim, ROW) else None

    def has_job_aged(self, now_s: float) -> bool:
        """Return whether a waiting job has reached the ageing bound since the last moment."""
        return bool(next_ageing_s(self.sim, ROW) <= now_s)

    @property
    def current_job(self) -> str:
        """The job that is due; a policy may have turned to another one."""
        return self._requests[int(self.sim.state.current[ROW])].job

    def start_current_job(self) -> bool:
        """Start the current job on its picks; False if that would break a reservation, and the job is passed over."""
        self._journal_call("carry_out", self.current_job, self.gpus_of_job(self.current_job))
        return bool(engine.start(self.sim, ROW))

    def carry_out(self, job: str, gpus: Sequence[int]) -> bool:
        """Start a job on given GPUs; as `start_current_job`.

        Raises:
            PluginError: If the job may not start at this moment, or cannot start on these GPUs; nothing has changed.
        """
        self.check_gpus(job, gpus)
        if job != self.current_job and not turn_to(self.sim, ROW, self._slot[job]):
            raise PluginError(f"job {job} may not start before job {self.current_job}")
        for gpu in gpus:
            take_gpu(self.sim, ROW, gpu)
        return self.start_current_job()

    def check_gpus(self, job: str, gpus: Sequence[int]) -> None:
        """Refuse GPUs that a waiting job cannot have.

        Raises:
            PluginError: Saying why.
        """
        state = self.sim.state
        if not self.has(job) or state.run_place[ROW, self._slot[job]] >= 0:
            raise PluginError(f"job {job} does not wait")
        requested = self.request(job).gpus
        if len(gpus) != requested or len(set(gpus)) != requested:
            raise PluginError(f"job {job} asks for {requested} GPUs and was given {len(set(gpus))}")
        for gpu in gpus:
            if not 0 <= gpu < state.gpu_job.shape[1]:
                raise PluginError(f"there is no GPU {gpu}")
            if state.gpu_job[ROW, gpu] >= 0 or state.gpu_down[ROW, gpu] > 0:
                raise PluginError(f"GPU {gpu} is {'busy' if state.gpu_job[ROW, gpu] >= 0 else 'out of service'}")
            if not self.suitable_gpus(job)[gpu]:
                raise PluginError(f"GPU {gpu} is of a node that does not suit job {job}")

    def undo_picks(self) -> None:
        """Give the picks for the current job back, and forget that all jobs were to wait."""
        if self.sim.state.current[ROW] >= 0:
            undo_picks(self.sim, ROW)
        self.sim.state.rested[ROW] = min(self.sim.state.rested[ROW], self.sim.state.moment[ROW] - 1)

    @property
    def all_jobs_wait(self) -> bool:
        """Whether a policy has decided at this moment that all jobs wait."""
        return bool(self.sim.state.rested[ROW] == self.sim.state.moment[ROW])

    def wait(self, *, rests: bool) -> None:
        """Let the next event pass instead of placing the current job; all jobs, if it `all_jobs_wait`.

        Raises:
            PluginError: If no job may wait at this moment.
        """
        if not may_wait(self.sim, ROW):
            raise PluginError(f"job {self.current_job} may not wait at this moment")
        self._journal_call("wait", rests)
        undo_picks(self.sim, ROW)
        if rests:
            self.sim.state.rested[ROW] = self.sim.state.moment[ROW]
        engine.wait(self.sim, ROW)

    def pass_over(self) -> None:
        """Let others start before the job that is due, which no free GPUs suit at this moment."""
        self._journal_call("pass_over")
        if self.find_due_job() is not None:
            engine.wait(self.sim, ROW)

    def apply_calls(self, calls: Iterable[MirrorCall]) -> None:
        """Apply the calls of another mirror, decisions too."""
        for each in calls:
            if each.method == "carry_out":
                self.find_due_job()
                self.carry_out(*each.arguments)  # type: ignore[arg-type]
            elif each.method == "wait":
                self.find_due_job()
                self.wait(rests=bool(each.arguments[0]))
            else:
                getattr(self, each.method)(*each.arguments)

    def gpus_of_job(self, job: str) -> tuple[int, ...]:
        """Return the GPUs that a job holds, or that are picked for it, in the order of their picks."""
        gpus = []
        gpu = int(self.sim.state.first_gpu[ROW, self._slot[job]])
        while gpu >= 0:
            gpus.append(gpu)
            gpu = int(self.sim.state.gpu_next[ROW, gpu])
        return tuple(reversed(gpus))

    def holder(self, gpu: int) -> str | None:
        """Return the job that holds a GPU, None if it is free."""
        slot = int(self.sim.state.gpu_job[ROW, gpu])
        return None if slot < 0 else self._requests[slot].job

    def progress(self, job: str) -> JobRecord:
        """Return what has happened to a job of the system."""
        slot, state = self._slot[job], self.sim.state
        values = {name: float(getattr(state, name)[ROW, slot]) for name in JOB_TIMES}
        gpus = self.gpus_of_job(job) if state.run_place[ROW, slot] >= 0 else ()
        came_back = self._takes_turns and not gpus and bool(state.came_back[ROW, slot])
        return JobRecord(**values, stops=int(state.stops[ROW, slot]), gpus=gpus, came_back=came_back)

    def queue_turn(self, job: str) -> QueueTurn | None:
        """Return the last turns of the user of a job of the system, at its rank; None where users take no turns."""
        request = self.request(job)
        return self._queue_turn_of(request.user, request.rank) if self._takes_turns else None

    def _queue_turn_of(self, user: str, rank: int) -> QueueTurn:
        state, lines = self.sim.state, self.sim.state.line_head.shape[1]
        led, started = (rotation * lines + self._turn_line_of(user, rank) for rotation in (LEADING, PASSING))
        return QueueTurn(
            user, rank, float(state.turn_s[ROW, led]), int(state.turn_number[ROW, led]),
            float(state.turn_s[ROW, started]), int(state.turn_number[ROW, started]),
        )  # fmt: skip

    def origin_now(self) -> MirrorOrigin:
        """Return all from which another mirror can continue."""
        jobs = [(self._requests[slot], self.progress(job)) for job, slot in self._slot.items()]
        state = self.sim.state
        down = np.repeat(np.arange(state.gpu_down.shape[1]), state.gpu_down[ROW]).tolist()
        estimates = int(state.estimated[ROW]), float(state.estimates_s[ROW])
        turns = tuple(turn for user in self._lines if (turn := self._queue_turn_of(*user)).started > 0)
        return MirrorOrigin(self.now_s, jobs, tuple(self._queued_jobs()), down, estimates, self.beliefs(), turns)

    def beliefs(self) -> Beliefs | None:
        """Return what was learned of fault rates, None where nothing is."""
        if not self.site.rules.estimated_hazards:
            return None
        return Beliefs(*(tuple(getattr(self.sim.state, name)[ROW].tolist()) for name in Beliefs._fields))

    def snapshot(self) -> MirrorSnapshot:
        """Return a copy of all of it, also of what is half done; unlike `origin_now`, in the time that memory takes."""
        return MirrorSnapshot(
            self.site, [request.job for request in self._requests], self._types.copy(), self._lines.copy(),
            self._slot.copy(),
            {name: getattr(self.sim.scenarios, name).copy() for name in OF_JOBS},
            {name: array.copy() for name, array in self.sim.state._asdict().items()},
        )  # fmt: skip

    @classmethod
    def from_snapshot(cls, snapshot: MirrorSnapshot) -> "ClusterMirror":
        """Return a live cluster that is the same to the bit."""
        mirror = cls(snapshot.site, MirrorOrigin(0.0))
        mirror.sim = _empty_simulation(snapshot.site, snapshot.job_slots, has_plans=snapshot.has_plans)
        mirror.site, mirror._slot, mirror._types = snapshot.site, snapshot.slot, snapshot.types
        mirror._lines = snapshot.lines
        mirror._requests = snapshot.requests()
        snapshot.copy_into(mirror.sim)
        return mirror

    def slot(self, job: str) -> int:
        """Return the number of a job of the system in the simulation's arrays."""
        return self._slot[job]

    def has(self, job: str) -> bool:
        """Return whether a job is in the system."""
        return job in self._slot

    def suitable_gpus(self, job: str) -> NDArray[np.bool_]:
        """Return which GPUs are of nodes that suit a job of the system, shape (gpus,)."""
        kind, cluster = self.sim.scenarios.needs[0, self._slot[job]], self.site.cluster
        suits: NDArray[np.bool_] = cluster.suits[kind, cluster.gpu_node] == 1
        return suits

    def request(self, job: str) -> JobRequest:
        """Return the request of a job of the system."""
        return self._requests[self._slot[job]]

    def _queued_jobs(self) -> Iterable[str]:
        state = self.sim.state
        slot = int(state.head[ROW])
        while slot >= 0:
            yield self._requests[slot].job
            slot = int(state.next_job[ROW, slot])

    def _make_room(self, request: JobRequest | None = None) -> None:
        """Reclaim the slots of ended jobs, and make room for more jobs, also for one of new needs or with a plan."""
        old, slots = self.sim.state, self._slot
        self._load_origin(self.origin_now(), request)
        for name in ("moment", "waited", "rested", "decisions"):
            getattr(self.sim.state, name)[ROW] = getattr(old, name)[ROW]
        self.sim.state.passed[ROW, : len(slots)] = old.passed[ROW, list(slots.values())]

    def _write_request(self, request: JobRequest) -> int:
        """Write a job's request into the next slot, and return the slot."""
        has_plans = self.sim.scenarios.pipeline.size > 0
        is_full = self.is_full or self._lacks_line(request.user, request.rank)
        if is_full or request.types not in self._types or (request.spread and not has_plans):
            self._make_room(request)
        slot, scenarios = len(self._requests), self.sim.scenarios
        self._requests.append(request)
        self._slot[request.job] = slot
        scenarios.jobs[0] = slot + 1
        scenarios.gpus[0, slot], scenarios.rank[0, slot] = request.gpus, request.rank
        scenarios.work_s[0, slot] = scenarios.estimate_s[0, slot] = request.estimate_s
        scenarios.submit_s[0, slot] = request.submitted_s
        scenarios.compute_s[0, slot], scenarios.parameter_bytes[0, slot] = request.compute_s, request.parameter_bytes
        for name, value in request.spread._asdict().items() if request.spread else ():
            getattr(scenarios, name)[0, slot] = value
        scenarios.needs[0, slot] = self._types.index(request.types)
        if self._takes_turns:
            scenarios.line[0, slot] = self._turn_line_of(request.user, request.rank)
        self.sim.state.guess_s[ROW, slot], self.sim.state.first_start_s[ROW, slot] = request.estimate_s, -1.0
        return slot

    def _load_job(self, request: JobRequest, progress: JobRecord, *, is_new: bool = True) -> int:
        """Write a job's request and progress, but not its place in the queue; return its slot."""
        slot, state = self._write_request(request), self.sim.state
        state.submitted[ROW] = slot + 1
        if is_new:
            state.estimated[ROW] += 1
            state.estimates_s[ROW] += request.estimate_s
        state.stops[ROW, slot] = progress.stops
        for name in JOB_TIMES:
            getattr(state, name)[ROW, slot] = getattr(progress, name)
        if progress.gpus:
            # Only a key of the heap: its end is not known, and the expected end follows from the estimate.
            state.end_s[ROW, slot] = progress.start_s + request.estimate_s * progress.slowdown
            resume_run(self.sim, ROW, slot, np.array(progress.gpus, dtype=np.int32))
        return slot


def _empty_simulation(site: ClusterSite, room: int, *, has_plans: bool) -> Simulation:
    return empty_simulation(site.cluster, site.rules, site.process, site.hazard_per_s, room, has_plans=has_plans)


def check_decision(mirror: ClusterMirror, job: str, gpus: Sequence[int]) -> None:
    """Refuse to start the job that is due, or another, on GPUs, or to let it wait if there are none; it stays due.

    Raises:
        PluginError: If that cannot be carried out.
    """
    due = mirror.current_job
    if not gpus:
        if job != due:
            raise PluginError(f"job {job} cannot wait in the place of job {due}")
        if not may_wait(mirror.sim, ROW):
            raise PluginError(f"job {job} may not wait at this moment")
        return
    mirror.check_gpus(job, gpus)
    if job != due:
        turned = turn_to(mirror.sim, ROW, mirror.slot(job))
        mirror.find_due_job()
        if not turned:
            raise PluginError(f"job {job} may not start before job {due}")


def expected_start(mirror: ClusterMirror, job: str, gpus: Sequence[int]) -> ExpectedStart:
    """Return what is expected of a job on GPUs that it could start on now; the job that is due stays so.

    Raises:
        PluginError: If it could not.
    """
    check_decision(mirror, job, gpus)
    slot = mirror.slot(job)
    turn_to(mirror.sim, ROW, slot)
    for gpu in gpus:
        take_gpu(mirror.sim, ROW, gpu)
    slowdown = float(picked_slowdown(mirror.sim, ROW))
    end_s = mirror.now_s + float(expected_run_s(mirror.sim, ROW, slot, slowdown))
    mirror.undo_picks()
    mirror.find_due_job()
    return ExpectedStart(slowdown, end_s)
