"""Preflight rounds: the checks of the nodes of a placement before a job starts on them.

`run_round` is one round, step by step. `clean_up` puts the nodes in order after the job. `PlacementTries` counts the
rounds of a job that did not pass, and `BackgroundRounds` runs rounds in threads beside a scheduler.

Source: SPEC C1 to C7, C10; the pairwise sweeps of cluster health tools.
"""

import itertools
import logging
import os
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple

from ..cluster.files.errors import error_line
from ..cluster.model.placement import Placement, Share
from .check import (
    WRONG_ANSWER,
    Check,
    CheckedJob,
    CheckOutcome,
    CheckStage,
    RoundReport,
    check_limit_s,
    chosen_checks,
    failed,
    find_check,
    passed,
    skipped,
)
from .context import CheckGroup, CheckScope, NodeSetup
from .running import Entry, Found, Progress, compare_nodes, results_of, run_lists
from .warm import WARM_S, LocalNode, WarmNodes
from .warm_worker import CheckRequest

log = logging.getLogger(__name__)

ALL_REDUCE, PAIR_REDUCE = "reduce.answer", "pair.isolate"  # checks
REPLACE_GPU = "run level 2 on the node; replace its GPU if gemm.ref fails there"
_REQUEST_NUMBERS = itertools.count(1)  # of requests and groups in this process


def run_round(
    placement: Placement,
    workload: CheckedJob,
    nodes: Mapping[str, LocalNode],
    *,
    level: int = 1,
    cleared_s: Mapping[str, Mapping[int, float]] | None = None,
    progress: Progress | None = None,
) -> RoundReport:
    """Check the nodes of a placement, and the links between them.

    1. Start the process of each node. A node whose process is not ready in time has failed.
    2. Run the node checks on each node by itself, all nodes at once. The first bad finding ends the list of its node
       only: the round names every bad node, and a node that hangs delays no other.
    3. If all nodes have passed, run the group checks on all nodes together, one after the other, until one is bad.
    4. If the all-reduce gave every node a wrong sum, isolate the nodes that cause it by reductions in pairs.
    5. Run the last checks on each node that has passed: they read error counters after the traffic of step 3.
    6. If all nodes have passed, set up the GPUs as the job requests. If that fails on one node, reset them on all.

    Level and workload choose the checks of each step.

    Args:
        placement: The GPUs to check; the ring goes through the nodes in their order.
        workload: What the job needs of a node.
        nodes: By name; at least those of the placement. They are started if they do not run.
        level: 0 to 3.
        cleared_s: Unix time at which a GPU was cleared last, by node and GPU, or WHOLE_NODE; older faults in the log
            do not count.
        progress: Called when a check has ended on a node.

    Raises:
        PluginError: If a registered check cannot be used.
        KeyError: If a node is missing.
    """
    begin_s = time.monotonic()
    current = _CheckRound(placement, workload, nodes, level, cleared_s, progress)
    not_ready = current.start_nodes()  # 1
    found = current.run_on_each(CheckStage.NODE, current.names_ready(not_ready)) | not_ready  # 2
    group_checks = chosen_checks(CheckStage.GROUP, level, workload)
    if not _all_passed(found):
        _add_skipped(group_checks, found, "not run, as not every node has passed")
    else:
        with tempfile.TemporaryDirectory(prefix="longshore-preflight-", ignore_cleanup_errors=True) as meeting_folder:
            bad_check = current.run_together(group_checks, found, meeting_folder)  # 3
            if bad_check is not None and bad_check.name == ALL_REDUCE:
                current.isolate_bad_nodes(bad_check, found, meeting_folder)  # 4
        if bad_check is not None:
            rest = group_checks[group_checks.index(bad_check) + 1 :]
            _add_skipped(rest, found, f"not run, as {bad_check.name} did not pass")
    for name, entries in current.run_on_each(CheckStage.LAST, _good_nodes(found)).items():  # 5
        found[name] += entries
    if _all_passed(found):
        current.set_up_gpus(found)  # 6
    return current.report(found, begin_s)


def check_node(
    setup: NodeSetup, gpus: tuple[int, ...], cleared_s: Mapping[int, float], level: int = 1
) -> tuple[bool, str]:
    """Check some GPUs of one node that no job uses, in a process of its own, so that no job waits for it.

    Args:
        setup: The node.
        gpus: Of it.
        cleared_s: Unix time at which each was cleared last, as in `run_round`.
        level: 0 to 3.

    Returns:
        Whether all passed, and what was found, as one line.
    """
    node = LocalNode(setup)
    try:
        report = run_round(
            (Share(setup.node, gpus),), CheckedJob(), {setup.node: node}, level=level, cleared_s={setup.node: cleared_s}
        )
    finally:
        node.close()
    ran = [result for result in report.results if result.outcome != "skipped"]
    return report.passed, "; ".join(report.diagnostics()) or f"{len(ran)} checks passed in {report.seconds:.1f} s"


def clean_up(
    placement: Placement, workload: CheckedJob, nodes: Mapping[str, LocalNode], *, attempt: str, scratch: str = ""
) -> RoundReport:
    """Put nodes in order after a job. A bad node of the report should be kept out of service.

    Args:
        placement: The GPUs that the job had.
        workload: What the job was.
        nodes: By name.
        attempt: Whose processes are killed, if some are left.
        scratch: Absolute path of a folder that is removed on each node; none if "".

    Raises:
        PluginError: If a registered check cannot be used.
    """
    begin_s = time.monotonic()
    current = _CheckRound(placement, workload, nodes, attempt=attempt, scratch=scratch)
    not_ready = current.start_nodes()
    found = not_ready | current.run_on_each(CheckStage.AFTER, current.names_ready(not_ready))
    return current.report(found, begin_s)


def run_one_check(check: Check, placement: Placement, workload: CheckedJob, nodes: Mapping[str, LocalNode]) -> Found:
    """Run one check on all nodes of a placement, each by itself, and return what it finds, by node."""
    current = _CheckRound(placement, workload, nodes)
    not_ready = current.start_nodes()
    lists = {name: [current.make_request(check, name)] for name in current.names_ready(not_ready)}
    return run_lists(lists, current.nodes) | not_ready


class _CheckRound:
    """The steps of a round, on one placement."""

    def __init__(
        self,
        placement: Placement,
        workload: CheckedJob,
        nodes: Mapping[str, LocalNode],
        level: int = 0,
        cleared_s: Mapping[str, Mapping[int, float]] | None = None,
        progress: Progress | None = None,
        attempt: str = "",
        scratch: str = "",
    ) -> None:
        self.shares = {share.node: share.gpus for share in placement}
        self.names = list(self.shares)
        self.nodes = {name: nodes[name] for name in self.names}
        self.workload, self.level, self.cleared_s, self.progress = workload, level, cleared_s or {}, progress
        self.attempt, self.scratch = attempt, scratch

    def start_nodes(self) -> Found:
        """Start the processes of all nodes; return a finding for each node whose process is not ready in time."""
        for node in self.nodes.values():
            node.start()
        until_s = time.monotonic() + WARM_S
        late = [
            name for name, node in self.nodes.items() if not node.wait_until_warm(max(0.0, until_s - time.monotonic()))
        ]
        action = "read the log of its process; restart the node's agent"
        finding = failed("", "none", f"a process that is ready within {WARM_S:g} s", action)
        return {name: [(find_check("response"), finding, 0.0)] for name in late}

    def names_ready(self, not_ready: Found) -> list[str]:
        """Return the nodes whose processes are ready."""
        return [name for name in self.names if name not in not_ready]

    def run_on_each(self, stage: CheckStage, names: Sequence[str]) -> Found:
        """Run the checks of a stage on some nodes, each by itself, and compare the findings between the nodes."""
        checks = chosen_checks(stage, self.level, self.workload)
        lists = {name: [self.make_request(check, name) for check in checks] for name in names}
        return compare_nodes(run_lists(lists, self.nodes, self.progress))

    def run_together(self, checks: Sequence[Check], found: Found, folder: str) -> Check | None:
        """Run group checks on all nodes until one does not pass; return that check, None if all pass."""
        for check in checks:
            entries_of = _skip_waiters(self._run_in_groups(check, [self.names], folder))
            for name, entries in entries_of.items():
                found[name] += entries
            if not _all_passed(entries_of):
                return check
        return None

    def isolate_bad_nodes(self, check: Check, found: Found, folder: str) -> None:
        """Find the nodes that make an all-reduce wrong, and clear the others.

        1. Neighbours reduce in pairs. Members of no good pair are suspects.
        2. Each suspect reduces with a good node. A suspect whose pair is wrong again is bad.

        Nothing is isolated where a node does not answer, which is reported already, or where there are two nodes only.
        """
        wrong = [
            name
            for name in self.names
            if any(ran is check and finding.text == WRONG_ANSWER for ran, finding, _ in found[name])
        ]
        if len(wrong) < len(self.names) or len(self.names) < 3:
            return
        first = self._find_bad_pairs(first_pairs(self.names), folder)
        suspects = suspects_of(self.names, first)
        second = self._find_bad_pairs(second_pairs(self.names, suspects), folder)
        if second:
            self._accuse_bad_nodes(check, found, frozenset(suspect for suspect, _ in second), [*first, *second])

    def set_up_gpus(self, found: Found) -> None:
        """Set up the GPUs of all nodes as the job requests; if one node cannot, reset them on all."""
        ready = self.run_on_each(CheckStage.READY, self.names)
        for name, entries in ready.items():
            found[name] += entries
        if not _all_passed(ready):
            self.run_on_each(CheckStage.AFTER, self.names)

    def report(self, found: Found, begin_s: float) -> RoundReport:
        """Return the report of a round that began at some time."""
        return RoundReport(tuple(self.names), tuple(results_of(found)), time.monotonic() - begin_s)

    def make_request(self, check: Check, name: str, group: CheckGroup | None = None) -> CheckRequest:
        """Return the request that a node runs a check."""
        chosen = CheckScope(
            self.shares[name], tuple(self.names), self.level, check_limit_s(check, self.level, self.workload),
            self.cleared_s.get(name, {}), self.attempt, self.scratch,
        )  # fmt: skip
        number = next(_REQUEST_NUMBERS)
        return CheckRequest(number=number, check=check.name, chosen=chosen, workload=self.workload, group=group)

    def _run_in_groups(self, check: Check, groups: Sequence[Sequence[str]], folder: str) -> Found:
        """Run a check in several groups at once that have no node in common."""
        lists = dict[str, list[CheckRequest]]()
        for members in groups:
            shares = tuple(len(self.shares[name]) for name in members)
            group = CheckGroup(f"{os.getpid()}-{next(_REQUEST_NUMBERS)}", tuple(members), shares, folder)
            lists |= {name: [self.make_request(check, name, group)] for name in members}
        return compare_nodes(run_lists(lists, self.nodes, self.progress))

    def _find_bad_pairs(self, rounds: Sequence[Sequence["Pair"]], folder: str) -> list["Pair"]:
        bad = []
        for pairs in rounds:
            found = self._run_in_groups(find_check(PAIR_REDUCE), pairs, folder)
            bad += [pair for pair in pairs if not _all_passed({name: found[name] for name in pair})]
        return bad

    def _accuse_bad_nodes(self, check: Check, found: Found, bad: frozenset[str], pairs: Sequence["Pair"]) -> None:
        """Report a wrong reduction as a failure of the bad nodes, and as a warning on all others."""
        isolation, right = find_check(PAIR_REDUCE), f"right without {', '.join(sorted(bad))}"
        for name in self.names:
            table = ", ".join(" with ".join(pair) for pair in pairs if name in pair)
            wrong = failed("", f"wrong in the pairs {table}", "right with a good partner", REPLACE_GPU)
            if name not in bad:
                found[name] = [_as_warning(entry, check) for entry in found[name]]
            found[name].append((isolation, wrong if name in bad else passed(got=right), 0.0))


Pair = tuple[str, str]


def first_pairs(members: Sequence[str]) -> list[list[Pair]]:
    """Return pairs of neighbours, in rounds of disjoint pairs.

    One round is enough: the last of an odd number of members has no partner, and is a suspect. Three members take three
    rounds, as otherwise no member might be known to be good.
    """
    if len(members) == 3:
        return [[(members[0], members[1])], [(members[1], members[2])], [(members[2], members[0])]]
    return [[(members[at], members[at + 1]) for at in range(0, len(members) - 1, 2)]]


def suspects_of(members: Sequence[str], bad_pairs: Iterable[Pair]) -> list[str]:
    """Return the members that were in no good pair, in their order."""
    bad = set(bad_pairs)
    good = {member for pairs in first_pairs(members) for pair in pairs if pair not in bad for member in pair}
    return [member for member in members if member not in good]


def second_pairs(members: Sequence[str], suspects: Sequence[str]) -> list[list[Pair]]:
    """Return each suspect with a good member, in the fewest rounds of disjoint pairs; none without a good member."""
    good = [member for member in members if member not in suspects]
    if not good:
        return []
    return [list(zip(suspects[at : at + len(good)], good, strict=False)) for at in range(0, len(suspects), len(good))]


def _as_warning(entry: Entry, check: Check) -> Entry:
    """Return a bad finding of a check as a warning, and any other as it is."""
    ran, finding, seconds = entry
    if ran is not check or not finding.is_bad:
        return entry
    return (ran, replace(finding, outcome=CheckOutcome.WARN, action="none here: another node causes it"), seconds)


def _skip_waiters(found: Found) -> Found:
    """Return findings of a group in which a member that only waited for an absent one is skipped, and not bad."""
    absent = [
        node
        for node, entries in found.items()
        if any(finding.outcome is CheckOutcome.FAIL and not finding.text for _, finding, _ in entries)
    ]
    if not absent:
        return found
    reason = f"it waited in vain for {', '.join(absent)}"
    return {
        node: [
            (check, skipped(reason) if finding.outcome is CheckOutcome.INCOMPLETE else finding, seconds)
            for check, finding, seconds in entries
        ]
        for node, entries in found.items()
    }


def _all_passed(found: Mapping[str, Sequence[Entry]]) -> bool:
    return len(_good_nodes(found)) == len(found)


def _good_nodes(found: Mapping[str, Sequence[Entry]]) -> list[str]:
    return [name for name, entries in found.items() if not any(finding.is_bad for _, finding, _ in entries)]


def _add_skipped(checks: Sequence[Check], found: Found, reason: str) -> None:
    for entries in found.values():
        entries += [(check, skipped(reason), 0.0) for check in checks]


MAX_TRIES, MAX_TRYING_S = 3, 60.0


@dataclass(frozen=True, slots=True)
class PlacementTries:
    """The rounds of a job that did not pass. A fault in the run starts again."""

    took_s: float = 0.0  # all of them together; what the job waits before and between them does not count
    count: int = 0
    diagnostics: tuple[str, ...] = ()

    def with_failed_round(self, report: RoundReport) -> "PlacementTries":
        """Return the tries after a round that did not pass."""
        took_s = self.took_s + report.seconds
        return PlacementTries(took_s, self.count + 1, (*self.diagnostics, *report.diagnostics()))

    @property
    def are_used_up(self) -> bool:
        """Whether the job waits now, instead of trying other nodes."""
        return self.count >= MAX_TRIES or self.took_s >= MAX_TRYING_S


MAX_ROUNDS = 4  # at once
ROUND_LIMIT_S = 200.0  # without a job's own sample; the nodes of a round may have to load PyTorch first
RoundWork = Callable[[Mapping[str, LocalNode]], RoundReport]


class FinishedRound(NamedTuple):
    """How a round has ended."""

    report: RoundReport | None  # None if it could not be run
    problem: str  # why it could not
    ended_s: float  # Unix time


class BackgroundRounds:
    """The rounds of a scheduler, each in a thread, so that nothing waits for it. Any thread may use it.

    Args:
        nodes: Warm processes.
        wake: Called when a round has ended.
    """

    def __init__(self, nodes: WarmNodes, wake: Callable[[], None]) -> None:
        self._nodes, self._wake = nodes, wake
        self._running: dict[str, tuple[float, tuple[str, ...]]] = {}  # until when, by `time.monotonic`, and nodes
        self._ended: dict[str, FinishedRound] = {}
        self._lock = threading.Lock()

    def begin(self, name: str, nodes: Iterable[str], work: RoundWork, limit_s: float = ROUND_LIMIT_S) -> bool:
        """Begin a round, unless it runs or has ended; return whether it has begun.

        It does not begin while too many others run, or one that uses a node of it. It is aborted after `limit_s`.
        """
        names = tuple(nodes)
        with self._lock:
            if name in self._running or name in self._ended:
                return True
            lent = self._nodes.take(names) if len(self._running) < MAX_ROUNDS else None
            if lent is None:
                return False
            self._running[name] = time.monotonic() + limit_s, names
        try:
            threading.Thread(
                target=self._run_round, args=(name, lent, work), name=f"checks of {name}", daemon=True
            ).start()
        except RuntimeError:  # the system starts no further thread
            self._end_round(
                name, lent, FinishedRound(None, "this machine has no room for one more thread", time.time())
            )
        return True

    def abort_late_and_get_ended(self) -> Mapping[str, FinishedRound]:
        """Return the rounds that have ended and were not forgotten, and abort those that take too long."""
        with self._lock:
            late = [nodes for until_s, nodes in self._running.values() if time.monotonic() > until_s]
            ended = dict(self._ended)
        for nodes in late:
            self._nodes.kill(nodes)
        return ended

    def forget(self, name: str) -> None:
        """Forget how a round ended."""
        with self._lock:
            self._ended.pop(name, None)

    def close(self) -> None:
        """End all rounds."""
        self._nodes.close()

    def _run_round(self, name: str, lent: Mapping[str, LocalNode], work: RoundWork) -> None:
        report, problem = None, "they did not come to an end"
        try:
            report, problem = work(lent), ""
        except BaseException as error:  # a third party's check may fail in any way, and even exit
            log.exception("the checks of %s could not be run", name)
            problem = error_line(error)
        finally:
            self._end_round(name, lent, FinishedRound(report, problem, time.time()))

    def _end_round(self, name: str, lent: Mapping[str, LocalNode], ended: FinishedRound) -> None:
        with self._lock:
            del self._running[name]
            self._ended[name] = ended
            try:
                self._nodes.give_back(lent)
            except Exception:  # the round has ended all the same, or its job would wait for ever
                log.exception("processes of the checks of %s could not be ended", name)
        self._wake()
