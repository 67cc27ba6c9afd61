"""Job files as the store holds them: read leniently, since another version of Longshore may have written them.

What comes in anew is read strictly, as a `JobFile`. A stored one that today's rules refuse must not stop a scheduler.
"""

from collections.abc import Mapping
from copy import deepcopy
from typing import Any

from pydantic import ValidationError

from ...cluster.files.errors import LongshoreError
from .job_spec import StoredJob

# What a job runs, and on what: with another value it would be another job, so that nobody puts one in its place.
ESSENTIAL = ("command", "folder", "environment", "image", "shape", "needs", "plan", "external")
NEAREST = {"greater_than_equal": "ge", "less_than_equal": "le"}  # kinds of problems, and where the bound stands
ROUNDS = 8  # of mending: one shows what the one before hid


class UnreadableSpecError(LongshoreError):
    """A stored job file that does not say what to run."""


def stored_job(spec: object) -> StoredJob:
    """Return a job as the store holds it.

    A number beyond today's bounds is taken for the nearest one within them. A field that is not known, or has a value
    that makes no sense, counts as left out.

    Args:
        spec: What the store holds.

    Raises:
        UnreadableSpecError: If it does not say what to run, and with which folder, environment and image.
    """
    given = _todays(spec)
    for _ in range(ROUNDS):
        try:
            return StoredJob.model_validate(given)
        except ValidationError as error:
            given = _mended(given, error)
    raise UnreadableSpecError("its stored job file makes no sense; submit it again")


def is_external(spec: object) -> bool:
    """Say whether a stored job came from another queue; much faster than to read all of it."""
    return isinstance(spec, Mapping) and bool(spec.get("external") or spec.get("sbatch"))


def is_shaped(spec: object) -> bool:
    """Say whether it matters for a stored job how its GPUs lie on nodes; much faster than to read all of it."""
    return isinstance(spec, Mapping) and bool(spec.get("shape") or spec.get("sbatch"))


def has_needs(spec: object) -> bool:
    """Say whether a stored job may not take every node; much faster than to read all of it."""
    return isinstance(spec, Mapping) and bool(spec.get("needs"))


def is_switching(spec: object) -> bool:
    """Say whether a stored job goes on as a ring when members of it fail; much faster than to read all of it."""
    return isinstance(spec, Mapping) and spec.get("failover") == "switch"


def _todays(spec: object) -> object:
    """Return a stored job file with today's names: jobs of other queues had `sbatch` with `number` and `nodes`."""
    if not isinstance(spec, Mapping) or not isinstance(old := spec.get("sbatch"), Mapping):
        return spec
    nodes, gpus = old.get("nodes"), spec.get("gpus")
    if not isinstance(nodes, int) or not isinstance(gpus, int) or nodes < 1 or gpus % nodes:
        raise UnreadableSpecError("its stored job file does not say on how many nodes it runs; submit it again")
    rest = {name: value for name, value in spec.items() if name != "sbatch"}
    return {
        **rest,
        "external": {"number": old.get("number")},
        "shape": {"nodes": nodes, "gpus_per_node": gpus // nodes},
    }


def stored_or_usual(spec: object) -> StoredJob:
    """Return a job as the store holds it, one with the usual values if that cannot be read: it must not be started."""
    try:
        return stored_job(spec)
    except UnreadableSpecError:
        return _USUAL


def _mended(spec: object, error: ValidationError) -> object:
    """Return a stored job file without what cannot be used of it."""
    if not isinstance(spec, Mapping):
        raise UnreadableSpecError("its stored job file cannot be read; submit it again") from error
    mended = deepcopy(dict(spec))
    for problem in error.errors(include_url=False):
        place = problem["loc"]
        if not place:  # fields that do not go together: nobody knows which of them is wrong
            raise UnreadableSpecError(f"its stored job file cannot be used: {problem['msg']}") from error
        if place[0] in ESSENTIAL and problem["type"] != "extra_forbidden":
            where = ".".join(str(part) for part in place)
            raise UnreadableSpecError(f"its stored job file cannot be used: {where}: {problem['msg']}") from error
        bound = problem.get("ctx", {}).get(NEAREST.get(problem["type"], ""))
        is_number = problem["input"] == problem["input"]
        _replace(mended, place, bound if is_number else None)
    return mended


def _replace(spec: dict[str, Any], place: tuple[int | str, ...], value: object) -> None:
    """Put a value at the deepest key of a place that is there, or take the key out if the value is None."""
    inside, last = spec, place[0]
    for part in place[1:]:
        below = inside.get(str(last))
        if not isinstance(below, dict) or part not in below:
            break
        inside, last = below, part
    if value is None:
        inside.pop(str(last), None)
    else:
        inside[str(last)] = value


_USUAL = stored_job({"command": ["true"]})
