"""What a check is, what it finds, which checks a round runs, and what a round came to.

Source: SPEC C2, C3, C4.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Any

from ..cluster.files.errors import PluginError
from ..cluster.files.plugins import load_as, registered
from .checked_job import CheckedJob

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


# First what is cheap and explains the rest; others stand behind ours, by level and name.
_ORDER = (
    "response", "count.type", "driver.match", "ecc.volatile", "rows.remap", "xid.recent", "pcie.link", "nvlink.state",
    "nic.state", "wiring", "clocks.thermal", "mem.disk", "gemm.ref", "gemm.speed", "copy.h2d", "job.sample",
    "dcgm.1", "dcgm.2", "dcgm.3", "reduce.answer", "link.bw", "nvlink.errors", "nic.errors", "gpu.settings",
    "post.reset",
)  # fmt: skip
_FAR = len(_ORDER)
SAMPLE = "job.sample"
# Checks of something that a workload may do without.
_ATTACHED = {Need.NVLINK: "nvlink", Need.NIC: "nic", Need.HOST: "host"}


@cache
def find_check(name: str) -> Check:
    """Return a check by the name that it is registered under.

    Raises:
        PluginError: If there is none, it cannot be imported, or it is registered under another name than its own.
    """
    check = load_as("checks", name, Check)
    if check.name != name:
        point = registered("checks")[name].value
        raise PluginError(f"preflight check {name!r} ({point}) calls itself {check.name!r}; give both one name")
    return check


def all_checks() -> list[Check]:
    """Return all registered checks, in the order in which they run.

    Raises:
        PluginError: If one cannot be used.
    """
    return sorted((find_check(name) for name in registered("checks")), key=_place)


def chosen_checks(stage: Stage, level: int, workload: CheckedJob) -> list[Check]:
    """Return the checks of a stage that a level and a workload call for, in their order.

    Args:
        stage: When they run.
        level: 0 to 3.
        workload: Links that it does not use are not looked at.
    """
    return [
        check
        for check in all_checks()
        if check.stage is stage and check.level <= level and all(_fits(need, workload) for need in check.needs)
    ]


def limit_of(check: Check, level: int, workload: CheckedJob) -> float:
    """Return how long a check of a workload may take, in seconds: its own sample as long as it says."""
    own = check.name == SAMPLE and workload.sample
    return workload.sample_limit_s if own else check.limit_at(level)


def _fits(need: Need, workload: CheckedJob) -> bool:
    return need not in _ATTACHED or _ATTACHED[need] in workload.attachments


def _place(check: Check) -> tuple[int, int, str]:
    return (_ORDER.index(check.name) if check.name in _ORDER else _FAR, check.level, check.name)


BAD = (Outcome.FAIL, Outcome.INCOMPLETE)


@dataclass(frozen=True, slots=True)
class Report:
    """The results of a round on all its nodes."""

    nodes: tuple[str, ...]
    results: tuple[Result, ...]
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether a job may start on these nodes."""
        return not self.bad_nodes

    @property
    def bad_nodes(self) -> frozenset[str]:
        """Nodes with a check that failed or did not come to an end."""
        return frozenset(result.node for result in self.results if result.outcome in BAD)

    @property
    def bad(self) -> tuple[Result, ...]:
        """What failed or did not come to an end."""
        return tuple(result for result in self.results if result.outcome in BAD)

    @property
    def warnings(self) -> tuple[Result, ...]:
        """What is worth a look."""
        return tuple(result for result in self.results if result.outcome is Outcome.WARN)

    def diagnostics(self) -> tuple[str, ...]:
        """Return a line for each thing that is wrong: where, evidence, and what to do."""
        return tuple(result.words for result in self.bad)

    def as_json(self) -> Mapping[str, Any]:
        """Return all of it as JSON has it; docs/preflight.md has the fields."""
        return {
            "passed": self.passed,
            "nodes": list(self.nodes),
            "bad_nodes": sorted(self.bad_nodes),
            "seconds": self.seconds,
            "results": [asdict(result) for result in self.results],
        }


def joined(reports: Iterable[Report]) -> Report:
    """Return several reports as one."""
    found = tuple(reports)
    nodes = dict.fromkeys(node for report in found for node in report.nodes)
    results = tuple(result for report in found for result in report.results)
    return Report(tuple(nodes), results, sum(report.seconds for report in found))
