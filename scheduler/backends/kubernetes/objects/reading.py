"""What the pods of an attempt tell of it."""

import signal
import sys
from collections.abc import Sequence
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ....model.run import EndedBy, RankEnd, Run, Status, read_reason
from .objects import DROPPED, FIRST_RANK, PODS, RANKS, Pod, Terminated

_SIGNALLED = range(129, 193)  # exit codes of containers that a signal ended: 128 is added to its number
_TOO_LONG = "DeadlineExceeded"  # reason of a pod that ran longer than its activeDeadlineSeconds

_Time = Annotated[float, Field(ge=0.0, allow_inf_nan=False)]
_End = tuple[
    Annotated[int, Field(ge=0)], Annotated[int, Field(ge=0, le=255)], Annotated[int, Field(ge=0, le=127)], _Time
]
_Number = Annotated[float, Field(allow_inf_nan=False)]


class LauncherRecord(BaseModel):
    """What a launcher wrote at its end; the job could write there too, so it is read strictly."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    attempt: str
    reason: str
    started_s: _Time
    ends: tuple[_End, ...]
    progress: dict[str, object]


def status_of(attempt: str, pods: Sequence[Pod], silent: frozenset[str], *, cancelled: bool) -> Status:
    """Return what is known of an attempt.

    Args:
        attempt: Its name.
        pods: All that it has, at least one.
        silent: Nodes that do not answer.
        cancelled: Whether it was asked to stop.
    """
    pods = sorted(pods, key=lambda pod: pod.count(FIRST_RANK))
    living = [pod for pod in pods if not pod.is_over]
    unheard = sorted({pod.spec.node_name for pod in living} & silent)
    if unheard:
        return Status(Run.UNREACHABLE, words=f"node {unheard[0]} does not answer")
    record = {pod.metadata.name: _record_of(attempt, pod) for pod in pods}
    ends = sorted((end for pod in pods for end in _ends(pod, record[pod.metadata.name])), key=_when)
    starts = [_started_s(pod, record[pod.metadata.name]) for pod in pods]
    started_s = max(starts) if all(starts) else 0.0
    if living:
        runs = all(pod.state.running is not None for pod in living) and len(pods) == pods[0].count(PODS)
        return Status(Run.RUNNING if runs else Run.PENDING, tuple(ends), started_s=started_s if runs else 0.0)
    progress = {key: value for each in reversed(list(record.values())) for key, value in _numbers(each).items()}
    ranks, well = sum(pod.count(RANKS) for pod in pods), not any(end.code or end.signal for end in ends)
    if well and len(ends) == ranks and len(pods) == pods[0].count(PODS):
        return Status(Run.EXITED, tuple(ends), _by(pods, record), "", started_s, progress)
    run, by, words = _why_not(pods, record)
    if run is Run.EXITED and by is EndedBy.NOBODY and well and (ends or not cancelled):
        run, by = Run.LOST, EndedBy.NODE_FAULT
        words = f"it was stopped before {ranks - len(ends)} of its ranks had run"
    if run is Run.EXITED and by is EndedBy.NOBODY:
        by = _by(pods, record)
    return Status(run, tuple(ends), by, words, started_s, progress)


def stops_the_others(pods: Sequence[Pod]) -> bool:
    """Say whether the rest of an attempt is to stop: a pod of it has failed, is on its way out, or is missing."""
    begun = any(not pod.is_gated for pod in pods)
    return any(pod.has_failed or pod.is_deleted for pod in pods) or (begun and len(pods) < pods[0].count(PODS))


def _record_of(attempt: str, pod: Pod) -> LauncherRecord | None:
    """Return what its launcher told, None if it did not come to that."""
    ended = pod.state.terminated
    try:
        record = LauncherRecord.model_validate_json(ended.message) if ended is not None else None
    except ValidationError:
        return None
    return record if record is not None and record.attempt == attempt else None


def _ends(pod: Pod, record: LauncherRecord | None) -> list[RankEnd]:
    """Return how the ranks of a pod ended: as its launcher told, or else all like the container that held them."""
    if record is not None:
        return [RankEnd(*end) for end in record.ends]
    ended = pod.state.terminated
    if ended is None or ended.is_made_up or ended.never_began or ended.exit_code == 0:
        return []  # A launcher that ends well has told so: a code of 0 is no proof of success.
    number = ended.signal or (ended.exit_code - 128 if ended.exit_code in _SIGNALLED else 0)
    at_s = 0.0 if ended.finished_at is None else ended.finished_at.timestamp()
    ranks = range(pod.count(FIRST_RANK), pod.count(FIRST_RANK) + pod.count(RANKS))
    return [RankEnd(rank, 0 if number else ended.exit_code, number, at_s) for rank in ranks]


def _when(end: RankEnd) -> float:
    """Return by what ends are ordered; Kubernetes tells whole seconds, and so rounds them down.

    A rank that was asked to end did so after the one that had failed, also if both ended in the same second.
    """
    was_asked = end.last_signal == signal.SIGTERM and end.ended_s.is_integer()
    return end.ended_s + float(was_asked)


def _started_s(pod: Pod, record: LauncherRecord | None) -> float:
    if record is not None:
        return record.started_s
    return pod.state.running.started_at.timestamp() if pod.state.running is not None else 0.0


def _fault(pods: Sequence[Pod], record: dict[str, LauncherRecord | None]) -> str:
    """Return why an end was the cluster's doing or is not known, "" if it was not and is."""
    for pod in pods:
        name, disrupted = pod.metadata.name, pod.condition("DisruptionTarget")
        if pod.annotation(DROPPED):
            return pod.annotation(DROPPED)
        if disrupted is not None and disrupted.status == "True":
            return f"{name}: {disrupted.reason}: {disrupted.message}"
        if pod.status.reason not in ("", _TOO_LONG):  # No program can set it: Evicted, Preempting, NodeLost and others.
            return f"{name}: {pod.status.reason}: {pod.status.message}"
    for pod in pods:
        if _has_no_record(pod, record[pod.metadata.name]):
            return f"{pod.metadata.name}: {_words(pod.state.terminated)}"
    if len(pods) < pods[0].count(PODS):
        return "a pod of it is gone"
    return ""


def _has_no_record(pod: Pod, record: LauncherRecord | None) -> bool:
    """Say whether a pod ended without anybody's wish, and nobody knows how."""
    if record is not None or pod.is_deleted or pod.status.reason == _TOO_LONG:
        return False
    ended = pod.state.terminated
    return not _ends(pod, None) and not (ended is not None and ended.never_began)


def _words(ended: Terminated | None) -> str:
    if ended is None:
        return "it failed, and its node does not say why"
    if ended.is_made_up:
        return f"{ended.reason}: {ended.message or 'nothing is known of its end'}"
    return f"{ended.reason} with exit code {ended.exit_code}, and no record of its ranks"


def _why_not(pods: Sequence[Pod], record: dict[str, LauncherRecord | None]) -> tuple[Run, EndedBy, str]:
    """Return why an attempt has not succeeded if that was no doing of its ranks, else EXITED by nobody."""
    if fault := _fault(pods, record):
        return Run.LOST, EndedBy.NODE_FAULT, fault
    for pod in pods:
        ended = pod.state.terminated
        if ended is not None and ended.never_began:
            text = f"{pod.metadata.name}: {ended.reason}: {ended.message}"
            # What else a runtime fails at may be the fault of the node, such as a broken driver.
            return (Run.EXITED, EndedBy.REFUSED, text) if ended.lacks_program else (Run.LOST, EndedBy.NOBODY, text)
    is_late = any(pod.status.reason == _TOO_LONG for pod in pods)
    return Run.EXITED, EndedBy.TIME_LIMIT if is_late else EndedBy.NOBODY, ""


def _by(pods: Sequence[Pod], record: dict[str, LauncherRecord | None]) -> EndedBy:
    """Return who ended an attempt; a pod without a record ended by itself unless it was deleted."""
    found = set()
    for pod in pods:
        said = record[pod.metadata.name]
        if said is not None:
            found.add(read_reason(said.reason)[0])
        else:
            found.add(EndedBy.CANCEL if pod.is_deleted else _why_failed(pod.state.terminated))
    order = (EndedBy.TIME_LIMIT, EndedBy.OUT_OF_MEMORY, EndedBy.RANK_FAILED, EndedBy.CANCEL)
    return next((by for by in order if by in found), EndedBy.NOBODY)


def _why_failed(ended: Terminated | None) -> EndedBy:
    ran_out = ended is not None and ended.reason == "OOMKilled"
    return EndedBy.OUT_OF_MEMORY if ran_out else EndedBy.RANK_FAILED


def _numbers(record: LauncherRecord | None) -> dict[str, float]:
    """Return the finite numbers among what a job told of itself."""
    found = {} if record is None else record.progress
    return {
        key: float(value)
        for key, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    }
