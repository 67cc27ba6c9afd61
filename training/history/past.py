"""What a cluster has been through, followed decision by decision: jobs and their work, faults, and what was seen.

The work of a job is what its runs have done: their times without the restart, over the slowdowns of their placements,
as far as checkpoints kept it.

Source: SPEC R9, R11.
"""

import math
from collections import Counter
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.files.errors import InputError
from .log import Asked, Call, Line, Opening, Standing, floats_of, read_lines

LEAST_WORK_S = 1e-3
MOST_SEEN = 20_000  # decisions that are kept, spread over the whole past: 60 MB
DONE = "success"  # exit class of an attempt after which its job is over


class Seen(NamedTuple):
    """What a network saw at a decision, and what was done."""

    now_s: float
    unit_s: float  # of the times that it saw: the mean estimate of the jobs so far
    observation: NDArray[np.float32]
    action: int
    log_probability: float  # of that, as it was drawn; nan if it was not


class _Run(NamedTuple):
    start_s: float
    slowdown: float
    overhead_s: float


class Past:
    """A cluster that is followed. What it is asked for at the end stands in its fields.

    Raises:
        InputError: If no decision of the file says where the cluster stood.
    """

    def __init__(self, path: Path) -> None:
        self.opening: Opening | None = None  # the latest
        self.asked: dict[str, Asked] = {}  # all jobs, in the order in which they were met
        self.left_s: dict[str, float] = {}  # when jobs ended or were withdrawn
        self.work_s: dict[str, float] = {}  # of the jobs that ran to their ends
        self.seen: list[Seen] = []
        self._seen_each, self._met = 1, 0  # of the decisions met, one of so many is kept
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
        self._follow(path)

    @property
    def has_users(self) -> bool:
        """Whether it is known whose jobs are."""
        return any(it.user for it in self.asked.values())

    def _follow(self, path: Path) -> None:
        after, is_whole = -1, False
        for number, line in enumerate(read_lines(path), 1):
            try:
                opening, calls = line.opening, line.calls
                if opening is not None:
                    self._open(opening)
                is_whole = opening is not None or (is_whole and line.past.n == after + 1)
                after = line.past.n
                if is_whole:
                    self._live(line, calls)
            except (IndexError, KeyError, TypeError, ValueError, OverflowError) as error:
                told = str(error).splitlines()[0]
                raise InputError(f"what is told cannot have happened: {told}", path=path, line=number) from error
        if self.opening is None:
            raise InputError("no decision says where the cluster stood", "export the whole store", path=path)
        self._end_runs()

    def _open(self, opening: Opening) -> None:
        """Take the cluster up as it stood; what happened before it, and was not told, is not known."""
        if self.opening is not None and not _same(self.opening, opening):
            self.gpu_faults.clear()
            self.node_faults.clear()
            self.observed_s = 0.0
        inside = {asked.job for asked, _ in opening.jobs}
        self._end_runs(inside)
        # Who has left unseen was there until now at most.
        self.left_s.update((job, opening.now_s) for job in self.asked.keys() - inside - self.left_s.keys())
        self.opening, self._now_s = opening, opening.now_s
        self._runs, self._failed_s, self._down = {}, {}, Counter(opening.down)
        for asked, standing in opening.jobs:
            self._take_up(asked, standing)
        estimates = len(opening.jobs), sum(asked.estimate_s for asked, _ in opening.jobs)
        self._estimates = max(estimates, opening.estimates)

    def _take_up(self, asked: Asked, standing: Standing) -> None:
        self.asked.setdefault(asked.job, asked)
        self.left_s.pop(asked.job, None)
        self._saved_s[asked.job], self._stops[asked.job] = standing.saved_s, standing.stops
        if standing.gpus:
            self._runs[asked.job] = _Run(standing.start_s, standing.slowdown, standing.overhead_s)

    def _live(self, line: Line, calls: Iterable[Call]) -> None:
        for call in calls:
            self._happen(call)
        self._see(line)
        if line.number is not None:
            self._start(line)

    def _happen(self, call: Call) -> None:
        method, values = call
        if method == "begin":
            self.observed_s += max(values[0] - self._now_s, 0.0)
            self._now_s = values[0]
        elif method == "submit":
            self.asked.setdefault(values[0].job, values[0])
            self._estimates = self._estimates[0] + 1, self._estimates[1] + values[0].estimate_s
        elif method in ("come_back", "rejoin"):
            self._take_up(*values)
        elif method == "stop":
            self._stop(*values)
        elif method == "finish":
            self._finish(values[0], self._now_s)
        elif method == "withdraw":
            self.left_s[values[0]] = self._now_s
        else:
            self._change(method, values[0])

    def _start(self, line: Line) -> None:
        job, expected = line.job_id, line.explanation.expected
        assert self.opening is not None
        overhead_s = self.opening.rules.restart_s if self._stops[job] else 0.0
        self._runs[job] = _Run(self._now_s, expected.slowdown if expected else 1.0, overhead_s)
        self._ended[job] = line.ended_s, line.outcome

    def _stop(self, job: str, kept_s: float | None) -> None:
        run = self._runs.pop(job, None)
        self._stops[job] += 1
        if run is None:
            return
        useful_s = max(self._now_s - run.start_s - run.overhead_s, 0.0)
        if kept_s is None:
            assert self.opening is not None
            each_s = self.opening.rules.checkpoint_s
            # 1e-9: as the simulator counts (cluster/simulator/job_changes.py)
            kept_s = min(useful_s, math.floor(useful_s / each_s + 1e-9) * each_s) if each_s < math.inf else 0.0
        self._saved_s[job] = self._saved_s.get(job, 0.0) + max(kept_s, 0.0) / run.slowdown

    def _finish(self, job: str, now_s: float) -> None:
        self.left_s[job] = now_s
        run = self._runs.pop(job, None)
        if run is not None:
            done_s = max(now_s - run.start_s - run.overhead_s, 0.0) / run.slowdown
            self.work_s[job] = max(self._saved_s.get(job, 0.0) + done_s, LEAST_WORK_S)

    def _end_runs(self, going_on: Iterable[str] = ()) -> None:
        """End the runs of which only the line that started them says that they have ended."""
        for job in self._runs.keys() - set(going_on):
            ended_s, outcome = self._ended.get(job, (None, ""))
            if ended_s is not None and outcome == DONE:
                self._finish(job, ended_s)

    def _change(self, method: str, gpus: int | tuple[int, ...]) -> None:
        """Take note of GPUs that fail, or go out of service or come back."""
        if isinstance(gpus, tuple):
            self._fail(gpus)
            return
        self._down[gpus] += 1 if method == "take_out" else -1
        if self._down[gpus] <= 0 and gpus in self._failed_s:
            self.repairs_s.append(self._now_s - self._failed_s.pop(gpus))

    def _fail(self, gpus: tuple[int, ...]) -> None:
        """Count faults: of a node where all its GPUs fail together, else of each GPU."""
        assert self.opening is not None
        cluster, left = self.opening.cluster, set(gpus)
        for node in {int(cluster.gpu_node[gpu]) for gpu in gpus}:
            own = set(range(int(cluster.first_gpu[node]), int(cluster.first_gpu[node + 1])))
            if len(own) > 1 and own <= left:
                self.node_faults[node] += 1
                left -= own
        self.gpu_faults.update(left)
        self._failed_s.update(dict.fromkeys(gpus, self._now_s))

    def _see(self, line: Line) -> None:
        """Keep what a network saw, if it chose once."""
        told = line.explanation
        if line.observation is None or line.log_probability is None or told.actions is None or len(told.actions) != 1:
            return
        (action,), drawn = told.actions, float("nan")
        seen, log_probability = floats_of(line.observation), floats_of(line.log_probability)
        if not 0 <= action < log_probability.size or not np.isfinite(seen).all():
            raise ValueError(f"action {action} of {log_probability.size}, by what is no number")
        if told.behaviour_probability is not None and told.sample_temperature is not None:
            drawn = float(log_probability[action])
        unit_s = self._estimates[1] / max(self._estimates[0], 1)
        self._met += 1
        if self._met % self._seen_each == 0:
            self.seen.append(Seen(self._now_s, unit_s, seen, action, drawn))
        if len(self.seen) > MOST_SEEN:
            self.seen, self._seen_each = self.seen[1::2], 2 * self._seen_each


def _same(one: Opening, other: Opening) -> bool:
    return np.array_equal(one.cluster.first_gpu, other.cluster.first_gpu)
