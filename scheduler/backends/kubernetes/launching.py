"""Pods of an attempt: created behind gates, then placed and let go all together."""

import logging
import time
from collections.abc import Mapping, Sequence

from ....cluster.files.errors import BackendError
from ...model.placement import Placement
from ..protocol import Attempt, CannotHonourError, RefusedError
from ..refusals import refuse_placement, refuse_texts
from .api import APPLY, JSON_PATCH, MANAGER, AnswerError, Api, Json
from .lead import Lead
from .objects.devices import Gpu
from .objects.objects import ATTEMPT, SPEC, Pod
from .objects.pods import Part, claim_manifest, digest_of, lifting, pod_manifest
from .records import Records
from .settings import KubernetesSettings
from .view import View

log = logging.getLogger(__name__)

_EXISTS = 409
_REFUSED = (400, 413, 422)  # what is wrong with the object itself
_FORBIDDEN = 403
# Words of what is forbidden at the moment: it may be granted, or room be made for it, while the attempt waits. All else
# that is forbidden concerns the pod as the settings made it, such as a volume that Pod Security does not allow.
_MAY_CHANGE = ("exceeded quota", "cannot create resource", "cannot patch resource", "because it is being terminated")
_BROKEN = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_BAD_IMAGE = frozenset({"InvalidImageName", "ErrImageNeverPull"})
_NO_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff"})  # it may only be slow, or its registry be away for a moment


class Launch:
    """Creates and starts pods, so that doing it again after any crash does only what is left to do.

    Args:
        api: The cluster.
        settings: Of the backend.
        records: Of attempts.
        view: Of pods; it learns of those that are made.
        sizes: GPUs of each node.
        lead: Without which nothing is created or let go.
    """

    def __init__(
        self, api: Api, settings: KubernetesSettings, records: Records, view: View[Pod], sizes: Mapping[str, int],
        lead: Lead,
    ) -> None:  # fmt: skip
        self._api, self._settings, self._records, self._view, self._sizes = api, settings, records, view, sizes
        self._lead = lead

    def launch(
        self, attempt: Attempt, placement: Placement, known: Sequence[Pod], gpus: Mapping[str, Sequence[Gpu]] | None
    ) -> None:
        """Take an attempt as far as it goes towards its start.

        Args:
            attempt: What is to run.
            placement: GPUs for it.
            known: Pods that it has.
            gpus: Devices of each node in the order of their indices; None where GPUs are only counted.

        Raises:
            CannotHonourError: If these GPUs cannot be given.
            RefusedError: If it will never be started.
            BackendError: If it is not known whether it starts, or another attempt has this name.
        """
        parts = self._parts(attempt, placement, gpus)
        name, digest = attempt.name, digest_of(attempt, placement)
        before = self._records.digest(name)
        if before not in ("", digest) or any(pod.annotation(SPEC) != digest for pod in known):
            raise BackendError(f"{name} was launched before with another command or placement")
        _refuse_containers(known, self._settings.bind_s)
        ended = self._records.has(name, "ended") or any(pod.is_deleted or pod.is_over for pod in known)
        if ended or (len(known) == len(placement) and not any(pod.is_gated for pod in known)):
            return
        self._lead.hold()
        manifests = [pod_manifest(attempt, placement, part, self._settings) for part in parts]
        self._records.note(name, "launched", digest)
        lost = self._records.has(name, "lifted") and len(known) < len(placement)
        if lost or self._records.has(name, "cancelled"):
            return  # What could have started and is gone is not started again.
        pods = [self._create(manifest) for manifest in manifests]
        for pod, part in zip(pods, parts, strict=True):
            if part.gpus and _is_gated(pod):
                self._claim(pod, part)
        self._lead.hold()  # The pods of a large gang take a while.
        if not self._records.has(name, "cancelled"):
            self._records.note(name, "lifted", digest)
            for pod, part in zip(pods, parts, strict=True):
                if _is_gated(pod):
                    self._lift(pod, part)

    def _parts(self, attempt: Attempt, placement: Placement, gpus: Mapping[str, Sequence[Gpu]] | None) -> list[Part]:
        refuse_placement(attempt, placement, self._sizes)
        refuse_texts(attempt)
        parts, first = [], 0
        for number, share in enumerate(placement):
            devices = () if gpus is None else gpus.get(share.node, ())
            if gpus is not None and share.gpus[-1] >= len(devices):
                raise CannotHonourError(
                    f"{self._settings.device_class} offers {len(devices)} GPUs on node {share.node}, not {share.gpus}"
                )
            parts.append(Part(number, share, first, tuple(devices[gpu] for gpu in share.gpus) if devices else ()))
            first += len(share.gpus)
        return parts

    def _create(self, manifest: Json) -> Json:
        """Create a pod; one that is there is ours if it is for the same."""
        name, namespace = manifest["metadata"]["name"], self._settings.namespace
        api = self._api
        try:
            pod = api.call(api.core.create_namespaced_pod, namespace, manifest, field_manager=MANAGER)
        except AnswerError as error:
            if error.code != _EXISTS:
                raise _refusal(name, error) from error
            pod = api.call(api.core.read_namespaced_pod, name, namespace)
            read = Pod.model_validate(pod)
            wanted = manifest["metadata"]
            if (read.metadata.labels.get(ATTEMPT), read.annotation(SPEC)) != (
                wanted["labels"][ATTEMPT], wanted["annotations"][SPEC],
            ):  # fmt: skip
                raise BackendError(f"there is another pod {name} in {namespace}") from error
        self._view.learn(pod)
        return pod

    def _claim(self, pod: Json, part: Part) -> None:
        """Apply the claim of a pod: what is there already and the same stays."""
        name, namespace, api = pod["metadata"]["name"], self._settings.namespace, self._api
        manifest = claim_manifest(pod, part, self._settings)
        try:
            claim = api.call(
                api.resource.patch_namespaced_resource_claim, name, namespace, manifest,
                _content_type=APPLY, field_manager=MANAGER,
            )  # fmt: skip
        except AnswerError as error:
            raise _refusal(f"claim {name}", error) from error
        if claim["metadata"].get("ownerReferences") != manifest["metadata"]["ownerReferences"]:
            raise BackendError(f"there is another claim {name} in {namespace}")

    def _lift(self, pod: Json, part: Part) -> None:
        meta = pod["metadata"]
        api = self._api
        patch = lifting(meta["uid"], part.share.node)
        self._view.learn(
            api.call(
                api.core.patch_namespaced_pod, meta["name"], self._settings.namespace, patch,
                _content_type=JSON_PATCH, field_manager=MANAGER,
            )
        )  # fmt: skip


def _refuse_containers(pods: Sequence[Pod], patience_s: float) -> None:
    """Refuse an attempt whose image is not to be had, at once or after so long on the node, and tell other troubles."""
    for pod in pods:
        waiting, placed = pod.state.waiting, pod.condition("PodScheduled")
        bound = None if placed is None else placed.last_transition_time
        waits_s = 0.0 if bound is None else time.time() - bound.timestamp()
        if waiting is None:
            continue
        if waiting.reason in _BAD_IMAGE or (waiting.reason in _NO_IMAGE and waits_s > patience_s):
            raise RefusedError(f"{pod.metadata.name}: {waiting.reason}: {waiting.message}")
        if waiting.reason in _BROKEN:
            raise BackendError(f"{pod.metadata.name}: {waiting.reason}: {waiting.message}")


def _refusal(name: str, error: AnswerError) -> BackendError:
    """Return what an error answer to a creation means."""
    if error.code in _REFUSED:
        return RefusedError(f"{name}: {error}")
    if error.code == _FORBIDDEN and not any(words in str(error) for words in _MAY_CHANGE):
        return CannotHonourError(f"{name}: {error}")
    return error


def _is_gated(pod: Json) -> bool:
    return Pod.model_validate(pod).is_gated
