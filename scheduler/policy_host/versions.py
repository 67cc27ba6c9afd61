"""One version of a policy: its name, and the bytes of its checkpoint if it is one."""

import hashlib
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from ...agents.registry import ROLLOUT, checkpoint_in
from ...cluster.files.plugins import registered

MOST_FILE_BYTES = 64 << 20
Stamp = tuple[int, int, int]  # of a file: when it was written, its size and its number


@dataclass(frozen=True, slots=True)
class Edition:
    """What is loaded: a file may change while it is, and a policy that ran well may have to be started again."""

    name: str  # as `longshore policies` lists it, the path of a checkpoint, or rollouts of either
    version: str  # SHA-256 of the checkpoint, or name and version of the package that the policy is part of
    content: bytes | None = None  # of the checkpoint


def base_of(name: str) -> str:
    """Return the policy that rollouts are made of, or the name itself."""
    while name.startswith(ROLLOUT):
        name = name.removeprefix(ROLLOUT)
        name = name.rpartition("@")[0] or name
    return name


def checkpoint_of(name: str) -> Path | None:
    """Return the checkpoint in a policy's name, None if it names none."""
    return checkpoint_in(name)


def read_edition(name: str) -> Edition:
    """Return the version of a policy that there is now; a file that is not there is left to who loads it."""
    path = checkpoint_of(name)
    try:
        if path is not None and path.is_file() and path.stat().st_size <= MOST_FILE_BYTES:
            content = path.read_bytes()
            return Edition(name, hashlib.sha256(content).hexdigest(), content)
    except OSError:
        pass
    return Edition(name, _package_of(base_of(name)))


def _package_of(name: str) -> str:
    point = registered("policies").get(name) or registered("heuristics").get(name)
    if point is not None and point.dist is not None:
        return f"{point.dist.name} {point.dist.version}"
    return f"longshore {version('longshore')}"


def stamp_of(name: str) -> Stamp | None:
    """Return what changes when a policy's checkpoint is replaced, None if it has none, or it is not there."""
    path = checkpoint_of(name)
    try:
        found = None if path is None else path.stat()
    except OSError:
        return None
    return None if found is None else (found.st_mtime_ns, found.st_size, found.st_ino)
