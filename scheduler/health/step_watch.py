"""The steps of one attempt, as its ranks report them: whether they have become slow, and whether one hangs.

It reads no clock, network or store, and keeps nothing for the next attempt. `RankStepTimes` has how long a rank
computes and steps: for the average iteration time, and the record by node type. All ranks of a ring are as slow as the
slowest one, which is found by its computing time.

A job file chooses the detector of slow steps by its name. The default, `cusum`, is a robust CUSUM of the logarithms of
step times: small excesses add up, so that its delay grows with the noise while its false alarms do not.

Source: SPEC K2, K3, K5, F1 to F3; docs/steps.md has the format; benchmarks/steps.py has the figures.
"""

import math
import re
import statistics
from abc import ABC, abstractmethod
from array import array
from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from enum import StrEnum
from functools import partial
from itertools import islice
from statistics import fmean
from typing import NamedTuple

import numpy as np


class Detector(ABC):
    """Decides whether the steps of one attempt are slow, from their times alone: it reads no clock."""

    __slots__ = ("is_ready", "is_slow", "slow_steps")

    def __init__(self) -> None:
        self.is_ready = False  # whether it has seen enough steps to decide
        self.is_slow = False
        self.slow_steps = 0  # last steps in a row that count as slow

    @abstractmethod
    def update(self, step_s: float) -> bool:
        """Add the time of a step, above 0, and return whether steps are slow."""

    def _count_over_limit(self, *, over: bool, needed: int = 1) -> bool:
        """Count a step that was over the limit, or not, and return whether enough in a row were."""
        self.slow_steps = self.slow_steps + 1 if over else 0
        self.is_slow = self.slow_steps >= needed
        return self.is_slow


WARM_UP, FIRST_REFERENCE, REFERENCE, RENEWED_AFTER = 20, 200, 1000, 200  # steps
DRIFT = math.log(1.3) / 2.0  # 1.3: how much slower a slow node is
STEP_CLIP = 0.5  # one checkpoint among the steps counts for no more than this
RARE = math.log(1e6)  # steps between two false alarms, about


class Cusum(Detector):
    """Whether steps have become slower for good than those of its reference.

    `slow_steps` counts the steps since the sum of excesses was last 0.
    """

    __slots__ = ("_calm", "_median", "_new", "_seen", "_sum", "_threshold")

    def __init__(self) -> None:
        super().__init__()
        self._calm = array("f")  # logarithms of steps that were not slow, the last of them
        self._new = self._seen = 0
        self._median = self._sum = 0.0
        self._threshold = math.inf  # until there is a reference

    def update(self, step_s: float) -> bool:
        """Add the time of a step, above 0, and return whether steps are slow."""
        x = math.log(step_s)
        if not self.is_ready:
            self._seen += 1
            if self._seen > WARM_UP:
                self._add_to_reference(x, FIRST_REFERENCE)
            return False
        excess = min(max(x - self._median, -STEP_CLIP), STEP_CLIP) - DRIFT
        self._sum = min(max(0.0, self._sum + excess), 1.5 * self._threshold)
        self.slow_steps = self.slow_steps + 1 if self._sum > 0.0 else 0
        if self._sum < self._threshold / 2.0:
            self.is_slow = False
            self._add_to_reference(x, RENEWED_AFTER)
        elif self._sum > self._threshold:
            self.is_slow = True
        return self.is_slow

    def _add_to_reference(self, x: float, renewed_after: int) -> None:
        self._calm.append(x)
        self._new += 1
        if self._new >= renewed_after:
            self._new = 0
            del self._calm[:-REFERENCE]
            self._median, self._threshold = median_and_threshold(
                np.frombuffer(self._calm, dtype=np.float32).astype(np.float64)
            )
            self.is_ready = True


def median_and_threshold(x: np.ndarray[tuple[int], np.dtype[np.float64]]) -> tuple[float, float]:
    """Return the median of logarithms of step times, and the threshold h that follows from their noise.

    h = max(1, 1.3 ln(10^6) s^2 (1 + rho) / (1 - rho) / (2 k)), s the standard deviation by the median absolute
    deviation, rho the correlation of neighbours.
    """
    median = float(np.median(x))
    off = x - median
    s = 1.4826 * float(np.median(np.abs(off)))
    clipped = np.clip(off, -STEP_CLIP, STEP_CLIP)
    clipped -= clipped.mean()
    power = float(clipped @ clipped)
    rho = min(max(float(clipped[1:] @ clipped[:-1]) / power, 0.0), 0.9) if power > 0.0 else 0.0
    return median, max(1.0, 1.3 * RARE * s * s * (1.0 + rho) / (1.0 - rho) / (2.0 * DRIFT))


class EwmaRule(Detector):
    """Slow while steps are longer than a moving mean by three moving deviations."""

    __slots__ = ("_mean", "_seen", "_variance")
    SMOOTHING, FIRST_STEPS = 0.1, 50

    def __init__(self) -> None:
        super().__init__()
        self._mean = self._variance = 0.0
        self._seen = 0

    def update(self, step_s: float) -> bool:
        """Add the time of a step, and return whether steps are slow."""
        off = step_s - self._mean if self._seen else 0.0
        over = self.is_ready and off > 3.0 * math.sqrt(self._variance)
        self._mean = self._mean + self.SMOOTHING * off if self._seen else step_s
        self._variance = (1.0 - self.SMOOTHING) * (self._variance + self.SMOOTHING * off * off)
        self._seen += 1
        self.is_ready = self._seen >= self.FIRST_STEPS
        return self._count_over_limit(over=over)


class WindowRule(Detector):
    """Slow while at least N steps in a row are over a limit that follows from the 50 before.

    Args:
        needed: N.
        is_over: Returns whether a step is over the limit, from the steps before in ascending order and its own time.
    """

    __slots__ = ("_ascending", "_is_over", "_last", "_needed")
    SIZE = 50

    def __init__(self, needed: int, is_over: Callable[[Sequence[float], float], bool]) -> None:
        super().__init__()
        self._needed, self._is_over = needed, is_over
        self._last: deque[float] = deque()
        self._ascending: list[float] = []

    def update(self, step_s: float) -> bool:
        """Add the time of a step, and return whether steps are slow."""
        over = self.is_ready and self._is_over(self._ascending, step_s)
        if self.is_ready:
            del self._ascending[bisect_left(self._ascending, self._last.popleft())]
        self._last.append(step_s)
        insort(self._ascending, step_s)
        self.is_ready = len(self._last) == self.SIZE
        return self._count_over_limit(over=over, needed=self._needed)


def mad_rule(needed: int) -> WindowRule:
    """Return a detector of steps that are three deviations longer than the median, by the median absolute deviation."""

    def is_over(before: Sequence[float], step_s: float) -> bool:
        median = _median_of_even(before)
        return step_s - median > 3.0 * (1.4826 * statistics.median([abs(value - median) for value in before]))

    return WindowRule(needed, is_over)


def median_rule(factor: float, needed: int) -> WindowRule:
    """Return a detector of steps that are longer than the median, times a factor."""
    return WindowRule(needed, lambda before, step_s: step_s > factor * _median_of_even(before))


def _median_of_even(ascending: Sequence[float]) -> float:
    half = len(ascending) // 2
    return (ascending[half - 1] + ascending[half]) / 2.0  # of an even number of values


class PatentRule(Detector):
    """The two readings of the threshold in the patent, which only its letter needs; docs/steps.md compares them.

    A step is slow if it is longer than twice the mean of all before; literally, than 2 n times their sum.

    Args:
        literal: Whether to take the patent's formula as it is written, under which no step is ever slow.
    """

    __slots__ = ("_literal", "_seen", "_total_s")

    def __init__(self, *, literal: bool) -> None:
        super().__init__()
        self._literal, self._seen, self._total_s = literal, 0, 0.0

    def update(self, step_s: float) -> bool:
        """Add the time of a step, and return whether steps are slow."""
        factor = 2.0 * (self._seen + 1) if self._literal else 2.0 / max(self._seen, 1)
        over = self.is_ready and step_s > factor * self._total_s
        self._seen += 1
        self._total_s += step_s
        self.is_ready = True
        return self._count_over_limit(over=over)


DETECTORS: Mapping[str, Callable[[], Detector]] = {
    "cusum": Cusum,
    "ewma": EwmaRule,
    "in_a_row": partial(median_rule, 1.2, 2),
    "mad": partial(mad_rule, 2),
    "median_k": partial(median_rule, 1.25, 1),
    # Two that only the letter of a patent needs.
    "patent_literal": partial(PatentRule, literal=True),
    "patent_mean": partial(PatentRule, literal=False),
}


class StepKind(StrEnum):
    """The kind of a step."""

    TRAIN = "train"
    CHECKPOINT = "checkpoint"
    EVALUATE = "evaluate"
    OTHER = "other"  # without a known duration
    DONE = "done"  # no step: what follows may take any time


class Begun(NamedTuple):
    """A step that began, which ended the one before."""

    kind: StepKind
    step: int
    at_s: float  # Unix time, by the clock of the rank
    computed_s: float | None  # of the step that ended, without its waits; None if not reported
    loss: float | None = None  # of the step that ended, not always finite; None if not reported, or no number
    away_bytes: int | None = None  # of offloaded state; None if not reported


class SavedCheckpoint(NamedTuple):
    """A checkpoint that is complete."""

    step: int  # the last one that it holds
    at_s: float  # Unix time, by the clock of the rank
    digest: str  # "" for none
    path: str


_TIME_PATTERN = rb"(\d{1,11}(?:\.\d{1,9})?)"
_LOSS = rb"([!-~]{1,400})"  # as any language writes a number: a step counts with any text as its loss
_STEP = re.compile(
    rb"^(train|checkpoint|evaluate|other|done) (\d{1,15}) %b(?: (?:%b|-)(?: %b(?: (\d{1,18}))?)?)?$"
    % (_TIME_PATTERN, _TIME_PATTERN, _LOSS),
    re.MULTILINE,
)
_SAVED_LINE = re.compile(
    rb"^(\d{1,15}) %b (-|[0-9a-f]{8,128}) ([^\x00-\x1f\x7f]{1,1024})$" % _TIME_PATTERN, re.MULTILINE
)
_KINDS = {kind.value.encode(): kind for kind in StepKind}


def parse_steps(lines: bytes) -> list[Begun]:
    """Return the steps in lines, in their order."""
    return [
        Begun(
            _KINDS[kind],
            int(step),
            float(at),
            float(computed) if computed else None,
            _parse_loss(loss),
            int(away) if away else None,
        )
        for kind, step, at, computed, loss, away in _STEP.findall(lines)
    ]


def _parse_loss(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def parse_checkpoints(lines: bytes) -> list[SavedCheckpoint]:
    """Return the checkpoints in lines, in their order."""
    found = []
    for step, at, digest, path in _SAVED_LINE.findall(lines):
        try:
            text = path.decode()
        except UnicodeDecodeError:
            continue
        if text.isprintable():
            found.append(SavedCheckpoint(int(step), float(at), "" if digest == b"-" else digest.decode(), text))
    return found


MEAN_STEPS = 32  # steps that a mean is taken over
SKIPPED_STEPS = 3  # first steps of an attempt: they compile and warm up


class Computed(NamedTuple):
    """How long iterations of a job computed on one type of node."""

    iterations: int
    mean_s: float
    last_s: tuple[float, ...]  # the last 32, the newest last

    def with_more(self, more: "Computed") -> "Computed":
        """Return both together; `more` came later."""
        count = self.iterations + more.iterations
        mean_s = (self.iterations * self.mean_s + more.iterations * more.mean_s) / count if count else 0.0
        return Computed(count, mean_s, (self.last_s + more.last_s)[-MEAN_STEPS:])


NO_TIMES = Computed(0, 0.0, ())


class Average(NamedTuple):
    """The average iteration time of a job."""

    iteration_s: float
    rank: int  # the slowest, by its computing time
    steps: int  # that the mean is taken over


class RankStepTimes:
    """The iterations of one rank."""

    __slots__ = ("_computed_s", "_new", "_seen", "_sum_s", "_took_s")

    def __init__(self) -> None:
        self._seen = 0
        self._took_s, self._computed_s = deque[float](maxlen=MEAN_STEPS), deque[float](maxlen=MEAN_STEPS)
        self._new, self._sum_s = 0, 0.0  # computing times since they were last recorded

    def add(self, took_s: float, computed_s: float | None) -> None:
        """Add an iteration; the first ones are skipped.

        Args:
            took_s: From its begin to that of the next one.
            computed_s: Without its waits; None if not reported.
        """
        self._seen += 1
        if self._seen <= SKIPPED_STEPS:
            return
        self._took_s.append(took_s)
        if computed_s is not None:
            self._computed_s.append(computed_s)
            self._new, self._sum_s = self._new + 1, self._sum_s + computed_s

    @property
    def compute_s(self) -> float | None:
        """Mean of the last computing times, None if none was reported."""
        return fmean(self._computed_s) if self._computed_s else None

    @property
    def step_s(self) -> float | None:
        """Mean of the last step times, None before there are any."""
        return fmean(self._took_s) if self._took_s else None

    @property
    def steps(self) -> int:
        """Number of these."""
        return len(self._took_s)

    def unrecorded(self) -> Computed:
        """Return the computing times that are not recorded yet."""
        last = tuple(islice(reversed(self._computed_s), min(self._new, MEAN_STEPS)))[::-1]
        return Computed(self._new, self._sum_s / self._new, last) if self._new else NO_TIMES

    def mark_recorded(self) -> None:
        """Mark these as recorded."""
        self._new, self._sum_s = 0, 0.0


def average_iteration_of(ranks: Sequence[RankStepTimes]) -> Average | None:
    """Return the mean of the last step times of the slowest rank, None before there are any.

    Where no rank reports computing times, the slowest is the one whose steps take longest.

    Source: SPEC F3.
    """
    known = [(rank.compute_s, number) for number, rank in enumerate(ranks) if rank.steps]
    if not known:
        return None
    computing = [(compute_s, number) for compute_s, number in known if compute_s is not None]
    stepping = [(ranks[number].step_s or 0.0, number) for _, number in known]
    _, slowest = max(computing or stepping, key=lambda timed: (timed[0], -timed[1]))
    return Average(ranks[slowest].step_s or 0.0, slowest, ranks[slowest].steps)


def unrecorded_by_type(ranks: Sequence[RankStepTimes], types: Sequence[str]) -> Mapping[str, Computed]:
    """Return the computing times that are not recorded yet, by node type.

    Args:
        ranks: Of an attempt.
        types: Node type of each rank.
    """
    found: dict[str, Computed] = {}
    for rank, kind in zip(ranks, types, strict=True):
        news = rank.unrecorded()
        if news.iterations:
            found[kind] = found.get(kind, NO_TIMES).with_more(news)
    return found


MIN_HANG_S, UNKNOWN_HANG_S = 60.0, 900.0
MEDIANS, LONGESTS, RECENT = 10.0, 2.0, 1500  # a step may take ten medians, and twice the longest of the last ones
MIN_STEPS = 20  # steps of a kind before its duration is known
CHECK_S = 60.0  # between two checks whether steps are slow
MAX_PENDING = 4096  # steps that some ranks have reported and others have not
PRESENT_STEPS = 50  # steps that the present step time is the median of


class Hang(NamedTuple):
    """A rank that is in one step for too long."""

    rank: int
    kind: StepKind
    step: int
    since_s: float  # Unix time
    limit_s: float  # that it had


class Slowness(NamedTuple):
    """Steps that take longer than they did."""

    since_s: float  # Unix time by the clock of the job, about
    usual_s: float  # step time before
    present_s: float
    ranks: tuple[int, ...] | None  # whose own computing is slow; None if they do not report it
    checks: int  # in a row at which they were slow
    nodes: frozenset[str] = frozenset()  # that cause it; empty if unknown, or if all of several are slow
    is_shared: bool = False  # too many others became slow at the same time for a fault of its nodes


class _Rank:
    """What a rank has reported."""

    __slots__ = ("away_bytes", "began_s", "compute", "has_ended", "last", "loss", "read", "times")

    def __init__(self) -> None:
        self.last: Begun | None = None  # its current step
        self.read = 0  # number of the read with its last report
        self.began_s = 0.0  # of that step, by the scheduler's clock
        self.compute: Cusum | None = None  # of its own computing, once it reports that
        self.has_ended = False
        self.times = RankStepTimes()
        self.loss: tuple[int, float] | None = None  # its last step with a reported loss, and that loss
        self.away_bytes: int | None = None  # of its offloaded state, by its last report

    @property
    def will_report(self) -> bool:
        """Whether it has reported steps and will report more."""
        return not self.has_ended and self.last is not None and self.last.kind is not StepKind.DONE


class _Pending(NamedTuple):
    """A step whose end some ranks have reported, and others have not."""

    ranks: int  # that have
    took_s: float  # the longest of them
    at_s: float  # when it ended, by the clock of the last of them
    read: int  # number of the read with the first of them


class StepWatch:
    """Follows one attempt.

    Args:
        ranks: How many it has.
        detector: Of slow steps; None to detect none.
        hang_s: How long a step may take, inf for any time; None to go by the steps before.
        now_s: The present.
    """

    def __init__(self, ranks: int, detector: Detector | None, hang_s: float | None, now_s: float) -> None:
        self._ranks = [_Rank() for _ in range(ranks)]
        self._detector, self._hang_s = detector, hang_s
        self._pending: dict[tuple[StepKind, int], _Pending] = {}
        self._reporting = 0  # ranks that report steps
        self._reads = 0
        self._took_s: dict[StepKind, array[float]] = {}  # of the slowest rank, the last ones
        self._read_s = now_s
        self._check_at_s = now_s + CHECK_S
        self._checks = 0
        self._calm_s = 0.0  # when steps were last as usual, by the clock of the job
        self._usual_s = 0.0
        self.step = 0  # the highest one reported
        self.reports = False  # any rank has reported anything

    @property
    def is_ready(self) -> bool:
        """Whether slow steps would be noticed."""
        return self._detector is not None and self._detector.is_ready

    @property
    def is_slow(self) -> bool:
        """Whether steps are slow."""
        return self._detector is not None and self._detector.is_slow

    def recent_train_steps_s(self) -> Sequence[float]:
        """Return the times of the last training steps; any thread may call this."""
        return self._took_s.get(StepKind.TRAIN, array("d"))[-RECENT:]

    def present_step_s(self) -> float | None:
        """Return the present step time, None before the first steps have ended."""
        times_s = self._took_s.get(StepKind.TRAIN)
        return statistics.median(times_s[-PRESENT_STEPS:]) if times_s else None

    @property
    def times(self) -> Sequence[RankStepTimes]:
        """The iterations of each rank."""
        return [rank.times for rank in self._ranks]

    @property
    def loss(self) -> float | None:
        """Loss of the last step with one; of several ranks, of the lowest. Not always finite."""
        losses = [(-rank.loss[0], number, rank.loss[1]) for number, rank in enumerate(self._ranks) if rank.loss]
        return min(losses)[2] if losses else None

    @property
    def away_bytes(self) -> list[int | None]:
        """Offloaded state of each rank, None for those that report none."""
        return [rank.away_bytes for rank in self._ranks]

    @property
    def going_ranks(self) -> list[int]:
        """Ranks that have reported steps and will report more."""
        return [number for number, rank in enumerate(self._ranks) if rank.will_report]

    def grow_to(self, ranks: int) -> None:
        """Follow more ranks, which were added while the attempt runs."""
        self._ranks += [_Rank() for _ in range(ranks - len(self._ranks))]

    def add_steps(self, reported: Sequence[Sequence[Begun]], now_s: float) -> None:
        """Process what was reported since the last call.

        Args:
            reported: By rank.
            now_s: The present.
        """
        self._reporting = sum(
            bool(steps) or rank.will_report for rank, steps in zip(self._ranks, reported, strict=True)
        )
        self.reports = self.reports or self._reporting > 0
        self._reads += 1
        for rank, steps in zip(self._ranks, reported, strict=True):
            for begun in steps:
                if rank.last is not None:
                    self._end_step(rank, rank.last, begun)
                rank.last = begun
            if steps:
                rank.read = self._reads
                # By any clock, the step began after the last call.
                rank.began_s = max(self._read_s, min(steps[-1].at_s, now_s))
                self.step = max(self.step, steps[-1].step)
        self._read_s = now_s
        self._complete_left_steps()

    def mark_ended(self, ended: Collection[int]) -> None:
        """Expect nothing from ranks that have ended: like those that are done, they never hang.

        One that was silent for a while, and is not among them any more, begins its step now.
        """
        for number, rank in enumerate(self._ranks):
            if rank.has_ended and number not in ended:
                rank.began_s = self._read_s
            rank.has_ended = number in ended

    def restart_current_steps(self, now_s: float) -> None:
        """Let all steps begin now, after a while without reads."""
        self._read_s = now_s
        for rank in self._ranks:
            rank.began_s = now_s

    def find_hang(self, now_s: float) -> Hang | None:
        """Return the rank that is in one step for longest, if that is too long."""
        running = [
            (rank.began_s, number, rank.last)
            for number, rank in enumerate(self._ranks)
            if rank.will_report and rank.last is not None
        ]
        if not running:
            return None
        began_s, number, last = min(running)
        if now_s - began_s <= (MIN_HANG_S if self._hang_s is None else self._hang_s):
            return None
        # Others may wait for one that evaluates or saves.
        limit_s = self._hang_s or max(self.step_limit_s(kind) for kind in {last.kind for _, _, last in running})
        if now_s - began_s <= limit_s:
            return None
        return Hang(number, last.kind, last.step, began_s, limit_s)

    def step_limit_s(self, kind: StepKind) -> float:
        """Return how long a step of a kind may take, by the ones before."""
        times_s = self._took_s.get(kind, ())
        if kind is StepKind.OTHER or len(times_s) < MIN_STEPS:
            return UNKNOWN_HANG_S
        recent = times_s[-RECENT:]
        return max(MIN_HANG_S, MEDIANS * statistics.median(recent), LONGESTS * max(recent))

    def check_slowness(self, now_s: float) -> Slowness | None:
        """Return how much longer steps take, once in each minute in which they do."""
        if 0.0 < self._check_at_s - now_s <= CHECK_S:
            return None
        self._check_at_s = now_s + CHECK_S
        if not self.is_slow:
            self._checks = 0
            return None
        self._checks += 1
        going = [(number, self._ranks[number].compute) for number in self.going_ranks]
        reporting = [(number, compute) for number, compute in going if compute is not None]
        slow = tuple(number for number, compute in reporting if compute.is_slow) if reporting else None
        return Slowness(self._calm_s, self._usual_s, self.present_step_s() or 0.0, slow, self._checks)

    def _end_step(self, rank: _Rank, was: Begun, begun: Begun) -> None:
        """Process the end of a rank's step."""
        rank.away_bytes = begun.away_bytes
        if begun.loss is not None:
            rank.loss = was.step, begun.loss
        took_s = begun.at_s - was.at_s
        if took_s <= 0.0 or was.kind is StepKind.DONE:
            return  # a clock was set back
        if was.kind is StepKind.TRAIN:
            took_s /= max(begun.step - was.step, 1)  # not every step is reported
            rank.times.add(took_s, begun.computed_s)
            if begun.computed_s:
                rank.compute = rank.compute or Cusum()
                rank.compute.update(begun.computed_s)
        key = (was.kind, was.step)
        before = self._pending.get(key) or _Pending(0, 0.0, begun.at_s, self._reads)
        self._pending[key] = _Pending(before.ranks + 1, max(before.took_s, took_s), begun.at_s, before.read)
        if before.ranks + 1 >= self._reporting:
            self._complete_step(key)
        elif len(self._pending) > MAX_PENDING:
            self._complete_step(next(iter(self._pending)))

    def _complete_left_steps(self) -> None:
        """Process the steps that no rank will report any more.

        All ranks report each training step, except those that are done or have ended. One rank alone may evaluate or
        save: once all others have reported something later, they will not report that.
        """
        going = [rank.read for rank in self._ranks if rank.will_report]
        oldest = min(going, default=self._reads + 1)
        for key, each in list(self._pending.items()):
            if each.ranks >= len(going) or (key[0] is not StepKind.TRAIN and each.read < oldest):
                self._complete_step(key)

    def _complete_step(self, key: tuple[StepKind, int]) -> None:
        """Process how long a step took the slowest rank."""
        kind, done = key[0], self._pending.pop(key)
        times_s = self._took_s.setdefault(kind, array("d"))
        times_s.append(done.took_s)
        if len(times_s) > 2 * RECENT:
            del times_s[:-RECENT]
        detector = self._detector
        if kind is not StepKind.TRAIN or detector is None:
            return
        was_slow = detector.is_slow
        is_slow = detector.update(done.took_s)
        if detector.slow_steps == 0:
            self._calm_s = done.at_s
        elif is_slow and not was_slow:
            self._usual_s = statistics.median(times_s[: -detector.slow_steps] or times_s)
