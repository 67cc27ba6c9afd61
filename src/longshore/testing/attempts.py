"""Small attempts for the checks of backends, and their end."""

import time
import uuid
from collections.abc import Callable, Mapping
from functools import partial
from typing import TypeVar

from ..scheduler.backends.protocol import Attempt, Backend
from ..scheduler.model.placement import Placement, Share
from ..scheduler.model.run import Run, Status

NODES = {"a": 4, "b": 2}
ONE_GPU: Placement = (Share("a", (2,)),)
THREE_GPUS: Placement = (Share("a", (1, 3)), Share("b", (0,)))

ValueT = TypeVar("ValueT")

_made: list[str] = []  # names of the attempts that were made and not ended yet


def until(check: Callable[[], ValueT], within_s: float = 60.0) -> ValueT:
    """Return what a check says as soon as it is true."""
    until_s = time.monotonic() + within_s
    while not (value := check()):
        assert time.monotonic() < until_s, "it did not come true"
        time.sleep(0.02)
    return value


def sh(
    script: str, *, grace_s: float = 30.0, limit_s: float = float("inf"), environment: Mapping[str, str] | None = None
) -> Attempt:
    """Return an attempt that runs a shell script; its name is nobody else's."""
    return running(("sh", "-c", script), grace_s=grace_s, limit_s=limit_s, environment=environment)


def running(
    command: tuple[str, ...],
    *,
    grace_s: float = 30.0,
    limit_s: float = float("inf"),
    environment: Mapping[str, str] | None = None,
) -> Attempt:
    """Return an attempt that runs a command."""
    job = uuid.uuid4().hex[:12]
    _made.append(f"ls-{job}-1")
    return Attempt(f"ls-{job}-1", job, 1, command, "", environment or {}, grace_s, limit_s)


def end_of(backend: Backend, attempt: Attempt) -> Status:
    """Return the status of an attempt that has ended and left no process."""
    until(lambda: backend.status(attempt.name).run in (Run.EXITED, Run.LOST) and backend.released(attempt.name))
    return backend.status(attempt.name)


def runs(backend: Backend, attempt: Attempt) -> None:
    """Wait until an attempt runs."""
    until(lambda: backend.status(attempt.name).run is Run.RUNNING)


def end_made(backend: Backend) -> None:
    """End all attempts that were made, and see their processes gone."""
    for name in _made:
        backend.cancel(name, "the check is over")
    for name in _made:
        until(partial(backend.released, name))
    _made.clear()
