"""The status of an attempt by its pods, their deletion, and nodes that did not take a pod in time."""

import logging
import signal
import sys
import time
from collections.abc import Iterable, Mapping, Sequence

from pydantic import BaseModel, ConfigDict, ValidationError

from ....cluster.files.errors import BackendError
from ...model.states import EndedBy, RankEnd, Run, Status, parse_reason_line
from ..local.folders import EndRecord, UnixTime
from .api import JSON_PATCH, MANAGER, ApiStatusError, Json, KubernetesApi
from .objects import (
    ATTEMPT,
    DROPPED,
    FIRST_RANK,
    NODE_ANNOTATION,
    PODS,
    RANKS_ANNOTATION,
    KubernetesPod,
    TerminatedState,
)
from .records import RecordError, RecordFolders
from .settings import KubernetesSettings

_SIGNALLED = range(129, 193)  # exit codes of containers that a signal ended: 128 is added to its number
_TOO_LONG = "DeadlineExceeded"  # reason of a pod that ran longer than its activeDeadlineSeconds
AVOID_S, MAX_AVOID_S = 300.0, 3600.0  # for which a node gets no pods, doubled each time
_NOT_THE_ONE = (404, 409, 422)  # deleted, or another pod has its name

log = logging.getLogger(__name__)


class LauncherRecord(BaseModel):
    """What a launcher wrote at its end; as the job could write there too, it is read strictly."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    attempt: str
    reason: str
    started_s: UnixTime
    ends: tuple[EndRecord, ...]
    progress: dict[str, object]


def status_of(attempt: str, pods: Sequence[KubernetesPod], silent: frozenset[str], *, cancelled: bool) -> Status:
    """Return what is known of an attempt.

    Args:
        attempt: Its name.
        pods: All that it has, at least one.
        silent: Nodes that do not answer.
        cancelled: Whether it was cancelled.
    """
    pods = sorted(pods, key=lambda pod: pod.annotated_count(FIRST_RANK))
    living = [pod for pod in pods if not pod.is_over]
    unreachable = sorted({pod.node for pod in living} & silent)
    if unreachable:
        return Status(Run.UNREACHABLE, words=f"node {unreachable[0]} does not answer")
    record = {pod.name: _record_of(attempt, pod) for pod in pods}
    ends = sorted((end for pod in pods for end in _rank_ends(pod, record[pod.name])), key=_end_sort_key)
    starts = [_started_s(pod, record[pod.name]) for pod in pods]
    started_s = max(starts) if all(starts) else 0.0
    if living:
        runs = all(pod.running is not None for pod in living) and len(pods) == pods[0].annotated_count(PODS)
        return Status(Run.RUNNING if runs else Run.PENDING, tuple(ends), started_s=started_s if runs else 0.0)
    progress = {
        key: value for each in reversed(list(record.values())) for key, value in _progress_numbers(each).items()
    }
    ranks, well = (
        sum(pod.annotated_count(RANKS_ANNOTATION) for pod in pods),
        not any(end.code or end.signal for end in ends),
    )
    if well and len(ends) == ranks and len(pods) == pods[0].annotated_count(PODS):
        return Status(Run.EXITED, tuple(ends), _ended_by(pods, record), "", started_s, progress)
    run, by, words = _why_not_succeeded(pods, record)
    if run is Run.EXITED and by is EndedBy.NONE and well and (ends or not cancelled):
        run, by = Run.LOST, EndedBy.NODE_FAULT
        words = f"it was stopped before {ranks - len(ends)} of its ranks had run"
    if run is Run.EXITED and by is EndedBy.NONE:
        by = _ended_by(pods, record)
    return Status(run, tuple(ends), by, words, started_s, progress)


def must_stop_rest(pods: Sequence[KubernetesPod]) -> bool:
    """Return whether the rest of an attempt is to stop: a pod has failed, is being deleted, or is missing."""
    begun = any(not pod.is_gated for pod in pods)
    return any(pod.has_failed or pod.is_being_deleted for pod in pods) or (
        begun and len(pods) < pods[0].annotated_count(PODS)
    )


def _record_of(attempt: str, pod: KubernetesPod) -> LauncherRecord | None:
    """Return the record of its launcher, None if there is none."""
    ended = pod.terminated
    try:
        record = LauncherRecord.model_validate_json(ended.message) if ended is not None else None
    except ValidationError:
        return None
    return record if record is not None and record.attempt == attempt else None


def _rank_ends(pod: KubernetesPod, record: LauncherRecord | None) -> list[RankEnd]:
    """Return how the ranks of a pod ended: by its launcher's record, or else all like their container."""
    if record is not None:
        return [RankEnd(*end) for end in record.ends]
    ended = pod.terminated
    if ended is None or ended.has_unknown_end or ended.never_began or ended.exit_code == 0:
        return []  # A launcher that ends well writes a record: a code of 0 alone is no proof of success.
    number = ended.signal or (ended.exit_code - 128 if ended.exit_code in _SIGNALLED else 0)
    at_s = 0.0 if ended.finished_at is None else ended.finished_at.timestamp()
    ranks = range(
        pod.annotated_count(FIRST_RANK), pod.annotated_count(FIRST_RANK) + pod.annotated_count(RANKS_ANNOTATION)
    )
    return [RankEnd(rank, 0 if number else ended.exit_code, number, at_s) for rank in ranks]


def _end_sort_key(end: RankEnd) -> float:
    """Return the sort key of an end; Kubernetes reports whole seconds, rounded down.

    A rank that got SIGTERM ended after the one that had failed, also in the same second.
    """
    got_sigterm = end.last_signal == signal.SIGTERM and end.ended_s.is_integer()
    return end.ended_s + float(got_sigterm)


def _started_s(pod: KubernetesPod, record: LauncherRecord | None) -> float:
    if record is not None:
        return record.started_s
    return pod.running.started_at.timestamp() if pod.running is not None else 0.0


def _cluster_fault(pods: Sequence[KubernetesPod], record: dict[str, LauncherRecord | None]) -> str:
    """Return why an end was the cluster's fault or is unknown, "" for any other."""
    for pod in pods:
        name, disrupted = pod.name, pod.condition("DisruptionTarget")
        if pod.annotation(DROPPED):
            return pod.annotation(DROPPED)
        if disrupted is not None and disrupted.status == "True":
            return f"{name}: {disrupted.reason}: {disrupted.message}"
        if pod.reason not in ("", _TOO_LONG):  # No program can set it: Evicted, Preempting, NodeLost and others.
            return f"{name}: {pod.reason}: {pod.message}"
    for pod in pods:
        if _has_unexplained_end(pod, record[pod.name]):
            return f"{pod.name}: {_describe_end(pod.terminated)}"
    if len(pods) < pods[0].annotated_count(PODS):
        return "a pod of it is gone"
    return ""


def _has_unexplained_end(pod: KubernetesPod, record: LauncherRecord | None) -> bool:
    """Return whether a pod ended without being deleted or timed out, and without a record."""
    if record is not None or pod.is_being_deleted or pod.reason == _TOO_LONG:
        return False
    ended = pod.terminated
    return not _rank_ends(pod, None) and not (ended is not None and ended.never_began)


def _describe_end(ended: TerminatedState | None) -> str:
    if ended is None:
        return "it failed, without a reason from its node"
    if ended.has_unknown_end:
        return f"{ended.reason}: {ended.message or 'nothing is known of its end'}"
    return f"{ended.reason} with exit code {ended.exit_code}, and no record of its ranks"


def _why_not_succeeded(
    pods: Sequence[KubernetesPod], record: dict[str, LauncherRecord | None]
) -> tuple[Run, EndedBy, str]:
    """Return why an attempt has not succeeded if its ranks are not the reason, else EXITED without one."""
    if fault := _cluster_fault(pods, record):
        return Run.LOST, EndedBy.NODE_FAULT, fault
    for pod in pods:
        ended = pod.terminated
        if ended is not None and ended.never_began:
            text = f"{pod.name}: {ended.reason}: {ended.message}"
            # Other failures of a runtime may be the fault of the node, such as a broken driver.
            return (Run.EXITED, EndedBy.REFUSED, text) if ended.lacks_program else (Run.LOST, EndedBy.NONE, text)
    is_late = any(pod.reason == _TOO_LONG for pod in pods)
    return Run.EXITED, EndedBy.TIME_LIMIT if is_late else EndedBy.NONE, ""


def _ended_by(pods: Sequence[KubernetesPod], record: dict[str, LauncherRecord | None]) -> EndedBy:
    """Return what ended an attempt; a pod without a record ended by itself unless it was deleted."""
    found = set()
    for pod in pods:
        found_record = record[pod.name]
        if found_record is not None:
            found.add(parse_reason_line(found_record.reason)[0])
        else:
            found.add(EndedBy.CANCEL if pod.is_being_deleted else _failure_cause(pod.terminated))
    order = (EndedBy.TIME_LIMIT, EndedBy.OUT_OF_MEMORY, EndedBy.RANK_FAILED, EndedBy.CANCEL)
    return next((by for by in order if by in found), EndedBy.NONE)


def _failure_cause(ended: TerminatedState | None) -> EndedBy:
    ran_out = ended is not None and ended.reason == "OOMKilled"
    return EndedBy.OUT_OF_MEMORY if ran_out else EndedBy.RANK_FAILED


def _progress_numbers(record: LauncherRecord | None) -> dict[str, float]:
    """Return the finite numbers in a job's progress."""
    found = {} if record is None else record.progress
    return {
        key: float(value)
        for key, value in found.items()
        if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= sys.float_info.max
    }


class AvoidedNodes:
    """Nodes that get no pods for a while; times are of the monotonic clock.

    Args:
        nodes: How many the cluster has.
    """

    def __init__(self, nodes: int) -> None:
        self._max = nodes // 2
        self._avoided: dict[str, tuple[int, float]] = {}  # how often each did not take a pod, and until when

    def add(self, node: str, now_s: float) -> None:
        """Record that a node did not take a pod."""
        times = self._avoided.get(node, (0, 0.0))[0] + 1
        self._avoided[node] = times, now_s + min(AVOID_S * 2.0 ** min(times - 1, 32), MAX_AVOID_S)

    def remove(self, node: str) -> None:
        """Record that a node has taken a pod."""
        self._avoided.pop(node, None)

    def avoided_at(self, now_s: float) -> frozenset[str]:
        """Return the nodes to avoid; none while they are more than half: then they are hardly the reason."""
        self._avoided = {node: each for node, each in self._avoided.items() if now_s < each[1] + MAX_AVOID_S}
        nodes = frozenset(node for node, (_, until_s) in self._avoided.items() if now_s < until_s)
        return nodes if len(nodes) <= self._max else frozenset()


class PodRemoval:
    """Deletes pods, each by its uid, and records nodes that do not take any."""

    def __init__(
        self, api: KubernetesApi, settings: KubernetesSettings, records: RecordFolders, avoided: AvoidedNodes
    ) -> None:
        self._api, self._settings, self._records, self._avoided = api, settings, records, avoided
        self._unbound_since_s: dict[str, float] = {}  # by uid; monotonic time
        self._dropped: set[str] = set()  # uids of those of them that were dropped, which the view may show only later

    def delete_living(self, pods: Iterable[KubernetesPod]) -> None:
        """Delete pods: their processes get SIGTERM, and are killed after the grace.

        Raises:
            BackendError: If the request could not be sent.
        """
        for pod in pods:
            if not pod.is_over and not pod.is_being_deleted:
                self._delete_pod(pod)

    def remove_ended(self, pods: Iterable[KubernetesPod]) -> None:
        """Delete pods that are over for good.

        Raises:
            BackendError: If one may still exist.
        """
        for pod in pods:
            if not pod.is_being_deleted:
                self._delete_pod(pod)
            before = list(pod.finalizers)
            if ATTEMPT in before:
                path, kept = "/metadata/finalizers", [name for name in before if name != ATTEMPT]
                same = {"op": "test", "path": path, "value": before}  # Keep the others.
                self._patch_pod(pod, [same, {"op": "replace", "path": path, "value": kept}])

    def clean_up(self, by_attempt: Mapping[str, Sequence[KubernetesPod]]) -> None:
        """Stop the rest of attempts that lost a pod, were not bound or were cancelled; remove forgotten ones.

        After an error the next call tries again.
        """
        now_s = time.monotonic()
        unbound: dict[str, float] = {}
        for name, pods in by_attempt.items():
            try:
                forgotten = self._records.has_record(name, "ended")
                if forgotten or must_stop_rest(pods) or self._records.has_record(name, "cancelled"):
                    self.delete_living(pods)
                if forgotten and all(pod.is_over for pod in pods):
                    self.remove_ended(pods)
                for pod in pods:
                    self._check_binding(pod, unbound, now_s)
            except (ApiStatusError, RecordError) as error:  # of this one alone
                log.warning("%s cannot be stopped or removed: %s", name, error)
            except BackendError as error:
                log.warning("%s cannot be stopped or removed: %s", name, error)
                break  # Without an answer, each further call could take as long to fail.
        self._unbound_since_s = unbound
        self._dropped &= unbound.keys()

    def _check_binding(self, pod: KubernetesPod, unbound: dict[str, float], now_s: float) -> None:
        """Drop a pod that its node does not take for too long, and record those that still have time."""
        uid, node = pod.uid, pod.annotation(NODE_ANNOTATION)
        if pod.node:
            if uid in self._unbound_since_s:
                self._avoided.remove(node)
        elif not (pod.is_gated or pod.is_over):
            unbound[uid] = self._unbound_since_s.get(uid, now_s)
            if now_s - unbound[uid] > self._settings.bind_s and uid not in self._dropped:
                self._drop_unbound(pod)
                self._dropped.add(uid)
                if node:
                    self._avoided.add(node, now_s)

    def _drop_unbound(self, pod: KubernetesPod) -> None:
        """Delete a pod that no node takes; the rest of its attempt follows."""
        placed = pod.condition("PodScheduled")
        why = placed.message if placed is not None and placed.status != "True" else ""
        text = f"{pod.name} was not bound within {self._settings.bind_s:g} s: {why or 'no reason is known'}"
        path = "/metadata/annotations/" + DROPPED.replace("/", "~1")
        self._patch_pod(pod, [{"op": "add", "path": path, "value": text}])
        self._delete_pod(pod)

    def _delete_pod(self, pod: KubernetesPod) -> None:
        api, body = self._api, {"preconditions": {"uid": pod.uid}}
        try:
            api.call(api.core.delete_namespaced_pod, pod.name, self._settings.namespace, body=body)
        except ApiStatusError as error:
            if error.code not in _NOT_THE_ONE:
                raise

    def _patch_pod(self, pod: KubernetesPod, operations: list[Json]) -> None:
        api, patch = self._api, [{"op": "test", "path": "/metadata/uid", "value": pod.uid}, *operations]
        try:
            api.call(
                api.core.patch_namespaced_pod, pod.name, self._settings.namespace, patch,
                _content_type=JSON_PATCH, field_manager=MANAGER,
            )  # fmt: skip
        except ApiStatusError as error:
            if error.code not in _NOT_THE_ONE:
                raise
