"""What Slurm says of its jobs and nodes at one moment."""

import re
import time
from collections.abc import Mapping
from typing import NamedTuple

from ....cluster.files.errors import BackendError
from .commands import Commands
from .words import NodeState, gres_of_node, state_of

_JOBS = ("--noheader", "--me", "--all", "--states=all", "--format=%i|%T|%k")
_NODES = ("--noheader", "--Node", "--all", "--format=%N|%o|%G|%T|%E")
# All others may still run, or run again without being asked to.
OVER = frozenset(
    ("BOOT_FAIL", "CANCELLED", "COMPLETED", "DEADLINE", "FAILED", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED",
     "REQUEUE_HOLD", "REVOKED", "SPECIAL_EXIT", "TIMEOUT")
)  # fmt: skip
TIMED_OUT = frozenset(("DEADLINE", "TIMEOUT"))
_INDEXED = re.compile(r"(?:.*\D)?([0-9]{1,5})")  # a type for each GPU, which ends in its index


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
    def means(self) -> NodeState:
        """What its state means."""
        return state_of(self.state)

    @property
    def is_known(self) -> bool:
        """Whether it has answered since the controller was started."""
        return self.means.base != "UNKNOWN"

    @property
    def answers(self) -> bool:
        """Whether its daemon answers the controller."""
        return "NOT_RESPONDING" not in self.means.flags

    @property
    def in_service(self) -> bool:
        """Whether it takes jobs."""
        return self.means.takes_jobs

    @property
    def is_down(self) -> bool:
        """Whether Slurm has lost it, or its administrator has taken it out at once."""
        return self.means.base == "DOWN"

    @property
    def is_fenced(self) -> bool:
        """Whether it is switched off for certain: by Slurm, or as its administrator says."""
        base, flags = self.means
        return "POWERED_DOWN" in (base, *flags) or (self.is_down and self.reason.lower().startswith("fenced"))


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
    """Return the type of gres that each GPU of a node is, by its index; none if Slurm cannot give one by its index.

    Args:
        gres: As Slurm tells, such as `gpu:i0:1,gpu:i1:1(S:0),gpumem:160G`. A GPU that Slurm counts as 0 has no type.
    """
    gpus = [it for it in gres_of_node(gres) if it.name == "gpu"]
    indexed = {int(found[1]): it for it in gpus if it.count <= 1 and (found := _INDEXED.fullmatch(it.type))}
    exact = len(indexed) == len(gpus) and sorted(indexed) == list(range(len(indexed)))
    return {index: it.type for index, it in indexed.items() if it.count == 1} if exact else {}


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
