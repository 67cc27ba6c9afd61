"""The order of nodes for a pod, under a deadline, on the cluster as policies see it.

Source: SPEC R8, K1; docs/kubernetes.md.
"""

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from ..mirror.cluster_mirror import ClusterMirror
from ..mirror.standing import Asked, Known
from ..placement.placer import Advice, Placer
from .inventory import PLAN_S, Holding, Inventory, Ledger, Place, Plan, Wish, allocatable_gpus, stand_in, wish_of
from .wire import RANKS, Offer


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


WARM_UP = "warm-up"


class Outcome(StrEnum):
    """How an answer came about."""

    POLICY = "policy"  # it ranked
    FALLBACK = "fallback"  # the heuristic ranked in its place
    HEURISTIC = "heuristic"  # it ranked, as there is no policy
    NO_GPUS = "no-gpus"  # the pod needs none; all nodes are equal
    UNKNOWN = "unknown-nodes"  # nothing is known of any node with room for it; all are equal
    BUSY = "busy"  # others were answered for too long; all nodes are equal
    FAILED = "failed"  # a bug; all nodes are equal


class Ranking(NamedTuple):
    """The best nodes of those that were asked about, best first."""

    order: list[str]
    outcome: Outcome


class Ranker:
    """Ranks nodes for pods, one after the other.

    Args:
        inventory: The nodes.
        placer: Who ranks; its deadline is that of one question.
        deadline_s: For one answer. Half of it is for waiting until others are answered, half for the policy.
        now_s: The clock.
    """

    def __init__(
        self, inventory: Inventory, placer: Placer, deadline_s: float, now_s: Callable[[], float] = time.time
    ) -> None:
        self.inventory, self.placer, self.deadline_s, self.now_s = inventory, placer, deadline_s, now_s
        self.ledger = Ledger()
        self._mirror: Mirror | None = None
        self._lock = threading.Lock()
        self._questions = 0

    def warm_up(self, wait_s: float) -> None:
        """Rank once, so that everything is compiled, and wait until the policy can be asked.

        Raises:
            PluginError: If it cannot be loaded, or not in time.
        """
        with self.changing():
            place = self.inventory.place
            self.placer.warm_up((place or stand_in()).site)
            mirror = Mirror(place or stand_in(), self.placer, self.now_s())
            mirror.rank(Asked(WARM_UP, 1, 1.0, self.now_s()), [{0}], 1)
            self.placer.wait_until_ready(wait_s)
            # The first answer of a policy takes several times as long as those after it.
            mirror.rank(Asked(f"{WARM_UP} of the policy", 1, 1.0, self.now_s()), [{0}], 1)
            self._mirror = None if place is None else mirror

    def close(self) -> None:
        """End the policy's process."""
        with self._lock:
            self.placer.end()

    @contextmanager
    def changing(self, wait_s: float = -1.0) -> Iterator[bool]:
        """Keep others from the book and the inventory; yields False if it cannot be had in time."""
        has = self._lock.acquire(timeout=wait_s)
        try:
            yield has
        except BaseException:
            # It may be halfway through a change: the next request begins with a fresh one.
            self._mirror = None
            raise
        finally:
            if has:
                self._lock.release()

    def rank(self, offer: Offer) -> Ranking:
        """Return the nodes that are best for a pod."""
        wish = wish_of(offer.pod)
        if wish.gpus == 0:
            return Ranking([], Outcome.NO_GPUS)
        with self.changing(self.deadline_s / 2.0) as has:
            if not has:
                return Ranking([], Outcome.BUSY)
            self.inventory.see(offer.nodes or ())
            place = self.inventory.place
            if place is None:
                return Ranking([], Outcome.UNKNOWN)
            return self._rank(self._up_to_date(place, offer, wish), offer, wish)

    def only(self, offer: Offer, host: str) -> None:
        """Learn that a pod can go to one node only; kube-scheduler does not ask for its rank then."""
        wish = wish_of(offer.pod)
        with self.changing(self.deadline_s / 2.0) as has:
            place = self.inventory.place
            if has and wish.gpus and place is not None and host in self._up_to_date(place, offer, wish).number:
                self._assume(wish, host)

    def _up_to_date(self, place: Place, offer: Offer, wish: Wish) -> Mirror:
        """Bring what policies see up to date."""
        now_s, ledger = self.now_s(), self.ledger
        if self._mirror is None or self._mirror.place is not place:
            self._mirror = Mirror(place, self.placer, now_s)
        mirror, lost = self._mirror, self.inventory.lost(place)
        ledger.forget(wish.uid)
        ledger.expire(now_s)
        numbers = {host: mirror.number[host] for host in offer.hosts if host in mirror.number}
        ledger.correct({host: mirror.gpus[i] - lost.get(i, 0) for host, i in numbers.items()}, wish.gpus)
        mirror.follow(ledger.holdings(wish.group, now_s), lost, now_s)
        return mirror

    def _rank(self, mirror: Mirror, offer: Offer, wish: Wish) -> Ranking:
        offered = {mirror.number[host] for host in offer.hosts if host in mirror.number}
        fitting = {node for node in offered if mirror.room(node) >= wish.gpus}
        if not fitting:
            return Ranking([], Outcome.UNKNOWN)
        tiers = [*self._gang_tiers(mirror, wish, fitting), fitting]
        ranked = mirror.rank(self._asked(wish, 1), tiers, RANKS)
        order = [mirror.place.names[node] for node in ranked.nodes]
        if not order or ranked.advice is None:
            return Ranking([], Outcome.UNKNOWN)
        self._assume(wish, order[0])
        if self.placer.policy is None:
            return Ranking(order, Outcome.HEURISTIC)
        return Ranking(order, Outcome.FALLBACK if ranked.advice.miss else Outcome.POLICY)

    def _asked(self, wish: Wish, pods: int) -> Asked:
        self._questions += 1
        return Asked(
            f"question {self._questions}", wish.gpus * pods, wish.estimate_s, self.now_s(),
            compute_s=wish.compute_s, parameter_bytes=wish.parameter_bytes,
        )  # fmt: skip

    def _assume(self, wish: Wish, host: str) -> None:
        self.ledger.assume(wish.uid, Holding(host, wish.gpus, wish.group, self.now_s(), wish.estimate_s))
        plan = self.ledger.plans.get(wish.group or "")
        if plan is not None and host in plan.pods:
            plan.pods[host] -= 1
            if plan.pods[host] == 0:
                del plan.pods[host]

    def _gang_tiers(self, mirror: Mirror, wish: Wish, fitting: set[int]) -> Sequence[set[int]]:
        """Return where a pod of a gang goes first: as planned for the gang, else beside those that are placed."""
        if wish.group is None:
            return ()
        mates = self.ledger.members(wish.group)
        missing = wish.members - len(mates)
        if missing > 1 and wish.group not in self.ledger.plans:
            self._plan(mirror, wish, missing, fitting)
        plan = self.ledger.plans.get(wish.group)
        planned = {mirror.number[node] for node in plan.pods} & fitting if plan else set()
        beside = {mirror.number[it.node] for it in mates if it.node in mirror.number}
        rack = mirror.place.site.cluster.node_rack
        racks = {int(rack[node]) for node in beside}
        return planned, beside & fitting, {node for node in fitting if int(rack[node]) in racks}

    def _plan(self, mirror: Mirror, wish: Wish, pods: int, fitting: set[int]) -> None:
        """Place all pods of a gang at once, as one job; the nodes that it takes are kept for them."""
        if wish.group is None or wish.gpus * pods > sum(mirror.room(node) for node in fitting):
            return
        shares = mirror.rank(self._asked(wish, pods), [fitting], 1).shares
        by_node = {mirror.place.names[node]: gpus // wish.gpus for node, gpus in shares.items() if gpus >= wish.gpus}
        if by_node:
            self.ledger.plans[wish.group] = Plan(wish.gpus, by_node, self.now_s() + PLAN_S)


def refused(offer: Offer) -> dict[str, str]:
    """Return the nodes on which a pod certainly cannot run, and why; whoever is evicted there changes nothing."""
    gpus = wish_of(offer.pod).gpus
    found = {}
    for node in offer.nodes or ():
        has = allocatable_gpus(node)
        if has is not None and has < gpus:
            found[node.metadata.name] = f"the pod asks for {gpus} GPUs, the node has {has}"
    return found
