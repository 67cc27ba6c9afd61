"""The order of nodes for a pod, under a deadline, on the cluster as policies see it.

Source: SPEC R8, K1; docs/kubernetes.md.
"""

import threading
import time
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from enum import StrEnum
from typing import NamedTuple

import numpy as np

from ..mirror.cluster_mirror import ClusterMirror, JobRequest, MirrorOrigin
from ..placement.placer import PlacementAdvice, Placer
from .inventory import (
    PLAN_S,
    GangPlan,
    HeldGpus,
    Inventory,
    Ledger,
    NamedSite,
    PodRequest,
    allocatable_gpus,
    request_of,
    stand_in_site,
)
from .wire import RANKED_NODES, ExtenderRequest


class RankedNodes(NamedTuple):
    """Nodes in the order in which they would be taken."""

    nodes: list[int]  # best first
    shares: dict[int, int]  # GPUs of each node in the first choice
    advice: PlacementAdvice | None  # the first; None if there was nothing to decide


class Mirror:
    """A live cluster of which every request shows a part."""

    def __init__(self, named_site: NamedSite, placer: Placer, now_s: float) -> None:
        self.named_site, self.placer = named_site, placer
        self.number = {name: i for i, name in enumerate(named_site.names)}
        self.gpus = np.diff(named_site.site.cluster.first_gpu).tolist()
        self.cluster = ClusterMirror(named_site.site, MirrorOrigin(now_s))
        self._held: dict[str, HeldGpus] = {}
        self._lost: dict[int, int] = {}
        self._taken = [0] * len(named_site.names)  # GPUs of each node that are held or lost
        self._hidden: set[int] = set()
        placer.follow_mirror(self.cluster)

    def free_gpus(self, node: int) -> int:
        """Return how many GPUs of a node are free."""
        return int(self.gpus[node] - self._taken[node])

    def update(self, holdings: Iterable[tuple[str, HeldGpus]], lost: dict[int, int], now_s: float) -> None:
        """Update to what is held and lost at present. What does not fit on its node is omitted."""
        self.cluster.begin(max(now_s, self.cluster.now_s))
        wanted = {uid: held for uid, held in holdings if held.node in self.number}
        for uid, held in list(self._held.items()):
            if uid not in wanted or (wanted[uid].node, wanted[uid].gpus) != (held.node, held.gpus):
                self._end_pod(uid)
        if lost != self._lost:
            self._update_lost_gpus(lost)
        new = [(uid, held) for uid, held in wanted.items() if uid not in self._held]
        self._reveal_nodes({self.number[held.node] for _, held in new})
        for uid, held in new:
            if 0 < held.gpus <= self.free_gpus(self.number[held.node]):
                self._start_pod(uid, held, now_s)

    def _end_pod(self, uid: str) -> None:
        held = self._held.pop(uid)
        self.cluster.finish(uid)
        self._taken[self.number[held.node]] -= held.gpus

    def _start_pod(self, uid: str, held: HeldGpus, now_s: float) -> None:
        node = self.number[held.node]
        self._submit_job(JobRequest(uid, held.gpus, held.remaining_s(now_s), now_s))
        self.cluster.find_due_job()
        self.cluster.carry_out(uid, self._free_gpu_indices(node)[: held.gpus])
        self._held[uid] = held
        self._taken[node] += held.gpus

    def _submit_job(self, job: JobRequest) -> None:
        if self.cluster.is_full:
            self._reveal_nodes(set(self._hidden))  # hidden GPUs are revealed one by one, which takes long
        self.cluster.submit(job)

    def _free_gpu_indices(self, node: int) -> list[int]:
        first, after = self.named_site.site.cluster.first_gpu[node : node + 2].tolist()
        state = self.cluster.sim.state
        free = (state.gpu_job[0, first:after] < 0) & (state.gpu_down[0, first:after] == 0)
        return [first + int(i) for i in np.flatnonzero(free)]

    def _update_lost_gpus(self, lost: dict[int, int]) -> None:
        """Take the last GPUs of nodes out of service: which ones a node has lost is unknown."""
        self._reveal_nodes(lost.keys() | self._lost.keys())
        after = self.named_site.site.cluster.first_gpu
        for node, number in self._lost.items():
            for gpu in range(after[node + 1] - number, after[node + 1]):
                self.cluster.bring_back(gpu)
            self._taken[node] -= number
        for uid, held in list(self._held.items()):
            if self.number[held.node] in lost:
                self._end_pod(uid)  # and start again on those that are left
        for node, number in lost.items():
            for gpu in range(after[node + 1] - number, after[node + 1]):
                self.cluster.take_out(gpu)
            self._taken[node] += number
        self._lost = dict(lost)

    def _reveal_nodes(self, nodes: set[int]) -> None:
        if shown := sorted(nodes & self._hidden):
            self.cluster.show(shown)
            self._hidden -= nodes

    def _offer_only(self, nodes: set[int]) -> None:
        """Let a job be placed on these nodes only."""
        self._reveal_nodes(nodes)
        if hidden := [node for node in range(len(self.gpus)) if node not in nodes and node not in self._hidden]:
            self.cluster.hide(hidden)
            self._hidden.update(hidden)

    def rank(self, job: JobRequest, tiers: Sequence[set[int]], max_nodes: int) -> RankedNodes:
        """Return the nodes that a job would take, then those that it would take without them, and so on.

        The policy makes the first choice, which decides; the heuristic makes the others, as it answers at once.

        Args:
            job: The job.
            tiers: Nodes that it may go to; those of an earlier tier go before all of a later one.
            max_nodes: Number of nodes to rank.
        """
        ranked = RankedNodes([], {}, None)
        self._submit_job(job)
        for tier in tiers:
            self._offer_only(tier - set(ranked.nodes))
            while len(ranked.nodes) < max_nodes and self.cluster.find_due_job() is not None:
                ranked = self._add_next_choice(ranked)
        self.cluster.withdraw(job.job)
        return ranked

    def _add_next_choice(self, ranked: RankedNodes) -> RankedNodes:
        first = ranked.advice is None
        advice = self.placer.consult(self.cluster) if first else self.placer.consult_fallback(self.cluster)
        shares: dict[int, int] = {}
        for gpu in advice.proposal.gpus:
            node = int(self.named_site.site.cluster.gpu_node[gpu])
            shares[node] = shares.get(node, 0) + 1
        # A pod goes to one node, also if the policy would split it.
        nodes = sorted(shares, key=lambda node: -shares[node])
        self.cluster.hide(nodes)
        self._hidden.update(nodes)
        return RankedNodes(
            [*ranked.nodes, *nodes], shares if first else ranked.shares, advice if first else ranked.advice
        )  # fmt: skip


WARM_UP_JOB = "warm-up"


class RankingOutcome(StrEnum):
    """Outcome of a ranking."""

    POLICY = "policy"  # it ranked
    FALLBACK = "fallback"  # the heuristic ranked in its place
    HEURISTIC = "heuristic"  # it ranked, as there is no policy
    NO_GPUS = "no-gpus"  # the pod needs none; all nodes are equal
    UNKNOWN = "unknown-nodes"  # nothing is known of any node with room for it; all are equal
    BUSY = "busy"  # earlier requests took too long; all nodes are equal
    FAILED = "failed"  # a bug; all nodes are equal


class NodeRanking(NamedTuple):
    """The best of the offered nodes, best first."""

    order: list[str]
    outcome: RankingOutcome


class Ranker:
    """Ranks nodes for pods, one after the other.

    Args:
        inventory: The nodes.
        placer: Ranks by policy or heuristic; its deadline is that of one question.
        deadline_s: For one answer. Half of it is for earlier requests, half for the policy.
    """

    def __init__(self, inventory: Inventory, placer: Placer, deadline_s: float) -> None:
        self.inventory, self.placer, self.deadline_s, self.now_s = inventory, placer, deadline_s, time.time
        self.ledger = Ledger()
        self._mirror: Mirror | None = None
        self._lock = threading.Lock()
        self._questions = 0

    def warm_up(self, wait_s: float) -> None:
        """Rank once, so that everything is compiled, and wait until the policy is ready.

        Raises:
            PluginError: If it cannot be loaded, or not in time.
        """
        with self.locked():
            named_site = self.inventory.named_site
            self.placer.warm_up((named_site or stand_in_site()).site)
            mirror = Mirror(named_site or stand_in_site(), self.placer, self.now_s())
            mirror.rank(JobRequest(WARM_UP_JOB, 1, 1.0, self.now_s()), [{0}], 1)
            self.placer.wait_until_ready(wait_s)
            # The first answer of a policy takes several times as long as those after it.
            mirror.rank(JobRequest(f"{WARM_UP_JOB} of the policy", 1, 1.0, self.now_s()), [{0}], 1)
            self._mirror = None if named_site is None else mirror

    def close(self) -> None:
        """End the policy's process."""
        with self._lock:
            self.placer.end()

    @contextmanager
    def locked(self, wait_s: float = -1.0) -> Iterator[bool]:
        """Lock the ledger and the inventory; yields False on a timeout."""
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

    def rank(self, offer: ExtenderRequest) -> NodeRanking:
        """Return the best nodes for a pod.

        1. Read what the pod requests; without GPUs all nodes are equal.
        2. Lock the ledger and the inventory, within half of the deadline.
        3. Update the inventory by the offered nodes.
        4. Update the mirror, which policies see, to the pods that hold GPUs (`_update_mirror`).
        5. Prefer the nodes planned for the pod's gang, then those beside its members (`_gang_tiers`).
        6. Let the policy choose the first node, and the heuristic the next ones (`Mirror.rank`).
        7. Assume the pod on the first node (`_assume_placed`), as no later request reports where it went.
        """
        request = request_of(offer.pod)
        if request.gpus == 0:
            return NodeRanking([], RankingOutcome.NO_GPUS)
        with self.locked(self.deadline_s / 2.0) as has:
            if not has:
                return NodeRanking([], RankingOutcome.BUSY)
            self.inventory.update(offer.nodes or ())
            named_site = self.inventory.named_site
            if named_site is None:
                return NodeRanking([], RankingOutcome.UNKNOWN)
            return self._rank_on_mirror(self._update_mirror(named_site, offer, request), offer, request)

    def record_only_node(self, offer: ExtenderRequest, host: str) -> None:
        """Record that a pod can go to one node only; kube-scheduler then requests no ranking."""
        request = request_of(offer.pod)
        with self.locked(self.deadline_s / 2.0) as has:
            site = self.inventory.named_site
            if has and request.gpus and site is not None and host in self._update_mirror(site, offer, request).number:
                self._assume_placed(request, host)

    def _update_mirror(self, named_site: NamedSite, offer: ExtenderRequest, request: PodRequest) -> Mirror:
        """Bring what policies see up to date."""
        now_s, ledger = self.now_s(), self.ledger
        if self._mirror is None or self._mirror.named_site is not named_site:
            self._mirror = Mirror(named_site, self.placer, now_s)
        mirror, lost = self._mirror, self.inventory.lost_gpus(named_site)
        ledger.drop_assumption(request.uid)
        ledger.drop_expired(now_s)
        numbers = {host: mirror.number[host] for host in offer.hosts if host in mirror.number}
        ledger.drop_contradicted({host: mirror.gpus[i] - lost.get(i, 0) for host, i in numbers.items()}, request.gpus)
        mirror.update(ledger.unavailable_to(request.group), lost, now_s)
        return mirror

    def _rank_on_mirror(self, mirror: Mirror, offer: ExtenderRequest, request: PodRequest) -> NodeRanking:
        offered = {mirror.number[host] for host in offer.hosts if host in mirror.number}
        fitting = {node for node in offered if mirror.free_gpus(node) >= request.gpus}
        if not fitting:
            return NodeRanking([], RankingOutcome.UNKNOWN)
        tiers = [*self._gang_tiers(mirror, request, fitting), fitting]
        ranked = mirror.rank(self._job_request(request, 1), tiers, RANKED_NODES)
        order = [mirror.named_site.names[node] for node in ranked.nodes]
        if not order or ranked.advice is None:
            return NodeRanking([], RankingOutcome.UNKNOWN)
        self._assume_placed(request, order[0])
        if self.placer.policy is None:
            return NodeRanking(order, RankingOutcome.HEURISTIC)
        return NodeRanking(order, RankingOutcome.FALLBACK if ranked.advice.miss else RankingOutcome.POLICY)

    def _job_request(self, request: PodRequest, pods: int) -> JobRequest:
        self._questions += 1
        return JobRequest(
            f"question {self._questions}", request.gpus * pods, request.estimate_s, self.now_s(),
            compute_s=request.compute_s, parameter_bytes=request.parameter_bytes,
        )  # fmt: skip

    def _assume_placed(self, request: PodRequest, host: str) -> None:
        self.ledger.assume(request.uid, HeldGpus(host, request.gpus, request.group, self.now_s(), request.estimate_s))
        plan = self.ledger.plans.get(request.group or "")
        if plan is not None and host in plan.pods:
            plan.pods[host] -= 1
            if plan.pods[host] == 0:
                del plan.pods[host]

    def _gang_tiers(self, mirror: Mirror, request: PodRequest, fitting: set[int]) -> Sequence[set[int]]:
        """Return where a pod of a gang goes first: as planned for the gang, else beside those that are placed."""
        if request.group is None:
            return ()
        mates = self.ledger.gang_holdings(request.group)
        missing = request.members - len(mates)
        if missing > 1 and request.group not in self.ledger.plans:
            self._plan_gang(mirror, request, missing, fitting)
        plan = self.ledger.plans.get(request.group)
        planned = {mirror.number[node] for node in plan.pods if node in mirror.number} & fitting if plan else set()
        beside = {mirror.number[mate.node] for mate in mates if mate.node in mirror.number}
        rack = mirror.named_site.site.cluster.node_rack
        racks = {int(rack[node]) for node in beside}
        return planned, beside & fitting, {node for node in fitting if int(rack[node]) in racks}

    def _plan_gang(self, mirror: Mirror, request: PodRequest, pods: int, fitting: set[int]) -> None:
        """Place all pods of a gang at once, as one job; the nodes that it takes are kept for them."""
        if request.group is None or request.gpus * pods > sum(mirror.free_gpus(node) for node in fitting):
            return
        shares = mirror.rank(self._job_request(request, pods), [fitting], 1).shares
        names = mirror.named_site.names
        by_node = {names[node]: gpus // request.gpus for node, gpus in shares.items() if gpus >= request.gpus}
        if by_node:
            self.ledger.plans[request.group] = GangPlan(request.gpus, by_node, self.now_s() + PLAN_S)


def refused_nodes(offer: ExtenderRequest) -> dict[str, str]:
    """Return the nodes on which a pod cannot run even after evictions, and why."""
    gpus = request_of(offer.pod).gpus
    found = {}
    for node in offer.nodes or ():
        has = allocatable_gpus(node)
        if has is not None and has < gpus:
            found[node.metadata.name] = f"the pod asks for {gpus} GPUs, the node has {has}"
    return found
