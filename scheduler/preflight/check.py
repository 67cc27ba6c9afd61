"""A check, what it finds, and what becomes of it.

Source: SPEC C2, C3, C4.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from .context import Context

MOST_LEVEL = 3
WRONG = "wrong"  # text of a finding whose answer came, but is not what it should be
# A check that may go on longer is given this many times its limit: minutes at level 2, and half an hour at level 3.
LONGER = {0: 1.0, 1: 1.0, 2: 60.0, 3: 600.0}


class Outcome(StrEnum):
    """How a check ended."""

    PASS = "pass"
    WARN = "warn"  # worth a look; the node may be used
    FAIL = "fail"
    INCOMPLETE = "incomplete"  # nobody knows; it never counts as a pass
    SKIPPED = "skipped"  # it does not apply here, with the reason


class Need(StrEnum):
    """What has to be there for a check to make sense."""

    GPU = "gpu"  # a GPU that its driver tells of
    NVLINK = "nvlink"  # the workload uses links between GPUs
    NIC = "nic"  # the workload uses the network, and the node has ports that sysfs tells of
    HOST = "host"  # the workload's GPUs are reached through the host
    LOG = "log"  # the kernel's log, and the right to read it
    DCGM = "dcgm"  # NVIDIA's diagnostics
    WIRING = "wiring"  # a file of expected wiring
    SEVERAL = "several"  # more than one accelerator


class Stage(StrEnum):
    """When a check runs in a round."""

    NODE = "node"  # on each node by itself, first
    GROUP = "group"  # on all nodes together, once all have passed
    LAST = "last"  # on each node by itself, after the traffic of the others
    READY = "ready"  # on each node by itself, once all checks of all nodes have passed: what stays so for the job
    AFTER = "after"  # when a job has ended
    ASKED = "asked"  # only where another check asks for it


@dataclass(frozen=True, slots=True)
class Finding:
    """What a check says of a node, or of one GPU, link or port of it."""

    outcome: Outcome
    device: str = ""  # the GPU, link or port; "" for the node
    got: str = ""
    wanted: str = ""
    action: str = ""  # what puts it right
    reason: str = ""  # why it was skipped, or is incomplete
    figure: float | None = None  # what the nodes are compared by
    text: str = ""  # the same, where it has to be equal


@dataclass(frozen=True, slots=True)
class Result:
    """What became of a check on a node."""

    check: str
    node: str
    outcome: Outcome
    device: str = ""
    got: str = ""
    wanted: str = ""
    action: str = ""
    reason: str = ""
    seconds: float = 0.0

    @property
    def words(self) -> str:
        """For people, in one line."""
        where = f"{self.node} {self.device}".strip()
        evidence = f"got {self.got or 'nothing'}" + (f", wanted {self.wanted}" if self.wanted else "")
        told = evidence if self.got or self.wanted else self.reason
        tail = f"; {self.action}" if self.action else ""
        return f"{where}: {self.check}: {self.outcome}: {told}{tail}"


Findings = Iterable[Finding]
Compared = Mapping[str, Finding]  # by node


@dataclass(frozen=True, slots=True)
class Check:
    """One check. Register it under the entry point group `longshore.checks`, by its name.

    `run` is called in a process of its own for the node. It is killed if it takes longer than the limit, and anything
    that it raises is told as incomplete. Findings that pass need not be told.
    """

    name: str
    level: int  # the least at which it runs: 0 state, 1 a few seconds, 2 minutes, 3 to clear a quarantine
    about: str  # in a line
    limit_s: float
    run: Callable[["Context"], Findings]
    needs: tuple[Need, ...] = ()
    stage: Stage = Stage.NODE
    compare: Callable[[Compared], Compared] | None = None  # of one device on all nodes: returns what it finds otherwise
    goes_on: bool = False  # at higher levels it runs longer

    def limit_at(self, level: int) -> float:
        """Return how long it may take, in seconds.

        Args:
            level: Of the round.
        """
        return self.limit_s * (LONGER[level] if self.goes_on else 1.0)


def passed(device: str = "", *, figure: float | None = None, text: str = "", got: str = "") -> Finding:
    """Return that all is well."""
    return Finding(Outcome.PASS, device, got=got, figure=figure, text=text)


def failed(device: str, got: object, wanted: object, action: str) -> Finding:
    """Return that something is broken, with the evidence and what to do."""
    return Finding(Outcome.FAIL, device, str(got), str(wanted), action)


def warned(device: str, got: object, wanted: object, action: str) -> Finding:
    """Return that something is worth a look."""
    return Finding(Outcome.WARN, device, str(got), str(wanted), action)


def skipped(reason: str, device: str = "") -> Finding:
    """Return that a check does not apply."""
    return Finding(Outcome.SKIPPED, device, reason=reason)


def incomplete(reason: str, action: str = "", device: str = "") -> Finding:
    """Return that nobody knows."""
    return Finding(Outcome.INCOMPLETE, device, reason=reason, action=action)
