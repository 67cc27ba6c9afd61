"""Names of nodes and GPUs as the numbers that a simulation counts with, and quarantines of this hardware.

In quarantine is a GPU, a node, or a link, because a check found it broken. A job that the scheduler cannot handle is
another matter (control/job_errors.py): no hardware is at fault.

Source: SPEC C4.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import NamedTuple

from ...cluster.files.errors import InputError
from ...cluster.model.placement import Placement, Share
from ...cluster.model.topology import NodeNeeds, NodeOffer, accepted_types
from .job import ReservationRow

ONE_OFFER = (NodeOffer(""),)
MAX_NAMED_PLACES = 10  # nodes, and jobs, in one line


class Layout:
    """The GPUs of a cluster in cluster-file order.

    Args:
        nodes: Names, in that order.
        gpus: Of each node.
        types: Number of the node type of each; by default all of the first.
        offers: Of the node types.

    Raises:
        ValueError: If a node is of a type that offers nothing: it would suit no job.
    """

    def __init__(
        self,
        nodes: Sequence[str],
        gpus: Sequence[int],
        types: Sequence[int] = (),
        offers: Sequence[NodeOffer] = ONE_OFFER,
    ) -> None:
        self.nodes = dict(zip(nodes, gpus, strict=True))
        self._type = dict(zip(nodes, types or [0] * len(nodes), strict=True))
        self._offers = offers
        if max(self._type.values(), default=0) >= len(offers):
            raise ValueError(f"{len(offers)} node types are described, and nodes are of others")
        self._gpus_of_type = Counter[int]()
        for node, count in self.nodes.items():
            self._gpus_of_type[self._type[node]] += count
        self._first: dict[str, int] = {}
        self._place: list[tuple[str, int]] = []
        for node, count in self.nodes.items():
            self._first[node] = len(self._place)
            self._place.extend((node, index) for index in range(count))
        self.gpus = len(self._place)  # of all nodes

    def types_for(self, needs: NodeNeeds) -> tuple[int, ...]:
        """Return the numbers of the node types that suit a job, none where all do, and -1 where none does."""
        found = accepted_types(needs, self._offers)
        return () if len(found) == len(self._offers) else tuple(sorted(found)) or (-1,)

    def nodes_for(self, needs: NodeNeeds) -> dict[str, int]:
        """Return the GPUs of each node that suits a job."""
        found = accepted_types(needs, self._offers)
        return {node: gpus for node, gpus in self.nodes.items() if self._type[node] in found}

    def gpus_for(self, needs: NodeNeeds) -> int:
        """Return the GPUs of all nodes that suit a job."""
        return sum(self._gpus_of_type[number] for number in accepted_types(needs, self._offers))

    def has(self, node: str, index: int) -> bool:
        """Return whether the cluster has a GPU."""
        return 0 <= index < self.nodes.get(node, 0)

    def check_held(self, held: Iterable[ReservationRow]) -> None:
        """Refuse a cluster file without GPUs that jobs hold: they would run on unseen, beside others.

        Raises:
            InputError: If there are such GPUs, with their nodes and jobs.
        """
        lost = [row for row in held if not self.has(row.node, row.gpu)]
        if lost:
            nodes, jobs = sorted({gpu.node for gpu in lost}), sorted({gpu.job_id for gpu in lost})
            raise InputError(
                f"the cluster file lacks GPUs of {_names_in_words(nodes, 'node')} "
                f"on which {_names_in_words(jobs, 'job')} may run",
                "put them back into the cluster file until these jobs have ended; `longshore node drain NODE` "
                "keeps others away meanwhile",
            )

    def number(self, node: str, index: int) -> int:
        """Return the number of a GPU.

        Raises:
            InputError: If the cluster has no such node or GPU.
        """
        if not self.has(node, index):
            raise InputError(f"the cluster file has no GPU {index} of node {node!r}", "put it into the cluster file")
        return self._first[node] + index

    def node_and_index(self, gpu: int) -> tuple[str, int]:
        """Return the node of a GPU, and its index there."""
        return self._place[gpu]

    def placement(self, gpus: Iterable[int]) -> Placement:
        """Return the shares of nodes of GPUs, in cluster-file order."""
        by_node: dict[str, list[int]] = {}
        for gpu in sorted(gpus):
            node, index = self._place[gpu]
            by_node.setdefault(node, []).append(index)
        return tuple(Share(node, tuple(indices)) for node, indices in by_node.items())

    def numbers(self, placement: Placement) -> tuple[int, ...]:
        """Return the numbers of all GPUs of a placement, ascending."""
        return tuple(sorted(self.number(share.node, index) for share in placement for index in share.gpus))


def _names_in_words(names: Sequence[str], what: str) -> str:
    """Return the first names of many, for people."""
    more = f" and {len(names) - MAX_NAMED_PLACES} more" if len(names) > MAX_NAMED_PLACES else ""
    return f"{what}{'s' if len(names) > 1 else ''} {', '.join(names[:MAX_NAMED_PLACES])}{more}"


WHOLE_NODE = -1  # in place of the index of a GPU: the node itself


class Scope(StrEnum):
    """What is in quarantine."""

    DEVICE = "device"
    LINK = "link"
    NODE = "node"


class Clears(StrEnum):
    """What ends a quarantine."""

    CHECKS = "checks"  # checks that pass
    REBOOT = "reboot"  # the same, once the node has started anew
    OPERATOR = "operator"  # an operator, who knows that the action is done


class HardwarePlace(NamedTuple):
    """What is in quarantine: a node, a GPU of it, or a link from there to another end."""

    node: str
    gpu: int = WHOLE_NODE
    other_node: str = ""  # of the other end of a link
    other_gpu: int = WHOLE_NODE

    @property
    def scope(self) -> Scope:
        """What it is."""
        if self.other_node:
            return Scope.LINK
        return Scope.NODE if self.gpu == WHOLE_NODE else Scope.DEVICE

    @property
    def ends(self) -> tuple["HardwarePlace", ...]:
        """The ends of a link; of all else the place itself."""
        ends = (HardwarePlace(self.node, self.gpu), HardwarePlace(self.other_node, self.other_gpu))
        return ends if self.other_node else ends[:1]

    @property
    def words(self) -> str:
        """How people write it."""
        return " to ".join(end.node if end.gpu == WHOLE_NODE else f"{end.node}:{end.gpu}" for end in self.ends)

    def with_ends_ordered(self) -> "HardwarePlace":
        """Return the same link from the other end, if that comes first: a link has no direction here."""
        first, last = min(self.ends), max(self.ends)
        return HardwarePlace(*first[:2], *last[:2]) if self.other_node else self

    def covers(self, other: "HardwarePlace") -> bool:
        """Return whether this place contains another one: a node contains its GPUs, and the ends of a link the link."""
        return any(
            self == end or (self.scope is Scope.NODE and self.node == end.node) for end in (*other.ends, other)
        )  # fmt: skip


class QuarantineFinding(NamedTuple):
    """What a check, an agent or an operator found."""

    place: HardwarePlace
    check: str  # name of the check, as `xid.recent`
    cause: str  # what is wrong, in the same few words each time: repetitions are counted by them
    evidence: str  # what was seen: figures, lines of a log
    action: str  # what mends it, for people
    clears: Clears
    at_s: float  # Unix time at which it was seen
    boot_id: str = ""  # of the node then, "" if unknown


class QuarantineEntry(NamedTuple):
    """One quarantine, over or not."""

    seq: int
    place: HardwarePlace
    since_s: float  # Unix time
    symptom_s: float  # when it was last seen
    check: str
    cause: str
    evidence: str
    action: str
    clears: Clears
    tries: int  # how often it came for this cause of late, and how often checks did not pass since
    boot_id: str  # of the node at that time, "" if unknown
    not_before_s: float  # Unix time before which checks alone do not end it
    checked: str = ""  # how the last checks ended that were to clear it
    cleared_s: float | None = None  # None while it lasts
    cleared_by: str = ""  # `checks`, or the operator
