"""The end of pods: asked to stop, stopped with the rest of their attempt, and removed once they are over."""

import logging
import time
from collections.abc import Iterable, Mapping, Sequence

from ....cluster.files.errors import BackendError
from .api import JSON_PATCH, MANAGER, AnswerError, Api, Json
from .objects.objects import ATTEMPT, DROPPED, NODE, Pod
from .objects.reading import stops_the_others
from .records import Records
from .settings import KubernetesSettings
from .unbound import Unbound

log = logging.getLogger(__name__)

_NOT_THE_ONE = (404, 409, 422)  # it is gone, or another one has its name


class Removal:
    """Deletes pods, and only those that are meant.

    Args:
        api: The cluster.
        settings: Of the backend.
        records: Of attempts.
        left: Nodes that do not take pods; it learns of those that do not, and that do again.
    """

    def __init__(self, api: Api, settings: KubernetesSettings, records: Records, left: Unbound) -> None:
        self._api, self._settings, self._records, self._left = api, settings, records, left
        self._unbound_since_s: dict[str, float] = {}  # by uid; monotonic time

    def delete(self, pods: Iterable[Pod]) -> None:
        """Ask all processes of pods to end, and have them killed after the grace.

        Raises:
            BackendError: If the wish could not be passed on.
        """
        for pod in pods:
            if not pod.is_over and not pod.is_deleted:
                self._delete(pod)

    def remove(self, pods: Iterable[Pod]) -> None:
        """Delete pods that are over for good.

        Raises:
            BackendError: If one may still be there.
        """
        for pod in pods:
            if not pod.is_deleted:
                self._delete(pod)
            before = list(pod.metadata.finalizers)
            if ATTEMPT in before:
                path, kept = "/metadata/finalizers", [name for name in before if name != ATTEMPT]
                same = {"op": "test", "path": path, "value": before}  # Nobody else's is taken away.
                self._patch(pod, [same, {"op": "replace", "path": path, "value": kept}])

    def tend(self, by_attempt: Mapping[str, Sequence[Pod]]) -> None:
        """Stop the rest of attempts that lost a pod, were not taken by a node or are not wanted; remove forgotten ones.

        What cannot be done now is tried again the next time.
        """
        now_s = time.monotonic()
        unbound: dict[str, float] = {}
        for name, pods in by_attempt.items():
            try:
                forgotten = self._records.has(name, "ended")
                if forgotten or stops_the_others(pods) or self._records.has(name, "cancelled"):
                    self.delete(pods)
                if forgotten and all(pod.is_over for pod in pods):
                    self.remove(pods)
                for pod in pods:
                    self._see_bound(pod, unbound, now_s)
            except AnswerError as error:
                log.warning("%s is not tended to: %s", name, error)
            except BackendError as error:
                log.warning("%s is not tended to: %s", name, error)
                break  # Without an answer, each further call could take as long to fail.
        self._unbound_since_s = unbound

    def _see_bound(self, pod: Pod, unbound: dict[str, float], now_s: float) -> None:
        """Drop a pod that its node does not take for too long, and note those that still have time."""
        uid, node = pod.metadata.uid, pod.annotation(NODE)
        if pod.spec.node_name:
            if uid in self._unbound_since_s:
                self._left.forget(node)
        elif not (pod.is_gated or pod.is_over):
            unbound[uid] = self._unbound_since_s.get(uid, now_s)
            if now_s - unbound[uid] > self._settings.bind_s:
                self._drop(pod)
                if node:
                    self._left.note(node, now_s)

    def _drop(self, pod: Pod) -> None:
        """Delete a pod that no node takes; the rest of its attempt follows."""
        placed = pod.condition("PodScheduled")
        why = placed.message if placed is not None and placed.status != "True" else ""
        text = f"{pod.metadata.name} was not bound within {self._settings.bind_s:g} s: {why or 'nobody says why'}"
        path = "/metadata/annotations/" + DROPPED.replace("/", "~1")
        self._patch(pod, [{"op": "add", "path": path, "value": text}])
        self._delete(pod)

    def _delete(self, pod: Pod) -> None:
        api, meta = self._api, pod.metadata
        body = {"preconditions": {"uid": meta.uid}}
        try:
            api.call(api.core.delete_namespaced_pod, meta.name, self._settings.namespace, body=body)
        except AnswerError as error:
            if error.code not in _NOT_THE_ONE:
                raise

    def _patch(self, pod: Pod, operations: list[Json]) -> None:
        api, meta = self._api, pod.metadata
        patch = [{"op": "test", "path": "/metadata/uid", "value": meta.uid}, *operations]
        try:
            api.call(
                api.core.patch_namespaced_pod, meta.name, self._settings.namespace, patch,
                _content_type=JSON_PATCH, field_manager=MANAGER,
            )  # fmt: skip
        except AnswerError as error:
            if error.code not in _NOT_THE_ONE:
                raise
