"""A round of checks on the nodes of a placement.

Source: SPEC C1 to C4, C10.
"""

import itertools
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from ..model.job import Placement, Share
from .catalogue import chosen_checks, find_check, limit_of
from .check import WRONG, Check, Finding, Outcome, Stage, failed, passed, skipped
from .context import Chosen, Group, NodeSetup, is_bad
from .isolation import Pair, first_pairs, second_pairs, suspects_of, verdict_of
from .report import Report
from .runner import Progress, Step, compared, results_of, run_lists
from .warm.messages import Order
from .warm.process import WARM_S, LocalNode, Node
from .workload import Workload

Entry = tuple[Check, Finding, float]
Found = dict[str, list[Entry]]
REDUCTION, ISOLATION = "reduce.answer", "pair.isolate"
REPLACE = "run level 2 on the node; replace its GPU if gemm.ref fails there"
_NUMBERS = itertools.count(1)


def preflight(
    placement: Placement,
    workload: Workload,
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
        report = preflight((Share(place.node, gpus),), Workload(), {place.node: node}, level=level)
    finally:
        node.close()
    ran = [it for it in report.results if it.outcome != "skipped"]
    return report.passed, "; ".join(report.diagnostics()) or f"{len(ran)} checks passed in {report.seconds:.1f} s"


def clean_up(
    placement: Placement, workload: Workload, nodes: Mapping[str, Node], *, attempt: str, scratch: str = ""
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


def ask_all(check: Check, placement: Placement, workload: Workload, nodes: Mapping[str, Node]) -> Found:
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
        workload: Workload,
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
