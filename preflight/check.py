"""What a check is, what it finds, which checks a round runs, and the report of a round.

Source: SPEC C2, C3, C4.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict, dataclass
from enum import StrEnum
from functools import cache
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import BaseModel, Field

from ..cluster.files.errors import PluginError
from ..cluster.files.plugins import load_as, registered

if TYPE_CHECKING:
    from .context import Context

Dtype = Literal["fp32", "bf16", "fp16"]  # that a job computes in
Collectives = Literal["gloo", "nccl"]  # library of its collectives
Attachment = Literal["host", "nic", "nvlink"]  # how a GPU is connected
ALL_ATTACHMENTS: tuple[Attachment, ...] = ("host", "nic", "nvlink")
Word = Annotated[str, Field(max_length=200)]
Amount = Annotated[float, Field(ge=0.0, le=1e18)]


class CheckedJob(BaseModel, frozen=True, extra="forbid"):
    """What of a job decides which checks make sense: what it computes with, and on what."""

    dtype: Dtype = "fp32"
    backend: Collectives = "gloo"  # of its collectives
    attachments: tuple[Attachment, ...] = ALL_ATTACHMENTS  # connections of its GPUs that it uses
    gpu_type: Word = ""  # any if empty
    gpu_memory_bytes: Amount = 0.0  # that it needs on each GPU
    link_bytes_per_s: Amount = 0.0  # between neighbours of its ring; 0 if unknown
    sample: Annotated[tuple[str, ...], Field(max_length=1000)] = ()  # command of two of its own steps; ours if empty
    sample_limit_s: Annotated[float, Field(gt=0.0, le=600.0)] = 60.0  # of that command
    sample_folder: str = ""  # in which it runs; a temporary one if empty
    environment: tuple[tuple[str, str], ...] = ()  # of that command, beside the variables that name its GPUs
    clock_mhz: Annotated[int, Field(ge=0)] = 0  # of its GPUs while it runs, 0 for the default
    power_w: Amount = 0.0  # power limit of each GPU while it runs, 0 for the default
    job: Word = ""  # whose processes may hold memory of its GPUs


MAX_LEVEL = 3
WRONG_ANSWER = "wrong"  # text of a finding: an answer arrived, but it is wrong
# Factor on the limit of a check that runs longer at higher levels: minutes at level 2, half an hour at level 3.
LONGER = {0: 1.0, 1: 1.0, 2: 60.0, 3: 600.0}


class CheckOutcome(StrEnum):
    """How a check ended."""

    PASS = "pass"
    WARN = "warn"  # should be inspected; the node may be used
    FAIL = "fail"
    INCOMPLETE = "incomplete"  # no result; it never counts as a pass
    SKIPPED = "skipped"  # it does not apply here, with the reason


BAD = (CheckOutcome.FAIL, CheckOutcome.INCOMPLETE)


class Need(StrEnum):
    """What a check needs of a node."""

    GPU = "gpu"  # a GPU that its driver reports
    NVLINK = "nvlink"  # the workload uses links between GPUs
    NIC = "nic"  # the workload uses the network, and sysfs has ports of the node
    HOST = "host"  # the workload reaches its GPUs through the host
    LOG = "log"  # the kernel's log, and the right to read it
    DCGM = "dcgm"  # NVIDIA's diagnostic tool
    WIRING = "wiring"  # a file of expected wiring
    SEVERAL = "several"  # more than one accelerator


class CheckStage(StrEnum):
    """When a check runs in a round."""

    NODE = "node"  # on each node by itself, first
    GROUP = "group"  # on all nodes together, once all have passed
    LAST = "last"  # on each node by itself, after the traffic of the others
    READY = "ready"  # on each node by itself, once all nodes have passed: settings that stay for the job
    AFTER = "after"  # when a job has ended
    ON_REQUEST = "on_request"  # only where another check, or a command, requests it


MAX_FINDING_CHARS = 1000
Text = Annotated[str, Field(max_length=MAX_FINDING_CHARS)]  # when it arrives from another process


@dataclass(frozen=True, slots=True)
class CheckFinding:
    """What a check finds about a node, or about one GPU, link or port of it."""

    outcome: CheckOutcome
    device: Text = ""  # the GPU, link or port; "" for the node
    got: Text = ""
    wanted: Text = ""
    action: Text = ""  # what repairs it
    reason: Text = ""  # why it was skipped, or is incomplete
    figure: float | None = None  # what the nodes are compared by
    text: Text = ""  # the same, where it has to be equal

    @property
    def is_bad(self) -> bool:
        """Whether it ends the list of its node: something is broken, or unknown."""
        return self.outcome in BAD


@dataclass(frozen=True, slots=True)
class CheckResult:
    """The result of a check on a node."""

    check: str
    node: str
    outcome: CheckOutcome
    device: str = ""
    got: str = ""
    wanted: str = ""
    action: str = ""
    reason: str = ""
    seconds: float = 0.0

    @property
    def line(self) -> str:
        """The result as one line for people."""
        where = f"{self.node} {self.device}".strip()
        evidence = f"got {self.got or 'nothing'}" + (f", wanted {self.wanted}" if self.wanted else "")
        detail = evidence if self.got or self.wanted else self.reason
        tail = f"; {self.action}" if self.action else ""
        return f"{where}: {self.check}: {self.outcome}: {detail}{tail}"


Findings = Iterable[CheckFinding]
Compared = Mapping[str, CheckFinding]  # by node


@dataclass(frozen=True, slots=True)
class Check:
    """One check. Register it under the entry point group `longshore.checks`, by its name.

    `run` is called in the process of the node. The process is killed if it takes longer than the limit. Anything that
    `run` raises is reported as incomplete. It need not yield findings that pass.
    """

    name: str
    level: int  # lowest at which it runs: 0 state, 1 a few seconds, 2 minutes, 3 to clear a quarantine
    about: str  # one line
    limit_s: float
    run: Callable[["Context"], Findings]
    needs: tuple[Need, ...] = ()
    stage: CheckStage = CheckStage.NODE
    compare: Callable[[Compared], Compared] | None = None  # of one device, between nodes; changed ones
    is_extendable: bool = False  # at higher levels it runs longer

    def limit_s_at(self, level: int) -> float:
        """Return the limit at a level, in seconds."""
        return self.limit_s * (LONGER[level] if self.is_extendable else 1.0)


def passed(device: str = "", *, figure: float | None = None, text: str = "", got: str = "") -> CheckFinding:
    """Return a finding that passes."""
    return CheckFinding(CheckOutcome.PASS, device, got=got, figure=figure, text=text)


def failed(device: str, got: object, wanted: object, action: str) -> CheckFinding:
    """Return a failure, with the evidence and what to do."""
    return CheckFinding(CheckOutcome.FAIL, device, str(got), str(wanted), action)


def warned(device: str, got: object, wanted: object, action: str) -> CheckFinding:
    """Return a warning."""
    return CheckFinding(CheckOutcome.WARN, device, str(got), str(wanted), action)


def fail_below_median(findings: Compared, share: float, wanted: Callable[[float], str], action: str) -> Compared:
    """Return failures of the nodes whose figure is below a share of the median.

    Args:
        findings: Of one device, by node.
        share: Of the median.
        wanted: Returns the words for what a median requires.
        action: What repairs it.
    """
    figures = sorted(finding.figure for finding in findings.values() if finding.figure is not None)
    median = figures[len(figures) // 2]
    return {
        node: failed(finding.device, finding.got, wanted(median), action)
        for node, finding in findings.items()
        if finding.figure is not None and finding.figure < share * median
    }


def skipped(reason: str, device: str = "") -> CheckFinding:
    """Return that a check does not apply, and why."""
    return CheckFinding(CheckOutcome.SKIPPED, device, reason=reason)


def incomplete(reason: str, action: str = "", device: str = "") -> CheckFinding:
    """Return that a check has no result, and why."""
    return CheckFinding(CheckOutcome.INCOMPLETE, device, reason=reason, action=action)


# Cheap checks that explain other failures come first; checks of third parties follow ours, by level and name.
_RUN_ORDER = (
    "response", "count.type", "driver.match", "ecc.volatile", "rows.remap", "xid.recent", "pcie.link", "nvlink.state",
    "nic.state", "wiring", "clocks.thermal", "mem.disk", "gemm.ref", "gemm.speed", "copy.h2d", "job.sample",
    "dcgm.1", "dcgm.2", "dcgm.3", "reduce.answer", "link.bw", "nvlink.errors", "nic.errors", "gpu.settings",
    "post.reset",
)  # fmt: skip
JOB_SAMPLE = "job.sample"
# Needs of a connection that a workload may not use.
ATTACHED = {Need.NVLINK: "nvlink", Need.NIC: "nic", Need.HOST: "host"}


@cache
def find_check(name: str) -> Check:
    """Return a check by the name that it is registered under.

    Raises:
        PluginError: If there is none, it cannot be imported, or it is registered under another name than its own.
    """
    check = load_as("checks", name, Check)
    if check.name != name:
        point = registered("checks")[name].value
        raise PluginError(f"preflight check {name!r} ({point}) has the name {check.name!r}; give both one name")
    return check


def all_checks() -> list[Check]:
    """Return all registered checks, in the order in which they run.

    Raises:
        PluginError: If one cannot be used.
    """

    def place(check: Check) -> tuple[int, int, str]:
        at = _RUN_ORDER.index(check.name) if check.name in _RUN_ORDER else len(_RUN_ORDER)
        return at, check.level, check.name

    return sorted((find_check(name) for name in registered("checks")), key=place)


def chosen_checks(stage: CheckStage, level: int, workload: CheckedJob) -> list[Check]:
    """Return the checks of a stage that a level and a workload need, in their order."""
    unused = {need for need, attachment in ATTACHED.items() if attachment not in workload.attachments}
    return [
        check
        for check in all_checks()
        if check.stage is stage and check.level <= level and unused.isdisjoint(check.needs)
    ]


def check_limit_s(check: Check, level: int, workload: CheckedJob) -> float:
    """Return the limit of a check, in seconds; that of the job's own sample is the job's."""
    own = check.name == JOB_SAMPLE and workload.sample
    return workload.sample_limit_s if own else check.limit_s_at(level)


@dataclass(frozen=True, slots=True)
class RoundReport:
    """The results of a round on all its nodes."""

    nodes: tuple[str, ...]
    results: tuple[CheckResult, ...]
    seconds: float = 0.0

    @property
    def passed(self) -> bool:
        """Whether a job may start on these nodes."""
        return not self.bad_nodes

    @property
    def bad_nodes(self) -> frozenset[str]:
        """Nodes with a check that failed or has no result."""
        return frozenset(result.node for result in self.results if result.outcome in BAD)

    @property
    def bad_results(self) -> tuple[CheckResult, ...]:
        """Results that failed or are incomplete."""
        return tuple(result for result in self.results if result.outcome in BAD)

    @property
    def warnings(self) -> tuple[CheckResult, ...]:
        """Results that are warnings."""
        return tuple(result for result in self.results if result.outcome is CheckOutcome.WARN)

    def diagnostics(self) -> tuple[str, ...]:
        """Return a line for each bad result: where, evidence, and what to do."""
        return tuple(result.line for result in self.bad_results)

    def as_json(self) -> Mapping[str, Any]:
        """Return the report as JSON; docs/preflight.md has the fields."""
        return {
            "passed": self.passed,
            "nodes": list(self.nodes),
            "bad_nodes": sorted(self.bad_nodes),
            "seconds": self.seconds,
            "results": [asdict(result) for result in self.results],
        }


def join_reports(reports: Iterable[RoundReport]) -> RoundReport:
    """Return several reports as one."""
    found = tuple(reports)
    nodes = dict.fromkeys(node for report in found for node in report.nodes)
    results = tuple(result for report in found for result in report.results)
    return RoundReport(tuple(nodes), results, sum(report.seconds for report in found))
