"""The patches that an API server takes: JSON patch, merge patch, the strategic one, and apply."""

import copy
from typing import Any

from tests.kubernetes_double.objects import ApiError, Object

APPLY = "application/apply-patch+yaml"
_MERGE_KEYS = {"schedulingGates": "name", "containers": "name", "env": "name", "ownerReferences": "uid"}


def patched(kind: str, value: Object, patch: Any) -> Object:
    """Return an object with a patch applied.

    Args:
        kind: Content type of the patch.
        value: The object.
        patch: What was sent.
    """
    if kind == "application/json-patch+json":
        return _json_patched(value, patch)
    if kind == "application/merge-patch+json":
        merged = _merged(value, patch)
        assert isinstance(merged, dict)
        return merged
    if kind == "application/strategic-merge-patch+json":
        return _strategic(value, patch)
    raise ApiError(415, "UnsupportedMediaType", f"no patch of type {kind}")


def applied(value: Object, body: Object, manager: str) -> Object:
    """Return an object with what a manager applies; fields that it left out stay, and lists without a key are replaced.

    Raises:
        ApiError: If a field is another manager's and has another value, or may not change.
    """
    meta = value.get("metadata", {})
    managed: list[Object] = [dict(entry) for entry in meta.get("managedFields", [])]
    for path, wanted in _leaves(body):
        owners = [each["manager"] for each in managed if path in each["fields"]]
        if _at(value, path) not in (None, wanted) and owners and owners != [manager]:
            raise ApiError(409, "Conflict", f'Apply failed with 1 conflict: conflict with "{owners[0]}": {path}')
        if path.startswith("spec.") and value and _at(value, path) != wanted:
            raise ApiError(422, "Invalid", f"{path}: field is immutable")
    result = _strategic(value, body)
    mine = sorted({path for path, _ in _leaves(body)})
    others = [each for each in managed if each["manager"] != manager]
    result["metadata"]["managedFields"] = [*others, {"manager": manager, "operation": "Apply", "fields": mine}]
    return result


def _leaves(body: Object, before: str = "") -> list[tuple[str, Any]]:
    """Return the fields of an object that are no objects themselves, by their paths."""
    found: list[tuple[str, Any]] = []
    for name, value in body.items():
        path = f"{before}.{name}" if before else name
        found += _leaves(value, path) if isinstance(value, dict) else [(path, value)]
    return found


def _at(value: Any, path: str) -> Any:
    for name in path.split("."):
        value = value.get(name) if isinstance(value, dict) else None
    return value


def _json_patched(value: Object, operations: list[Object]) -> Object:
    value = copy.deepcopy(value)
    for operation in operations:
        try:
            _operate(value, operation)
        except (KeyError, IndexError, ValueError, TypeError) as error:
            raise ApiError(422, "Invalid", f"the server rejected our request: {operation}: {error!r}") from error
    return value


def _operate(value: Object, operation: Object) -> None:
    last: Any
    *path, last = [part.replace("~1", "/").replace("~0", "~") for part in operation["path"].split("/")[1:]]
    target: Any = value
    for part in path:
        target = target[int(part) if isinstance(target, list) else part]
    kind = operation["op"]
    if isinstance(target, list):
        last = len(target) if last == "-" else int(last)
    if kind == "add":
        if isinstance(target, list):
            target.insert(last, operation["value"])
        else:
            target[last] = operation["value"]
        return
    if kind == "test" and target[last] != operation["value"]:
        raise ValueError("test failed")
    if kind == "remove":
        del target[last]
    elif kind == "replace":
        target[last]  # What is not there cannot be replaced.
        target[last] = operation["value"]


def _merged(value: Any, patch: Any) -> Any:
    if not isinstance(patch, dict):
        return patch
    result = dict(value) if isinstance(value, dict) else {}
    for name, change in patch.items():
        if change is None:
            result.pop(name, None)
        else:
            result[name] = _merged(result.get(name), change)
    return result


def _strategic(value: Object, patch: Object) -> Object:
    result = dict(value)
    for name, change in patch.items():
        if change is None:
            result.pop(name, None)
        elif isinstance(change, list) and name in _MERGE_KEYS:
            result[name] = _merged_list(result.get(name, []), change, _MERGE_KEYS[name])
        elif isinstance(change, dict):
            result[name] = _strategic(result.get(name, {}), change)
        else:
            result[name] = change
    return result


def _merged_list(items: list[Object], changes: list[Object], key: str) -> list[Object]:
    result = {item[key]: item for item in items}
    for change in changes:
        if change.get("$patch") == "delete":
            result.pop(change[key], None)
        else:
            result[change[key]] = _strategic(result.get(change[key], {}), change)
    return list(result.values())
