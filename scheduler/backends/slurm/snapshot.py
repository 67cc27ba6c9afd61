"""What Slurm says of its jobs and nodes at one moment."""

import re
import time
from collections.abc import Mapping
from typing import NamedTuple

from ....cluster.files.errors import BackendError
from .commands import Commands

_JOBS = ("--noheader", "--me", "--all", "--states=all", "--format=%i|%T|%k")
_NODES = ("--noheader", "--Node", "--all", "--format=%N|%o|%G|%T|%E")
# All others may still run, or run again without being asked to.
OVER = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
     "REQUEUE_HOLD", "REVOKED", "SPECIAL_EXIT", "TIMEOUT")
)  # fmt: skip
TIMED_OUT = frozenset(("DEADLINE", "TIMEOUT"))
_OUT_OF_SERVICE = re.compile(r"down|drain|drng|fail|error|future|maint|reboot|inval|power(ed|ing)_down", re.IGNORECASE)
_INDEXED = re.compile(r"gpu:((?:.*\D)?(\d+)):1")  # a type for each GPU, which ends in its index


class Job(NamedTuple):
    """A Slurm job, or one component of it."""

    number: int  # of all its components
    state: str

    @property
    def is_over(self) -> bool:
        """Whether it has ended for good."""
        return self.state in OVER


class Node(NamedTuple):
    """A node of Slurm."""

    address: str
    types: Mapping[int, str]  # type of gres that each GPU is, by its index; empty if Slurm cannot give one by its index
    state: str  # in Slurm's words, with its marks, such as down*
    reason: str  # why it is out of service

    @property
    def is_known(self) -> bool:
        """Whether it has answered since the controller was started."""
        return "unknown" not in self.state.lower()

    @property
    def answers(self) -> bool:
        """Whether its daemon answers the controller."""
        return not self.state.endswith("*")

    @property
    def in_service(self) -> bool:
        """Whether it takes jobs."""
        return _OUT_OF_SERVICE.search(self.state) is None

    @property
    def is_fenced(self) -> bool:
        """Whether it is switched off for certain: by Slurm, or as its administrator says."""
        down = self.state.lower().startswith("down")
        return self.state.lower().startswith("powered_down") or (down and self.reason.lower().startswith("fenced"))


class Snapshot(NamedTuple):
    """All of this user's jobs, by comment, and all nodes."""

    read_s: float  # when Slurm was asked, by the monotonic clock
    jobs: Mapping[str, tuple[Job, ...]]
    nodes: Mapping[str, Node]


def read_snapshot(commands: Commands) -> Snapshot:
    """Return what Slurm says.

    Raises:
        BackendError: If it does not answer, or in words that are not known.
    """
    read_s = time.monotonic()
    jobs: dict[str, list[Job]] = {}
    for line in commands.call("squeue", _JOBS).splitlines():
        number, state, comment = _fields(line, 3)
        jobs.setdefault(comment, []).append(Job(_number(number, line), state))
    # After the jobs: a controller that was started since then shows it by nodes that it does not know yet.
    nodes = {}
    for line in commands.call("sinfo", _NODES).splitlines():
        name, address, gres, state, reason = _fields(line, 5)
        nodes[name] = Node(address, types_of(gres), state, reason)
    return Snapshot(read_s, {comment: tuple(found) for comment, found in jobs.items()}, nodes)


def types_of(gres: str) -> dict[int, str]:
    """Return the type of gres that each GPU of a node is.

    Args:
        gres: As Slurm tells, such as `gpu:i0:1,gpu:i1:1(S:0)`.
    """
    bare = re.sub(r"\([^()]*\)", "", gres)  # without what stands in brackets, commas among it
    gpus = [part for part in bare.split(",") if part.startswith("gpu")]
    matches = [match for part in gpus if (match := _INDEXED.fullmatch(part))]
    types = {int(match[2]): match[1] for match in matches}
    exact = len(types) == len(gpus) and sorted(types) == list(range(len(types)))
    return types if exact else {}


def _fields(line: str, count: int) -> list[str]:
    fields = line.split("|", count - 1)
    if len(fields) != count:
        raise BackendError(f"Slurm says {line!r}, which has not {count} fields")
    return fields


def _number(text: str, line: str) -> int:
    number = re.match(r"\d+", text)
    if number is None:
        raise BackendError(f"Slurm says {line!r}, which names no job")
    return int(number[0])
