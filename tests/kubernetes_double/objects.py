"""Objects of the API server's double: versions, changes to watch, preconditions, graceful deletion."""

import copy
import threading
import time
import uuid
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, NamedTuple

Object = dict[str, Any]  # as JSON has it
Key = tuple[str, str, str]  # plural, namespace ("" for none), name

_KEPT = 10_000  # changes that can be watched from


class ApiError(Exception):
    """What the server answers instead of what was asked for."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        super().__init__(message)
        self.code, self.reason, self.message = code, reason, message

    def status(self) -> Object:
        """Return the body of the answer."""
        return {
            "kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure",
            "message": self.message, "reason": self.reason, "code": self.code,
        }  # fmt: skip


class Change(NamedTuple):
    """One change of one object."""

    version: int
    kind: str  # ADDED, MODIFIED or DELETED
    key: Key
    object: Object


def now() -> str:
    """Return the time as Kubernetes writes it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def is_over(pod: Object) -> bool:
    """Say whether a pod's phase is a final one."""
    return pod.get("status", {}).get("phase") in ("Succeeded", "Failed")


class Objects:
    """All objects, under one lock; every change has a version and can be watched."""

    def __init__(self) -> None:
        self.changed = threading.Condition(threading.RLock())
        self._all: dict[Key, Object] = {}
        self._changes: list[Change] = []
        self.version = 1000
        self._compacted = 0  # versions up to this one cannot be watched from

    def compact(self) -> None:
        """Forget all changes so far, as etcd does after some minutes."""
        with self.changed:
            self._changes.clear()
            self._compacted = self.version

    def restore(self, version: int) -> None:
        """Count on from an older version, as after a restored backup."""
        with self.changed:
            self._changes.clear()
            self.version, self._compacted = version, 0

    def remove(self, key: Key) -> None:
        """Take an object away without a change that could be watched."""
        with self.changed:
            del self._all[key]

    def get(self, key: Key) -> Object:
        """Return a copy of an object."""
        with self.changed:
            if key not in self._all:
                raise ApiError(404, "NotFound", f'{key[0]} "{key[2]}" not found')
            return copy.deepcopy(self._all[key])

    def each(self, plural: str, namespace: str) -> list[Object]:
        """Return copies of all objects of a kind, "" for all namespaces."""
        with self.changed:
            return [
                copy.deepcopy(value)
                for key, value in sorted(self._all.items())
                if key[0] == plural and namespace in ("", key[1])
            ]

    def create(self, key: Key, value: Object) -> Object:
        """Add an object and return it as it is stored."""
        with self.changed:
            if key in self._all:
                raise ApiError(409, "AlreadyExists", f'{key[0]} "{key[2]}" already exists')
            value = copy.deepcopy(value)
            value["metadata"] |= {"name": key[2], "uid": str(uuid.uuid4()), "creationTimestamp": now()}
            if key[1]:
                value["metadata"]["namespace"] = key[1]
            return self._put("ADDED", key, value)

    def update(self, key: Key, edit: Callable[[Object], Object]) -> Object:
        """Change an object in one step; without a finalizer, one whose deletion waited for that is gone then."""
        with self.changed:
            before = self.get(key)
            value = edit(copy.deepcopy(before))
            wanted = value["metadata"].get("resourceVersion", before["metadata"]["resourceVersion"])
            if wanted != before["metadata"]["resourceVersion"]:
                raise ApiError(409, "Conflict", f'the object "{key[2]}" has been modified')
            value["metadata"]["creationTimestamp"] = before["metadata"]["creationTimestamp"]
            for field in ("uid", "name"):
                if value["metadata"].get(field) != before["metadata"][field]:
                    raise ApiError(422, "Invalid", f"metadata.{field}: field is immutable")
            if value == before:
                return before
            return self._put_or_remove(key, value)

    def delete(self, key: Key, uid: str | None, grace_s: int | None) -> Object:
        """Delete an object, or mark it where it has to end or to be let go first."""
        with self.changed:
            value = self.get(key)
            if uid not in (None, value["metadata"]["uid"]):
                raise ApiError(409, "Conflict", f"the UID in the precondition ({uid}) does not match")
            if key[0] == "pods":
                spec = value["spec"]
                grace_s = spec.get("terminationGracePeriodSeconds", 30) if grace_s is None else grace_s
                grace_s = grace_s if spec.get("nodeName") and not is_over(value) else 0
            else:
                grace_s = 0
            meta = value["metadata"]
            if "deletionTimestamp" in meta and meta["deletionGracePeriodSeconds"] <= grace_s:
                return value
            meta.setdefault("deletionTimestamp", now())
            meta["deletionGracePeriodSeconds"] = grace_s
            return self._put_or_remove(key, value)

    def changes_after(self, version: int, plural: str, namespace: str) -> list[Change]:
        """Return what has changed since a version."""
        with self.changed:
            if version < self._compacted:
                raise ApiError(410, "Expired", f"too old resource version: {version} ({self._compacted})")
            return [
                change
                for change in self._changes
                if change.version > version and change.key[0] == plural and namespace in ("", change.key[1])
            ]

    def until(self, check: Callable[[], bool], within_s: float = 30.0) -> None:
        """Wait until something is true of the objects."""
        until_s = time.monotonic() + within_s
        with self.changed:
            while not check():
                assert time.monotonic() < until_s, "it did not come true"
                self.changed.wait(0.05)

    def _put_or_remove(self, key: Key, value: Object) -> Object:
        meta = value["metadata"]
        ends = "deletionTimestamp" in meta and meta["deletionGracePeriodSeconds"] == 0
        if not ends or meta.get("finalizers"):
            return self._put("MODIFIED", key, value)
        return self._put("DELETED", key, value)

    def _put(self, kind: str, key: Key, value: Object) -> Object:
        self.version += 1
        value["metadata"]["resourceVersion"] = str(self.version)
        if kind == "DELETED":
            del self._all[key]
        else:
            self._all[key] = value
        self._changes = [*self._changes[-_KEPT:], Change(self.version, kind, key, copy.deepcopy(value))]
        self.changed.notify_all()
        return copy.deepcopy(value)
