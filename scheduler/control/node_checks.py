"""Node checks of attempts: before they start, after they end, and of GPUs before they join a ring; and their findings.

All of this is in memory alone: the next scheduler begins the checks again. Findings are in the store.

Source: SPEC C1, C4 to C7; docs/preflight.md.
"""

import logging
import re
import time
from collections.abc import Container, Iterable, Mapping, Sequence
from dataclasses import asdict
from enum import Enum
from functools import partial
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection

from ...cluster.files.errors import BackendError
from ...cluster.files.output_file import in_one_line
from ...cluster.model.placement import Placement, Share
from ...preflight.check import JOB_SAMPLE, CheckOutcome, CheckResult, RoundReport
from ...preflight.rounds import (
    MAX_TRIES,
    ROUND_LIMIT_S,
    BackgroundRounds,
    FinishedRound,
    PlacementTries,
    RoundWork,
    clean_up,
    run_round,
)
from ...preflight.travelling import SCRATCH, wrap_command
from ...preflight.warm import LocalNode
from ..health.monitor import ClusterHealth
from ..health.quarantining import QuarantineOutcome, quarantine
from ..model.gpu_index import WHOLE_NODE, Clears, HardwarePlace, QuarantineFinding
from ..model.job import LONGEST_WAIT_S, SCHEDULER_WRITER, JobRow, NewEvent
from ..model.job_spec import StoredJob, checked_job_of, stored_job_or_default
from ..model.states import AttemptState, JobState, Run
from ..rules.attempts import ENDED_RUNS, UNFIT, Checks
from ..rules.quarantine import Fleet, closed_gpus
from ..store.attempts import AttemptRow
from ..store.database import Store
from ..store.events import append_all, check_fence
from ..store.jobs import bring_start_forward
from ..store.nodes import last_clearances

MAX_STORED_RESULTS, MAX_TEXT_CHARACTERS = 20, 300  # results of a round in an event, and characters of one
_GPU = re.compile(r"gpu ([0-9]{1,6})")  # a part of one, such as "gpu 3 link 0", counts against the node


def quarantine_findings(
    report: RoundReport, placement: Placement, at_s: float, of_job: Container[str] = ()
) -> list[QuarantineFinding]:
    """Return the findings for quarantine: GPUs that a check names, else nodes; each place once for each check.

    Args:
        report: Of a round.
        placement: That it checked. A finding about a GPU outside it means that the node is not fit.
        at_s: Unix time of its end.
        of_job: Checks that run a program of the job's owner. What they find may be that program's doing: the job does
            not start, and nothing comes into quarantine.
    """
    checked_gpus = {(share.node, gpu) for share in placement for gpu in share.gpus}
    found = dict[tuple[HardwarePlace, str], QuarantineFinding]()
    for result in report.bad_results:
        if result.check in of_job:
            continue
        place = _faulty_place(result, checked_gpus)
        how = "did not pass" if result.outcome is CheckOutcome.FAIL else "did not end"
        cause, action = f"{result.check} {how}", shortened_line(result.action)
        finding = QuarantineFinding(place, result.check, cause, _evidence_text(result), action, Clears.CHECKS, at_s)
        found.setdefault((place, result.check), finding)
    return list(found.values())


def finding_lines(report: RoundReport) -> tuple[str, ...]:
    """Return a line for each finding: where, evidence, and what to do."""
    return tuple(map(shortened_line, report.diagnostics()))


def results_for_event(results: Iterable[CheckResult]) -> list[Mapping[str, object]]:
    """Return results as an event holds them, the first ones only."""
    return [
        {name: shortened_line(value) if isinstance(value, str) else value for name, value in asdict(result).items()}
        for result in list(results)[:MAX_STORED_RESULTS]
    ]


def _faulty_place(result: CheckResult, checked_gpus: Container[tuple[str, int]]) -> HardwarePlace:
    found = _GPU.fullmatch(result.device)
    gpu = WHOLE_NODE if found is None else int(found[1])
    return HardwarePlace(result.node, gpu if (result.node, gpu) in checked_gpus else WHOLE_NODE)


def _evidence_text(result: CheckResult) -> str:
    where = f"{result.device}: " if result.device else ""
    wanted = f", wanted {result.wanted}" if result.wanted else ""
    has_figures = result.got or result.wanted
    return shortened_line(where + (f"got {result.got or 'nothing'}{wanted}" if has_figures else result.reason))


def shortened_line(text: str) -> str:
    """Return a text as one line of limited length: a third party's check may return anything."""
    return in_one_line(text)[:MAX_TEXT_CHARACTERS]


log = logging.getLogger(__name__)

PREFLIGHT_EVENT = "preflight"  # kind of events
PASSED, FAILED, NOT_RUN, NOT_CLEAN = "passed", "failed", "not run", "not cleaned"
UNFIT_REST_S = 120.0  # no job starts where a check failed and too much is in quarantine for more to come into it
# Before a job whose tries are used up is tried again; doubled each time.
FIRST_RETRY_WAIT_S, LONGEST_RETRY_WAIT_S = 60.0, LONGEST_WAIT_S


class CheckPhase(Enum):
    """When nodes are checked."""

    START = "start"  # before an attempt
    SEAT = "seat"  # before a GPU goes to the ring of one
    END = "end"  # after an attempt


class CheckStatus(NamedTuple):
    """The status of the checks of an attempt, or of a GPU that its ring is to have."""

    checks: Checks = Checks.NONE
    found: str = ""  # if they failed
    passed_s: float = 0.0  # Unix time; 0 if they have not passed
    wait_s: float = 0.0  # if they failed, before the job is tried again


_NOT_PASSED = {CheckPhase.START: UNFIT, CheckPhase.SEAT: "the checks before its seat did not pass"}
_ELSEWHERE = {CheckPhase.START: "it is tried elsewhere", CheckPhase.SEAT: "another one is tried"}


class _BegunRound(NamedTuple):
    """A round that was begun."""

    job: str
    number: int
    attempt: str
    when: CheckPhase
    placement: Placement  # that it checks
    of_job: frozenset[str] = frozenset()  # checks that run a program of the job


class NodeChecks:
    """The checks of a scheduler. One thread uses it.

    Args:
        rounds: Runs them beside the scheduler; None where it cannot, and they travel with jobs.
        jobs: "auto" to check jobs whose files do not decide it, else "off".
        slots: Whether slots take the place of GPUs.
        link_bytes_per_s: That is promised between nodes, 0 for nothing.
        scratch: Folder on each node in which a job that is checked has one of its own; None for none.

    Attributes:
        jobs_being_checked: Jobs whose nodes are checked before they start, or will be next. Any thread may read it.
    """

    def __init__(
        self, rounds: BackgroundRounds | None = None, jobs: str = "off", *, slots: bool = False,
        link_bytes_per_s: float = 0.0, scratch: Path | None = None,
    ) -> None:  # fmt: skip
        self._rounds, self._jobs, self._slots = rounds, jobs, slots
        self._link_bytes_per_s, self._scratch = link_bytes_per_s, scratch
        self.jobs_being_checked: frozenset[str] = frozenset()
        self._fence: int | None = None
        self._begun: dict[str, _BegunRound] = {}  # by the name of the round
        self._ended: dict[str, CheckStatus] = {}  # of the checks before a start, by the name of the attempt
        self._seats: dict[tuple[str, str], CheckStatus] = {}  # by job, and name of the round
        self._rests_until_s: dict[str, float] = {}  # jobs whose rings get no GPU until then, by `time.monotonic`
        self._clean: set[str] = set()  # names of attempts that have been cleaned up after
        self._tried: dict[str, PlacementTries] = {}  # by job
        self._waited: dict[str, int] = {}  # how often the tries of a job were over
        self._resting: dict[HardwarePlace, float] = {}  # until when
        self._closed: frozenset[int] = frozenset()  # GPUs that took no jobs in the last cycle

    def are_wanted(self, spec: StoredJob) -> bool:
        """Return whether the nodes of a job are to be checked. An external job runs its own command."""
        return (spec.preflight or self._jobs) == "auto" and spec.external is None

    def command_with_checks(self, spec: StoredJob) -> tuple[str, ...]:
        """Return what a job runs: its command, behind the checks if they travel with it."""
        if self._rounds is None and self.are_wanted(spec):
            workload = checked_job_of(spec, link_bytes_per_s=self._link_bytes_per_s)
            return wrap_command(spec.command, workload, slots=self._slots, scratch=self._scratch)
        return spec.command

    def make_scratch_environment(self, spec: StoredJob, attempt: str) -> dict[str, str]:
        """Return what the environment of an attempt has for its checks: the name of its scratch folder, which is made.

        Where checks travel with jobs the folder is made by them.

        Raises:
            BackendError: If it cannot be made.
        """
        if self._rounds is None or self._scratch is None or not self.are_wanted(spec):
            return {}
        folder = self._scratch / attempt
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise BackendError(f"scratch folder {folder} cannot be made: {error.strerror}") from error
        return {SCRATCH: str(folder)}

    def status(self, row: AttemptRow, job: JobRow | None, run: Run) -> CheckStatus:
        """Return the status of the checks of an attempt.

        Args:
            row: The attempt.
            job: Its job; None if that has ended.
            run: How the backend sees it.
        """
        name = row.name
        if row.state is AttemptState.LAUNCHED:  # its start may take as long as if it had not been checked
            return CheckStatus(passed_s=self._ended.get(name, CheckStatus()).passed_s)
        if self._rounds is None or job is None or row.state not in (AttemptState.RESERVED, AttemptState.DRAINING):
            return CheckStatus()
        # Where a torn one lies is not known.
        if not row.placement or not self.are_wanted(stored_job_or_default(job.spec)):
            return CheckStatus()
        ended = self._ended.get(name, CheckStatus(Checks.RUN))
        if row.state is AttemptState.RESERVED:
            return ended
        # One that never ran may have had its GPUs set for it, and its scratch folder made.
        is_dirty = (run in ENDED_RUNS or ended.checks is Checks.NONE) and name not in self._clean
        return CheckStatus(Checks.RUN if is_dirty or self._has_running_checks(name) else Checks.NONE)

    def _has_running_checks(self, attempt: str) -> bool:
        """Return whether checks run that began before the end of an attempt."""
        return any(begun.attempt == attempt and begun.when is not CheckPhase.END for begun in self._begun.values())

    def begin(self, row: AttemptRow, job: JobRow, store: Store) -> None:
        """Begin the checks that an attempt waits for, unless they run; where there is no room for them, do nothing.

        Args:
            row: The attempt.
            job: Its job.
            store: Where clearances are.
        """
        name, is_start = row.name, row.state is AttemptState.RESERVED
        if not is_start and self._has_running_checks(name):
            return
        if is_start:
            self.jobs_being_checked |= {row.job_id}
        of_job = frozenset({JOB_SAMPLE}) if stored_job_or_default(job.spec).sample is not None else frozenset[str]()
        begun = _BegunRound(
            row.job_id, row.number, name, CheckPhase.START if is_start else CheckPhase.END, row.placement, of_job
        )
        self._begin_round(_round_name(name, begun.when.value), begun, job, store)

    def check_seat(self, row: AttemptRow, job: JobRow, share: Share, store: Store) -> CheckStatus:
        """Return the status of the checks of a GPU that a ring is to have; begin them unless they run.

        Args:
            row: The attempt of the ring, which runs.
            job: Its job.
            share: The GPU. Its result is returned once.
            store: Where clearances are.
        """
        name = row.name
        round_name = _round_name(name, f"{share.node}:{share.gpus[0]}")
        if (found := self._seats.pop((row.job_id, round_name), None)) is not None:
            return found
        if round_name not in self._begun:
            begun = _BegunRound(row.job_id, row.number, name, CheckPhase.SEAT, (share,))
            self._begin_round(round_name, begun, job, store)
        return CheckStatus(Checks.RUN)

    def why_no_seat_checks(self, job: str) -> str:
        """Return why no GPU is checked for the ring of a job at the moment, "" if one may be."""
        left_s = self._rests_until_s.get(job, 0.0) - time.monotonic()
        return f"too many did not pass their checks, and others are tried in {left_s:.0f} s" if left_s > 0.0 else ""

    def _begin_round(self, round_name: str, begun: _BegunRound, job: JobRow, store: Store) -> None:
        """Begin a round, if there is room for it."""
        if self._rounds is not None:
            nodes, spec = (share.node for share in begun.placement), stored_job_or_default(job.spec)
            limit_s = ROUND_LIMIT_S + (spec.sample.limit_s if JOB_SAMPLE in begun.of_job and spec.sample else 0.0)
            if self._rounds.begin(round_name, nodes, self._round_work(begun, spec, store), limit_s):
                self._begun[round_name] = begun

    def _round_work(self, begun: _BegunRound, spec: StoredJob, store: Store) -> RoundWork:
        """Return what a round does."""
        workload = checked_job_of(spec, link_bytes_per_s=self._link_bytes_per_s).model_copy(update={"job": begun.job})
        scratch = "" if self._scratch is None else str(self._scratch / begun.attempt)
        if begun.when is CheckPhase.END:
            return lambda nodes: clean_up(begun.placement, workload, nodes, attempt=begun.attempt, scratch=scratch)
        if begun.when is CheckPhase.SEAT:  # its sample runs before the job starts
            workload = workload.model_copy(update={"sample": ()})

        def run(nodes: Mapping[str, LocalNode]) -> RoundReport:
            with store.read() as tx:
                cleared_s = {node: last_clearances(tx, node) for node in nodes}
            return run_round(begun.placement, workload, nodes, cleared_s=cleared_s)

        return run

    def retry_wait_s(self, row: AttemptRow) -> float:
        """Return how long the job of an attempt is to wait before it is tried again, as its nodes were not fit."""
        return self._ended.get(row.name, CheckStatus()).wait_s

    def forget(self, row: AttemptRow) -> None:
        """Forget an attempt: it has been released."""
        name = row.name
        self._ended.pop(name, None)
        self._clean.discard(name)
        self.jobs_being_checked -= {row.job_id}

    def apply_ended_rounds(self, store: Store, fleet: Fleet, fence: int, now_s: float) -> None:
        """Act on rounds that have ended: quarantine what is broken, and note the consequences for jobs.

        Raises:
            FencedError: If another scheduler has taken over.
        """
        if self._rounds is None:
            return
        if fence != self._fence:
            self._reset_for_lease(fence)
        for name, ended in self._rounds.abort_late_and_get_ended().items():
            begun, report = self._begun.get(name), ended.report
            if begun is not None:
                found = []
                if report is not None:
                    found = quarantine_findings(report, begun.placement, ended.ended_s, begun.of_job)
                event = self._round_event(begun, ended, now_s)
                put = partial(_quarantine_found, fleet=fleet, fence=fence, found=found, event=event)
                self._resting |= dict.fromkeys(store.write(put), now_s + UNFIT_REST_S)
                self._note_result(name, begun, ended)
                del self._begun[name]
            self._rounds.forget(name)

    def _reset_for_lease(self, fence: int) -> None:
        """Forget what was known under another lease: another scheduler may have handled the jobs meanwhile."""
        self._fence, self.jobs_being_checked, self._begun, self._tried = fence, frozenset(), {}, {}
        for known in (self._ended, self._clean, self._seats, self._rests_until_s):
            known.clear()

    def resting_gpus(self, sizes: Mapping[str, int], now_s: float) -> set[tuple[str, int]]:
        """Return node and index of the GPUs on which no job starts for a while because checks failed there."""
        # A clock that was set back must not make it longer.
        self._resting = {
            place: until_s for place, until_s in self._resting.items() if 0.0 < until_s - now_s <= UNFIT_REST_S
        }
        return closed_gpus(self._resting, sizes) if self._resting else set()

    def retry_unfit_jobs(
        self, store: Store, jobs: dict[str, JobRow], health: ClusterHealth, fence: int, now_s: float
    ) -> None:
        """Retry at once the jobs that wait because nodes were not fit, if GPUs came back into service."""
        self._tried = {job: tries for job, tries in self._tried.items() if job in jobs}
        self._waited = {job: times for job, times in self._waited.items() if job in jobs}
        self._seats = {name: seat for name, seat in self._seats.items() if name[0] in jobs}
        before, self._closed = self._closed, frozenset(health.closed)
        if not before - self._closed:
            return
        self._rests_until_s.clear()
        waiting = [job for job in jobs.values() if job.not_before_s > now_s and job.cause.startswith(UNFIT)]
        rows = {job.id: job for job in waiting if job.state is JobState.QUEUED}

        def write(tx: Connection) -> None:
            check_fence(tx, fence)
            bring_start_forward(tx, sorted(rows), now_s)

        if rows:
            store.write(write)
            jobs |= {job: row._replace(not_before_s=now_s) for job, row in rows.items()}

    def _round_event(self, begun: _BegunRound, ended: FinishedRound, now_s: float) -> NewEvent | None:
        """Return the event of a round, None for a successful cleanup."""
        report = ended.report
        is_end = begun.when is CheckPhase.END
        if report is not None and report.passed and is_end:
            return None
        now = NOT_RUN if report is None else PASSED if report.passed else NOT_CLEAN if is_end else FAILED
        data: dict[str, object] = {"ended_s": ended.ended_s}
        if report is not None:
            data |= {"seconds": report.seconds, "results": results_for_event([*report.bad_results, *report.warnings])}
        lines = (ended.problem,) if report is None else finding_lines(report)
        cause = "; ".join(lines) or f"all checks passed on {', '.join(report.nodes if report else ())}"
        return NewEvent(
            PREFLIGHT_EVENT, SCHEDULER_WRITER, now_s, begun.job, begun.number, now=now, fence=self._fence,
            cause=cause, data=data
        )  # fmt: skip

    def _note_result(self, name: str, begun: _BegunRound, ended: FinishedRound) -> None:
        """Note the consequences of a round for its attempt."""
        if begun.when is CheckPhase.END:
            self._clean.add(begun.attempt)
            return
        status = self._judge_round(begun, ended)
        if status.checks is Checks.FAILED:
            log.warning("attempt %s: %s", begun.attempt, status.found)
        if begun.when is CheckPhase.SEAT:
            self._seats[begun.job, name] = status
            self._rests_until_s[begun.job] = time.monotonic() + status.wait_s
        else:
            self.jobs_being_checked -= {begun.job}
            self._ended[begun.attempt] = status

    def _judge_round(self, begun: _BegunRound, ended: FinishedRound) -> CheckStatus:
        """Return whether the nodes of a round are fit, and if not, how long the job waits."""
        if ended.report is None:
            return self._make_job_wait(begun, (ended.problem,))
        tried = self._tried.get(begun.job, PlacementTries())
        if ended.report.passed:
            self._tried.pop(begun.job, None)
            self._waited.pop(begun.job, None)
            return CheckStatus(passed_s=ended.ended_s)
        tries = tried.with_failed_round(ended.report)
        if tries.are_used_up:
            return self._make_job_wait(begun, tries.diagnostics)
        self._tried[begun.job] = tries
        cause = f"{_NOT_PASSED[begun.when]} ({tries.count} of {MAX_TRIES}), so {_ELSEWHERE[begun.when]}: "
        return CheckStatus(Checks.FAILED, cause + "; ".join(finding_lines(ended.report)))

    def _make_job_wait(self, begun: _BegunRound, diagnostics: Sequence[str]) -> CheckStatus:
        """Let a job wait after its tries are used up, with all findings."""
        self._tried.pop(begun.job, None)
        times = self._waited[begun.job] = self._waited.get(begun.job, 0) + 1
        wait_s = min(LONGEST_RETRY_WAIT_S, FIRST_RETRY_WAIT_S * 2.0 ** min(times - 1, 10))
        return CheckStatus(
            Checks.FAILED, f"{_NOT_PASSED[begun.when]}: {'; '.join(map(shortened_line, diagnostics))}", wait_s=wait_s
        )


def _round_name(attempt: str, when: str) -> str:
    return f"{attempt}/{when}"


def _quarantine_found(
    tx: Connection, *, fleet: Fleet, fence: int, found: Sequence[QuarantineFinding], event: NewEvent | None
) -> list[HardwarePlace]:  # fmt: skip
    """Quarantine findings, and return the places that the limit keeps out of quarantine."""
    check_fence(tx, fence)
    refused = [
        finding.place
        for finding in found
        if quarantine(tx, fleet, finding, finding.at_s, writer=SCHEDULER_WRITER) is QuarantineOutcome.REFUSED
    ]
    append_all(tx, [] if event is None else [event])
    return refused
