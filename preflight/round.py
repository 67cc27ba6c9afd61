"""A round of checks on the nodes of a placement: run with limits, bad members isolated, and what follows.

Source: SPEC C1 to C4, C10, C2, C3, C4, C5, C7; the pairwise sweeps of cluster health tools.
"""

import itertools
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from multiprocessing.connection import wait

from ..cluster.files.errors import BackendError
from ..cluster.model.placement import Placement, Share
from .check import (
    WRONG,
    Check,
    Finding,
    Outcome,
    Report,
    Result,
    Stage,
    chosen_checks,
    failed,
    find_check,
    incomplete,
    limit_of,
    passed,
    skipped,
)
from .checked_job import CheckedJob
from .context import Chosen, Group, NodeSetup, is_bad
from .warm import WARM_S, LocalNode, Node
from .warm_worker import Order

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


Pair = tuple[str, str]


@dataclass(frozen=True, slots=True)
class Verdict:
    """Who is bad, and who cannot be told apart."""

    bad: frozenset[str] = frozenset()
    unclear: frozenset[str] = frozenset()  # no good partner was left to try them with


def first_pairs(members: Sequence[str]) -> list[list[Pair]]:
    """Return pairs of neighbours, in rounds of pairs that are disjoint.

    One round will do: of an odd number the last member has no partner, and is tried later. Three members take three
    rounds, as nobody would be known to be good otherwise.
    """
    if len(members) == 3:
        return [[(members[0], members[1])], [(members[1], members[2])], [(members[2], members[0])]]
    return [[(members[at], members[at + 1]) for at in range(0, len(members) - 1, 2)]]


def suspects_of(members: Sequence[str], bad_pairs: Iterable[Pair]) -> list[str]:
    """Return the members that have not been in a pair that was good, in their order."""
    bad = set(bad_pairs)
    good = {member for pairs in first_pairs(members) for pair in pairs if pair not in bad for member in pair}
    return [member for member in members if member not in good]


def second_pairs(members: Sequence[str], suspects: Sequence[str]) -> list[list[Pair]]:
    """Return each suspect with a good member, in as few rounds of disjoint pairs as can be.

    Returns:
        The rounds; none if nobody is known to be good.
    """
    good = [member for member in members if member not in suspects]
    if not good:
        return []
    return [list(zip(suspects[at : at + len(good)], good, strict=False)) for at in range(0, len(suspects), len(good))]


def verdict_of(members: Sequence[str], suspects: Sequence[str], bad_second: Iterable[Pair]) -> Verdict:
    """Return who is bad.

    Args:
        members: All of them.
        suspects: Of the first pairs.
        bad_second: Pairs of a suspect and a good member that were bad.
    """
    if len(suspects) == len(members):
        return Verdict(unclear=frozenset(suspects))
    return Verdict(bad=frozenset(suspect for suspect, _ in bad_second))


Entry = tuple[Check, Finding, float]
Found = dict[str, list[Entry]]
REDUCTION, ISOLATION = "reduce.answer", "pair.isolate"
REPLACE = "run level 2 on the node; replace its GPU if gemm.ref fails there"
_NUMBERS = itertools.count(1)


def preflight(
    placement: Placement,
    workload: CheckedJob,
    nodes: Mapping[str, Node],
    *,
    level: int = 1,
    cleared_s: float = 0.0,
    progress: Progress | None = None,
) -> Report:
    """Check the nodes of a placement, and the links between them.

    Each node runs its own checks, all nodes at once. Those that take all nodes together follow, if every node has
    passed. So a round names every bad node, and one that hangs holds up no other.

    Args:
        placement: The GPUs that were chosen; the ring goes through the nodes in their order.
        workload: Says which checks make sense.
        nodes: By name; those of the placement, at least. They are started if they do not run.
        level: 0 to 3.
        cleared_s: When the nodes were cleared, in seconds since the boot; older faults in the log are over.
        progress: Called when a check has ended on a node.

    Raises:
        PluginError: If a registered check cannot be used.
        KeyError: If a node is missing.
    """
    begin_s = time.monotonic()
    asking = _Round(placement, workload, nodes, level, cleared_s, progress)
    cold = asking.warm_up()
    found = asking.by_node(Stage.NODE, [name for name in asking.names if name not in cold])
    found |= cold
    groups = chosen_checks(Stage.GROUP, level, workload)
    if _all_well(found):
        asking.together(groups, found)
    else:
        _not_run(groups, found)
    well = [name for name in asking.names if not any(is_bad(it) for _, it, _ in found[name])]
    for name, told in asking.by_node(Stage.LAST, well).items():
        found[name] += told
    if _all_well(found):
        asking.make_ready(found)
    return Report(tuple(asking.names), tuple(results_of(found)), time.monotonic() - begin_s)


def check_place(place: NodeSetup, gpus: tuple[int, ...], level: int = 1) -> tuple[bool, str]:
    """Check some GPUs of one node that no job uses, in a process of its own, so that no job waits for it.

    Args:
        place: The node.
        gpus: Of the node.
        level: 0 to 3.

    Returns:
        Whether all passed, and what was found, as one line.
    """
    node = LocalNode(place)
    try:
        report = preflight((Share(place.node, gpus),), CheckedJob(), {place.node: node}, level=level)
    finally:
        node.close()
    ran = [it for it in report.results if it.outcome != "skipped"]
    return report.passed, "; ".join(report.diagnostics()) or f"{len(ran)} checks passed in {report.seconds:.1f} s"


def clean_up(
    placement: Placement, workload: CheckedJob, nodes: Mapping[str, Node], *, attempt: str, scratch: str = ""
) -> Report:
    """Put nodes in order after a job. A bad node of the report is to be kept out of service.

    Args:
        placement: The GPUs that the job had.
        workload: What it was.
        nodes: By name.
        attempt: Whose processes are killed, if some are left.
        scratch: Absolute path of a folder that is removed on each node; none if "".

    Raises:
        PluginError: If a registered check cannot be used.
    """
    begin_s = time.monotonic()
    asking = _Round(placement, workload, nodes, 0, 0.0, None, attempt, scratch)
    cold = asking.warm_up()
    found = cold | asking.by_node(Stage.AFTER, [name for name in asking.names if name not in cold])
    return Report(tuple(asking.names), tuple(results_of(found)), time.monotonic() - begin_s)


def ask_all(check: Check, placement: Placement, workload: CheckedJob, nodes: Mapping[str, Node]) -> Found:
    """Run one check on all nodes of a placement, each by itself, and return what it finds, by node."""
    asking = _Round(placement, workload, nodes, 0, 0.0, None)
    cold = asking.warm_up()
    lists = {name: [asking.step(check, name, None)] for name in asking.names if name not in cold}
    return run_lists(lists, asking.nodes) | cold


class _Round:
    """What all parts of a round need."""

    def __init__(
        self,
        placement: Placement,
        workload: CheckedJob,
        nodes: Mapping[str, Node],
        level: int,
        cleared_s: float,
        progress: Progress | None,
        attempt: str = "",
        scratch: str = "",
    ) -> None:
        self.shares = {share.node: share.gpus for share in placement}
        self.names = list(self.shares)
        self.nodes = {name: nodes[name] for name in self.names}
        self.workload, self.level, self.cleared_s, self.progress = workload, level, cleared_s, progress
        self.attempt, self.scratch = attempt, scratch

    def warm_up(self) -> Found:
        """Start all nodes, and return what is told of those that do not come up."""
        for node in self.nodes.values():
            node.begin()
        until_s = time.monotonic() + WARM_S
        cold = [name for name, node in self.nodes.items() if not node.is_warm(max(0.0, until_s - time.monotonic()))]
        wanted = f"a process that is ready within {WARM_S:g} s"
        finding = Finding(
            Outcome.FAIL, got="none", wanted=wanted, action="look at the log of its process; restart the node's agent"
        )
        return {name: [(find_check("response"), finding, 0.0)] for name in cold}

    def by_node(self, stage: Stage, names: Sequence[str]) -> Found:
        """Run the checks of a stage on some nodes, each by itself, and hold what they find against each other."""
        checks = chosen_checks(stage, self.level, self.workload)
        lists = {name: [self.step(check, name, None) for check in checks] for name in names}
        return compared(run_lists(lists, self.nodes, self.progress))

    def make_ready(self, found: Found) -> None:
        """Let nodes be as the job wants them while it runs; if one cannot be, the others are as before."""
        ready = self.by_node(Stage.READY, self.names)
        for name, told in ready.items():
            found[name] += told
        if not _all_well(ready):
            self.by_node(Stage.AFTER, self.names)

    def together(self, checks: Sequence[Check], found: Found) -> None:
        """Run checks that take all nodes, one after the other; the first that fails ends them."""
        with _meeting_place() as store:
            for at, check in enumerate(checks):
                told = _blaming(self._in_groups(check, [self.names], store))
                for name, findings in told.items():
                    found[name] += findings
                if not _all_well(told):
                    if check.name == REDUCTION:
                        self._isolate(check, found, store)
                    _not_run(checks[at + 1 :], found, f"not run, as {check.name} did not pass")
                    return

    def _in_groups(self, check: Check, groups: Sequence[Sequence[str]], store: str) -> Found:
        """Run a check in several groups at once that have no node in common."""
        lists = dict[str, list[Step]]()
        for members in groups:
            shares = tuple(len(self.shares[name]) for name in members)
            group = Group(f"{os.getpid()}-{next(_NUMBERS)}", tuple(members), shares, store)
            lists |= {name: [self.step(check, name, group)] for name in members}
        return compared(run_lists(lists, self.nodes, self.progress))

    def _isolate(self, check: Check, found: Found, store: str) -> None:
        """Find out which node makes a reduction wrong; the others are cleared of it.

        Nothing is found out where a node does not answer, which is told already, or where there are two nodes only.
        """
        wrong = [name for name in self.names if any(it.text == WRONG for it in _of(found, name, check))]
        if len(wrong) < len(self.names) or len(self.names) < 3:
            return
        first = self._bad_pairs(first_pairs(self.names), store)
        suspects = suspects_of(self.names, first)
        second = self._bad_pairs(second_pairs(self.names, suspects), store)
        verdict = verdict_of(self.names, suspects, second)
        if verdict.bad:
            self._clear(check, found, verdict.bad, [*first, *second])

    def _bad_pairs(self, rounds: Sequence[Sequence[Pair]], store: str) -> list[Pair]:
        found = []
        for pairs in rounds:
            told = self._in_groups(find_check(ISOLATION), pairs, store)
            found += [pair for pair in pairs if not _all_well({name: told[name] for name in pair})]
        return found

    def _clear(self, check: Check, found: Found, bad: frozenset[str], pairs: Sequence[Pair]) -> None:
        """Hold a wrong reduction against those that make it wrong in pairs, too, and against nobody else."""
        isolation, right = find_check(ISOLATION), f"right without {', '.join(sorted(bad))}"
        for name in self.names:
            table = ", ".join(" with ".join(pair) for pair in pairs if name in pair)
            blamed = failed("", f"wrong in the pairs {table}", "right with a good partner", REPLACE)
            if name not in bad:
                found[name] = [_pardoned(entry, check) for entry in found[name]]
            found[name].append((isolation, blamed if name in bad else passed(got=right), 0.0))

    def step(self, check: Check, name: str, group: Group | None) -> Step:
        limit_s = limit_of(check, self.level, self.workload)
        chosen = Chosen(
            self.shares[name], tuple(self.names), self.level, limit_s, self.cleared_s, self.attempt, self.scratch
        )
        order = Order(number=next(_NUMBERS), check=check.name, chosen=chosen, workload=self.workload, group=group)
        return Step(check, order, limit_s)


def _of(found: Found, name: str, check: Check) -> list[Finding]:
    return [it for which, it, _ in found[name] if which is check]


def _pardoned(entry: Entry, check: Check) -> Entry:
    """Return a finding of a check as a warning, and any other as it is."""
    which, finding, seconds = entry
    if which is not check or not is_bad(finding):
        return entry
    return (which, replace(finding, outcome=Outcome.WARN, action="none here: another node is to blame"), seconds)


def _blaming(found: Found) -> Found:
    """Return findings of a group in which nobody is blamed for waiting in vain, if it is known for whom."""
    absent = [
        node for node, told in found.items() if any(it.outcome is Outcome.FAIL and not it.text for _, it, _ in told)
    ]
    if not absent:
        return found
    reason = f"it waited in vain for {', '.join(absent)}"
    return {
        node: [
            (check, skipped(reason) if it.outcome is Outcome.INCOMPLETE else it, seconds) for check, it, seconds in told
        ]
        for node, told in found.items()
    }


def _all_well(found: Mapping[str, Sequence[Entry]]) -> bool:
    return not any(is_bad(it) for told in found.values() for _, it, _ in told)


def _not_run(checks: Sequence[Check], found: Found, reason: str = "not run, as not every node has passed") -> None:
    for told in found.values():
        told += [(check, skipped(reason), 0.0) for check in checks]


@contextmanager
def _meeting_place() -> Iterator[str]:
    """Give a folder of this machine in which the members of groups find each other."""
    with tempfile.TemporaryDirectory(prefix="longshore-preflight-", ignore_cleanup_errors=True) as folder:
        yield folder


MOST_TRIES, MOST_S = 3, 60.0


@dataclass(frozen=True, slots=True)
class Tried:
    """What is known of a job's placement so far. A fault in the run begins anew with the nodes that are struck off."""

    since_s: float  # when its first round began, on any clock that does not go back
    tries: int = 0
    struck_off: frozenset[str] = frozenset()
    diagnostics: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Start:
    """Start the job at once."""


@dataclass(frozen=True, slots=True)
class TryOthers:
    """Let these nodes go, quarantine those that are bad, and place the job without all that are struck off."""

    bad_nodes: frozenset[str]
    tried: Tried


@dataclass(frozen=True, slots=True)
class Wait:
    """Let these nodes go, quarantine those that are bad; the job waits, and has done nothing wrong."""

    bad_nodes: frozenset[str]
    diagnostics: tuple[str, ...]


def next_step(tried: Tried, report: Report, now_s: float) -> Start | TryOthers | Wait:
    """Return what to do after a round.

    Args:
        tried: What was known before it.
        report: What it came to.
        now_s: On the clock of `tried.since_s`.
    """
    if report.passed:
        return Start()
    diagnostics = (*tried.diagnostics, *report.diagnostics())
    tries = tried.tries + 1
    if tries >= MOST_TRIES or now_s - tried.since_s >= MOST_S:
        return Wait(report.bad_nodes, diagnostics)
    return TryOthers(report.bad_nodes, Tried(tried.since_s, tries, tried.struck_off | report.bad_nodes, diagnostics))


def without(nodes: Iterable[str], tried: Tried) -> tuple[str, ...]:
    """Return the nodes that a job may still be placed on."""
    return tuple(node for node in nodes if node not in tried.struck_off)
