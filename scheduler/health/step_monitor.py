"""The steps of all running attempts: which are slow, which hang, and which ranks slow down the others.

It reads no clock, network or store. Source: SPEC K2, K3, K5, F1, F3; docs/steps.md.
"""

import logging
import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager
from enum import StrEnum
from typing import NamedTuple

from ...cluster.files.errors import BackendError
from ...cluster.model.placement import Placement
from ...ring.membership import slow_members
from ..backends.protocol import Backend, StepLines
from ..model.job_spec import OFF, Watching
from .evidence import AT_ONCE_S, AT_ONCE_SHARE, MIN_AT_ONCE
from .step_watch import (
    DETECTORS,
    NO_TIMES,
    Average,
    Computed,
    Hang,
    RankStepTimes,
    SavedCheckpoint,
    Slowness,
    StepKind,
    StepWatch,
    average_iteration_of,
    parse_checkpoints,
    parse_steps,
    unrecorded_by_type,
)

COMPARE_EVERY_S, COMPARISONS = 60.0, 3  # between two comparisons, and in a row, before that counts


class Straggler(NamedTuple):
    """A rank that all others wait for."""

    rank: int
    compute_s: float  # mean of its last iterations
    others_s: float  # median of those of the others
    node: str = ""  # where it is


def find_stragglers(times: Sequence[RankStepTimes], going: Collection[int]) -> list[Straggler]:
    """Return the ranks that compute for far longer than the others.

    Args:
        times: Of all ranks.
        going: Ranks that report steps, and will report more.
    """
    computed = {rank: compute_s for rank in going if (compute_s := times[rank].compute_s) is not None}
    return [Straggler(*each) for each in slow_members(computed)]


class Stragglers:
    """Follows the stragglers of one attempt: each is returned once, as long as it is one.

    Args:
        now_s: The present.
    """

    def __init__(self, now_s: float) -> None:
        self._compare_at_s = now_s + COMPARE_EVERY_S
        self._in_a_row: dict[int, int] = {}  # in a row, by rank

    def newly_straggling(self, times: Sequence[RankStepTimes], going: Collection[int], now_s: float) -> list[Straggler]:
        """Return the ranks that have been stragglers for long enough now, at most once a minute."""
        if 0.0 < self._compare_at_s - now_s <= COMPARE_EVERY_S:  # else the clock was set back
            return []
        self._compare_at_s = now_s + COMPARE_EVERY_S
        found = find_stragglers(times, going)
        self._in_a_row = {one.rank: self._in_a_row.get(one.rank, 0) + 1 for one in found}
        return [one for one in found if self._in_a_row[one.rank] == COMPARISONS]


log = logging.getLogger(__name__)

About = Callable[[str], AbstractContextManager[None]]

HEALTH = "health"  # kind of events
STEPS_POLL_S = 4.0  # between two reads of what an attempt has reported
SILENT_POLL_S = 30.0  # at most, of one that has reported nothing: as long as it has been followed
RECORD_S = 60.0  # between two times that computing times of what runs are recorded
POLL_GAP_S = 30.0  # longer than there should be between two reads: what happened meanwhile does not count
CHECKS = 3  # in a row at which steps are slow before that counts
MAX_SAVED = 3  # checkpoints recorded at one read, the last ones


class SlowWord(StrEnum):
    """An event of a job's steps."""

    SLOW = "slow"
    STEADY = "steady"  # they were slow, and are not any more
    STRAGGLER = "straggler"  # a rank computes for far longer than the others
    MOVED = "moved"  # the job is stopped, to continue elsewhere
    HUNG = "hung"
    ALARM = "alarm"  # too many jobs became slow at once for a fault of a node


class RunningAttempt(NamedTuple):
    """An attempt that runs."""

    job: str
    name: str  # at the backend
    placement: Placement
    ended: frozenset[int] = frozenset()  # ranks that have ended, while others run
    later: tuple[str, ...] = ()  # nodes of ranks that were added while it ran, after those of the placement

    @property
    def nodes(self) -> list[str]:
        """The node of each rank."""
        return [*(share.node for share in self.placement for _ in share.gpus), *self.later]


class Findings(NamedTuple):
    """What is new, by job unless noted."""

    hangs: dict[str, Hang]
    slow: dict[str, Slowness]  # those that are so for long enough
    steady: list[str]  # that were among these, and are not slow any more
    shared: list[str]  # that became slow together, the first time
    stragglers: dict[str, list[Straggler]]  # that have become so
    saved: dict[str, list[SavedCheckpoint]]  # those that are not in the store yet, by name of the attempt


class AttemptEnd(NamedTuple):
    """What an attempt reported at its end."""

    saved: list[SavedCheckpoint]  # its last checkpoints, known or not
    came_further: bool  # to a step after its first
    step: int | None  # its highest training step, or of another kind without any; None without steps


class StepFigures(NamedTuple):
    """The progress of a job's steps."""

    step: int
    step_s: float | None  # None before the first steps have ended
    average: Average | None = None  # of its iterations, None before the first that counts
    slowest: str = ""  # node that the average is of, "" without one
    computed_s: tuple[float | None, ...] = ()  # mean of the last computing times of each rank, None for no report
    loss: float | None = None  # the last one reported, not always finite
    away_bytes: tuple[int | None, ...] = ()  # offloaded state of each rank, None where none was reported


class _Followed:
    """An attempt with all that it has reported."""

    __slots__ = ("began_s", "figures", "job", "last", "nodes", "read_at_s", "read_s", "slow", "stragglers", "watch")

    def __init__(self, attempt: RunningAttempt, watch: StepWatch, now_s: float, read_at_s: float) -> None:
        self.job, self.watch, self.read_s, self.read_at_s = attempt.job, watch, now_s, read_at_s
        self.began_s = now_s
        self.nodes = attempt.nodes  # of each rank
        self.last = [StepLines()] * len(self.nodes)
        self.stragglers = Stragglers(now_s)
        self.figures = StepFigures(0, None)
        self.slow: Slowness | None = None  # None while its steps are as they should be

    def add_ranks(self, nodes: list[str]) -> None:
        """Follow the ranks that were added since the last read."""
        if len(nodes) > len(self.nodes):
            self.last += [StepLines()] * (len(nodes) - len(self.nodes))
            self.watch.grow_to(len(nodes))
            self.nodes = nodes


class StepMonitor:
    """Follows the steps of running attempts; another object begins anew.

    Args:
        backend: That runs them.
        types: Node type of each node.
    """

    def __init__(self, backend: Backend, types: Mapping[str, str]) -> None:
        self._types = types
        self._left: dict[str, dict[str, Computed]] = {}  # of attempts that are over: not recorded yet, by job and type
        self._recorded_s = -math.inf
        self._backend = backend if backend.capabilities.reads_steps else None
        self._followed: dict[str, _Followed] = {}  # by name of the attempt
        self._unwritten: dict[str, list[SavedCheckpoint]] = {}  # not in the store yet, by name of the attempt
        self._shared_since_s = -math.inf  # when jobs last became slow together
        self.figures: Mapping[str, StepFigures] = {}  # by job, of those that report; never changed, but replaced

    @property
    def reads_steps(self) -> bool:
        """Whether the backend reads steps."""
        return self._backend is not None

    def poll(
        self, running: Iterable[RunningAttempt], going: Collection[str], watching: Callable[[str], Watching],
        now_s: float, about: About,
    ) -> Findings:  # fmt: skip
        """Read what attempts have reported, and return what follows from it.

        1. Follow each running attempt; drop those that have ended.
        2. Read the new lines of those that are due.
        3. Record checkpoints, and find hangs, stragglers and slow steps of each.
        4. Find out which jobs became slow together, as no node is the cause then.

        Args:
            running: All that run and can be reached.
            going: Names of all that have not ended: what is known of those out of reach is kept.
            watching: What the steps of a job are watched for.
            now_s: The present.
            about: Context of what is done about one job.
        """
        found = Findings({}, {}, [], [], {}, self._unwritten)
        followed = {name: one for name, one in self._followed.items() if name in going}
        due = []
        for attempt in running:
            with about(attempt.job):
                one = followed.get(attempt.name) or self._begin_following(
                    attempt, watching(attempt.job), now_s, len(followed)
                )
                followed[attempt.name] = one
                if not 0.0 < one.read_at_s - now_s <= SILENT_POLL_S:  # or the clock was set back
                    due.append((attempt, one))
        for name in self._followed.keys() - followed.keys():
            self._add_unrecorded(self._followed[name], self._left)
        has_changed = bool(due) or followed.keys() != self._followed.keys()
        self._followed = followed
        for each, one in due:
            with about(each.job):
                self._read_and_judge(each, one, found, now_s)
        self._mark_shared_slowness(found)
        if has_changed:
            self.figures = {one.job: one.figures for one in followed.values() if one.watch.reports}
        return found

    def recent_train_steps_s(self, name: str) -> Sequence[float]:
        """Return the times of the last training steps of an attempt that runs and reports; any thread may call this."""
        one = self._followed.get(name)
        return () if one is None else one.watch.recent_train_steps_s()

    def read_end(self, attempt: RunningAttempt) -> AttemptEnd:
        """Read the lines of an attempt that has ended for the last time, and return what they report."""
        self._unwritten.pop(attempt.name, None)
        lines = self._read_lines(attempt, [StepLines()] * len(attempt.nodes))
        saved = _last_checkpoints(parse_checkpoints(rank.saved) for rank in lines)
        steps = {(each.kind, each.step) for rank in lines for each in parse_steps(rank.steps)}
        # A kind may have numbers of its own, and an attempt that resumes from a checkpoint begins after the first.
        came_further = len(steps) > len({kind for kind, _ in steps})
        trained = [step for kind, step in steps if kind is StepKind.TRAIN]
        return AttemptEnd(saved, came_further, max(trained or [step for _, step in steps], default=None))

    def unrecorded_compute_times(self, now_s: float) -> Mapping[str, Mapping[str, Computed]]:
        """Return the computing times that are to be recorded now, by job and node type; often none."""
        if not self._left and 0.0 <= now_s - self._recorded_s < RECORD_S:
            return {}
        self._recorded_s = now_s
        found = {job: dict(news) for job, news in self._left.items()}
        for one in self._followed.values():
            self._add_unrecorded(one, found)
        return found

    def mark_recorded(self) -> None:
        """Forget these: they are in the store."""
        self._left.clear()
        for one in self._followed.values():
            for rank in one.watch.times:
                rank.mark_recorded()

    def mark_written(self) -> None:
        """Forget the reported checkpoints: they are in the store."""
        self._unwritten.clear()

    def _begin_following(self, attempt: RunningAttempt, watching: Watching, now_s: float, others: int) -> _Followed:
        detector = None if watching.slow == OFF else DETECTORS[watching.slow]()
        # Not all at the same moment, even if a scheduler starts with all of them at once.
        wait_s = STEPS_POLL_S * (others % 8) / 8.0
        watch = StepWatch(len(attempt.nodes), detector, watching.hang_s, now_s)
        return _Followed(attempt, watch, now_s, now_s + wait_s)

    def _add_unrecorded(self, one: _Followed, found: dict[str, dict[str, Computed]]) -> None:
        kinds = [self._types.get(node, "") for node in one.nodes]
        for kind, news in unrecorded_by_type(one.watch.times, kinds).items():
            known = found.setdefault(one.job, {})
            known[kind] = known.get(kind, NO_TIMES).with_more(news)

    def _read_lines(self, attempt: RunningAttempt, before: Sequence[StepLines]) -> list[StepLines]:
        """Return what ranks reported; nothing if the backend fails, which must not stop the others."""
        if self._backend is None:
            return []
        try:
            lines = self._backend.step_lines(attempt.name, attempt.placement, before)
        except BackendError as error:
            log.warning("steps of %s cannot be read: %s", attempt.name, error)
            return []
        except Exception:
            log.exception("the backend failed: steps of %s cannot be read", attempt.name)
            return []
        return lines if len(lines) == len(before) else []

    def _read_and_judge(self, attempt: RunningAttempt, one: _Followed, found: Findings, now_s: float) -> None:
        one.read_at_s = now_s + STEPS_POLL_S
        one.add_ranks(attempt.nodes)
        lines = self._read_lines(attempt, one.last)
        if not lines:
            return
        if not 0.0 <= now_s - one.read_s <= (POLL_GAP_S if one.watch.reports else POLL_GAP_S + SILENT_POLL_S):
            one.watch.restart_current_steps(now_s)
        one.last = [StepLines(steps_end=each.steps_end, saved_end=each.saved_end) for each in lines]
        one.watch.mark_ended(attempt.ended)
        one.watch.add_steps([parse_steps(each.steps) if each.steps else () for each in lines], now_s)
        one.read_s = now_s
        one.figures = _step_figures(one)
        if not one.watch.reports:
            one.began_s = min(one.began_s, now_s)  # the clock may have been set back
            one.read_at_s = now_s + min(max(now_s - one.began_s, STEPS_POLL_S), SILENT_POLL_S)
        if any(each.saved for each in lines):
            found.saved[attempt.name] = _last_checkpoints(
                [found.saved.get(attempt.name, ()), *(parse_checkpoints(each.saved) for each in lines)]
            )
        hang = one.watch.find_hang(now_s)
        if hang is not None:
            found.hangs[attempt.job] = hang
        stragglers = one.stragglers.newly_straggling(one.watch.times, one.watch.going_ranks, now_s)
        if stragglers:
            found.stragglers[attempt.job] = [each._replace(node=one.nodes[each.rank]) for each in stragglers]
        slowness = one.watch.check_slowness(now_s)
        if slowness is not None:
            going = {rank: one.nodes[rank] for rank in one.watch.going_ranks}
            one.slow = slowness._replace(nodes=nodes_at_fault(going, slowness.ranks))
            if slowness.checks >= CHECKS:
                found.slow[attempt.job] = one.slow
        elif one.slow is not None and not one.watch.is_slow:
            found.steady.extend([attempt.job] if one.slow.checks >= CHECKS else [])
            one.slow = None

    def _mark_shared_slowness(self, found: Findings) -> None:
        """Mark the slow jobs that became so together with too many others."""
        if not found.slow:
            return
        ready = [one for one in self._followed.values() if one.watch.is_ready]
        all_slow = {one.job: one.slow for one in ready if one.slow is not None}
        for job, slow in found.slow.items():
            others = jobs_slow_together(slow, all_slow, len(ready))
            since_s = slow.since_s
            if others and abs(since_s - self._shared_since_s) > 2.0 * AT_ONCE_S:
                found.shared.extend(others)
                self._shared_since_s = since_s
            found.slow[job] = slow._replace(is_shared=bool(others))


def _step_figures(one: _Followed) -> StepFigures:
    average = average_iteration_of(one.watch.times)
    slowest = "" if average is None else one.nodes[average.rank]
    computed_s = tuple(rank.compute_s for rank in one.watch.times)
    away_bytes = tuple(one.watch.away_bytes)
    return StepFigures(
        one.watch.step, one.watch.present_step_s(), average, slowest, computed_s, one.watch.loss, away_bytes
    )


def _last_checkpoints(saved: Iterable[Iterable[SavedCheckpoint]]) -> list[SavedCheckpoint]:
    """Return the last checkpoints that ranks reported, one for each step, in their order."""
    reported = sorted((each for rank in saved for each in rank), key=lambda each: each.at_s)
    return list({each.step: each for each in reported}.values())[-MAX_SAVED:]


def nodes_at_fault(nodes: Mapping[int, str], slow: tuple[int, ...] | None) -> frozenset[str]:
    """Return the nodes that slow ranks are on: none if they are on all of several, as then the job itself has changed.

    Args:
        nodes: Of the ranks that continue.
        slow: Those of them that are slow; None if they do not report it, so that only a single node can be the cause.
    """
    several = frozenset(nodes.values())
    found = several if slow is None else frozenset(nodes[rank] for rank in slow)
    return found if len(several) == 1 or (slow is not None and len(found) < len(several)) else frozenset()


def jobs_slow_together(slowness: Slowness, slow: Mapping[str, Slowness], ready: int) -> list[str]:
    """Return the jobs that became slow together with one: none unless they are too many for a fault of one node."""
    near = {job: slow_job for job, slow_job in slow.items() if abs(slow_job.since_s - slowness.since_s) <= AT_ONCE_S}
    # Those with the same slow node have one cause.
    causes = len({each.nodes for each in near.values() if each.nodes}) + sum(not each.nodes for each in near.values())
    return list(near) if causes >= MIN_AT_ONCE and len(near) > AT_ONCE_SHARE * ready else []
