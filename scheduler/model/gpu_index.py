"""Names of nodes and indices of their GPUs, as the numbers that a simulation counts with, and back."""

from collections import Counter
from collections.abc import Iterable, Sequence

from ...cluster.files.errors import InputError
from ...cluster.model.needs import Needs, Offer, accepted_types
from .placement import Placement, ReservationRow, Share

ONE_OFFER = (Offer(""),)
MOST_NAMED = 10  # nodes, and jobs, in one line


class Layout:
    """The GPUs of a cluster in cluster-file order.

    Args:
        nodes: Names, in that order.
        gpus: Of each node.
        types: Number of the node type of each; all of the first if left out.
        offers: Of the node types.

    Raises:
        ValueError: If a node is of a type that offers nothing: it would suit no job.
    """

    def __init__(
        self, nodes: Sequence[str], gpus: Sequence[int], types: Sequence[int] = (), offers: Sequence[Offer] = ONE_OFFER
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

    @property
    def gpus(self) -> int:
        """GPUs of all nodes."""
        return len(self._place)

    def types_for(self, needs: Needs) -> tuple[int, ...]:
        """Return the numbers of the node types that suit a job, none where all do, and -1 where none does."""
        found = accepted_types(needs, self._offers)
        return () if len(found) == len(self._offers) else tuple(sorted(found)) or (-1,)

    def nodes_for(self, needs: Needs) -> dict[str, int]:
        """Return the GPUs of each node that suits a job."""
        found = accepted_types(needs, self._offers)
        return {node: gpus for node, gpus in self.nodes.items() if self._type[node] in found}

    def gpus_for(self, needs: Needs) -> int:
        """Return the GPUs of all nodes that suit a job."""
        return sum(self._gpus_of_type[number] for number in accepted_types(needs, self._offers))

    def has(self, node: str, index: int) -> bool:
        """Say whether the cluster has a GPU."""
        return 0 <= index < self.nodes.get(node, 0)

    def check_held(self, held: Iterable[ReservationRow]) -> None:
        """Refuse a cluster file without GPUs that jobs hold: they would run on unseen, beside others.

        Raises:
            InputError: If there are such GPUs, with their nodes and jobs.
        """
        lost = [it for it in held if not self.has(it.node, it.gpu)]
        if lost:
            nodes, jobs = sorted({it.node for it in lost}), sorted({it.job_id for it in lost})
            raise InputError(
                f"the cluster file lacks GPUs of {_some(nodes, 'node')} on which {_some(jobs, 'job')} may run",
                "put them back into the cluster file until these jobs have ended; `longshore drain NODE` keeps others "
                "away meanwhile",
            )

    def number(self, node: str, index: int) -> int:
        """Return the number of a GPU.

        Raises:
            InputError: If the cluster has no such node or GPU.
        """
        if not self.has(node, index):
            raise InputError(f"the cluster file has no GPU {index} of node {node!r}", "put it into the cluster file")
        return self._first[node] + index

    def place(self, gpu: int) -> tuple[str, int]:
        """Return the node of a GPU, and its index there."""
        return self._place[gpu]

    def placement(self, gpus: Iterable[int]) -> Placement:
        """Return the shares of nodes that so many GPUs are, in cluster-file order."""
        by_node: dict[str, list[int]] = {}
        for gpu in sorted(gpus):
            node, index = self._place[gpu]
            by_node.setdefault(node, []).append(index)
        return tuple(Share(node, tuple(indices)) for node, indices in by_node.items())

    def numbers(self, placement: Placement) -> tuple[int, ...]:
        """Return the numbers of all GPUs of a placement, ascending."""
        return tuple(sorted(self.number(share.node, index) for share in placement for index in share.gpus))


def _some(names: Sequence[str], what: str) -> str:
    """Return names in words, the first of many."""
    more = f" and {len(names) - MOST_NAMED} more" if len(names) > MOST_NAMED else ""
    return f"{what}{'s' if len(names) > 1 else ''} {', '.join(names[:MOST_NAMED])}{more}"
