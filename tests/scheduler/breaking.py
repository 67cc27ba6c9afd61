"""Calls of the scheduler that fail whenever they concern one job."""

from collections.abc import Callable
from typing import Any, NamedTuple

import pytest

from longshore.scheduler.mirror.cluster_mirror import ClusterMirror

NODES = {"a": 4, "b": 4}


class Place(NamedTuple):
    """A call that concerns one job."""

    owner: object
    name: str
    ends_as: tuple[str, ...] = ("held",)  # what may become of a job about which it always fails


def mentions(value: object, job: str) -> bool:
    """Say whether an argument of a call is a job, or something of it."""
    if isinstance(value, ClusterMirror):
        return value.sim.state.current[0] >= 0 and value.current_job == job
    if isinstance(value, dict | list | tuple) and not hasattr(value, "_fields"):
        return any(mentions(it, job) for it in value)
    fields = ("id", "job_id", "job", "row", "name")
    found = [value, *(getattr(value, name) for name in fields if hasattr(value, name))]
    return any(isinstance(it, str) and job in it for it in found) or any(
        hasattr(it, "id") and it.id == job for it in found
    )


def breaks(place: Place, job: Callable[[], str], monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Let a call fail whenever it concerns a job; return a list that grows with each failure."""
    real, failures = getattr(place.owner, place.name), list[int]()

    def call(*arguments: Any, **named: Any) -> Any:
        concerns = any(mentions(it, job()) for it in (*arguments, *named.values()))
        if place.name == "stored_job":
            concerns = any(isinstance(it, dict) and "bad" in it["command"][-1] for it in arguments)
        if concerns:
            failures.append(1)
            raise KeyError(f"a bug in {place.name}")
        return real(*arguments, **named)

    monkeypatch.setattr(place.owner, place.name, call)
    return failures
