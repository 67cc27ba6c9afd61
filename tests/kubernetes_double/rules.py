"""What an API server refuses of pods."""

import re

from tests.kubernetes_double.objects import ApiError, Object

_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]{0,251}[a-z0-9])?")
_LABEL = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?)?")
_HOSTNAME = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


def check_new(plural: str, value: Object) -> None:
    """Refuse a new object that the server would not store."""
    meta = value.get("metadata", {})
    if not _NAME.fullmatch(meta.get("name", "")):
        raise _invalid(f"metadata.name: {meta.get('name')!r}")
    for label in meta.get("labels", {}).values():
        if not _LABEL.fullmatch(label):
            raise _invalid(f"metadata.labels: {label!r}")
    for finalizer in meta.get("finalizers", []):
        if "/" not in finalizer:
            raise _invalid(f"metadata.finalizers: {finalizer!r} is not qualified")
    if plural == "pods":
        _check_pod(value["spec"])


def _check_pod(spec: Object) -> None:
    if not spec.get("containers") or not all(each.get("name") and each.get("image") for each in spec["containers"]):
        raise _invalid("spec.containers: name and image are required")
    if spec.get("schedulingGates") and spec.get("nodeName"):
        raise _invalid("spec.nodeName: cannot be set until all schedulingGates have been cleared")
    for name in ("hostname", "subdomain"):
        if name in spec and not _HOSTNAME.fullmatch(spec[name]):
            raise _invalid(f"spec.{name}: {spec[name]!r}")
    volumes = {volume["name"] for volume in spec.get("volumes", [])}
    claims = {claim["name"] for claim in spec.get("resourceClaims", [])}
    for container in spec["containers"]:
        if not {mount["name"] for mount in container.get("volumeMounts", [])} <= volumes:
            raise _invalid("spec.containers.volumeMounts: no such volume")
        if not {claim["name"] for claim in container.get("resources", {}).get("claims", [])} <= claims:
            raise _invalid("spec.containers.resources.claims: no such claim")
        if not all(isinstance(variable.get("value", ""), str) for variable in container.get("env", [])):
            raise _invalid("spec.containers.env: a value is not a string")


def check_changed(before: Object, after: Object) -> None:
    """Refuse a change of a pod that the server would not make."""
    old, new = dict(before["spec"]), dict(after["spec"])
    gated = bool(old.get("schedulingGates"))
    left = {gate["name"] for gate in new.pop("schedulingGates", [])}
    if not left <= {gate["name"] for gate in old.pop("schedulingGates", [])}:
        raise _invalid("spec.schedulingGates: only deletion is allowed")
    if gated:
        for field in ("nodeSelector", "affinity"):
            old_field, new_field = old.pop(field, {}), new.pop(field, {})
            if not old_field.items() <= new_field.items():
                raise _invalid(f"spec.{field}: only additions are allowed while gated")
    for field in ("activeDeadlineSeconds", "tolerations", "terminationGracePeriodSeconds"):
        old.pop(field, None), new.pop(field, None)
    if old != new:
        raise _invalid("spec: pod updates may not change fields other than these")
    if "deletionTimestamp" in before["metadata"]:
        added = set(after["metadata"].get("finalizers", [])) - set(before["metadata"].get("finalizers", []))
        if added:
            raise _invalid("metadata.finalizers: no new finalizers can be added if the object is being deleted")


def _invalid(message: str) -> ApiError:
    return ApiError(422, "Invalid", message)
