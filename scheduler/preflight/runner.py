"""Lists of checks on all nodes at once, on each node one after the other, with limits that are kept from outside.

Source: SPEC C2, C10.
"""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import wait

from ...cluster.files.errors import BackendError
from .check import Check, Finding, Outcome, Result, incomplete, skipped
from .context import is_bad
from .warm.messages import Order
from .warm.process import Node

TERM_S = 0.05  # between asking a process to end and killing it
REAP_S = 0.10  # between killing it and going on without having seen it end
LATE, DEAD = "no answer", "its process ended"
LOOK_AT_NODE = "look at the node: run level 2 there, or restart it"
Progress = Callable[[str, str, Outcome], None]  # node, check, and how that ended


@dataclass(frozen=True, slots=True)
class Step:
    """A check that a node is to run, and what it is told for it."""

    check: Check
    order: Order
    limit_s: float


@dataclass
class _Turn:
    """A node on its way through its list."""

    node: Node
    steps: list[Step]
    at: int = 0
    found: list[tuple[Check, Finding, float]] = field(default_factory=list)
    until_s: float = 0.0  # of `time.monotonic`, for what it is waited for
    began_s: float = 0.0
    ending: str = ""  # "", "term" or "kill": what it was sent

    @property
    def step(self) -> Step:
        """The one that runs."""
        return self.steps[self.at]

    @property
    def is_over(self) -> bool:
        """Whether there is nothing more to run."""
        return self.at >= len(self.steps)


def run_lists(
    lists: Mapping[str, Sequence[Step]], nodes: Mapping[str, Node], progress: Progress | None = None
) -> dict[str, list[tuple[Check, Finding, float]]]:
    """Run a list of checks on each node; the first that fails ends the list of its node, and of no other.

    Args:
        lists: By node. The nodes are warm, or taken for dead.
        nodes: By name.
        progress: Called when a check has ended.

    Returns:
        What was found on each node, with the seconds that each check took.
    """
    turns = [_Turn(nodes[name], list(steps)) for name, steps in lists.items() if steps]
    for turn in turns:
        _begin(turn)
    while running := [turn for turn in turns if not turn.is_over]:
        until_s = min(turn.until_s for turn in running)
        wait([it for turn in running for it in turn.node.waits_for()], max(0.0, until_s - time.monotonic()))
        for turn in running:
            _look(turn, progress)
    return {name: next((it.found for it in turns if it.node.name == name), []) for name in lists}


def _begin(turn: _Turn) -> None:
    """Order the next check, if there is one."""
    if turn.is_over:
        return
    turn.began_s = time.monotonic()
    turn.until_s = turn.began_s + turn.step.limit_s
    if not turn.node.send(turn.step.order):
        _end_list(turn, _ended_with(turn, DEAD))


def _look(turn: _Turn, progress: Progress | None) -> None:
    """Take what has come from a node, and see to its limit."""
    if turn.is_over:  # it ended when it was begun
        return
    check, now_s = turn.step.check, time.monotonic()
    if turn.ending:
        _see_it_end(turn, now_s)
    else:
        _take_answer(turn, now_s)
    if progress is not None and (turn.is_over or turn.step.check is not check):
        progress(turn.node.name, check.name, _worst(turn, check))


def _take_answer(turn: _Turn, now_s: float) -> None:
    try:
        came = turn.node.receive()
    except BackendError as error:
        turn.node.kill()
        _end_list(turn, _ended_with(turn, str(error)))
        return
    if came is not None:
        answer, findings = came
        if answer.number == turn.step.order.number:
            _take(turn, findings, answer.seconds)
        return
    if now_s >= turn.until_s:
        turn.node.terminate()
        turn.ending, turn.until_s = "term", now_s + TERM_S


def _see_it_end(turn: _Turn, now_s: float) -> None:
    """Follow a process that has been told to end: it is killed, and not waited for if even that does not help."""
    late_s = turn.step.limit_s
    if turn.node.is_gone():
        how = "ended when it was asked to" if turn.ending == "term" else "was killed, as SIGTERM did not end it"
        _end_list(turn, _late(late_s, f"it {how}"))
    elif now_s >= turn.until_s and turn.ending == "term":
        turn.node.kill()
        turn.ending, turn.until_s = "kill", now_s + REAP_S
    elif now_s >= turn.until_s:
        how = f"it had not ended {REAP_S:g} s after SIGKILL: it hangs in the driver or a disk, or the node is busy"
        _end_list(turn, _late(late_s, how, "look at the load of the node; if its process stays, restart the node"))


def _late(limit_s: float, how: str, action: str = LOOK_AT_NODE) -> Finding:
    return Finding(Outcome.FAIL, got=f"{LATE} for {limit_s:g} s; {how}", wanted=f"an answer within {limit_s:g} s",
                   action=action)  # fmt: skip


def _ended_with(turn: _Turn, problem: str) -> Finding:
    return Finding(Outcome.FAIL, got=problem, wanted=f"an answer within {turn.step.limit_s:g} s", action=LOOK_AT_NODE)


def _take(turn: _Turn, findings: list[Finding], seconds: float) -> None:
    check = turn.step.check
    turn.found += [(check, it, seconds) for it in findings or [Finding(Outcome.PASS)]]
    if any(is_bad(it) for it in findings):
        _skip_rest(turn, check)
    else:
        turn.at += 1
        _begin(turn)


def _end_list(turn: _Turn, finding: Finding) -> None:
    check = turn.step.check
    turn.found.append((check, finding, time.monotonic() - turn.began_s))
    _skip_rest(turn, check)


def _skip_rest(turn: _Turn, failed: Check) -> None:
    rest = turn.steps[turn.at + 1 :]
    turn.found += [(it.check, skipped(f"not run, as {failed.name} did not pass"), 0.0) for it in rest]
    turn.at = len(turn.steps)


def _worst(turn: _Turn, check: Check) -> Outcome:
    found = {finding.outcome for told, finding, _ in turn.found if told is check}
    order = (Outcome.FAIL, Outcome.INCOMPLETE, Outcome.WARN, Outcome.PASS, Outcome.SKIPPED)
    return next((it for it in order if it in found), Outcome.PASS)


def compared(
    found: Mapping[str, Sequence[tuple[Check, Finding, float]]],
) -> dict[str, list[tuple[Check, Finding, float]]]:
    """Return findings after the nodes were held against each other, device by device."""
    changed = {node: list(it) for node, it in found.items()}
    checks = {check.name: check for it in found.values() for check, _, _ in it if check.compare is not None}
    for check in checks.values():
        devices = {it.device for told in found.values() for which, it, _ in told if which.name == check.name}
        for device in devices:
            _compare(check, device, changed)
    return changed


def _compare(check: Check, device: str, found: dict[str, list[tuple[Check, Finding, float]]]) -> None:
    places = {
        node: at
        for node, told in found.items()
        for at, (which, finding, _) in enumerate(told)
        if which.name == check.name and finding.device == device and finding.outcome is Outcome.PASS
    }
    if len(places) < 2 or check.compare is None:
        return
    try:
        others = check.compare({node: found[node][at][1] for node, at in places.items()})
    except Exception as error:  # a stranger's check may fail in any way
        others = {node: incomplete(f"its comparison broke: {error}") for node in places}
    for node, finding in others.items():
        if node in places:
            _, _, seconds = found[node][places[node]]
            found[node][places[node]] = (check, finding, seconds)


def results_of(found: Mapping[str, Sequence[tuple[Check, Finding, float]]]) -> list[Result]:
    """Return findings as results."""
    return [
        Result(check.name, node, it.outcome, it.device, it.got, it.wanted, it.action, it.reason, seconds)
        for node, told in found.items()
        for check, it, seconds in told
    ]
