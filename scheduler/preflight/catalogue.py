"""All registered checks, and which of them a round runs in which order."""

from functools import cache

from ...cluster.files.errors import PluginError
from ...cluster.files.plugins import load_as, registered
from .check import Check, Need, Stage
from .workload import Workload

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


def chosen_checks(stage: Stage, level: int, workload: Workload) -> list[Check]:
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


def limit_of(check: Check, level: int, workload: Workload) -> float:
    """Return how long a check of a workload may take, in seconds: its own sample as long as it says."""
    own = check.name == SAMPLE and workload.sample
    return workload.sample_limit_s if own else check.limit_at(level)


def _fits(need: Need, workload: Workload) -> bool:
    return need not in _ATTACHED or _ATTACHED[need] in workload.attachments


def _place(check: Check) -> tuple[int, int, str]:
    return (_ORDER.index(check.name) if check.name in _ORDER else _FAR, check.level, check.name)
