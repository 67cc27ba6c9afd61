"""The steps of one attempt, as its ranks report them: whether they have become slow, and whether one hangs.

The steps of one attempt, from what its ranks tell: whether they have become slow, and whether one hangs.

Reads no clock, network or store. All of it is of this attempt, so that nothing crosses to the next one.

How long the ranks of an attempt compute and step: the average iteration time, and the record by node type.

All ranks of a ring are as slow as the slowest one, so that one is found by its computing time.

Source: SPEC K2, K3, K5, F3, F1, F2; docs/steps.md; docs/steps.md has the format.
"""

import logging
import re
import statistics
from array import array
from collections import deque
from collections.abc import Collection, Mapping, Sequence
from enum import StrEnum
from itertools import islice
from statistics import fmean
from typing import NamedTuple

from .detectors import Cusum, Detector


class StepKind(StrEnum):
    """What a rank is at."""

    TRAIN = "train"
    CHECKPOINT = "checkpoint"
    EVALUATE = "evaluate"
    OTHER = "other"  # nobody knows how long that takes
    DONE = "done"  # no step at all: what still comes may take as long as it likes


class Begun(NamedTuple):
    """A step that began, and with it the one before ended."""

    kind: StepKind
    step: int
    at_s: float  # Unix time, by the clock of the rank
    computed_s: float | None  # of the step that ended, without what it waited for; None if it was not told
    loss: float | None = None  # of the step that ended, not always finite; None if it was not told, or is no number
    away_bytes: int | None = None  # of state that is put away; None if it was not told


class Saved(NamedTuple):
    """A checkpoint that is complete."""

    step: int  # the last one that it holds
    at_s: float  # Unix time, by the clock of the rank
    digest: str  # "" for none
    path: str


_TIME = rb"(\d{1,11}(?:\.\d{1,9})?)"
_LOSS = rb"([!-~]{1,400})"  # as any language writes a number: a step counts whatever it says of its loss
_STEP = re.compile(
    rb"^(train|checkpoint|evaluate|other|done) (\d{1,15}) %b(?: (?:%b|-)(?: %b(?: (\d{1,18}))?)?)?$"
    % (_TIME, _TIME, _LOSS),
    re.MULTILINE,
)
_SAVED = re.compile(rb"^(\d{1,15}) %b (-|[0-9a-f]{8,128}) ([^\x00-\x1f\x7f]{1,1024})$" % _TIME, re.MULTILINE)
_KINDS = {kind.value.encode(): kind for kind in StepKind}


def steps_in(lines: bytes) -> list[Begun]:
    """Return the steps that lines tell of, in their order."""
    return [
        Begun(
            _KINDS[kind],
            int(step),
            float(at),
            float(computed) if computed else None,
            _loss_of(loss),
            int(away) if away else None,
        )
        for kind, step, at, computed, loss, away in _STEP.findall(lines)
    ]


def _loss_of(text: bytes) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def saved_in(lines: bytes) -> list[Saved]:
    """Return the checkpoints that lines tell of, in their order."""
    found = []
    for step, at, digest, path in _SAVED.findall(lines):
        try:
            text = path.decode()
        except UnicodeDecodeError:
            continue
        if text.isprintable():
            found.append(Saved(int(step), float(at), "" if digest == b"-" else digest.decode(), text))
    return found


KEPT = 32  # steps that a mean is taken over
LEFT_OUT = 3  # first steps of an attempt: they compile and warm up


class Computed(NamedTuple):
    """How long iterations of a job computed on one type of node."""

    iterations: int
    mean_s: float
    last_s: tuple[float, ...]  # the last 32, the newest last

    def with_more(self, more: "Computed") -> "Computed":
        """Return both together, of which the other came later."""
        count = self.iterations + more.iterations
        mean_s = (self.iterations * self.mean_s + more.iterations * more.mean_s) / count if count else 0.0
        return Computed(count, mean_s, (self.last_s + more.last_s)[-KEPT:])


NOTHING = Computed(0, 0.0, ())


class Average(NamedTuple):
    """The average iteration time of a job."""

    iteration_s: float
    rank: int  # the slowest, by its computing time
    steps: int  # that the mean is taken over


class RankTimes:
    """The iterations of one rank."""

    __slots__ = ("_computed_s", "_new", "_seen", "_sum_s", "_took_s")

    def __init__(self) -> None:
        self._seen = 0
        self._took_s, self._computed_s = deque[float](maxlen=KEPT), deque[float](maxlen=KEPT)
        self._new, self._sum_s = 0, 0.0  # computing times since they were last recorded

    def tell(self, took_s: float, computed_s: float | None) -> None:
        """Take in an iteration; the first of them are left out.

        Args:
            took_s: From its begin to that of the next one.
            computed_s: Without what it waited for; None if that was not told.
        """
        self._seen += 1
        if self._seen <= LEFT_OUT:
            return
        self._took_s.append(took_s)
        if computed_s is not None:
            self._computed_s.append(computed_s)
            self._new, self._sum_s = self._new + 1, self._sum_s + computed_s

    @property
    def compute_s(self) -> float | None:
        """Mean of the last computing times, None if none was told."""
        return fmean(self._computed_s) if self._computed_s else None

    @property
    def step_s(self) -> float | None:
        """Mean of the last step times, None before there are any."""
        return fmean(self._took_s) if self._took_s else None

    @property
    def steps(self) -> int:
        """How many these are."""
        return len(self._took_s)

    def news(self) -> Computed:
        """Return the computing times that are not recorded yet."""
        last = tuple(islice(reversed(self._computed_s), min(self._new, KEPT)))[::-1]
        return Computed(self._new, self._sum_s / self._new, last) if self._new else NOTHING

    def recorded(self) -> None:
        """Forget which these were: they are recorded."""
        self._new, self._sum_s = 0, 0.0


def average_of(ranks: Sequence[RankTimes]) -> Average | None:
    """Return the mean of the last step times of the slowest rank, None before there are any.

    Where no rank tells how long it computes, the slowest is the one whose steps take longest.

    Source: SPEC F3.
    """
    told = [(rank.compute_s, number) for number, rank in enumerate(ranks) if rank.steps]
    if not told:
        return None
    computing = [(compute_s, number) for compute_s, number in told if compute_s is not None]
    stepping = [(ranks[number].step_s or 0.0, number) for _, number in told]
    _, slowest = max(computing or stepping, key=lambda it: (it[0], -it[1]))
    return Average(ranks[slowest].step_s or 0.0, slowest, ranks[slowest].steps)


def news_by_type(ranks: Sequence[RankTimes], types: Sequence[str]) -> Mapping[str, Computed]:
    """Return the computing times that are not recorded yet, by node type.

    Args:
        ranks: Of an attempt.
        types: Node type of each rank.
    """
    found: dict[str, Computed] = {}
    for rank, kind in zip(ranks, types, strict=True):
        news = rank.news()
        if news.iterations:
            found[kind] = found.get(kind, NOTHING).with_more(news)
    return found


log = logging.getLogger(__name__)

LEAST_HANG_S, UNKNOWN_HANG_S = 60.0, 900.0
MEDIANS, LONGESTS, RECENT = 10.0, 2.0, 1500  # a step may take ten medians, and twice the longest of the last ones
FIRST = 20  # steps of a kind before anybody knows how long one takes
CHECK_S = 60.0  # between two looks at whether steps are slow
MOST_PENDING = 4096  # steps that some ranks have told of and others have not
SHOWN = 50  # steps that the present step time is the median of


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
    ranks: tuple[int, ...] | None  # whose own computing is slow; None if they do not tell of it
    checks: int  # in a row at which they were slow


class _Rank:
    """What a rank has told."""

    __slots__ = ("away_bytes", "began_s", "compute", "has_ended", "last", "look", "loss", "times")

    def __init__(self) -> None:
        self.last: Begun | None = None  # the step that it is at
        self.look = 0  # at which it last told anything
        self.began_s = 0.0  # of that step, by the clock of who watches
        self.compute: Cusum | None = None  # of its own computing, once it tells of it
        self.has_ended = False
        self.times = RankTimes()
        self.loss: tuple[int, float] | None = None  # its last step that it told the loss of, and that
        self.away_bytes: int | None = None  # of its state that is put away, as it told last

    @property
    def goes_on(self) -> bool:
        """Whether it has told of steps and tells of more."""
        return not self.has_ended and self.last is not None and self.last.kind is not StepKind.DONE


class _Pending(NamedTuple):
    """A step that some ranks have told the end of, and others have not."""

    ranks: int  # that have
    took_s: float  # the longest of them
    at_s: float  # when it ended, by the clock of the last of them
    look: int  # at which the first of them told


class StepWatch:
    """Follows one attempt.

    Args:
        ranks: How many it has.
        detector: Of slow steps; None to look for none.
        hang_s: How long a step may take, inf for as long as it likes; None to go by the steps before.
        now_s: The present.
    """

    def __init__(self, ranks: int, detector: Detector | None, hang_s: float | None, now_s: float) -> None:
        self._ranks = [_Rank() for _ in range(ranks)]
        self._detector, self._hang_s = detector, hang_s
        self._pending: dict[tuple[StepKind, int], _Pending] = {}
        self._telling = 0  # ranks that tell of steps
        self._look = 0  # how many there were
        self._took_s: dict[StepKind, array[float]] = {}  # of the slowest rank, the last ones
        self._looked_s = now_s
        self._check_at_s = now_s + CHECK_S
        self._checks = 0
        self._calm_s = 0.0  # when steps last looked as they should, by the clock of the job
        self._usual_s = 0.0
        self.step = 0  # the highest that was told
        self.tells = False  # any rank has told anything

    @property
    def is_ready(self) -> bool:
        """Whether slow steps would be noticed."""
        return self._detector is not None and self._detector.is_ready

    @property
    def is_slow(self) -> bool:
        """Whether steps are slow."""
        return self._detector is not None and self._detector.is_slow

    def train_s(self) -> Sequence[float]:
        """Return the times of the last training steps; any thread may ask."""
        return self._took_s.get(StepKind.TRAIN, array("d"))[-RECENT:]

    def present_s(self) -> float | None:
        """Return the present step time, None before the first steps have ended."""
        told = self._took_s.get(StepKind.TRAIN)
        return statistics.median(told[-SHOWN:]) if told else None

    @property
    def times(self) -> Sequence[RankTimes]:
        """The iterations of each rank."""
        return [rank.times for rank in self._ranks]

    @property
    def loss(self) -> float | None:
        """Loss of the last step that any rank told it of; where several did, of the lowest. Not always finite."""
        told = [(-rank.loss[0], number, rank.loss[1]) for number, rank in enumerate(self._ranks) if rank.loss]
        return min(told)[2] if told else None

    @property
    def away_bytes(self) -> list[int | None]:
        """State of each rank that is put away, None of those that tell of none."""
        return [rank.away_bytes for rank in self._ranks]

    @property
    def going(self) -> list[int]:
        """Ranks that have told of steps and tell of more."""
        return [number for number, rank in enumerate(self._ranks) if rank.goes_on]

    def grow(self, ranks: int) -> None:
        """Follow more ranks, which came while the attempt ran."""
        self._ranks += [_Rank() for _ in range(ranks - len(self._ranks))]

    def take(self, told: Sequence[Sequence[Begun]], now_s: float) -> None:
        """Take in what was told since the last time.

        Args:
            told: By rank.
            now_s: The present.
        """
        self._telling = sum(bool(steps) or rank.goes_on for rank, steps in zip(self._ranks, told, strict=True))
        self.tells = self.tells or self._telling > 0
        self._look += 1
        for rank, steps in zip(self._ranks, told, strict=True):
            for begun in steps:
                if rank.last is not None:
                    self._end(rank, rank.last, begun)
                rank.last = begun
            if steps:
                rank.look = self._look
                # Whatever its clock says, it began it since the last time.
                rank.began_s = max(self._looked_s, min(steps[-1].at_s, now_s))
                self.step = max(self.step, steps[-1].step)
        self._looked_s = now_s
        self._take_left()

    def leave(self, ended: Collection[int]) -> None:
        """Wait no more for ranks that have ended: like those that are done, they never hang."""
        for number in ended:
            self._ranks[number].has_ended = True

    def forgive(self, now_s: float) -> None:
        """Let all steps have begun now, as nobody could look for a while."""
        self._looked_s = now_s
        for rank in self._ranks:
            rank.began_s = now_s

    def hang(self, now_s: float) -> Hang | None:
        """Return the rank that is in one step for longest, if that is too long."""
        running = [
            (rank.began_s, number, rank.last)
            for number, rank in enumerate(self._ranks)
            if rank.goes_on and rank.last is not None
        ]
        if not running:
            return None
        began_s, number, last = min(running)
        if now_s - began_s <= (LEAST_HANG_S if self._hang_s is None else self._hang_s):
            return None
        # Others may well wait for one that evaluates or saves.
        limit_s = self._hang_s or max(self.limit_s(kind) for kind in {last.kind for _, _, last in running})
        if now_s - began_s <= limit_s:
            return None
        return Hang(number, last.kind, last.step, began_s, limit_s)

    def limit_s(self, kind: StepKind) -> float:
        """Return how long a step of a kind may take, by those before."""
        told = self._took_s.get(kind, ())
        if kind is StepKind.OTHER or len(told) < FIRST:
            return UNKNOWN_HANG_S
        recent = told[-RECENT:]
        return max(LEAST_HANG_S, MEDIANS * statistics.median(recent), LONGESTS * max(recent))

    def slowness(self, now_s: float) -> Slowness | None:
        """Return how much longer steps take, once in each minute in which they do."""
        if 0.0 < self._check_at_s - now_s <= CHECK_S:
            return None
        self._check_at_s = now_s + CHECK_S
        if not self.is_slow:
            self._checks = 0
            return None
        self._checks += 1
        going = [(number, self._ranks[number].compute) for number in self.going]
        telling = [(number, compute) for number, compute in going if compute is not None]
        slow = tuple(number for number, compute in telling if compute.is_slow) if telling else None
        return Slowness(self._calm_s, self._usual_s, self.present_s() or 0.0, slow, self._checks)

    def _end(self, rank: _Rank, was: Begun, begun: Begun) -> None:
        """Take in how a step of a rank was."""
        rank.away_bytes = begun.away_bytes
        if begun.loss is not None:
            rank.loss = was.step, begun.loss
        took_s = begun.at_s - was.at_s
        if took_s <= 0.0 or was.kind is StepKind.DONE:
            return  # a clock was set back
        if was.kind is StepKind.TRAIN:
            took_s /= max(begun.step - was.step, 1)  # not every step is told
            rank.times.tell(took_s, begun.computed_s)
            if begun.computed_s:
                rank.compute = rank.compute or Cusum()
                rank.compute.update(begun.computed_s)
        key = (was.kind, was.step)
        it = self._pending.get(key) or _Pending(0, 0.0, begun.at_s, self._look)
        self._pending[key] = _Pending(it.ranks + 1, max(it.took_s, took_s), begun.at_s, it.look)
        if it.ranks + 1 >= self._telling:
            self._take_pending(key)
        elif len(self._pending) > MOST_PENDING:
            self._take_pending(next(iter(self._pending)))

    def _take_left(self) -> None:
        """Take in the steps that no rank will tell of any more.

        All tell of each training step, those that are done or have ended apart. One rank alone may evaluate or save:
        once all others have told anything behind that, they will not tell of it.
        """
        going = [rank.look for rank in self._ranks if rank.goes_on]
        oldest = min(going, default=self._look + 1)
        for key, it in list(self._pending.items()):
            if it.ranks >= len(going) or (key[0] is not StepKind.TRAIN and it.look < oldest):
                self._take_pending(key)

    def _take_pending(self, key: tuple[StepKind, int]) -> None:
        it = self._pending.pop(key)
        self._take(key[0], it.took_s, it.at_s)

    def _take(self, kind: StepKind, took_s: float, at_s: float) -> None:
        """Take in how long a step took the slowest rank."""
        told = self._took_s.setdefault(kind, array("d"))
        told.append(took_s)
        if len(told) > 2 * RECENT:
            del told[:-RECENT]
        detector = self._detector
        if kind is not StepKind.TRAIN or detector is None:
            return
        was_slow = detector.is_slow
        is_slow = detector.update(took_s)
        if detector.slow_steps == 0:
            self._calm_s = at_s
        elif is_slow and not was_slow:
            self._usual_s = statistics.median(told[: -detector.slow_steps] or told)
