"""Jobs judged by their step times: a hung job is retried, a slow one moves.

Source: SPEC K2, K4, K5; docs/steps.md.
"""

import logging
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial

from sqlalchemy import Connection

from ..health.step_monitor import CHECKS, HEALTH, Findings, RunningAttempt, SlowWord, Straggler
from ..health.step_watch import CHECK_S, NO_TIMES, Computed, Hang, SavedCheckpoint, Slowness
from ..mirror.vacant_seats import GAIN, best_other_step_s
from ..model.job import SCHEDULER_WRITER, NewEvent
from ..model.job_spec import Watching, stored_job_or_default
from ..model.states import AfterStop, AttemptState, Contact, JobState, Run, Status
from ..rules.attempts import LastReport, StopReason
from ..store.attempts import AttemptRow, CheckpointRow, checkpoints_of, store_checkpoint
from ..store.events import append_all, check_fence, last_change_s
from ..store.nodes import compute_records_of, list_nodes, put_compute_records
from .job_errors import OF_NO_JOB, SpoiledError
from .seating import ranks_of_ring
from .state_cache import StateCache

log = logging.getLogger(__name__)

IN_CONTACT_S = 60.0  # that a job must have been reached without a break before it is moved
BETWEEN_MOVES_S = 3600.0  # of one job
TRIED_FOR_S = 1800.0  # to move a job that is slow
SET_ASIDE = 0.1  # share of the nodes that may be out of service as slow before no more are, and one in any case
SLOW_NODE = "slow: "  # begins the reason why such a node is out of service


@dataclass(slots=True)
class _Notes:
    """What is to be written of one cycle."""

    events: list[NewEvent] = field(default_factory=list)
    saved: list[CheckpointRow] = field(default_factory=list)

    def by_job(self) -> dict[str | None, "_Notes"]:
        """Return what concerns each job; under None what concerns none."""
        parts: dict[str | None, _Notes] = {}
        for event in self.events:
            parts.setdefault(event.job_id, _Notes()).events.append(event)
        for row in self.saved:
            parts.setdefault(row.job_id, _Notes()).saved.append(row)
        return parts


def check_step_times(
    cache: StateCache,
    names: Mapping[str, str],
    statuses: Mapping[str, Status],
    cut_off: Collection[str | None],
    now_s: float,
) -> dict[str, StopReason]:
    """Read the step times that running jobs report, record what follows, and return why some must stop.

    Args:
        cache: What the scheduler knows.
        names: Of each job's attempt at the backend, by job.
        statuses: Of the attempts there, by name.
        cut_off: Jobs with a node that is down.
        now_s: The present.

    Raises:
        StoreError: If the store cannot be written.
    """
    steps = cache.parts.monitor.steps
    if not steps.reads_steps:
        return {}
    running = [
        _running_attempt(cache, cache.table.attempts[job], frozenset(end.rank for end in statuses[name].ends))
        for job, name in names.items()
        if job not in cut_off and _is_running(cache, cache.table.attempts[job], statuses.get(name))
    ]
    going = {name for job, name in names.items() if cache.table.attempts[job].state is AttemptState.RUNNING}
    found = steps.poll(running, going, partial(_watching_of, cache), now_s, partial(cache.isolated, now_s=now_s))
    _record_compute_times(cache, now_s)
    if not any(found):
        return {}
    notes, verdicts = _Notes(), dict[str, StopReason]()
    for job, name in names.items():  # of one that has ended meanwhile the last report was read
        with cache.isolated(job, now_s):
            notes.saved += _checkpoint_rows(cache.table.attempts[job], found.saved.get(name, ()), now_s)
    for job, hang in found.hangs.items():
        with cache.isolated(job, now_s):
            cause = _hang_words(hang)
            event = _step_event(cache.table.attempts[job], SlowWord.HUNG, cause, now_s)
            verdicts[job] = StopReason(cause, AfterStop.HUNG, event)
    for job, stragglers in found.stragglers.items():
        notes.events += [_straggler_event(cache.table.attempts[job], straggler, now_s) for straggler in stragglers]
    _judge_slow_jobs(cache, found, notes, verdicts, now_s)
    _write_notes(cache, notes, now_s)
    steps.mark_written()
    return verdicts


def _record_compute_times(cache: StateCache, now_s: float) -> None:
    """Record how long iterations computed on each type of node, once in a minute and at the end of an attempt."""
    steps = cache.parts.monitor.steps
    news = steps.unrecorded_compute_times(now_s)
    if not news:
        return

    def put(tx: Connection) -> None:
        check_fence(tx, cache.fence)
        for job, by_type in news.items():
            known = {
                record.kind: Computed(record.iterations, record.mean_s, record.last_s)
                for record in compute_records_of(tx, job)
            }
            put_compute_records(
                tx, job, {kind: known.get(kind, NO_TIMES).with_more(times) for kind, times in by_type.items()}
            )

    cache.parts.store.write(put)
    steps.mark_recorded()


def read_last_report(cache: StateCache, row: AttemptRow, now_s: float) -> LastReport:
    """Read the last steps and checkpoints that an ended attempt reported, and return how far it came.

    Raises:
        StoreError: If the store cannot be written.
    """
    end = cache.parts.monitor.steps.read_end(_running_attempt(cache, row, frozenset()))
    _write_notes(cache, _Notes(saved=_checkpoint_rows(row, end.saved, now_s)), now_s)
    with cache.parts.store.read() as tx:
        kept = checkpoints_of(tx, row.job_id)
    mine = max((saved.step for saved in kept if saved.number == row.number), default=-1)
    before = [saved.step for saved in kept if saved.number < row.number]  # the first is what it began with
    return LastReport(
        came_further=end.came_further or mine > max(before[:1], default=-1),
        saved_more=mine > max(before, default=-1),
        has_reported=end.step is not None or mine >= 0,
        step=end.step,
    )


def _is_running(cache: StateCache, row: AttemptRow, status: Status | None) -> bool:
    reached = row.state is AttemptState.RUNNING and row.contact is Contact.OK
    runs = status is not None and status.run is Run.RUNNING and row.backend == cache.parts.backend_name
    return reached and runs and not cache.errors.is_failing(row.job_id)


def _running_attempt(cache: StateCache, row: AttemptRow, ended: frozenset[int]) -> RunningAttempt:
    joined, empty = ranks_of_ring(cache, row)
    return RunningAttempt(row.job_id, row.name, row.placement, ended | empty, joined)


def _watching_of(cache: StateCache, job: str) -> Watching:
    return stored_job_or_default(cache.table.jobs[job].spec).health.watching()


def _checkpoint_rows(row: AttemptRow, saved: Sequence[SavedCheckpoint], now_s: float) -> list[CheckpointRow]:
    return [CheckpointRow(row.job_id, row.number, each.step, each.path, each.digest, now_s) for each in saved]


def _judge_slow_jobs(
    cache: StateCache, found: Findings, notes: _Notes, verdicts: dict[str, StopReason], now_s: float
) -> None:  # fmt: skip
    if found.shared:
        text = (
            f"{len(found.shared)} jobs became slow within a minute: none of them is moved; check what they share, "
            "such as storage and switches"
        )
        notes.events.append(
            NewEvent(
                HEALTH, SCHEDULER_WRITER, now_s, now=SlowWord.ALARM, cause=text, data={"jobs": sorted(found.shared)}
            )
        )
    for job in found.steady:
        notes.events.append(
            _step_event(cache.table.attempts[job], SlowWord.STEADY, "steps take as long as they did", now_s)
        )
    for job, slow in found.slow.items():
        with cache.isolated(job, now_s):
            _judge_slow_job(cache, job, slow, notes, verdicts, now_s)


def _judge_slow_job(
    cache: StateCache, job: str, slow: Slowness, notes: _Notes, verdicts: dict[str, StopReason], now_s: float
) -> None:  # fmt: skip
    row = cache.table.attempts[job]
    against = _why_not_moved(cache, row, slow, verdicts, now_s)
    if slow.checks == CHECKS:
        notes.events.append(_step_event(row, SlowWord.SLOW, _slowness_words(slow, against), now_s, slow))
    if not against and job not in verdicts:
        cause = f"slow on {', '.join(sorted(slow.nodes))}, moved"
        event = _step_event(row, SlowWord.MOVED, cause, now_s, slow)
        nodes = dict.fromkeys(slow.nodes, f"{SLOW_NODE}job {job} reported so")
        verdicts[job] = StopReason(cause, AfterStop.RELOCATE, event, nodes)


def _why_not_moved(
    cache: StateCache, row: AttemptRow, slow: Slowness, verdicts: Mapping[str, StopReason], now_s: float
) -> str:  # fmt: skip
    """Return why a slow job is not moved, "" if it is."""
    job = cache.table.jobs[row.job_id]
    if slow.is_shared:
        return "many became slow with it"
    if not slow.nodes:
        return "no node of it is known to be slow"
    if slow.checks > CHECKS + TRIED_FOR_S / CHECK_S:
        return "nothing better came in time"
    if now_s - row.contact_since_s < IN_CONTACT_S:
        return "it was out of reach a short while ago"
    queued = (other for other in cache.table.jobs.values() if other.state is JobState.QUEUED)
    waiting = (other for other in queued if other.id not in cache.table.outside)
    if any((other.priority, other.was_stopped) >= (job.priority, True) for other in waiting):
        return "a job that goes before it waits"
    if any(verdict.after is AfterStop.RELOCATE for verdict in verdicts.values()):
        return "another job moves"
    return _why_no_gain(cache, row, slow, now_s) or _why_over_move_limits(cache, row, slow, now_s)


def _why_no_gain(cache: StateCache, row: AttemptRow, slow: Slowness, now_s: float) -> str:
    """Return why a slow job would not gain by other GPUs, "" if it would."""
    mirror, layout = cache.mirror, cache.parts.layout
    if not mirror.has(row.job_id):
        return "it is not known which GPUs it holds"
    slow_gpus = [layout.number(node, gpu) for node in slow.nodes for gpu in range(layout.nodes[node])]
    step_s = best_other_step_s(mirror, row.job_id, slow_gpus, slow.usual_s, cache.shape_of(row.job_id))
    if step_s > GAIN * slow.present_s:
        return "no other GPUs would do better"
    with cache.parts.store.read() as tx:
        kept_s = [saved.at_s for saved in checkpoints_of(tx, row.job_id, 1) if saved.number == row.number]
    progress = mirror.progress(row.job_id)
    ran_s = now_s - progress.start_s
    # A job that has outlived its estimate is expected to run for as long again.
    left_s = max(progress.guess_s * progress.slowdown - ran_s, 0.0) or ran_s
    lost_s = now_s - max([progress.start_s, *kept_s])
    return "it would lose more than it gains" if lost_s >= (1.0 - step_s / slow.present_s) * left_s else ""


def _why_over_move_limits(cache: StateCache, row: AttemptRow, slow: Slowness, now_s: float) -> str:
    """Return why a job is not moved again, or its slow nodes not taken out of service, "" if they are."""
    with cache.parts.store.read() as tx:
        moved_s = last_change_s(tx, row.job_id, HEALTH, SlowWord.MOVED)
        out = {node.name for node in list_nodes(tx) if node.out_of_service.startswith(SLOW_NODE)}
    if moved_s is not None and now_s - moved_s < BETWEEN_MOVES_S:
        return "it was moved within the last hour"
    if len(out | slow.nodes) > max(1.0, SET_ASIDE * len(cache.parts.layout.nodes)):
        return "too many nodes are out of service as slow"
    return ""


def _write_notes(cache: StateCache, notes: _Notes, now_s: float) -> None:
    """Write what was found; what follows from a verdict is written with the stop, if it is taken."""
    if not (notes.events or notes.saved):
        return
    for event in notes.events:
        log.log(logging.ERROR if event.now == SlowWord.ALARM else logging.WARNING, "%s", event.cause)

    def put(tx: Connection, part: _Notes) -> None:
        check_fence(tx, cache.fence)
        for row in part.saved:
            store_checkpoint(tx, row, writer=SCHEDULER_WRITER, fence=cache.fence)
        append_all(tx, [event._replace(fence=cache.fence) for event in part.events])

    try:
        cache.parts.store.write(lambda tx: put(tx, notes))
    except OF_NO_JOB:
        raise
    except Exception as error:
        cache.batch.write_by_job(notes.by_job(), put, error, now_s)
        cache.parts.monitor.steps.mark_written()
        raise SpoiledError from error


def _step_event(row: AttemptRow, word: SlowWord, cause: str, now_s: float, slow: Slowness | None = None) -> NewEvent:
    data = None
    if slow is not None:
        data = {
            "since_s": slow.since_s, "usual_s": slow.usual_s, "present_s": slow.present_s,
            "nodes": sorted(slow.nodes)
        }  # fmt: skip
    return NewEvent(HEALTH, SCHEDULER_WRITER, now_s, row.job_id, row.number, now=word.value, cause=cause, data=data)


def _straggler_event(row: AttemptRow, straggler: Straggler, now_s: float) -> NewEvent:
    cause = (
        f"rank {straggler.rank} on {straggler.node} computes for {straggler.compute_s:.3g} s in each step, and half of "
        f"the others for {straggler.others_s:.3g} s or less: all wait for it"
    )
    data = {"node": straggler.node, **straggler._asdict()}
    return _step_event(row, SlowWord.STRAGGLER, cause, now_s)._replace(data=data)


def _hang_words(hang: Hang) -> str:
    return (
        f"rank {hang.rank} hangs in {hang.kind} step {hang.step} since {_utc_text(hang.since_s)}, "
        f"longer than {hang.limit_s:.0f} s"
    )


def _slowness_words(slow: Slowness, why_not_moved: str) -> str:
    where = f" on {', '.join(sorted(slow.nodes))}" if slow.nodes else ""
    since = f"since {_utc_text(slow.since_s)}{where}"
    what = f"steps take {slow.present_s:.3g} s instead of {slow.usual_s:.3g} s {since}"
    return f"{what}; not moved: {why_not_moved}" if why_not_moved else what


def _utc_text(at_s: float) -> str:
    return f"{datetime.fromtimestamp(at_s, UTC):%Y-%m-%d %H:%M:%S} UTC"
