"""The steps of all running attempts: which are slow, which hang, and which ranks hold up the others.

Which ranks compute for far longer than the others of a job whose ranks all wait for each other.

Reads no clock, network or store. Source: SPEC F1, F3; docs/steps.md.

Source: SPEC K2, K3, K5; docs/steps.md.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import NamedTuple

from ...cluster.files.errors import BackendError
from ...cluster.model.placement import Placement
from ...ring.member_health import far_longer
from ..backends.protocol import Backend, StepLines
from ..model.job_spec import OFF, Watching
from .detectors import DETECTORS
from .liveness import AT_ONCE_LEAST, AT_ONCE_S, AT_ONCE_SHARE
from .step_watch import (
    NOTHING,
    Average,
    Computed,
    Hang,
    RankTimes,
    Saved,
    Slowness,
    StepKind,
    StepWatch,
    average_of,
    news_by_type,
    saved_in,
    steps_in,
)

COMPARE_EVERY_S, LOOKS = 60.0, 3  # between two looks, and in a row, before that counts


class Straggler(NamedTuple):
    """A rank that all others wait for."""

    rank: int
    compute_s: float  # mean of its last iterations
    others_s: float  # median of those of the others


def straggling(times: Sequence[RankTimes], going: Collection[int]) -> list[Straggler]:
    """Return the ranks that compute for far longer than the others.

    Args:
        times: Of all ranks.
        going: Ranks that tell of steps, and will tell of more.
    """
    told = {rank: compute_s for rank in going if (compute_s := times[rank].compute_s) is not None}
    return [Straggler(*it) for it in far_longer(told)]


class Stragglers:
    """Follows the stragglers of one attempt: each counts once, as long as it is one.

    Args:
        now_s: The present.
    """

    def __init__(self, now_s: float) -> None:
        self._look_at_s = now_s + COMPARE_EVERY_S
        self._looks: dict[int, int] = {}  # in a row, by rank

    def look(self, times: Sequence[RankTimes], going: Collection[int], now_s: float) -> list[Straggler]:
        """Return the ranks that have been stragglers for long enough now, once in each minute at most.

        Args:
            times: Of all ranks.
            going: Ranks that tell of steps, and will tell of more.
            now_s: The present.
        """
        if 0.0 < self._look_at_s - now_s <= COMPARE_EVERY_S:  # else the clock was set back
            return []
        self._look_at_s = now_s + COMPARE_EVERY_S
        found = straggling(times, going)
        self._looks = {it.rank: self._looks.get(it.rank, 0) + 1 for it in found}
        return [it for it in found if self._looks[it.rank] == LOOKS]


log = logging.getLogger(__name__)

About = Callable[[str], AbstractContextManager[None]]

HEALTH = "health"  # kind of events
LOOK_S = 4.0  # between two looks at what an attempt has told
SILENT_LOOK_S = 30.0  # at most, at one that is silent so far: as long as it has been followed
RECORD_S = 60.0  # between two times that computing times of what runs are recorded
GAP_S = 30.0  # more than there should be between two looks: what happened meanwhile is nobody's fault
CHECKS = 3  # in a row at which steps are slow before that counts
MOST_SAVED = 3  # checkpoints taken in at one look, the last ones


class SlowWord(StrEnum):
    """What is told of a job's steps."""

    SLOW = "slow"
    STEADY = "steady"  # they were slow, and are so no more
    STRAGGLER = "straggler"  # a rank computes for far longer than the others
    MOVED = "moved"  # the job is stopped, to go on elsewhere
    HUNG = "hung"
    ALARM = "alarm"  # so many jobs became slow at once that the fault is none of a node


class Running(NamedTuple):
    """An attempt that runs."""

    job: str
    name: str  # what the backend knows it by
    placement: Placement
    ended: frozenset[int] = frozenset()  # ranks that have ended, while others run on
    later: tuple[str, ...] = ()  # nodes of ranks that came while it ran, behind those of the placement

    @property
    def nodes(self) -> list[str]:
        """The node of each rank."""
        return [*(share.node for share in self.placement for _ in share.gpus), *self.later]


class Slow(NamedTuple):
    """A job whose steps have become slow, and which nodes are to blame."""

    slowness: Slowness
    nodes: frozenset[str]  # whose own computing is slow; empty if nobody knows, or if it is slow on all of several
    is_shared: bool  # so many others became slow at the same time that none of its nodes is to blame


class Straggling(NamedTuple):
    """A rank that all others wait for, and where it is."""

    straggler: Straggler
    node: str


class Findings(NamedTuple):
    """What is new, by job if nothing else is said."""

    hangs: dict[str, Hang]
    slow: dict[str, Slow]  # those that are so for long enough
    steady: list[str]  # that were among these, and are slow no more
    shared: list[str]  # that became slow together, at the first time that this is seen
    stragglers: dict[str, list[Straggling]]  # that have become so
    saved: dict[str, list[Saved]]  # those that are not in the store yet, by name of the attempt


class End(NamedTuple):
    """What an attempt told at its end."""

    saved: list[Saved]  # its last checkpoints, known or not
    came_further: bool  # to a step behind its first
    step: int | None  # its highest training step, or of another kind if it told of none; None if it told of no step


class Figures(NamedTuple):
    """How the steps of a job stand."""

    step: int
    step_s: float | None  # None before the first steps have ended
    average: Average | None = None  # of its iterations, None before the first that counts
    slowest: str = ""  # node that the average is of, "" without one
    computed_s: tuple[float | None, ...] = ()  # mean of the last computing times of each rank, None where none was told
    loss: float | None = None  # the last that was told, not always finite
    away_bytes: tuple[int | None, ...] = ()  # state of each rank that is put away, None where none was told


class _Followed:
    """An attempt with all that was told of it."""

    __slots__ = ("began_s", "figures", "job", "last", "look_at_s", "looked_s", "nodes", "slow", "stragglers", "watch")

    def __init__(self, it: Running, watch: StepWatch, now_s: float, look_at_s: float) -> None:
        self.job, self.watch, self.looked_s, self.look_at_s = it.job, watch, now_s, look_at_s
        self.began_s = now_s
        self.nodes = it.nodes  # of each rank
        self.last = [StepLines()] * len(self.nodes)
        self.stragglers = Stragglers(now_s)
        self.figures = Figures(0, None)
        self.slow: Slow | None = None  # None while its steps are as they should be

    def grow(self, nodes: list[str]) -> None:
        """Follow the ranks that have come since the last look."""
        if len(nodes) > len(self.nodes):
            self.last += [StepLines()] * (len(nodes) - len(self.nodes))
            self.watch.grow(len(nodes))
            self.nodes = nodes


class StepMonitor:
    """Follows the steps of running attempts; another object begins anew.

    Args:
        backend: Which runs them.
        types: Node type of each node.
    """

    def __init__(self, backend: Backend, types: Mapping[str, str]) -> None:
        self._types = types
        self._left: dict[str, dict[str, Computed]] = {}  # of attempts that are over: not recorded yet, by job and type
        self._recorded_s = -math.inf
        self._backend = backend if backend.capabilities.reads_steps else None
        self._followed: dict[str, _Followed] = {}  # by name of the attempt
        self._unwritten: dict[
            str, list[Saved]
        ] = {}  # checkpoints that are not in the store yet, by name of the attempt
        self._shared_since_s = -math.inf  # when jobs last became slow together
        self.figures: Mapping[str, Figures] = {}  # by job, of those that tell; never changed, but replaced

    @property
    def can_tell(self) -> bool:
        """Whether jobs can tell anything at this backend."""
        return self._backend is not None

    def look(
        self, running: Iterable[Running], going: Collection[str], watching: Callable[[str], Watching], now_s: float,
        about: About,
    ) -> Findings:  # fmt: skip
        """Take in what attempts have told.

        Args:
            running: All that run and can be reached.
            going: Names of all that have not ended: what is known of those out of reach is kept.
            watching: What a job wants to be looked at for.
            now_s: The present.
            about: Holds what is done about one job.
        """
        found = Findings({}, {}, [], [], {}, self._unwritten)
        followed = {name: one for name, one in self._followed.items() if name in going}
        due = []
        for it in running:
            with about(it.job):
                one = followed.get(it.name) or self._begin(it, watching(it.job), now_s, len(followed))
                followed[it.name] = one
                if not 0.0 < one.look_at_s - now_s <= SILENT_LOOK_S:  # or the clock was set back
                    due.append((it, one))
        for name in self._followed.keys() - followed.keys():
            self._keep_news(self._followed[name], self._left)
        has_changed = bool(due) or followed.keys() != self._followed.keys()
        self._followed = followed
        for it, one in due:
            with about(it.job):
                self._look_at(it, one, found, now_s)
        self._judge(found)
        if has_changed:
            self.figures = {one.job: one.figures for one in followed.values() if one.watch.tells}
        return found

    def train_s(self, name: str) -> Sequence[float]:
        """Return the times of the last training steps of an attempt, if it runs and tells; any thread may ask."""
        one = self._followed.get(name)
        return () if one is None else one.watch.train_s()

    def end(self, it: Running) -> End:
        """Look at an attempt that has ended for the last time, and return what it told at its end."""
        self._unwritten.pop(it.name, None)
        told = self._told(it, [StepLines()] * len(it.nodes))
        saved = _last(saved_in(rank.saved) for rank in told)
        steps = {(it.kind, it.step) for rank in told for it in steps_in(rank.steps)}
        # A kind may have numbers of its own, and an attempt that goes on from a checkpoint begins behind the first.
        came_further = len(steps) > len({kind for kind, _ in steps})
        trained = [step for kind, step in steps if kind is StepKind.TRAIN]
        return End(saved, came_further, max(trained or [step for _, step in steps], default=None))

    def news(self, now_s: float) -> Mapping[str, Mapping[str, Computed]]:
        """Return the computing times that are to be recorded now, by job and node type; often none."""
        if not self._left and 0.0 <= now_s - self._recorded_s < RECORD_S:
            return {}
        self._recorded_s = now_s
        found = {job: dict(news) for job, news in self._left.items()}
        for one in self._followed.values():
            self._keep_news(one, found)
        return found

    def recorded(self) -> None:
        """Forget these: they are in the store."""
        self._left.clear()
        for one in self._followed.values():
            for rank in one.watch.times:
                rank.recorded()

    def written(self) -> None:
        """Forget the checkpoints that were told: they are in the store."""
        self._unwritten.clear()

    def _begin(self, it: Running, wanted: Watching, now_s: float, others: int) -> _Followed:
        detector = None if wanted.slow == OFF else DETECTORS[wanted.slow]()
        # Not all at the same moment, even if a scheduler takes all of them up at once.
        wait_s = LOOK_S * (others % 8) / 8.0
        watch = StepWatch(len(it.nodes), detector, wanted.hang_s, now_s)
        return _Followed(it, watch, now_s, now_s + wait_s)

    def _keep_news(self, one: _Followed, found: dict[str, dict[str, Computed]]) -> None:
        kinds = [self._types.get(node, "") for node in one.nodes]
        for kind, news in news_by_type(one.watch.times, kinds).items():
            known = found.setdefault(one.job, {})
            known[kind] = known.get(kind, NOTHING).with_more(news)

    def _told(self, it: Running, before: Sequence[StepLines]) -> list[StepLines]:
        """Ask the backend what ranks told; nothing if it does not answer. What goes wrong must hold up nobody."""
        if self._backend is None:
            return []
        try:
            told = self._backend.step_lines(it.name, it.placement, before)
        except BackendError as error:
            log.warning("steps of %s cannot be seen: %s", it.name, error)
            return []
        except Exception:
            log.exception("the backend failed: steps of %s cannot be seen", it.name)
            return []
        return told if len(told) == len(before) else []

    def _look_at(self, it: Running, one: _Followed, found: Findings, now_s: float) -> None:
        one.look_at_s = now_s + LOOK_S
        one.grow(it.nodes)
        told = self._told(it, one.last)
        if not told:
            return
        if not 0.0 <= now_s - one.looked_s <= (GAP_S if one.watch.tells else GAP_S + SILENT_LOOK_S):
            one.watch.forgive(now_s)
        one.last = [StepLines(steps_end=each.steps_end, saved_end=each.saved_end) for each in told]
        one.watch.leave(it.ended)
        one.watch.take([steps_in(each.steps) if each.steps else () for each in told], now_s)
        one.looked_s = now_s
        one.figures = _figures(one)
        if not one.watch.tells:
            one.began_s = min(one.began_s, now_s)  # the clock may have been set back
            one.look_at_s = now_s + min(max(now_s - one.began_s, LOOK_S), SILENT_LOOK_S)
        if any(each.saved for each in told):
            found.saved[it.name] = _last([found.saved.get(it.name, ()), *(saved_in(each.saved) for each in told)])
        hang = one.watch.hang(now_s)
        if hang is not None:
            found.hangs[it.job] = hang
        stragglers = one.stragglers.look(one.watch.times, one.watch.going, now_s)
        if stragglers:
            found.stragglers[it.job] = [Straggling(each, one.nodes[each.rank]) for each in stragglers]
        slowness = one.watch.slowness(now_s)
        if slowness is not None:
            going = {rank: one.nodes[rank] for rank in one.watch.going}
            one.slow = Slow(slowness, nodes_of(going, slowness.ranks), is_shared=False)
            if slowness.checks >= CHECKS:
                found.slow[it.job] = one.slow
        elif one.slow is not None and not one.watch.is_slow:
            found.steady.extend([it.job] if one.slow.slowness.checks >= CHECKS else [])
            one.slow = None

    def _judge(self, found: Findings) -> None:
        """Find out which of those that are slow have become so together with many others."""
        if not found.slow:
            return
        ready = [one for one in self._followed.values() if one.watch.is_ready]
        everyone = {one.job: one.slow for one in ready if one.slow is not None}
        for job, slow in found.slow.items():
            others = together(slow, everyone, len(ready))
            since_s = slow.slowness.since_s
            if others and abs(since_s - self._shared_since_s) > 2.0 * AT_ONCE_S:
                found.shared.extend(others)
                self._shared_since_s = since_s
            found.slow[job] = slow._replace(is_shared=bool(others))


def _figures(one: _Followed) -> Figures:
    average = average_of(one.watch.times)
    slowest = "" if average is None else one.nodes[average.rank]
    computed_s = tuple(it.compute_s for it in one.watch.times)
    away_bytes = tuple(one.watch.away_bytes)
    return Figures(one.watch.step, one.watch.present_s(), average, slowest, computed_s, one.watch.loss, away_bytes)


def _last(saved: Iterable[Iterable[Saved]]) -> list[Saved]:
    """Return the last checkpoints that ranks told of, one for each step, in their order."""
    told = sorted((each for rank in saved for each in rank), key=lambda each: each.at_s)
    return list({each.step: each for each in told}.values())[-MOST_SAVED:]


def nodes_of(nodes: Mapping[int, str], slow: tuple[int, ...] | None) -> frozenset[str]:
    """Return the nodes that slow ranks are on: none if they are on all of several, as then the job itself has changed.

    Args:
        nodes: Of the ranks that go on.
        slow: Those of them that are slow; None if they do not tell, so that only one node can be to blame.
    """
    several = frozenset(nodes.values())
    found = several if slow is None else frozenset(nodes[rank] for rank in slow)
    return found if len(several) == 1 or (slow is not None and len(found) < len(several)) else frozenset()


def together(one: Slow, slow: Mapping[str, Slow], ready: int) -> list[str]:
    """Return the jobs that became slow together with one: none unless they are so many that no node can be to blame.

    Args:
        one: A job that is slow.
        slow: All that are, itself too.
        ready: Jobs of which it would be known.
    """
    near = {job: it for job, it in slow.items() if abs(it.slowness.since_s - one.slowness.since_s) <= AT_ONCE_S}
    # Those that blame the same node have one cause between them.
    causes = len({it.nodes for it in near.values() if it.nodes}) + sum(not it.nodes for it in near.values())
    return list(near) if causes >= AT_ONCE_LEAST and len(near) > AT_ONCE_SHARE * ready else []
