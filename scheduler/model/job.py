"""A job as it is stored: its id, placement, tries, events and errors."""

import secrets
from collections.abc import Mapping
from typing import NamedTuple

from .states import AfterStop, Desired, JobState

LONGEST_WAIT_S = 600.0  # before a job that was stopped is tried again, for any reason


class JobRow(NamedTuple):
    """A job as the store holds it; the columns of the table describe the fields."""

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
    stops_again: int
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

    @property
    def was_stopped(self) -> bool:
        """Whether it was stopped and is tried again, so that it goes before others of its priority.

        False again once its owner has held or retried it: else a user could get to the head of the queue that way.
        """
        return self.not_before_s > 0.0

    def wait_left_s(self, now_s: float) -> float:
        """Return how many seconds a job that was stopped has to wait before it is tried again, 0 if it need not.

        More than the longest wait is left only if the clock was set back; then it has waited.
        """
        left_s = self.not_before_s - now_s
        return left_s if 0.0 < left_s <= LONGEST_WAIT_S else 0.0


IN_COMMON = {
    "user-and-name": "of the same user and name", "user-and-gpus": "of the same user with as many GPUs",
    "gpus": "with as many GPUs", "any": "of any kind",
}  # fmt: skip


def estimate_source_words(estimate_from: str, jobs: int) -> str:
    """Return where a job's estimate is from, for people."""
    if estimate_from == "given":
        return "given by its owner"
    if estimate_from not in IN_COMMON:
        return "assumed: no job had ended when it was submitted"
    return f"from the last {'ended job' if jobs == 1 else f'{jobs} ended jobs'} {IN_COMMON[estimate_from]}"


ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32
LENGTH = 26


def new_job_id(now_s: float) -> str:
    """Return a unique id: 48 bits of Unix time in milliseconds, 80 of chance."""
    return job_id_of(now_s, secrets.randbits(80))


def job_id_of(at_s: float, chance: int) -> str:
    """Return the id of a time in Unix seconds and of 80 bits."""
    number = (int(at_s * 1000.0) & (1 << 48) - 1) << 80 | chance
    return "".join(ALPHABET[number >> 5 * place & 31] for place in reversed(range(LENGTH)))


def attempt_name(job: str, number: int) -> str:
    """Return what a backend knows an attempt of a job by."""
    return f"ls-{job}-{number}"


def is_job_id(text: str) -> bool:
    """Return whether a text could be the id of a job."""
    return len(text) == LENGTH and set(text) <= set(ALPHABET)


NO_PROGRESS = 3  # attempts in a row without a newer checkpoint before a job is held


class Tries(NamedTuple):
    """How often a job may be tried again after an end of each class, or has been."""

    infra: int = 0
    resource: int = 0
    user: int = 0
    again: int = 0  # the program requested another run
    ambiguous: int = 0


DEFAULT_TRIES = Tries(infra=20, resource=1, user=0, again=20, ambiguous=1)


class ReservationRow(NamedTuple):
    """A GPU that is not free."""

    node: str
    gpu: int  # index on the node
    job_id: str
    number: int  # of the attempt
    since_s: float


SCHEDULER_WRITER = "scheduler"  # role of the scheduler's loop in events


class NewEvent(NamedTuple):
    """An event to be added."""

    kind: str
    writer: str  # role that writes it
    at_s: float  # Unix time
    job_id: str | None = None
    number: int | None = None  # of the attempt; None for what concerns the job itself
    version: int | None = None  # of the job or attempt after the change; None if the event is no change
    was: str = ""
    now: str = ""
    fence: int | None = None  # token of the writer's lease
    cause: str = ""
    data: Mapping[str, object] | None = None
