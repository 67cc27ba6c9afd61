"""Pods of an attempt: created behind gates, then placed and released all together, by one installation alone.

`NamespaceLease` is the Lease object of a namespace: only one installation starts pods there. The store elects a leader
among the schedulers of one store; the lease keeps those of two stores apart, which do not know each other, and shows
in `kubectl get leases` which one schedules.

Source: SPEC K7; the rules are those of client-go's leader election.
"""

import logging
import socket
import time
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from pydantic import Field

from ....cluster.files.errors import BackendError
from ....cluster.model.placement import Placement
from ..protocol import Attempt, CannotHonourError, RefusedError, refuse_bad_placement, refuse_bad_texts
from .api import APPLY, JSON_PATCH, MANAGER, ApiStatusError, Json, KubernetesApi, ObjectView
from .objects import ATTEMPT, SPEC_ANNOTATION, ApiModel, KubernetesGpu, KubernetesPod
from .pods import PodPart, claim_manifest, digest_of, placement_patch, pod_manifest
from .records import RecordFolders
from .settings import KubernetesSettings

log = logging.getLogger(__name__)

LEASE_NAME = "longshore"
HOLD_S = 15  # for which a lease holds
RENEW_S = 5.0  # after which it is renewed
_MISSING = 404
_LEASE_TIME = "%Y-%m-%dT%H:%M:%S.%fZ"
_EXISTS = 409
_REFUSED = (400, 413, 422)  # the object itself is wrong
_FORBIDDEN = 403
# In messages of what is forbidden at the moment: it may be allowed while the attempt waits. All else that is forbidden
# concerns the pod as the settings made it, such as a volume that Pod Security does not allow.
_MAY_CHANGE = ("exceeded quota", "cannot create resource", "cannot patch resource", "because it is being terminated")
_BROKEN = frozenset({"CreateContainerConfigError", "CreateContainerError", "RunContainerError"})
_BAD_IMAGE = frozenset({"InvalidImageName", "ErrImageNeverPull"})
# The pull may only be slow, or its registry be down for a moment.
_NO_IMAGE = frozenset({"ErrImagePull", "ImagePullBackOff"})


class _LeaseSpec(ApiModel):
    """The holder of the lease."""

    holder_identity: str = ""
    lease_duration_seconds: int = Field(default=HOLD_S, ge=1)
    lease_transitions: int = 0
    acquire_time: str = ""
    renew_time: str = ""

    @property
    def renewed_at(self) -> datetime | None:
        """When it was renewed, however that is written; None if that is no time."""
        try:
            return datetime.fromisoformat(self.renew_time)
        except ValueError:
            return None


class NamespaceLease:
    """Holds the lease while a scheduler uses this backend."""

    def __init__(
        self, api: KubernetesApi, namespace: str, installation: str, *, hold_s: int = HOLD_S, renew_s: float = RENEW_S
    ) -> None:
        self._api, self._namespace, self._installation = api, namespace, installation
        self._hold_s, self._renew_s = hold_s, renew_s
        self._held_s = self._tried_s = float("-inf")  # by the monotonic clock
        self._seen, self._seen_s = _LeaseSpec(), 0.0  # the last value by others, and when it was read
        self._logged = ""  # why it is not held, as last logged
        self._wrote = _LeaseSpec()  # by this process, the last time

    def renew_if_due(self) -> bool:
        """Take or renew the lease if that is due, and return whether it is held; log once why not."""
        if time.monotonic() >= self._tried_s + self._renew_s:
            try:
                self._take_or_renew()
                self._logged = ""
            except BackendError as error:
                if str(error) != self._logged:
                    log.warning("no pod is started: %s", error)
                self._logged = str(error)
            self._tried_s = time.monotonic()  # A call that hangs is not made again at once.
        return time.monotonic() < self._held_s + self._hold_s

    def ensure_held(self) -> None:
        """Take the lease, or check that it is held.

        Raises:
            BackendError: If another installation holds it, or that is not known.
        """
        if time.monotonic() > self._held_s + self._renew_s:
            self._take_or_renew()

    def release(self) -> None:
        """Release the lease at once, unless another scheduler has renewed it.

        Raises:
            BackendError: If it is not known whether others hold it.
        """
        api = self._api
        if time.monotonic() >= self._held_s + self._hold_s:
            return
        self._held_s = float("-inf")
        lease = api.call(api.coordination.read_namespaced_lease, LEASE_NAME, self._namespace)
        found = _LeaseSpec.model_validate(lease.get("spec") or {})
        if (found.holder_identity, found.renewed_at) == (self._wrote.holder_identity, self._wrote.renewed_at):
            now = datetime.now(UTC).strftime(_LEASE_TIME)
            lease["spec"] |= {"leaseDurationSeconds": 1, "acquireTime": now, "renewTime": now}
            del lease["spec"]["holderIdentity"]
            api.call(
                api.coordination.replace_namespaced_lease, LEASE_NAME, self._namespace, lease, field_manager=MANAGER
            )

    def _take_or_renew(self) -> None:
        api, begin_s = self._api, time.monotonic()
        try:
            lease = api.call(api.coordination.read_namespaced_lease, LEASE_NAME, self._namespace)
        except ApiStatusError as error:
            if error.code != _MISSING:
                raise
            lease = {"metadata": {"name": LEASE_NAME}, "spec": self._new_spec(_LeaseSpec())}
            api.call(api.coordination.create_namespaced_lease, self._namespace, lease, field_manager=MANAGER)
        else:
            seen = _LeaseSpec.model_validate(lease.get("spec") or {})
            if not self._is_ours(seen) and self._is_in_force(seen):
                raise BackendError(
                    f"namespace {self._namespace} belongs to {seen.holder_identity}: it can be of one installation only"
                )
            # With the version that was just read: a faster writer wins.
            lease["spec"] = self._new_spec(seen)
            api.call(
                api.coordination.replace_namespaced_lease, LEASE_NAME, self._namespace, lease, field_manager=MANAGER
            )
        self._held_s, self._wrote = begin_s, _LeaseSpec.model_validate(lease["spec"])

    def _is_ours(self, spec: _LeaseSpec) -> bool:
        return spec.holder_identity.endswith(f"_{self._installation}")

    def _is_in_force(self, spec: _LeaseSpec) -> bool:
        """Return whether another's lease still counts, by the time since its last change here: clocks differ."""
        if spec != self._seen:
            self._seen, self._seen_s = spec, time.monotonic()
        return bool(spec.holder_identity) and time.monotonic() < self._seen_s + spec.lease_duration_seconds

    def _new_spec(self, before: _LeaseSpec) -> Json:
        now, me = datetime.now(UTC).strftime(_LEASE_TIME), f"{socket.gethostname()}_{self._installation}"
        stays = before.holder_identity == me
        return {
            "holderIdentity": me,
            "leaseDurationSeconds": self._hold_s,
            "leaseTransitions": before.lease_transitions + (0 if stays or not before.holder_identity else 1),
            "acquireTime": (stays and before.acquire_time) or now,
            "renewTime": now,
        }


class PodStarter:
    """Creates and starts pods while it holds the lease; after any crash, another call does only what is left to do."""

    def __init__(
        self, api: KubernetesApi, settings: KubernetesSettings, records: RecordFolders, view: ObjectView[KubernetesPod],
        sizes: Mapping[str, int], lease: NamespaceLease,
    ) -> None:  # fmt: skip
        self._api, self._settings, self._records, self._view, self._sizes = api, settings, records, view, sizes
        self._lease = lease

    def launch(
        self,
        attempt: Attempt,
        placement: Placement,
        known: Sequence[KubernetesPod],
        gpus: Mapping[str, Sequence[KubernetesGpu]] | None,
    ) -> None:
        """Start an attempt as far as possible.

        1. Refuse GPUs that do not exist, a changed attempt, and images that cannot be pulled.
        2. Record that it is launched, unless its pods could have started before.
        3. Create its pods behind scheduling gates, and claim their devices.
        4. Record that the gates are lifted, and lift them all.

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
        parts = self._split_into_pods(attempt, placement, gpus)
        name, digest = attempt.name, digest_of(attempt, placement)
        before = self._records.launched_digest(name)
        if before not in ("", digest) or any(pod.annotation(SPEC_ANNOTATION) != digest for pod in known):
            raise BackendError(f"{name} was launched before with another command or placement")
        _refuse_broken_containers(known, self._settings.bind_s)
        ended = self._records.has_record(name, "ended") or any(pod.is_being_deleted or pod.is_over for pod in known)
        if ended or (len(known) == len(placement) and not any(pod.is_gated for pod in known)):
            return
        self._lease.ensure_held()
        manifests = [pod_manifest(attempt, placement, part, self._settings) for part in parts]
        self._records.write_record(name, "launched", digest)
        lost = self._records.has_record(name, "lifted") and len(known) < len(placement)
        if lost or self._records.has_record(name, "cancelled"):
            return  # A pod that could have started and is gone is not started again.
        pods = [self._create_pod(manifest) for manifest in manifests]
        for pod, part in zip(pods, parts, strict=True):
            if part.gpus and _is_gated(pod):
                self._apply_claim(pod, part)
        self._lease.ensure_held()  # The pods of a large gang take a while.
        if not self._records.has_record(name, "cancelled"):
            self._records.write_record(name, "lifted", digest)
            for pod, part in zip(pods, parts, strict=True):
                if _is_gated(pod):
                    self._lift_gate(pod, part)

    def _split_into_pods(
        self, attempt: Attempt, placement: Placement, gpus: Mapping[str, Sequence[KubernetesGpu]] | None
    ) -> list[PodPart]:
        refuse_bad_placement(attempt, placement, self._sizes)
        refuse_bad_texts(attempt)
        parts, first = [], 0
        for number, share in enumerate(placement):
            devices = () if gpus is None else gpus.get(share.node, ())
            if gpus is not None and share.gpus[-1] >= len(devices):
                raise CannotHonourError(
                    f"{self._settings.device_class} offers {len(devices)} GPUs on node {share.node}, not {share.gpus}"
                )
            parts.append(PodPart(number, share, first, tuple(devices[gpu] for gpu in share.gpus) if devices else ()))
            first += len(share.gpus)
        return parts

    def _create_pod(self, manifest: Json) -> Json:
        """Create a pod; an existing one is ours if its labels and digest are the same."""
        name, namespace = manifest["metadata"]["name"], self._settings.namespace
        api = self._api
        try:
            pod = api.call(api.core.create_namespaced_pod, namespace, manifest, field_manager=MANAGER)
        except ApiStatusError as error:
            if error.code != _EXISTS:
                raise _creation_error(name, error) from error
            pod = api.call(api.core.read_namespaced_pod, name, namespace)
            read = KubernetesPod.model_validate(pod)
            wanted = manifest["metadata"]
            if (read.labels.get(ATTEMPT), read.annotation(SPEC_ANNOTATION)) != (
                wanted["labels"][ATTEMPT], wanted["annotations"][SPEC_ANNOTATION],
            ):  # fmt: skip
                raise BackendError(f"there is another pod {name} in {namespace}") from error
        self._view.apply_written(pod)
        return pod

    def _apply_claim(self, pod: Json, part: PodPart) -> None:
        """Apply the claim of a pod; an equal one stays."""
        name, namespace, api = pod["metadata"]["name"], self._settings.namespace, self._api
        manifest = claim_manifest(pod, part, self._settings)
        try:
            claim = api.call(
                api.resource.patch_namespaced_resource_claim, name, namespace, manifest,
                _content_type=APPLY, field_manager=MANAGER,
            )  # fmt: skip
        except ApiStatusError as error:
            raise _creation_error(f"claim {name}", error) from error
        if claim["metadata"].get("ownerReferences") != manifest["metadata"]["ownerReferences"]:
            raise BackendError(f"there is another claim {name} in {namespace}")

    def _lift_gate(self, pod: Json, part: PodPart) -> None:
        meta = pod["metadata"]
        api = self._api
        patch = placement_patch(meta["uid"], part.share.node)
        self._view.apply_written(
            api.call(
                api.core.patch_namespaced_pod, meta["name"], self._settings.namespace, patch,
                _content_type=JSON_PATCH, field_manager=MANAGER,
            )
        )  # fmt: skip


def _refuse_broken_containers(pods: Sequence[KubernetesPod], patience_s: float) -> None:
    """Refuse an attempt whose image cannot be pulled in time; raise an error for other failures of containers."""
    for pod in pods:
        reason, placed = pod.waiting_reason, pod.condition("PodScheduled")
        bound = None if placed is None else placed.last_transition_time
        waits_s = 0.0 if bound is None else time.time() - bound.timestamp()
        if reason in _BAD_IMAGE or (reason in _NO_IMAGE and waits_s > patience_s):
            raise RefusedError(f"{pod.name}: {reason}: {pod.waiting_message}")
        if reason in _BROKEN:
            raise BackendError(f"{pod.name}: {reason}: {pod.waiting_message}")


def _creation_error(name: str, error: ApiStatusError) -> BackendError:
    """Return the error that an error answer to a creation means."""
    if error.code in _REFUSED:
        return RefusedError(f"{name}: {error}")
    if error.code == _FORBIDDEN and not any(words in str(error) for words in _MAY_CHANGE):
        return CannotHonourError(f"{name}: {error}")
    return error


def _is_gated(pod: Json) -> bool:
    return KubernetesPod.model_validate(pod).is_gated
