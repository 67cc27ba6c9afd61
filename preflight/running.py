"""Lists of checks run on the processes of nodes, each check with a time limit, and findings compared between nodes.

Source: SPEC C4, C7.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait

from ..cluster.files.errors import BackendError
from .check import Check, CheckFinding, CheckOutcome, CheckResult, failed, find_check, incomplete, passed, skipped
from .warm import LocalNode
from .warm_worker import CheckRequest

TERM_S = 0.05  # between SIGTERM and SIGKILL
REAP_S = 0.10  # between SIGKILL and continuing without the end of the process
INSPECT_NODE = "inspect the node: run level 2 there, or restart it"
Progress = Callable[[str, str, CheckOutcome], None]  # node, check, and how that ended
Entry = tuple[Check, CheckFinding, float]  # a check, what it found, and its seconds
Found = dict[str, list[Entry]]  # by node


@dataclass
class _NodeRun:
    """A node that runs its list."""

    node: LocalNode
    requests: list[CheckRequest]
    at: int = 0
    found: list[Entry] = field(default_factory=list)
    until_s: float = 0.0  # of `time.monotonic`: end of the current wait
    began_s: float = 0.0
    ending: str = ""  # the signal that its process was sent: "", "term" or "kill"

    @property
    def request(self) -> CheckRequest:
        """The current one."""
        return self.requests[self.at]

    @property
    def check(self) -> Check:
        """The current one."""
        return find_check(self.request.check)

    @property
    def limit_s(self) -> float:
        """The limit of the current check."""
        return self.request.chosen.limit_s

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to run."""
        return self.at >= len(self.requests)


def run_lists(
    lists: Mapping[str, Sequence[CheckRequest]], nodes: Mapping[str, LocalNode], progress: Progress | None = None
) -> Found:
    """Run a list of checks on each node, all nodes at once. The first bad finding ends the list of its node only.

    Args:
        lists: By node. The nodes are warm, or count as dead.
        nodes: By name.
        progress: Called when a check has ended.

    Returns:
        What was found on each node.
    """
    runs = [_NodeRun(nodes[name], list(requests)) for name, requests in lists.items() if requests]
    for run in runs:
        _send_next(run)
    while running := [run for run in runs if not run.is_over]:
        until_s = min(run.until_s for run in running)
        wait([waitable for run in running for waitable in run.node.waitables()], max(0.0, until_s - time.monotonic()))
        for run in running:
            _advance(run, progress)
    return {name: next((run.found for run in runs if run.node.name == name), []) for name in lists}


def _send_next(run: _NodeRun) -> None:
    """Send the next request, if there is one."""
    if run.is_over:
        return
    run.began_s = time.monotonic()
    run.until_s = run.began_s + run.limit_s
    if not run.node.send(run.request):
        _end_list(run, _no_answer_finding(run, "its process ended"))


def _advance(run: _NodeRun, progress: Progress | None) -> None:
    """Process what a node has sent, and enforce its limit."""
    if run.is_over:  # its process had ended before the request
        return
    check, now_s = run.check, time.monotonic()
    if run.ending:
        _await_exit(run, now_s)
    else:
        _receive_reply(run, now_s)
    if progress is not None and (run.is_over or run.check is not check):
        progress(run.node.name, check.name, _worst_outcome(run, check))


def _receive_reply(run: _NodeRun, now_s: float) -> None:
    try:
        reply = run.node.receive()
    except BackendError as error:
        run.node.kill()
        _end_list(run, _no_answer_finding(run, str(error)))
        return
    if reply is not None:
        if reply.number == run.request.number:
            _finish_check(run, reply.findings, reply.seconds)
        return
    if now_s >= run.until_s:
        run.node.terminate()
        run.ending, run.until_s = "term", now_s + TERM_S


def _await_exit(run: _NodeRun, now_s: float) -> None:
    """Follow a process that got SIGTERM: it gets SIGKILL next, and the round continues if even that fails."""
    if run.node.is_gone():
        how = "ended on SIGTERM" if run.ending == "term" else "was killed, as SIGTERM did not end it"
        _end_list(run, _timeout_finding(run.limit_s, f"it {how}"))
    elif now_s >= run.until_s and run.ending == "term":
        run.node.kill()
        run.ending, run.until_s = "kill", now_s + REAP_S
    elif now_s >= run.until_s:
        how = f"it had not ended {REAP_S:g} s after SIGKILL: it hangs in the driver or a disk, or the node is busy"
        action = "check the load of the node; if its process stays, restart the node"
        _end_list(run, _timeout_finding(run.limit_s, how, action))


def _timeout_finding(limit_s: float, how_it_ended: str, action: str = INSPECT_NODE) -> CheckFinding:
    return failed("", f"no answer for {limit_s:g} s; {how_it_ended}", f"an answer within {limit_s:g} s", action)


def _no_answer_finding(run: _NodeRun, problem: str) -> CheckFinding:
    return failed("", problem, f"an answer within {run.limit_s:g} s", INSPECT_NODE)


def _finish_check(run: _NodeRun, findings: Sequence[CheckFinding], seconds: float) -> None:
    check = run.check
    run.found += [(check, finding, seconds) for finding in findings or [passed()]]
    if any(finding.is_bad for finding in findings):
        _skip_rest(run, check)
    else:
        run.at += 1
        _send_next(run)


def _end_list(run: _NodeRun, finding: CheckFinding) -> None:
    check = run.check
    run.found.append((check, finding, time.monotonic() - run.began_s))
    _skip_rest(run, check)


def _skip_rest(run: _NodeRun, bad: Check) -> None:
    reason = f"not run, as {bad.name} did not pass"
    run.found += [(find_check(request.check), skipped(reason), 0.0) for request in run.requests[run.at + 1 :]]
    run.at = len(run.requests)


def _worst_outcome(run: _NodeRun, check: Check) -> CheckOutcome:
    found = {finding.outcome for ran, finding, _ in run.found if ran is check}
    order = (CheckOutcome.FAIL, CheckOutcome.INCOMPLETE, CheckOutcome.WARN, CheckOutcome.PASS, CheckOutcome.SKIPPED)
    return next((outcome for outcome in order if outcome in found), CheckOutcome.PASS)


def compare_nodes(found: Mapping[str, Sequence[Entry]]) -> Found:
    """Return findings after those that checks compare between nodes were compared, device by device."""
    changed = {node: list(entries) for node, entries in found.items()}
    checks = {check.name: check for entries in found.values() for check, _, _ in entries if check.compare is not None}
    for check in checks.values():
        devices = {
            finding.device for entries in found.values() for ran, finding, _ in entries if ran.name == check.name
        }
        for device in devices:
            _compare_device(check, device, changed)
    return changed


def _compare_device(check: Check, device: str, found: Found) -> None:
    places = {
        node: at
        for node, entries in found.items()
        for at, (ran, finding, _) in enumerate(entries)
        if ran.name == check.name and finding.device == device and finding.outcome is CheckOutcome.PASS
    }
    if len(places) < 2 or check.compare is None:
        return
    try:
        changes = check.compare({node: found[node][at][1] for node, at in places.items()})
    except Exception as error:  # a third party's check may fail in any way
        changes = {node: incomplete(f"its comparison broke: {error}") for node in places}
    for node, finding in changes.items():
        if node in places:
            _, _, seconds = found[node][places[node]]
            found[node][places[node]] = (check, finding, seconds)


def results_of(found: Mapping[str, Sequence[Entry]]) -> list[CheckResult]:
    """Return findings as results."""
    return [
        CheckResult(
            check.name, node, finding.outcome, finding.device, finding.got, finding.wanted, finding.action,
            finding.reason, seconds,
        )
        for node, entries in found.items()
        for check, finding, seconds in entries
    ]  # fmt: skip
