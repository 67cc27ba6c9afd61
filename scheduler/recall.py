"""A cluster as it stands by the rows of the store: what a scheduler begins with, and goes back to after an error."""

from collections.abc import Mapping, Sequence

from .exits import Tries
from .job_file import StoredJob
from .layout import Layout
from .live import Asked, Known, Standing
from .quota import Quota
from .states import OPEN_ATTEMPTS, JobState
from .store.attempts import AttemptRow
from .store.jobs import JobRow


def asked_of(row: JobRow) -> Asked:
    """Return what a job asks for."""
    spec = StoredJob.model_validate(row.spec)
    return Asked(row.id, row.gpus, row.estimate_s, row.submitted_s, -row.priority, spec.compute_s, spec.parameter_bytes)


def nodes_of(row: JobRow) -> int:
    """Return how many nodes are to give a job the same GPUs each, 0 if it takes any GPUs."""
    if not row.spec.get("sbatch"):
        return 0
    sbatch = StoredJob.model_validate(row.spec).sbatch
    return 0 if sbatch is None else sbatch.nodes


def used_by(row: JobRow) -> Tries:
    """Return how often a job was tried again."""
    return Tries(row.stops_infra, row.stops_resource, row.stops_user, row.stops_asked, row.stops_ambiguous)


def waiting_standing(row: JobRow) -> Standing:
    """Return where a job stands that waits."""
    return Standing(
        guess_s=row.guess_s, entered_s=row.entered_s, saved_s=row.saved_s, wait_s=row.wait_s, stops=row.attempt,
        first_start_s=row.submitted_s if row.attempt else -1.0,
    )  # fmt: skip


def running_standing(row: JobRow, attempt: AttemptRow, layout: Layout) -> Standing:
    """Return where a job stands that holds GPUs."""
    return Standing(
        guess_s=row.guess_s, entered_s=row.entered_s, saved_s=row.saved_s,
        wait_s=row.wait_s + attempt.opened_s - row.entered_s, stops=attempt.number - 1,
        first_start_s=attempt.opened_s, start_s=attempt.opened_s, overhead_s=attempt.overhead_s,
        slowdown=attempt.slowdown, gpus=layout.numbers(attempt.placement),
    )  # fmt: skip


def queue_key(row: JobRow) -> tuple[int, int, float, int]:
    """Return what puts waiting jobs into the order of the queue: stopped ones first, the last to come back first."""
    if row.attempt:
        return -row.priority, 0, -max(row.entered_s, row.not_before_s), -row.submit_seq
    return -row.priority, 1, 0.0, row.submit_seq


def is_eligible(row: JobRow, now_s: float) -> bool:
    """Say whether a job is in the queue of the cluster: it may wait in the store for its time to come."""
    return row.state is JobState.QUEUED and row.desired == "run" and row.not_before_s <= now_s


def known_of(
    jobs: Sequence[JobRow],
    attempts: Mapping[str, AttemptRow],
    layout: Layout,
    down: Sequence[int],
    now_s: float,
    gpus_per_user: int | None = None,
) -> Known:
    """Return how a cluster stands.

    Args:
        jobs: All that are in no final state, in the order of submission.
        attempts: Those that hold GPUs, by job.
        layout: Of the cluster.
        down: GPUs out of service.
        now_s: The present.
        gpus_per_user: Most that one user may have; None for any number.
    """
    holding = {job: row for job, row in attempts.items() if row.state in OPEN_ATTEMPTS}
    quota = Quota(gpus_per_user, (row for row in jobs if row.id in holding))
    fitting = (row for row in jobs if is_eligible(row, now_s) and row.gpus <= layout.gpus)
    waiting = sorted(fitting, key=queue_key)
    queued = {row.id: None for row in waiting if quota.lets_in(row)}
    inside = [
        (asked_of(row), running_standing(row, holding[row.id], layout) if row.id in holding else waiting_standing(row))
        for row in jobs
        if row.id in holding or row.id in queued
    ]
    return Known(now_s, inside, list(queued), down)
