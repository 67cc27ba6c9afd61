"""The placer: a policy in a process of its own decides, and a heuristic whenever that fails.

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
from ..mirror.cluster_mirror import (
    ROW,
    ClusterMirror,
    ClusterSite,
    ExpectedStart,
    JobRequest,
    MirrorCall,
    MirrorOrigin,
    check_decision,
    expected_start,
)
from ..mirror.journal import encode_opening, encode_record
from ..mirror.rehearsal import rehearse_mirror_calls
from ..mirror.vacant_seats import PlacementShape, fit_to_shape
from ..policy_host.messages import RecordParts, StoredRecord, stored_record_of
from ..policy_host.process import Breaker, Miss, MissError, Rollover

MAX_UNSTORED_CALLS = 1000  # mirror calls between two recorded decisions
MAX_UNDECIDED_CALLS = 10_000  # mirror calls without a decision that could record them
PAST_S = 7 * 86400.0  # after which a new journal begins, so that decisions can be replayed without all those before


class Mode(StrEnum):
    """What a policy's answer counts for."""

    ACTIVE = "active"  # it is carried out
    SHADOW = "shadow"  # it is logged; the heuristic's decision is carried out
    VETO = "veto"  # the heuristic decides; the policy may make the job wait


class Proposal(NamedTuple):
    """What a policy would do."""

    job: str
    gpus: tuple[int, ...]  # none to wait
    rests: bool  # all jobs wait

    def agrees_with(self, other: "Proposal") -> bool:
        """Return whether both would do the same; the order in which GPUs are picked does not count."""
        return (self.job, self.rests, set(self.gpus)) == (other.job, other.rests, set(other.gpus))


class Decision(NamedTuple):
    """A decision that was carried out in the mirror."""

    job: str
    gpus: tuple[int, ...]  # none where it waits
    started: bool  # False where it waits, or would have broken a reservation
    by: str  # name of the policy or heuristic that decided
    version: str  # of the policy
    fallback_proposal: Proposal  # of the heuristic
    took_s: float
    rests: bool = False  # all jobs wait
    expected: ExpectedStart | None = None  # of what is done, None where it waits
    fallback_expected: ExpectedStart | None = None
    proposal: Proposal | None = None  # of the policy, None without a usable answer
    proposal_expected: ExpectedStart | None = None  # of the policy's proposal, None without one or if it waits
    kind: Miss | None = None  # why there is no usable answer of the policy, None if there is
    reason: str = ""  # the same, for people
    record: StoredRecord | None = None  # what the policy saw, if it reports that
    past: bytes = b""  # journal record of the decision, empty if it is not recorded
    passed_over: bool = False  # no free GPUs suit it, so nothing decided about it


class PlacementAdvice(NamedTuple):
    """What a policy would do; nothing has been done."""

    proposal: Proposal
    by: str  # name of the policy or heuristic
    miss: str  # why there is no usable answer of the policy, "" if there is


@dataclass(frozen=True, slots=True)
class PastLimits:
    """How long the journal of a decision may become."""

    max_unstored: int = MAX_UNSTORED_CALLS
    max_undecided: int = MAX_UNDECIDED_CALLS
    past_s: float = PAST_S
    passed_s: Callable[[], float] = time.monotonic  # its clock, a monotonic one


PAST_LIMITS = PastLimits()


class Placer:
    """Decides with a policy under a deadline, and with a heuristic where that gives no usable answer.

    Args:
        fallback: The heuristic; it decides at once, in this process.
        policy: Name of the policy, None for the heuristic alone.
        deadline_s: For one decision of the policy.
        mode: What the policy's answer counts for.
        limits: Of the journal that is recorded with decisions.
        breaker: Decides when the policy rests after misses; by default one of its own.
        sample_temperature: At which the policy samples its action; None if it takes the best one.
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
        self._opening = ""  # of a journal, until its first decision
        self._number = 0  # of the next decision in its journal
        self._unstored: list[MirrorCall] = []  # for the record of the next decision
        self._limits, self._began = limits, limits.passed_s()  # of the journal

    def follow_mirror(self, mirror: ClusterMirror) -> None:
        """Follow a new mirror from here on; it has had no calls yet."""
        mirror.journal = []
        self._opening, self._number, self._unstored = encode_opening(mirror.site, mirror.origin), 0, []
        self._began = self._limits.passed_s()
        if self.rollover is not None:
            self.rollover.follow_mirror(mirror)

    @property
    def is_journal_full(self) -> bool:
        """Whether the journal has become so long that a new one has to begin, with a new mirror."""
        limits = self._limits
        return len(self._unstored) > limits.max_undecided or limits.passed_s() - self._began > limits.past_s

    def warm_up(self, site: ClusterSite) -> None:
        """Let the heuristic decide once about nothing, so that all is compiled before the first decision."""
        rehearse_mirror_calls()
        mirror = ClusterMirror(site, MirrorOrigin(0.0))
        mirror.submit(JobRequest("first", 1, 60.0, 0.0))
        if mirror.find_due_job() is not None:
            _carry_out_proposal(mirror, self._heuristic_proposal(mirror))

    def poll_policy(self, mirror: ClusterMirror) -> None:
        """Check for a newer version of the policy, so that it takes over even if there is nothing to decide."""
        self._unstored += self._forward_new_calls(mirror)
        if self.rollover is not None:
            self.rollover.advance_reload(mirror)

    def end(self) -> None:
        """End the policy's processes."""
        if self.rollover is not None:
            self.rollover.end()

    @property
    def decider(self) -> str:
        """Name of the policy, or of the heuristic where there is none."""
        return self.policy or self.fallback.name

    @property
    def version(self) -> str:
        """Version of the policy that decides."""
        return self._release if self.rollover is None else self.rollover.version

    def request_reload(self) -> None:
        """Check for a newer version of the policy; any thread, and a signal handler, may call it."""
        if self.rollover is not None:
            self.rollover.request_reload()

    def wait_until_ready(self, wait_s: float) -> None:
        """Wait until the policy can decide.

        Raises:
            PluginError: If it cannot be loaded, or not in time.
        """
        if self.rollover is not None:
            self.rollover.wait_until_loaded(wait_s)

    def is_ready(self, wait_s: float = 0.0) -> bool:
        """Return whether the policy can decide, or there is none."""
        return self.rollover is None or self.rollover.is_ready(wait_s)

    def decide(
        self, mirror: ClusterMirror, shape_of: Callable[[str], PlacementShape | None] = lambda _job: None
    ) -> Decision:
        """Decide about the job that is due, and carry the decision out in the mirror.

        1. Pass over the job if no free GPUs of its shape exist.
        2. Ask the policy; meanwhile the heuristic decides.
        3. Check the policy's answer, and choose whose decision counts, by the mode.
        4. Fit the GPUs to the job's shape.
        5. Carry it out, and return it with the journal record.

        Args:
            mirror: The cluster.
            shape_of: How the GPUs of a job must lie on nodes; None if it takes any GPUs.
        """
        began = time.perf_counter()
        due = mirror.current_job
        if (shape := shape_of(due)) and not fit_to_shape(mirror, due, (), shape):
            return self._pass_over(mirror, due, began)
        self._unstored += self._forward_new_calls(mirror)
        miss = self._send_question(mirror)
        fallback_proposal = self._heuristic_proposal(mirror)  # while the policy thinks
        proposal, record, miss = self._receive_proposal(mirror) if miss is None else (None, None, miss)
        policy_version = self.version
        if proposal is not None:
            self.agreements[proposal.agrees_with(fallback_proposal)] += 1
        chosen, by = self._choose_proposal(proposal, fallback_proposal)
        suited = _with_suited_gpus(mirror, chosen, shape_of)
        if suited is None:  # the policy chose another job, which cannot have what it needs
            suited, by = _with_suited_gpus(mirror, fallback_proposal, shape_of), self.fallback.name
        if suited is None:
            return self._pass_over(mirror, due, began)
        chosen = suited
        expected = expected_start_of(mirror, chosen)

        def expected_of(other: Proposal) -> ExpectedStart | None:
            return expected if other.agrees_with(chosen) else expected_start_of(mirror, other)

        fallback_expected = expected_of(fallback_proposal)
        proposal_expected = None if proposal is None else expected_of(proposal)
        started = _carry_out_proposal(mirror, chosen)
        self._unstored += self._forward_new_calls(mirror)
        # Jobs that a heuristic lets wait are not worth a record, and a full cluster has many of them. But the calls of
        # the mirror have to be recorded with some decision.
        is_kept = started or self.policy is not None or len(self._unstored) > self._limits.max_unstored
        past = self._journal_record() if is_kept else b""
        took_s = time.perf_counter() - began
        return Decision(
            job=chosen.job,
            gpus=chosen.gpus,
            started=started,
            by=by,
            version=policy_version,
            fallback_proposal=fallback_proposal,
            took_s=took_s,
            rests=chosen.rests,
            expected=expected,
            fallback_expected=fallback_expected,
            proposal=proposal,
            proposal_expected=proposal_expected,
            kind=None if miss is None else miss.kind,
            reason="" if miss is None else str(miss),
            record=record,
            past=past,
        )

    def _pass_over(self, mirror: ClusterMirror, job: str, began: float) -> Decision:
        """Pass over a job that cannot have what it needs."""
        self._unstored += self._forward_new_calls(mirror)
        mirror.pass_over()
        return Decision(
            job=job,
            gpus=(),
            started=False,
            by=self.fallback.name,
            version=self.version,
            fallback_proposal=Proposal(job, (), rests=False),
            took_s=time.perf_counter() - began,
            passed_over=True,
        )

    def _journal_record(self) -> bytes:
        """Return the journal record of this decision: the calls of the mirror since the last recorded one."""
        past = encode_record(self._number, self._unstored, self._opening)
        self._number, self._opening, self._unstored = self._number + 1, "", []
        return past

    def consult(self, mirror: ClusterMirror) -> PlacementAdvice:
        """Return what to do with the job that is due, without doing it; the heuristic decides only if need be."""
        self._forward_new_calls(mirror)
        miss = self._send_question(mirror)
        proposal, _, miss = self._receive_proposal(mirror) if miss is None else (None, None, miss)
        if proposal is not None and self.policy is not None:
            return PlacementAdvice(proposal, self.policy, "")
        return PlacementAdvice(self._heuristic_proposal(mirror), self.fallback.name, "" if miss is None else str(miss))

    def consult_fallback(self, mirror: ClusterMirror) -> PlacementAdvice:
        """Return what the heuristic would do with the job that is due, without doing it, and without the policy."""
        self._forward_new_calls(mirror)
        return PlacementAdvice(self._heuristic_proposal(mirror), self.fallback.name, "")

    def _forward_new_calls(self, mirror: ClusterMirror) -> Sequence[MirrorCall]:
        """Send the new calls of the mirror to the policy's processes, and return them."""
        calls, mirror.journal = mirror.journal or [], []
        if self.rollover is not None:
            self.rollover.record_calls(calls)
        return calls

    def _send_question(self, mirror: ClusterMirror) -> MissError | None:
        """Send the question to the policy; return why that is not possible if so."""
        try:
            if self.rollover is not None:
                self.rollover.send_question(mirror)
        except MissError as miss:
            self.misses[miss.kind] += 1
            return miss
        return None

    def _receive_proposal(self, mirror: ClusterMirror) -> tuple[Proposal | None, StoredRecord | None, MissError | None]:
        """Return the policy's proposal and what it saw, or why there is no usable answer."""
        if self.rollover is None:
            return None, None, None
        try:
            choice = self.rollover.receive_answer()
            proposal = Proposal(choice.job, tuple(choice.gpus), choice.rests and not choice.gpus)
            record = self._check_proposal(mirror, proposal, choice.record)
        except MissError as miss:
            self.misses[miss.kind] += 1
            self.rollover.record_miss(miss)
            return None, None, miss
        self.rollover.record_success()
        return proposal, record, None

    def _check_proposal(
        self, mirror: ClusterMirror, proposal: Proposal, record: RecordParts | None
    ) -> StoredRecord | None:
        """Check the policy's proposal, and return what it saw.

        Raises:
            MissError: If it cannot be carried out.
        """
        try:
            check_decision(mirror, proposal.job, proposal.gpus)
        except PluginError as error:
            raise MissError(Miss.REFUSED, str(error)) from error
        try:
            return None if record is None else stored_record_of(record)
        except PluginError as error:
            raise MissError(Miss.MALFORMED, str(error)) from error

    def _heuristic_proposal(self, mirror: ClusterMirror) -> Proposal:
        placed = self.fallback.place(mirror.sim, ROW)
        job = mirror.current_job
        proposal = Proposal(job, mirror.gpus_of_job(job) if placed else (), not placed and mirror.all_jobs_wait)
        mirror.undo_picks()
        mirror.find_due_job()
        return proposal

    def _choose_proposal(self, proposal: Proposal | None, fallback_proposal: Proposal) -> tuple[Proposal, str]:
        if proposal is None or self.policy is None or self.mode is Mode.SHADOW:
            return fallback_proposal, self.fallback.name
        if self.mode is Mode.VETO and proposal.gpus:
            return fallback_proposal, self.fallback.name
        return proposal, self.policy


def _with_suited_gpus(
    mirror: ClusterMirror, proposal: Proposal, shape_of: Callable[[str], PlacementShape | None]
) -> Proposal | None:
    """Return a proposal with GPUs that the job can have, None if there are none."""
    form = shape_of(proposal.job) if proposal.gpus else None
    if form is None:
        return proposal
    gpus = fit_to_shape(mirror, proposal.job, proposal.gpus, form)
    return proposal._replace(gpus=gpus) if gpus else None


def expected_start_of(mirror: ClusterMirror, proposal: Proposal) -> ExpectedStart | None:
    """Return what is expected of a proposal, None if it is to wait."""
    return expected_start(mirror, proposal.job, proposal.gpus) if proposal.gpus else None


def _carry_out_proposal(mirror: ClusterMirror, proposal: Proposal) -> bool:
    if proposal.gpus:
        return mirror.carry_out(proposal.job, proposal.gpus)
    mirror.wait(rests=proposal.rests)
    return False
