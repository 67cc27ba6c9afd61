"""The queue of the cluster in the order of the store's rows, which is the same whoever reads them, and when.

A job comes into the queue at its head or its end, and goes from there to its place.
"""

from collections.abc import Mapping

from ..mirror.cluster_mirror import LiveCluster
from ..model.job import JobRow
from .rehydrate import queue_key, rank_of


def line_up(live: LiveCluster, rows: Mapping[str, JobRow], job: str, last: str | None = None) -> None:
    """Bring a waiting job to its place, if all others stand at theirs, or behind it at the end of the queue.

    Args:
        live: The cluster, in whose queue it stands.
        rows: Of all jobs in the queue, by their ids.
        job: The job.
        last: A job that stands at its place before that of this one. The place of this one is looked for from there,
            so that many jobs whose places are far from where they stand go past the queue once, and not each.
    """
    key, rank = queue_key(rows[job]), rank_of(rows[job])
    before, after = beside = live.beside(job)
    if last is not None and before is not None and queue_key(rows[before]) > key:
        before, after = last, live.beside(last)[1]
    while before is not None and queue_key(rows[before]) > key:
        before, after = live.beside(before)[0], before
    while after is not None and queue_key(rows[after]) < key:
        after = live.beside(after)[1]
    if (rank, after) != (live.asked(job).rank, beside[1]):
        live.give_place(job, rank, after)
