"""Nodes whose reports call a GPU faulty, and whether too many began to do so together.

A driver that breaks everywhere is told of by one agent after the other, and the second report of the first of them
would take its GPUs away. So a node counts from its first such report on. Whoever takes such a report back, or does not
repeat it, could keep true faults of others from being believed as often as it likes: for a while it counts only from
the second one in a row on, which takes its own GPUs away. And when all is mended, agents say so one after the other as
well: the last ones are not believed at once.

A scheduler that goes on from another one's store knows which nodes have faulty GPUs, and since when. That their agents
tell it so within a minute does not mean that they began together.
"""

from collections.abc import Mapping

from ..backends.protocol import NodeView
from .liveness import AT_ONCE_S, at_once
from .reports import Report, accuses

DOUBT_S = 600.0  # in which a first report of a node does not count that took the last one back

EASE_S = 15.0  # three reports: for how long too many were too many, before those that are left are believed


class Accusers:
    """Nodes whose reports call a GPU faulty, as they were at the last look.

    Args:
        known: Unix time since when nodes have a faulty GPU of which that was known before any report came here.
    """

    def __init__(self, known: Mapping[str, float]) -> None:
        self._known_s = dict(known)  # those that have not reported since that all is well
        self._since_s: dict[str, float] = {}  # Unix time of the report with which each began
        self._repeated: frozenset[str] = frozenset()  # those of them that said so twice in a row
        self._together, self._together_s = frozenset[str](), 0.0  # the last that were too many, and until when
        self._doubted_s: dict[str, float] = {}  # since when first reports of a node do not count

    def look(
        self, seen: Mapping[str, NodeView], reports: Mapping[str, Report], nodes: int, now_s: float
    ) -> frozenset[str]:
        """Return the nodes that began together, if they are or just were more than can be their own fault; often none.

        Args:
            seen: Nodes by name, as the backend sees them.
            reports: Last report of the agent of each that has one.
            nodes: All that there are.
            now_s: The present.
        """
        told = {name: (node, reports[name]) for name, node in seen.items() if name in reports}
        for name in self._known_s.keys() & told.keys():
            if not _repeats(*told[name], is_known=True):
                del self._known_s[name]
        known = self._repeated | self._known_s.keys()
        repeated = {name for name, it in told.items() if _repeats(*it, is_known=name in known)}
        first = {name for name, it in told.items() if name not in repeated and _begins(*it)}
        self._doubt(first, repeated, reports, now_s)
        counted = repeated | {name for name in first if name not in self._doubted_s}
        began_s = self._since_s | self._known_s
        self._since_s = {name: began_s.get(name, reports[name].at_s) for name in counted}
        self._repeated = frozenset(repeated)
        found = at_once([(began_s, name) for name, began_s in self._since_s.items()], nodes)
        if found:
            self._together, self._together_s = found, now_s
        elif not 0.0 <= now_s - self._together_s <= EASE_S:
            self._together = frozenset()
        return self._together

    def _doubt(self, first: set[str], repeated: set[str], reports: Mapping[str, Report], now_s: float) -> None:
        """Doubt the nodes that did not repeat in time what they had begun with; forget old doubts."""
        self._doubted_s = {name: at_s for name, at_s in self._doubted_s.items() if 0.0 <= now_s - at_s <= DOUBT_S}
        for name in self._since_s.keys() - self._repeated - repeated:
            began_s = self._since_s[name]
            is_the_same = name in first and reports[name].at_s == began_s
            if not is_the_same or not 0.0 <= now_s - began_s <= AT_ONCE_S:
                self._doubted_s[name] = now_s


def _repeats(node: NodeView, report: Report, *, is_known: bool) -> bool:
    """Say whether a node calls a GPU faulty for the second time in a row; one that is known to has to go on only."""
    says = report.accuses if is_known else report.is_faulty
    return any(says(gpu.index, slots=node.slots) for gpu in node.gpus)


def _begins(node: NodeView, report: Report) -> bool:
    """Say whether a report is the first of a row that calls GPUs faulty."""
    now, before = (
        any(it is not None and accuses(it, gpu.index, slots=node.slots) for gpu in node.gpus)
        for it in (report.told, report.before)
    )
    return now and not before
