"""The cluster as policies see it, kept in step with what is known of Kubernetes."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ..mirror.cluster_mirror import ClusterMirror
from ..mirror.standing import Asked, Known
from ..placement.placer import Advice, Placer
from .inventory import Place
from .ledger import Holding


class Ranked(NamedTuple):
    """Nodes in the order in which they would be taken."""

    nodes: list[int]  # best first
    shares: dict[int, int]  # GPUs of each node in the first choice
    advice: Advice | None  # the first; None if there was nothing to decide


class Mirror:
    """A live cluster of which every request shows a part.

    Args:
        place: The cluster.
        placer: Who ranks.
        now_s: The present.
    """

    def __init__(self, place: Place, placer: Placer, now_s: float) -> None:
        self.place, self.placer = place, placer
        self.number = {name: i for i, name in enumerate(place.names)}
        self.gpus = np.diff(place.site.cluster.first_gpu).tolist()
        self.cluster = ClusterMirror(place.site, Known(now_s))
        self._held: dict[str, Holding] = {}
        self._lost: dict[int, int] = {}
        self._taken = [0] * len(place.names)  # GPUs of each node that are held or lost
        self._hidden: set[int] = set()
        placer.begin(self.cluster)

    def room(self, node: int) -> int:
        """Return how many GPUs of a node are free."""
        return int(self.gpus[node] - self._taken[node])

    def follow(self, holdings: Iterable[tuple[str, Holding]], lost: dict[int, int], now_s: float) -> None:
        """Come to what is held and lost at present. What does not fit on its node is left out."""
        self.cluster.begin(max(now_s, self.cluster.now_s))
        wanted = {uid: it for uid, it in holdings if it.node in self.number}
        for uid, it in list(self._held.items()):
            if uid not in wanted or (wanted[uid].node, wanted[uid].gpus) != (it.node, it.gpus):
                self._end(uid)
        if lost != self._lost:
            self._lose(lost)
        new = [(uid, it) for uid, it in wanted.items() if uid not in self._held]
        self._reveal({self.number[it.node] for _, it in new})
        for uid, it in new:
            if 0 < it.gpus <= self.room(self.number[it.node]):
                self._start(uid, it, now_s)

    def _end(self, uid: str) -> None:
        it = self._held.pop(uid)
        self.cluster.finish(uid)
        self._taken[self.number[it.node]] -= it.gpus

    def _start(self, uid: str, it: Holding, now_s: float) -> None:
        node = self.number[it.node]
        self._submit(Asked(uid, it.gpus, it.left_s(now_s), now_s))
        self.cluster.due()
        self.cluster.carry_out(uid, self._free_gpus(node)[: it.gpus])
        self._held[uid] = it
        self._taken[node] += it.gpus

    def _submit(self, asked: Asked) -> None:
        if self.cluster.is_full:
            self._reveal(set(self._hidden))  # hidden GPUs are taken up one by one, which takes long
        self.cluster.submit(asked)

    def _free_gpus(self, node: int) -> list[int]:
        first, after = self.place.site.cluster.first_gpu[node : node + 2].tolist()
        state = self.cluster.sim.state
        free = (state.gpu_job[0, first:after] < 0) & (state.gpu_down[0, first:after] == 0)
        return [first + int(i) for i in np.flatnonzero(free)]

    def _lose(self, lost: dict[int, int]) -> None:
        """Take the last GPUs of nodes out of service: nobody says which ones a node has lost."""
        self._reveal(lost.keys() | self._lost.keys())
        after = self.place.site.cluster.first_gpu
        for node, number in self._lost.items():
            for gpu in range(after[node + 1] - number, after[node + 1]):
                self.cluster.bring_back(gpu)
            self._taken[node] -= number
        for uid, it in list(self._held.items()):
            if self.number[it.node] in lost:
                self._end(uid)  # and start again on those that are left
        for node, number in lost.items():
            for gpu in range(after[node + 1] - number, after[node + 1]):
                self.cluster.take_out(gpu)
            self._taken[node] += number
        self._lost = dict(lost)

    def _reveal(self, nodes: set[int]) -> None:
        if shown := sorted(nodes & self._hidden):
            self.cluster.show(shown)
            self._hidden -= nodes

    def _offer(self, nodes: set[int]) -> None:
        """Let a job be placed on these nodes only."""
        self._reveal(nodes)
        if hidden := [node for node in range(len(self.gpus)) if node not in nodes and node not in self._hidden]:
            self.cluster.hide(hidden)
            self._hidden.update(hidden)

    def rank(self, asked: Asked, tiers: Sequence[set[int]], most: int) -> Ranked:
        """Return the nodes that would be taken first for a job, then those if the first were gone, and so on.

        The policy is asked for the first choice, which decides; what comes after it is the heuristic's, which answers
        at once.

        Args:
            asked: The job.
            tiers: Nodes that it may go to; those of an earlier tier go before all of a later one.
            most: How many nodes are asked for.
        """
        ranked = Ranked([], {}, None)
        self._submit(asked)
        for tier in tiers:
            self._offer(tier - set(ranked.nodes))
            while len(ranked.nodes) < most and self.cluster.due() is not None:
                ranked = self._ask_once_more(ranked)
        self.cluster.withdraw(asked.job)
        return ranked

    def _ask_once_more(self, ranked: Ranked) -> Ranked:
        first = ranked.advice is None
        advice = self.placer.consult(self.cluster) if first else self.placer.consult_fallback(self.cluster)
        shares: dict[int, int] = {}
        for gpu in advice.proposal.gpus:
            node = int(self.place.site.cluster.gpu_node[gpu])
            shares[node] = shares.get(node, 0) + 1
        nodes = sorted(shares, key=lambda node: -shares[node])  # a pod goes to one node, whoever would split it
        self.cluster.hide(nodes)
        self._hidden.update(nodes)
        return Ranked(
            [*ranked.nodes, *nodes], shares if first else ranked.shares, advice if first else ranked.advice
        )  # fmt: skip
