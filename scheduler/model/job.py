"""A job as it is stored."""

from collections.abc import Mapping
from typing import NamedTuple

from .states import AfterStop, Desired, JobState


class JobRow(NamedTuple):
    """A job as the store holds it; the columns of the table say what each field is."""

    submit_seq: int
    id: str
    name: str
    owner: str
    spec: Mapping[str, object]
    desired: Desired
    state: JobState
    priority: int
    gpus: int
    estimate_s: float
    submitted_s: float
    not_before_s: float
    attempt: int
    version: int
    stops_infra: int
    stops_resource: int
    stops_user: int
    stops_asked: int
    stops_ambiguous: int
    no_progress: int
    saved_s: float
    guess_s: float
    wait_s: float
    entered_s: float
    after_stop: AfterStop | None
    cause_class: str
    cause: str
    ended_s: float | None
    reached_step: float | None
    estimate_from: str = "given"
    estimate_jobs: int = 0


IN_COMMON = {
    "user-and-name": "of the same user and name", "user-and-gpus": "of the same user with as many GPUs",
    "gpus": "with as many GPUs", "any": "of any kind",
}  # fmt: skip


def estimate_words(estimate_from: str, jobs: int) -> str:
    """Return where a job's estimate is from, for people."""
    if estimate_from == "given":
        return "as its owner says"
    if estimate_from not in IN_COMMON:
        return "assumed: no job had ended when it was submitted"
    return f"from the last {'ended job' if jobs == 1 else f'{jobs} ended jobs'} {IN_COMMON[estimate_from]}"
