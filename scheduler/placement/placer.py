"""Who decides: a policy in a process of its own, with a heuristic for whenever it fails.

Source: SPEC R8, R9.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from importlib.metadata import version
from typing import NamedTuple

from ...agents.protocol import Policy
from ...cluster.files.errors import PluginError
from ..mirror.cluster_mirror import ClusterMirror
from ..mirror.journal import JournalOpening, encode, encode_opening
from ..mirror.rehearsal import rehearse
from ..mirror.standing import (
    ROW,
    ClusterSite,
    ExpectedRun,
    JobRequest,
    MirrorCall,
    MirrorOrigin,
    check_decision,
    expected,
)
from ..mirror.vacant_seats import PlacementShape, fitted
from ..policy_host.answer import RecordParts, Stored, stored_of
from ..policy_host.process import Miss, MissError
from ..policy_host.rollover import Breaker, Rollover

MAX_UNSTORED_CALLS = 1000  # happenings between two decisions that are kept
MAX_UNDECIDED_CALLS = 10_000  # happenings without a decision that could keep them
PAST_S = 7 * 86400.0  # after which the next decisions can be replayed without those before


class Mode(StrEnum):
    """What a policy's word counts for."""

    ACTIVE = "active"  # it is obeyed
    SHADOW = "shadow"  # it decides and is logged; the heuristic is obeyed
    VETO = "veto"  # the heuristic decides; the policy may let it wait


class Proposal(NamedTuple):
    """What a policy would do."""

    job: str
    gpus: tuple[int, ...]  # none to wait
    rests: bool  # all jobs wait

    def agrees(self, other: "Proposal") -> bool:
        """Return whether both would do the same; the order in which GPUs are picked does not count."""
        return (self.job, self.rests, set(self.gpus)) == (other.job, other.rests, set(other.gpus))


class Decision(NamedTuple):
    """A decision that has been carried out on the cluster's arrays."""

    job: str
    gpus: tuple[int, ...]  # none where it waits
    started: bool  # False where it waits, or would have broken a reservation
    by: str  # name of who was obeyed
    version: str  # of the policy
    proposal: Proposal | None  # of the policy, None without a usable answer
    proposal_expected: ExpectedRun | None  # of the policy's proposal, None without one or if it waits
    expected: ExpectedRun | None  # of what is done, None where it waits
    fallback_proposal: Proposal  # of the heuristic
    fallback_expected: ExpectedRun | None
    rests: bool  # all jobs wait
    took_s: float
    kind: Miss | None  # why there is no usable answer of the policy, None if there is
    reason: str  # the same in words
    record: Stored | None  # what the policy saw, if it reports that
    past: bytes  # what led to the decision, none if it is not worth to be kept


class PlacementAdvice(NamedTuple):
    """What a policy would do; nothing has been done."""

    proposal: Proposal
    by: str  # name of the policy or heuristic
    miss: str  # why there is no usable answer of the policy, "" if there is


@dataclass(frozen=True, slots=True)
class PastLimits:
    """How long the past of a decision may become."""

    most_untold: int = MAX_UNSTORED_CALLS
    most_left_over: int = MAX_UNDECIDED_CALLS
    past_s: float = PAST_S
    passed_s: Callable[[], float] = time.monotonic  # its clock, a monotonic one


PAST_LIMITS = PastLimits()


def _any_form(_: str) -> PlacementShape | None:
    return None


class Placer:
    """Decides with a policy under a deadline, and with a heuristic where that gives no usable answer.

    Args:
        fallback: The heuristic; it decides at once, in this process.
        policy: Name of the policy, None for the heuristic alone.
        deadline_s: For one decision of the policy.
        mode: What the policy's word counts for.
        limits: Of the past that is kept with decisions.
        breaker: Says when the policy rests after misses; by default one of its own.
        sample_temperature: At which the policy draws what it does; None if it does what it holds for best.
    """

    def __init__(
        self, fallback: Policy, policy: str | None = None, deadline_s: float = 0.1, mode: Mode = Mode.ACTIVE,
        *, limits: PastLimits = PAST_LIMITS, breaker: Breaker | None = None, sample_temperature: float | None = None,
    ) -> None:  # fmt: skip
        self.fallback, self.policy, self.deadline_s, self.mode = fallback, policy, deadline_s, mode
        self.misses: Counter[Miss] = Counter()
        self.agreements: Counter[bool] = Counter()  # whether policy and heuristic agreed
        self.sample_temperature = sample_temperature
        self.rollover = (
            None if policy is None else Rollover(policy, deadline_s, breaker, sample_temperature=sample_temperature)
        )
        self._release = f"longshore {version('longshore')}"
        self._opening = ""  # of a past, until its first decision
        self._number = 0  # of the next decision in its past
        self._untold: list[MirrorCall] = []  # that belongs to the past of the next decision
        self._limits, self._began = limits, limits.passed_s()  # of the past

    def begin(self, mirror: ClusterMirror) -> None:
        """Follow a cluster from here on; nothing has happened to it since it was made."""
        mirror.journal = []
        self._opening, self._number, self._untold = encode_opening(JournalOpening(mirror.site, mirror.origin)), 0, []
        self._began = self._limits.passed_s()
        if self.rollover is not None:
            self.rollover.begin(mirror)

    @property
    def is_journal_full(self) -> bool:
        """Whether the past has become so long that the cluster is to be read, and followed, from the beginning."""
        limits = self._limits
        return len(self._untold) > limits.most_left_over or limits.passed_s() - self._began > limits.past_s

    def warm_up(self, site: ClusterSite) -> None:
        """Let the heuristic decide once about nothing, and all happen once: else the first time would compile it."""
        rehearse()
        mirror = ClusterMirror(site, MirrorOrigin(0.0))
        mirror.submit(JobRequest("first", 1, 60.0, 0.0))
        if mirror.due() is not None:
            _carry_out(mirror, self._fall_back(mirror))

    def poll_policy(self, mirror: ClusterMirror) -> None:
        """Check for a newer version of the policy, so that it takes over even if there is nothing to decide."""
        self._untold += self._happened(mirror)
        if self.rollover is not None:
            self.rollover.look(mirror)

    def end(self) -> None:
        """End the policy's processes."""
        if self.rollover is not None:
            self.rollover.end()

    @property
    def version(self) -> str:
        """Version of the policy that decides."""
        return self._release if self.rollover is None else self.rollover.version

    def reload(self) -> None:
        """Check for a newer version of the policy; any thread, and a signal handler, may call it."""
        if self.rollover is not None:
            self.rollover.reload()

    def wait_until_ready(self, wait_s: float) -> None:
        """Wait until the policy can be asked.

        Raises:
            PluginError: If it cannot be loaded, or not in time.
        """
        if self.rollover is not None:
            self.rollover.load(wait_s)

    def is_ready(self, wait_s: float = 0.0) -> bool:
        """Return whether the policy can be asked, or there is none."""
        return self.rollover is None or self.rollover.is_ready(wait_s)

    def decide(self, mirror: ClusterMirror, form_of: Callable[[str], PlacementShape | None] = _any_form) -> Decision:
        """Decide about the job that is due, and carry it out on the cluster's arrays.

        Args:
            mirror: The cluster.
            form_of: How the GPUs of a job must lie on nodes; None if it takes any GPUs.
        """
        began = time.perf_counter()
        due = mirror.current
        if (form := form_of(due)) and not fitted(mirror, due, (), form):
            return self._pass_over(mirror, due, began)
        self._untold += self._happened(mirror)
        miss = self._ask(mirror)
        fallback_proposal = self._fall_back(mirror)  # while the policy thinks
        proposal, record, miss = self._hear(mirror) if miss is None else (None, None, miss)
        policy_version = self.version
        if proposal is not None:
            self.agreements[proposal.agrees(fallback_proposal)] += 1
        obeyed, by = self._obeyed(proposal, fallback_proposal)
        suited = _suited(mirror, obeyed, form_of)
        if suited is None:  # it turned to another job, which cannot have what it needs
            suited, by = _suited(mirror, fallback_proposal, form_of), self.fallback.name
        if suited is None:
            return self._pass_over(mirror, due, began)
        obeyed = suited
        expected = _expected(mirror, obeyed)
        fallback_expected = expected if obeyed.agrees(fallback_proposal) else _expected(mirror, fallback_proposal)
        proposal_expected = (
            None if proposal is None else expected if proposal.agrees(obeyed) else _expected(mirror, proposal)
        )
        started = _carry_out(mirror, obeyed)
        self._untold += self._happened(mirror)
        # Jobs that a heuristic lets wait are not worth a record, and a full cluster has many of them. But the calls of
        # the mirror have to be recorded with some decision.
        is_kept = started or self.policy is not None or len(self._untold) > self._limits.most_untold
        past = self._past() if is_kept else b""
        took_s = time.perf_counter() - began
        return Decision(
            obeyed.job, obeyed.gpus, started, by, policy_version, proposal, proposal_expected, expected,
            fallback_proposal, fallback_expected, obeyed.rests, took_s, None if miss is None else miss.kind,
            "" if miss is None else str(miss), record, past,
        )  # fmt: skip

    def _pass_over(self, mirror: ClusterMirror, job: str, began: float) -> Decision:
        """Let a job wait that cannot have what it needs."""
        self._untold += self._happened(mirror)
        mirror.pass_over()
        nothing = Proposal(job, (), rests=False)
        return Decision(
            job, (), started=False, by=self.fallback.name, version=self.version, proposal=None, proposal_expected=None,
            expected=None, fallback_proposal=nothing, fallback_expected=None, rests=False,
            took_s=time.perf_counter() - began, kind=None, reason="", record=None, past=b"",
        )  # fmt: skip

    def _past(self) -> bytes:
        """Return what has happened since the last decision that is kept, this one included."""
        past = encode(self._number, self._untold, self._opening)
        self._number, self._opening, self._untold = self._number + 1, "", []
        return past

    def consult(self, mirror: ClusterMirror) -> PlacementAdvice:
        """Say what to do with the job that is due, without doing it; the heuristic is asked only in need."""
        self._happened(mirror)
        miss = self._ask(mirror)
        proposal, _, miss = self._hear(mirror) if miss is None else (None, None, miss)
        if proposal is not None and self.policy is not None:
            return PlacementAdvice(proposal, self.policy, "")
        return PlacementAdvice(self._fall_back(mirror), self.fallback.name, "" if miss is None else str(miss))

    def consult_fallback(self, mirror: ClusterMirror) -> PlacementAdvice:
        """Say what the heuristic would do with the job that is due, without doing it or asking the policy."""
        self._happened(mirror)
        return PlacementAdvice(self._fall_back(mirror), self.fallback.name, "")

    def _happened(self, mirror: ClusterMirror) -> Sequence[MirrorCall]:
        """Send the new calls of the mirror to the policy's processes, and return them."""
        calls, mirror.journal = mirror.journal or [], []
        if self.rollover is not None:
            self.rollover.tell(calls)
        return calls

    def _ask(self, mirror: ClusterMirror) -> MissError | None:
        """Ask the policy, and return why it cannot be asked if so."""
        try:
            if self.rollover is not None:
                self.rollover.ask(mirror)
        except MissError as miss:
            self.misses[miss.kind] += 1
            return miss
        return None

    def _hear(self, mirror: ClusterMirror) -> tuple[Proposal | None, Stored | None, MissError | None]:
        """Return the policy's proposal and what it saw, or why there is no usable answer."""
        if self.rollover is None:
            return None, None, None
        try:
            choice = self.rollover.answer()
            proposal = Proposal(choice.job, tuple(choice.gpus), choice.rests and not choice.gpus)
            record = self._checked(mirror, proposal, choice.record)
        except MissError as miss:
            self.misses[miss.kind] += 1
            self.rollover.blame(miss)
            return None, None, miss
        self.rollover.thank()
        return proposal, record, None

    def _checked(self, mirror: ClusterMirror, proposal: Proposal, record: RecordParts | None) -> Stored | None:
        """Return what the policy saw, once its decision is known to be one.

        Raises:
            MissError: If it is not.
        """
        try:
            check_decision(mirror, proposal.job, proposal.gpus)
        except PluginError as error:
            raise MissError(Miss.REFUSED, str(error)) from error
        try:
            return None if record is None else stored_of(record)
        except PluginError as error:
            raise MissError(Miss.RUBBISH, str(error)) from error

    def _fall_back(self, mirror: ClusterMirror) -> Proposal:
        placed = self.fallback.place(mirror.sim, ROW)
        job = mirror.current
        proposal = Proposal(job, mirror.picks(job) if placed else (), not placed and mirror.rests)
        mirror.take_back()
        mirror.due()
        return proposal

    def _obeyed(self, proposal: Proposal | None, fallback_proposal: Proposal) -> tuple[Proposal, str]:
        if proposal is None or self.policy is None or self.mode is Mode.SHADOW:
            return fallback_proposal, self.fallback.name
        if self.mode is Mode.VETO and proposal.gpus:
            return fallback_proposal, self.fallback.name
        return proposal, self.policy


def _suited(
    mirror: ClusterMirror, proposal: Proposal, form_of: Callable[[str], PlacementShape | None]
) -> Proposal | None:
    """Return a proposal with GPUs that the job can have, None if there are none."""
    form = form_of(proposal.job) if proposal.gpus else None
    if form is None:
        return proposal
    gpus = fitted(mirror, proposal.job, proposal.gpus, form)
    return proposal._replace(gpus=gpus) if gpus else None


def _expected(mirror: ClusterMirror, proposal: Proposal) -> ExpectedRun | None:
    return expected(mirror, proposal.job, proposal.gpus) if proposal.gpus else None


def _carry_out(mirror: ClusterMirror, proposal: Proposal) -> bool:
    if proposal.gpus:
        return mirror.carry_out(proposal.job, proposal.gpus)
    mirror.wait(rests=proposal.rests)
    return False
