"""What every preflight check must do (longshore.preflight.check)."""

import tempfile
import time
from dataclasses import replace
from pathlib import Path

from ..preflight.check import MAX_LEVEL, Check, CheckedJob, CheckFinding, CheckOutcome, CheckStage, Need
from ..preflight.context import CheckGroup, CheckScope, Context, NodeSetup, open_context
from ..preflight.warm_worker import decode_reply, encode_reply

WORDS, RUNS = 120, 3  # characters of `about`; times that it is run


def check_preflight_check(check: Check) -> None:
    """Check a preflight check on a node of this machine, with slots in place of GPUs.

    It must have a limit and keep it, and yield only findings. A failure must name what it got, what it expected, and
    what to do. A finding that is skipped or incomplete must have a reason. Findings must survive the way from the
    check's process.

    Args:
        check: What is registered.

    Raises:
        AssertionError: With what is broken.
    """
    assert isinstance(check, Check), f"it is {type(check).__name__}, not a Check"
    _check_fields(check)
    with tempfile.TemporaryDirectory() as folder:
        context = _one_node_context(check, Path(folder))
        if any(context.why_unmet(need) is not None for need in check.needs):
            return
        took_s = float("inf")
        for run in range(RUNS):  # the shortest counts: others want the processor, too
            begin_s = time.perf_counter()
            found = list(check.run(replace(context, group=_one_node_group(folder, str(run)))))
            took_s = min(took_s, time.perf_counter() - begin_s)
    assert took_s <= check.limit_s, f"it took {took_s:.3g} s, longer than its limit of {check.limit_s:g} s"
    for finding in found:
        assert isinstance(finding, CheckFinding), f"it found {finding!r}, which is no Finding"
        _check_finding(finding)
    received = decode_reply(encode_reply(1, found, took_s)).findings
    assert [each.outcome for each in received] == [each.outcome for each in found], "its findings change in transit"


def _check_fields(check: Check) -> None:
    assert check.name, "its name is empty"
    assert 0 <= check.level <= MAX_LEVEL, f"its level is {check.level}, not 0 to {MAX_LEVEL}"
    assert check.limit_s > 0.0, f"its limit is {check.limit_s} s"
    assert 0 < len(check.about) <= WORDS, f"`about` has {len(check.about)} characters, not 1 to {WORDS}"
    assert set(check.needs) <= set(Need), f"it needs {check.needs}, not all of which are a Need"
    assert check.stage in CheckStage, f"its stage is {check.stage!r}"


def _check_finding(finding: CheckFinding) -> None:
    if finding.outcome is CheckOutcome.FAIL:
        missing = [name for name in ("got", "wanted", "action") if not getattr(finding, name)]
        assert not missing, f"it fails without {', '.join(missing)}"
    if finding.outcome in (CheckOutcome.SKIPPED, CheckOutcome.INCOMPLETE):
        assert finding.reason, f"it is {finding.outcome} without a reason"


def _one_node_context(check: Check, folder: Path) -> Context:
    context = open_context(NodeSetup("here", folder, slots=True))
    context.workload = CheckedJob()
    context.chosen = CheckScope((0, 1), ("here",), max(check.level, 1), check.limit_s)
    context.group = _one_node_group(str(folder), "first")
    return context


def _one_node_group(folder: str, name: str) -> CheckGroup:
    return CheckGroup(name, ("here",), (2,), folder)
