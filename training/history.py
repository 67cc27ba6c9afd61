"""The past of a live cluster, from the file that `longshore store decisions` writes.

The file is all that training knows of the scheduler; docs/policies.md describes it. A line holds a decision and what
happened since the one before it. Fields that are not needed here are ignored.

`ClusterPast` follows the cluster decision by decision: jobs and their work, faults, and what networks observed. The
work of a job is what its runs have done: their times without the restart, over the slowdowns of their placements, as
far as checkpoints kept it.

Source: SPEC R9, R11.
"""

import math
from base64 import b64decode
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, TypeAdapter, ValidationError

from ..cluster.files.errors import InputError
from ..cluster.model.problem import ORDERS, Rules
from ..cluster.model.topology import Cluster
from ..cluster.model.workload import Workload, workload_of
from ..cluster.state.border import checked_cluster, checked_rules
from ..cluster.state.state import MAX_CANDIDATES
from ..envs.features import CANDIDATE_FEATURE_COUNT, CANDIDATE_GLOBAL_COUNT

EXPORT_HINT = "write the file by `longshore store decisions --out FILE`"


class SubmittedJob(NamedTuple):
    """What was known of a job when it was submitted. Files omit defaults from the end."""

    job: str
    gpus: int
    estimate_s: float
    submitted_s: float
    rank: int
    compute_s: float
    parameter_bytes: float
    types: tuple[int, ...] = ()  # numbers of the node types that suit it, all if there are none
    spread: tuple[int, int, float, float, float] | None = None  # how a job with a plan lies on its GPUs
    user: str = ""  # its owner: users of one rank take turns


class JobProgress(NamedTuple):
    """How far a job was."""

    guess_s: float
    entered_s: float
    saved_s: float  # work that checkpoints hold
    wait_s: float
    stops: int
    first_start_s: float
    start_s: float
    overhead_s: float
    slowdown: float
    gpus: tuple[int, ...]  # none while it waited
    came_back: bool = False  # it waited since it was stopped


class InitialState(NamedTuple):
    """State of the cluster when the scheduler began to record it."""

    cluster: Cluster
    rules: Rules
    repair_mean_s: float
    hazard_per_s: NDArray[np.float64]  # (gpus,) as policies knew it
    now_s: float
    jobs: Sequence[tuple[SubmittedJob, JobProgress]]
    down: Sequence[int]  # GPUs, each as often as it was out of service
    estimates: tuple[int, float]  # jobs so far, and the sum of their estimates
    types: tuple[str, ...]  # names of the node types, by number; none in files without names

    def type_name(self, number: int) -> str:
        """Return the name of a node type, its number if it has no name, and nothing if there is no such type."""
        if not self.types:
            return str(number)
        return self.types[number] if 0 <= number < len(self.types) else ""

    def suitable_nodes(self, types: Sequence[str]) -> NDArray[np.bool_]:
        """Return which nodes are of types of these names, shape (nodes,); all nodes if there are none."""
        names = [self.type_name(number) for number in self.cluster.node_type.tolist()]
        return np.array([not types or name in types for name in names])


class RecordedCall(NamedTuple):
    """One recorded event."""

    method: str
    values: tuple[Any, ...]


class ExpectedRun(BaseModel, frozen=True):
    """Expectation for a start."""

    slowdown: float


class Explanation(BaseModel, frozen=True):
    """How the decision was made."""

    expected: ExpectedRun | None = None
    actions: tuple[int, ...] | None = None
    behaviour_probability: float | None = None  # of the action; None if no policy chose it
    sample_temperature: float | None = None  # None: it was not drawn


class _RecordedPast(BaseModel, frozen=True):
    number: int
    calls: list[list[Any]]
    site: dict[str, Any] | None = None
    known: list[Any] | None = None


class DecisionLine(BaseModel, frozen=True):
    """A decision."""

    job_id: str
    number: int | None = None  # of the attempt that was started; None if the job waits
    explanation: Explanation
    observation: str | None = None  # base64 of little-endian float32; so are the others, of bytes and float32
    mask: str | None = None
    log_probability: str | None = None
    ended_s: float | None = None  # of the attempt that was started
    outcome: str = ""
    past: _RecordedPast

    @property
    def calls(self) -> list[RecordedCall]:
        """What happened since the decision before."""
        return [call for entry in self.past.calls if (call := _parse_call(entry)) is not None]

    @property
    def initial_state(self) -> InitialState | None:
        """State of the cluster before; None where it follows from the line before."""
        return None if self.past.site is None else _parse_initial_state(self.past.site, self.past.known)


_STATE_ADAPTER: TypeAdapter[Any] = TypeAdapter(
    tuple[float, list[tuple[SubmittedJob, JobProgress]], list[str], list[int], tuple[int, float]]
)
_TYPES_ADAPTER: TypeAdapter[tuple[str, ...]] = TypeAdapter(tuple[str, ...])
_VALUES: dict[str, TypeAdapter[Any]] = {
    "begin": TypeAdapter(tuple[float]),
    "submit": TypeAdapter(tuple[SubmittedJob]),
    "come_back": TypeAdapter(tuple[SubmittedJob, JobProgress]),
    "rejoin": TypeAdapter(tuple[SubmittedJob, JobProgress]),
    "finish": TypeAdapter(tuple[str]),
    "stop": TypeAdapter(tuple[str, float | None]),
    "withdraw": TypeAdapter(tuple[str]),
    "take_out": TypeAdapter(tuple[int]),
    "bring_back": TypeAdapter(tuple[int]),
    "fail": TypeAdapter(tuple[tuple[int, ...]]),
}


def read_decision_lines(path: Path) -> Iterator[DecisionLine]:
    """Yield the decisions of a file in their order.

    Raises:
        InputError: If it cannot be read, with the line.
    """
    try:
        with path.open(encoding="utf-8") as lines:
            for number, text in enumerate(lines, 1):
                yield _parse_line(path, number, text)
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"cannot be read: {error}", EXPORT_HINT, path=path) from error


def _parse_line(path: Path, number: int, text: str) -> DecisionLine:
    try:
        return DecisionLine.model_validate_json(text)
    except ValidationError as error:
        first = error.errors()[0]
        field = ".".join(map(str, first["loc"]))
        raise InputError(f"not a decision: {first['msg']}", EXPORT_HINT, path=path, line=number, field=field) from error


def _parse_call(entry: Sequence[Any]) -> RecordedCall | None:
    """Return a recorded event, None if it changes nothing here.

    Raises:
        ValueError: If it cannot have happened.
    """
    if not entry:
        raise ValueError("an event is empty")
    method = entry[0]
    if method not in _VALUES:
        return None
    return RecordedCall(method, _VALUES[method].validate_python(tuple(entry[1:])))


def _parse_initial_state(site: Mapping[str, Any], known: object) -> InitialState:
    """Return the state of a cluster.

    Raises:
        ValueError: If no cluster can have it.
        KeyError: If a part is missing.
    """
    arrays = {name: _decode_array(array) for name, array in site["cluster"].items()}
    everywhere = np.ones((1, arrays["speed"].size), dtype=np.int32)  # the jobs have which nodes suit them
    cluster = checked_cluster(Cluster(**arrays, suits=everywhere))
    given = {**site["rules"], "order": ORDERS[site["rules"]["order"]]}
    rules = checked_rules(Rules(**{name: kind(given[name]) for name, kind in Rules.__annotations__.items()}))
    now_s, jobs, _, down, estimates = _STATE_ADAPTER.validate_python(known)
    repair_mean_s = float(site["process"]["repair_mean_s"])
    types = _TYPES_ADAPTER.validate_python(site.get("types", ()))
    return InitialState(
        cluster, rules, repair_mean_s, _decode_array(site["hazard_per_s"]), now_s, jobs, down, estimates, types
    )


def _decode_array(written: Mapping[str, str]) -> NDArray[Any]:
    if written["dtype"] not in ("<i4", "<f8"):
        raise ValueError(f"an array of {written['dtype']!r}")
    return np.frombuffer(b64decode(written["base64"], validate=True), written["dtype"]).copy()


def decode_floats(text: str) -> NDArray[np.float32]:
    """Return numbers of a decision."""
    return np.frombuffer(b64decode(text, validate=True), "<f4").astype(np.float32)


MIN_WORK_S = 1e-3
OBSERVATION_SIZE = CANDIDATE_GLOBAL_COUNT + MAX_CANDIDATES * CANDIDATE_FEATURE_COUNT  # of a choice among candidates
MAX_OBSERVED = 20_000  # decisions that are kept, spread over the whole past: 60 MB
DONE = "success"  # exit class of an attempt whose job has ended


class ObservedDecision(NamedTuple):
    """What a network observed at a decision among candidates, and its action."""

    now_s: float
    unit_s: float  # of the times in the observation: the mean estimate of the jobs so far
    observation: NDArray[np.float32]  # (OBSERVATION_SIZE,)
    action: int
    log_probability: float  # of the action where it was drawn, else nan


class _Run(NamedTuple):
    start_s: float
    slowdown: float
    overhead_s: float


class ClusterPast:
    """A cluster, followed decision by decision through a file. The fields hold the result.

    Raises:
        InputError: If no decision of the file has the state of the cluster.
    """

    def __init__(self, path: Path) -> None:
        self.initial: InitialState | None = None  # the latest
        self.jobs: dict[str, SubmittedJob] = {}  # all jobs, in the order of their first mention
        self.types: dict[str, tuple[str, ...]] = {}  # names of the node types that suit each, none where all do
        self.left_s: dict[str, float] = {}  # when jobs ended or were withdrawn
        self.work_s: dict[str, float] = {}  # of the jobs that ran to their ends
        self.observed: list[ObservedDecision] = []
        self._keep_every, self._count = 1, 0  # of the observed decisions, every N-th is kept
        self.gpu_faults = Counter[int]()
        self.node_faults = Counter[int]()
        self.repairs_s: list[float] = []
        self.observed_s = 0.0
        self._now_s = 0.0
        self._saved_s: dict[str, float] = {}
        self._stops = Counter[str]()
        self._runs: dict[str, _Run] = {}
        self._ended: dict[str, tuple[float | None, str]] = {}  # when the last run of each job ended, and how
        self._down = Counter[int]()
        self._failed_s: dict[int, float] = {}
        self._estimates = (0, 0.0)
        self._follow_file(path)

    @property
    def has_users(self) -> bool:
        """Whether the users of jobs are known."""
        return any(job.user for job in self.jobs.values())

    def _follow_file(self, path: Path) -> None:
        after, is_whole = -1, False
        for number, line in enumerate(read_decision_lines(path), 1):
            try:
                state, calls = line.initial_state, line.calls
                if state is not None:
                    self._begin_with_state(state)
                is_whole = state is not None or (is_whole and line.past.number == after + 1)
                after = line.past.number
                if is_whole:
                    self._follow_line(line, calls)
            except (IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
                reason = str(error).splitlines()[0]
                raise InputError(f"what is recorded cannot have happened: {reason}", path=path, line=number) from error
        if self.initial is None:
            raise InputError("no decision has the state of the cluster", "export the whole store", path=path)
        self._end_unrecorded_runs()

    def _begin_with_state(self, state: InitialState) -> None:
        """Begin with a state of the cluster; what happened before it without a record is not known."""
        if self.initial is not None and not _have_same_nodes(self.initial, state):
            self.gpu_faults.clear()
            self.node_faults.clear()
            self.observed_s = 0.0
        inside = {job.job for job, _ in state.jobs}
        self._end_unrecorded_runs(inside)
        # A job that left without a record was there until now at most.
        self.left_s.update((job, state.now_s) for job in self.jobs.keys() - inside - self.left_s.keys())
        self.initial, self._now_s = state, state.now_s
        self._runs, self._failed_s, self._down = {}, {}, Counter(state.down)
        for job, progress in state.jobs:
            self._add_job(job, progress)
        estimates = len(state.jobs), sum(job.estimate_s for job, _ in state.jobs)
        self._estimates = max(estimates, state.estimates)

    def _add_job(self, job: SubmittedJob, progress: JobProgress) -> None:
        self._note_job(job)
        self.left_s.pop(job.job, None)
        self._saved_s[job.job], self._stops[job.job] = progress.saved_s, progress.stops
        if progress.gpus:
            self._runs[job.job] = _Run(progress.start_s, progress.slowdown, progress.overhead_s)

    def _note_job(self, job: SubmittedJob) -> None:
        """Note a job, with the names of its node types: their numbers change with the cluster file."""
        assert self.initial is not None
        self.jobs.setdefault(job.job, job)
        self.types[job.job] = tuple(map(self.initial.type_name, job.types))

    def fitting_jobs(self) -> set[str]:
        """Return the jobs that the latest cluster has room for: it may have shrunk, or lost a node type."""
        state = self.initial
        assert state is not None
        node_gpus = np.diff(state.cluster.first_gpu)
        room = {types: int(node_gpus[state.suitable_nodes(types)].sum()) for types in set(self.types.values())}
        return {name for name, job in self.jobs.items() if job.gpus <= room[self.types[name]]}

    def _follow_line(self, line: DecisionLine, calls: Iterable[RecordedCall]) -> None:
        for call in calls:
            self._apply_call(call)
        self._keep_observation(line)
        if line.number is not None:
            self._start_job(line)

    def _apply_call(self, call: RecordedCall) -> None:
        method, values = call
        if method == "begin":
            self.observed_s += max(values[0] - self._now_s, 0.0)
            self._now_s = values[0]
        elif method == "submit":
            self._note_job(values[0])
            self._estimates = self._estimates[0] + 1, self._estimates[1] + values[0].estimate_s
        elif method in ("come_back", "rejoin"):
            self._add_job(*values)
        elif method == "stop":
            self._stop_job(*values)
        elif method == "finish":
            self._end_job(values[0])
        elif method == "withdraw":
            self.left_s[values[0]] = self._now_s
        else:
            self._change_gpus(method, values[0])

    def _start_job(self, line: DecisionLine) -> None:
        job, expected = line.job_id, line.explanation.expected
        assert self.initial is not None
        overhead_s = self.initial.rules.restart_s if self._stops[job] else 0.0
        self._runs[job] = _Run(self._now_s, expected.slowdown if expected else 1.0, overhead_s)
        self._ended[job] = line.ended_s, line.outcome

    def _stop_job(self, job: str, kept_s: float | None) -> None:
        run = self._runs.pop(job, None)
        self._ended.pop(job, None)  # that was the end of this run; the next one may begin without a line
        self._stops[job] += 1
        if run is None:
            return
        ran_s = max(self._now_s - run.start_s, 0.0)
        if kept_s is None:
            useful_s = max(ran_s - run.overhead_s, 0.0)
            assert self.initial is not None
            each_s = self.initial.rules.checkpoint_s
            # 1e-9: as the simulator counts (cluster/simulator/jobs.py)
            kept_s = min(useful_s, math.floor(useful_s / each_s + 1e-9) * each_s) if each_s < math.inf else 0.0
        # A job may claim anything; the scheduler bounds it likewise (scheduler/mirror/cluster_mirror.py).
        self._saved_s[job] = self._saved_s.get(job, 0.0) + min(max(0.0, kept_s), ran_s) / run.slowdown

    def _end_job(self, job: str) -> None:
        """End the run of a job for good: to its end, unless the line that started it records another outcome."""
        _, outcome = self._ended.get(job, (None, DONE))  # it may have started before the first line
        if outcome == DONE:
            self._finish_job(job, self._now_s)
        else:
            self.left_s[job] = self._now_s
            self._runs.pop(job, None)

    def _finish_job(self, job: str, now_s: float) -> None:
        self.left_s[job] = now_s
        run = self._runs.pop(job, None)
        if run is not None:
            done_s = max(now_s - run.start_s - run.overhead_s, 0.0) / run.slowdown
            self.work_s[job] = max(self._saved_s.get(job, 0.0) + done_s, MIN_WORK_S)

    def _end_unrecorded_runs(self, running: Iterable[str] = ()) -> None:
        """End the runs whose end only the line that started them records."""
        for job in self._runs.keys() - set(running):
            ended_s, outcome = self._ended.get(job, (None, ""))
            if ended_s is not None and outcome == DONE:
                self._finish_job(job, ended_s)

    def _change_gpus(self, method: str, gpus: int | tuple[int, ...]) -> None:
        """Record GPUs that fail, go out of service or return."""
        if isinstance(gpus, tuple):
            self._count_faults(gpus)
            return
        self._down[gpus] += 1 if method == "take_out" else -1
        if self._down[gpus] <= 0 and gpus in self._failed_s:
            self.repairs_s.append(self._now_s - self._failed_s.pop(gpus))

    def _count_faults(self, gpus: tuple[int, ...]) -> None:
        """Count faults: of a node where all its GPUs fail together, else of each GPU."""
        assert self.initial is not None
        cluster, left = self.initial.cluster, set(gpus)
        for node in {int(cluster.gpu_node[gpu]) for gpu in gpus}:
            own = set(range(int(cluster.first_gpu[node]), int(cluster.first_gpu[node + 1])))
            if len(own) > 1 and own <= left:
                self.node_faults[node] += 1
                left -= own
        self.gpu_faults.update(left)
        self._failed_s.update(dict.fromkeys(gpus, self._now_s))

    def _keep_observation(self, line: DecisionLine) -> None:
        """Keep the observation of a network that made a single choice among candidates; others may be megabytes."""
        actions = line.explanation.actions
        if line.observation is None or line.log_probability is None or actions is None or len(actions) != 1:
            return
        (action,), drawn = actions, float("nan")
        observation, log_probability = decode_floats(line.observation), decode_floats(line.log_probability)
        if not 0 <= action < log_probability.size or not np.isfinite(observation).all():
            raise ValueError(f"action {action} of {log_probability.size}, or an observation that is not finite")
        if observation.size != OBSERVATION_SIZE:
            return
        if line.explanation.behaviour_probability is not None and line.explanation.sample_temperature is not None:
            drawn = float(log_probability[action])
        unit_s = self._estimates[1] / max(self._estimates[0], 1)
        self._count += 1
        if self._count % self._keep_every == 0:
            self.observed.append(ObservedDecision(self._now_s, unit_s, observation, action, drawn))
        if len(self.observed) > MAX_OBSERVED:
            self.observed, self._keep_every = self.observed[1::2], 2 * self._keep_every


def _have_same_nodes(one: InitialState, other: InitialState) -> bool:
    return np.array_equal(one.cluster.first_gpu, other.cluster.first_gpu)


MIN_HISTORY_JOBS = 40  # so that each part has some


class Stays(NamedTuple):
    """When jobs were in the system, queued or running; times of the scheduler's clock."""

    enter_s: NDArray[np.float64]  # (jobs,)
    leave_s: NDArray[np.float64]  # (jobs,) inf where that is not known


class History(NamedTuple):
    """What training takes from a past."""

    past: ClusterPast
    workload: Workload  # the jobs that ran to their ends and fit the latest cluster, and what was estimated of them
    rank: dict[str, int]  # of each job: priorities, in reverse
    stays: Stays  # of all jobs
    begin_s: float  # submission of the first job of the workload
    ended_s: NDArray[np.float64]  # (jobs of the workload,) when they ended; 0 for one that was submitted again


def read_history(path: Path) -> History:
    """Return the history of a cluster from a file of decisions.

    Raises:
        InputError: If it cannot be used, or too few jobs have ended in it.
    """
    past = ClusterPast(path)
    fitting = past.fitting_jobs()
    ended = [job for name, job in past.jobs.items() if name in past.work_s and name in fitting]
    if len(ended) < MIN_HISTORY_JOBS:
        problem = (
            f"{len(ended)} jobs have ended in it that its latest cluster has room for, too few to train on the first "
            "and to validate on the others"
        )
        raise InputError(problem, f"wait until {MIN_HISTORY_JOBS} have", path=path)
    submitted_s = np.array([job.submitted_s for job in ended])
    workload = workload_of(
        tuple(job.job for job in ended), np.array([job.gpus for job in ended]),
        np.array([past.work_s[job.job] for job in ended]), submitted_s,
        compute_s=np.array([job.compute_s for job in ended]),
        parameter_bytes=np.array([job.parameter_bytes for job in ended]),
        left_out=len(past.jobs) - len(ended), users=tuple(job.user for job in ended) if past.has_users else None,
    )  # fmt: skip
    estimate_s = np.array([past.jobs[job].estimate_s for job in workload.ids])
    stays = Stays(
        np.array([job.submitted_s for job in past.jobs.values()]),
        np.array([past.left_s.get(job, math.inf) for job in past.jobs]),
    )
    rank = {name: job.rank for name, job in past.jobs.items()}
    ended_s = np.array([past.left_s.get(job, 0.0) for job in workload.ids])
    return History(past, replace(workload, estimate_s=estimate_s), rank, stays, float(submitted_s.min()), ended_s)
