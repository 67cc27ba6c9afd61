"""The order of nodes for a pod, under a deadline.

Source: SPEC R8, K1; docs/extender.md.
"""

import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

from ..mirror.standing import Asked
from ..placement.placer import Placer
from .asking import Wish, wish_of
from .inventory import Inventory, Place, allocatable_gpus, stand_in
from .ledger import PLAN_S, Holding, Ledger, Plan
from .mirror import Mirror
from .wire import RANKS, Offer

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
