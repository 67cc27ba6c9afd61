"""What leases prove of attempts on nodes that do not answer.

Source: docs/nodes.md, Leases.
"""

from ...health.monitoring.leases import is_gone
from ...model.job_id import name_of
from ...model.run import EndedBy, Run, Status
from ...model.states import AttemptState
from ...store.rows.attempts import AttemptRow
from ..state_cache import StateCache
from .rings import held_by


def by_lease(cache: StateCache, row: AttemptRow) -> Status | None:
    """Return what leases prove of an attempt all of whose ranks ran, None if they prove nothing.

    On a node whose lease has run out nothing of it lives. The backend is told to stop the rest. It is over once agents
    of all other nodes see nothing of it either.
    """
    if not cache.health.fenced or row.started_s is None or not row.placement:  # it may be torn
        return None
    name, held = name_of(row.job_id, row.number), held_by(cache, row)
    fenced = sorted({share.node for share in held} & cache.health.fenced)
    if not fenced or row.state not in (AttemptState.RUNNING, AttemptState.DRAINING):
        return None
    reports, told_s = cache.parts.monitor.reports.last(), cache.cancelled_s.get(name)
    is_told = told_s is not None and name in cache.cancelled
    gone = is_told and is_gone(name, held, cache.health.fenced, reports, told_s or 0.0)
    if row.state is AttemptState.DRAINING and not gone:
        return Status(Run.RUNNING, started_s=row.started_s)  # so that it is cancelled
    words = f"{', '.join(fenced)} was fenced: its lease ran out, so its agent has killed what ran there"
    return Status(Run.LOST, by=EndedBy.NODE_FAULT, words=words, started_s=row.started_s)
