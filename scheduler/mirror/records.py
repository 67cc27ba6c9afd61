"""Records of a mirrored cluster and its jobs, and checks whether a decision can be carried out."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.files.errors import PluginError
from ...cluster.model.needs import with_classes
from ...cluster.model.problem import LINED, PER_JOB, PLANNED, FaultProcess, Rules
from ...cluster.model.topology import Cluster
from ...cluster.placing import picked_slowdown, take_gpu
from ...cluster.queue.expected import expected_run_s
from ...cluster.queue.order import may_wait, turn_to
from ...cluster.state.state import Simulation

if TYPE_CHECKING:
    from .cluster_mirror import ClusterMirror

OF_JOBS = ("jobs", *PER_JOB, *PLANNED, *LINED)  # the arrays of scenarios that a snapshot has
ROW = 0  # of the simulation that holds the cluster


class ClusterSite(NamedTuple):
    """The fixed part of a mirrored cluster."""

    cluster: Cluster
    rules: Rules
    process: FaultProcess  # of imagined futures
    hazard_per_s: NDArray[np.float64]  # (gpus,) as policies know it before any fault

    def with_classes(self, types: Sequence[tuple[int, ...]]) -> "ClusterSite":
        """Return the same with a class of needs for each tuple of node types, of which the first takes every node."""
        return self._replace(cluster=with_classes(self.cluster, map(frozenset, types[1:])))


class Spread(NamedTuple):
    """The layout of a job with a plan on its GPUs: the columns PLANNED of scenarios."""

    pipeline: int  # stages
    tensor: int
    fixed_s: float  # of an iteration, the same wherever it lies
    edge_bytes: float  # between stages
    tensor_bytes: float  # that a GPU sends to others of its tensor-parallel group

    def suits(self, gpus: int) -> bool:
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
    def room(self) -> int:
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


def check_gpus(mirror: "ClusterMirror", job: str, gpus: Sequence[int]) -> None:
    """Refuse GPUs that a waiting job cannot have.

    Raises:
        PluginError: Saying why.
    """
    state = mirror.sim.state
    if not mirror.has(job) or state.run_place[ROW, mirror.slot(job)] >= 0:
        raise PluginError(f"job {job} does not wait")
    asked = mirror.request(job).gpus
    if len(gpus) != asked or len(set(gpus)) != asked:
        raise PluginError(f"job {job} asks for {asked} GPUs and was given {len(set(gpus))}")
    for gpu in gpus:
        if not 0 <= gpu < state.gpu_job.shape[1]:
            raise PluginError(f"there is no GPU {gpu}")
        if state.gpu_job[ROW, gpu] >= 0 or state.gpu_down[ROW, gpu] > 0:
            raise PluginError(f"GPU {gpu} is {'busy' if state.gpu_job[ROW, gpu] >= 0 else 'out of service'}")
        if not mirror.suits(job)[gpu]:
            raise PluginError(f"GPU {gpu} is of a node that does not suit job {job}")


def check_claim(mirror: "ClusterMirror", job: str, gpu: int) -> None:
    """Refuse a GPU that a running job cannot have beside its own.

    Raises:
        PluginError: Saying why.
    """
    state = mirror.sim.state
    if not mirror.has(job) or state.run_place[ROW, mirror.slot(job)] < 0:
        raise PluginError(f"job {job} does not run")
    if not 0 <= gpu < state.gpu_job.shape[1] or state.gpu_job[ROW, gpu] >= 0 or state.gpu_down[ROW, gpu] > 0:
        raise PluginError(f"GPU {gpu} is not free")


def check_held(mirror: "ClusterMirror", job: str, gpu: int) -> None:
    """Refuse a GPU that a running job does not hold.

    Raises:
        PluginError: If it does not.
    """
    if not mirror.has(job) or gpu not in mirror.picks(job) or mirror.sim.state.run_place[ROW, mirror.slot(job)] < 0:
        raise PluginError(f"job {job} does not run on GPU {gpu}")


def check_decision(mirror: "ClusterMirror", job: str, gpus: Sequence[int]) -> None:
    """Refuse a decision that cannot be carried out; the job that is due stays so.

    Args:
        mirror: The cluster; a job is due.
        job: That starts, or waits if it has no GPUs.
        gpus: That it starts on.

    Raises:
        PluginError: Saying why.
    """
    due = mirror.current
    if not gpus:
        if job != due:
            raise PluginError(f"job {job} cannot wait in the place of job {due}")
        if not may_wait(mirror.sim, ROW):
            raise PluginError(f"job {job} may not wait at this moment")
        return
    check_gpus(mirror, job, gpus)
    if job != due:
        turned = turn_to(mirror.sim, ROW, mirror.slot(job))
        mirror.due()
        if not turned:
            raise PluginError(f"job {job} may not start before job {due}")


def expected(mirror: "ClusterMirror", job: str, gpus: Sequence[int]) -> ExpectedStart:
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
    mirror.take_back()
    mirror.due()
    return ExpectedStart(slowdown, end_s)
