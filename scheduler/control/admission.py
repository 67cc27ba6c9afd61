"""Which jobs stand in the queue of the cluster, and in which order: the steps of rules/job_step.py are carried out.

The order is that of the store's rows (`queue_key`), after whatever happens, as when they are read anew.
"""

from collections.abc import Mapping

from ..mirror.cluster_mirror import ClusterMirror
from ..model.job import JobRow
from ..model.states import JobState
from ..rules.job_step import Around, JobDo, JobStep, next_job_step
from ..rules.quota import Quota
from ..rules.retry_policy import ExitClass
from ..store.rows.jobs import JobColumns
from .rehydrate import asked_of, goes_first, needs_of, queue_key, rank_of, waiting_standing
from .state_cache import StateCache

APART_S = 1e-6  # between jobs that are released at one look: of equals the queue would go by who was read first


def line_up(mirror: ClusterMirror, rows: Mapping[str, JobRow], job: str, last: str | None = None) -> None:
    """Bring a waiting job to its place, if all others stand at theirs, or behind it at the end of the queue.

    Args:
        mirror: The cluster, in whose queue it stands.
        rows: Of all jobs in the queue, by their ids.
        job: The job.
        last: A job that stands at its place before that of this one. The place of this one is looked for from there,
            so that many jobs whose places are far from where they stand go past the queue once, and not each.
    """
    key, rank = queue_key(rows[job]), rank_of(rows[job])
    before, after = beside = mirror.beside(job)
    if last is not None and before is not None and queue_key(rows[before]) > key:
        before, after = last, mirror.beside(last)[1]
    while before is not None and queue_key(rows[before]) > key:
        before, after = mirror.beside(before)[0], before
    while after is not None and queue_key(rows[after]) < key:
        after = mirror.beside(after)[1]
    if (rank, after) != (mirror.asked(job).rank, beside[1]):
        mirror.give_place(job, rank, after)


def give_places(cache: StateCache, now_s: float) -> None:
    """Give jobs the place of their new priority. Whoever comes in later counts on all others being at their places."""
    ranked = sorted((cache.jobs[job] for job in cache.ranked & cache.jobs.keys() - cache.outside), key=queue_key)
    if ranked:
        cache.happens(now_s)
    for row in ranked:  # out of the way of each other
        with cache.about(row.id, now_s, spoils=True):
            cache.mirror.give_place(row.id, rank_of(row), None)
    last = None
    for row in ranked:
        if row.state is JobState.QUEUED:
            with cache.about(row.id, now_s, spoils=True):
                line_up(cache.mirror, cache.jobs, row.id, last)
                last = row.id
    cache.ranked.clear()


def admit(cache: StateCache, now_s: float) -> None:
    """Let jobs out of the queue that are not to run, and into it those whose time has come."""
    _let_out(cache, now_s)
    _take_in(cache, _let_in(cache, now_s), now_s)
    cache.write(now_s)


def _step_of(cache: StateCache, row: JobRow, now_s: float) -> JobStep:
    is_kept_out = row.id in cache.unfit or cache.errors.rests(row.id, now_s)
    needs = needs_of(row)
    room = cache.parts.layout.gpus_for(needs)
    around = Around(row.id not in cache.outside, room, is_kept_out, needs.words)
    return next_job_step(row, around, now_s)


def _let_out(cache: StateCache, now_s: float) -> None:
    for row in [cache.jobs[job] for job in cache.unwanted if job in cache.jobs]:
        leaves = False
        with cache.about(row.id, now_s):
            leaves = _step_of(cache, row, now_s).do is JobDo.LEAVE
        if leaves:
            cache.happens(now_s)
            with cache.about(row.id, now_s):
                cache.leave(row.id)
    cache.unwanted.clear()


def _let_in(cache: StateCache, now_s: float) -> list[JobRow]:
    """Change the jobs outside of the queue that are to change; return those that come into it, the first first."""
    quota = Quota(cache.parts.gpus_per_user, (row for row in cache.jobs.values() if row.id not in cache.outside))
    let_in = []
    outside = sorted((cache.jobs[job] for job in cache.outside), key=queue_key)
    for place, row in enumerate(outside):
        with cache.about(row.id, now_s):
            step = _step_of(cache, row, now_s)
            if step.do is JobDo.CHANGE:
                _change(cache, row, step, now_s, now_s - APART_S * (len(outside) - place))
            elif step.do is JobDo.ENTER and quota.take(row):
                let_in.append(row)
    return let_in


def _change(cache: StateCache, row: JobRow, step: JobStep, now_s: float, entered_s: float) -> None:
    assert step.now is not None
    columns = JobColumns()
    if step.is_released:
        columns = JobColumns(no_progress=0, entered_s=entered_s, not_before_s=0.0)
    elif step.now is JobState.FAILED:
        columns = JobColumns(cause_class=str(ExitClass.USER))
    cache.change_job(row, step.now, step.cause, now_s, **columns)


def _take_in(cache: StateCache, let_in: list[JobRow], now_s: float) -> None:
    """Put jobs into the queue, each at its place."""
    if let_in:
        cache.happens(now_s)
    behind = [row for row in let_in if not goes_first(row)]
    back = [row for row in reversed(let_in) if goes_first(row)]  # each goes before all others, or nearly so
    last = None
    for row in behind:
        with cache.about(row.id, now_s, spoils=True):
            was_held = row.entered_s != row.submitted_s  # before it ever ran; its wait counts from its release
            if row.attempt or row.id in cache.set_aside_before or was_held:
                cache.mirror.rejoin(asked_of(row, cache.parts.layout), waiting_standing(row))
            else:
                cache.mirror.submit(asked_of(row, cache.parts.layout))
            line_up(cache.mirror, cache.jobs, row.id, last)
            last = row.id
    for row in back:
        with cache.about(row.id, now_s, spoils=True):
            cache.mirror.come_back(asked_of(row, cache.parts.layout), waiting_standing(row))
            line_up(cache.mirror, cache.jobs, row.id)
    for jobs in (cache.outside, cache.set_aside_before):
        jobs.difference_update(row.id for row in let_in)
