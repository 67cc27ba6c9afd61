"""Who holds GPUs on which node, as far as an extender can know.

No request says it. Pods that the Kubernetes API shows are known. Without it, a pod is assumed to be on the node that
was ranked first, until kube-scheduler offers a node in a way that cannot be if that were so.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

LEAST_LEFT_S = 60.0  # of a pod that has outlived its estimate
UNSEEN_S = 60.0  # after which an assumed pod counts no more that the Kubernetes API does not show
LONGEST_S = 7 * 86400.0  # after which no assumed pod counts any more, so that nodes that are no more are forgotten
PLAN_S = 120.0  # how long the GPUs that were planned for the rest of a gang are kept from others


@dataclass(frozen=True, slots=True)
class Holding:
    """GPUs of a node that somebody holds."""

    node: str
    gpus: int
    group: str | None
    since_s: float
    estimate_s: float  # of the whole run

    def left_s(self, now_s: float) -> float:
        """Return how much longer it is expected to run."""
        return max(self.estimate_s - (now_s - self.since_s), LEAST_LEFT_S)


@dataclass(slots=True)
class Plan:
    """Where the pods of a gang are to go that have not been asked about yet."""

    gpus: int  # of each pod
    pods: dict[str, int]  # by node
    until_s: float


@dataclass(slots=True)
class Ledger:
    """All that is held, and what is planned. Not safe for threads."""

    known: dict[str, Holding] = field(default_factory=dict)  # by uid: the Kubernetes API shows them
    assumed: dict[str, Holding] = field(default_factory=dict)  # by uid, oldest first
    plans: dict[str, Plan] = field(default_factory=dict)  # by group
    is_watched: bool = False  # the Kubernetes API shows all pods

    def assume(self, uid: str, holding: Holding) -> None:
        """Take a pod to be where it was ranked first."""
        self.assumed.pop(uid, None)
        if uid not in self.known:
            self.assumed[uid] = holding

    def forget(self, uid: str) -> None:
        """Take a pod to be nowhere: it is asked about, so it waits."""
        self.assumed.pop(uid, None)

    def expire(self, now_s: float) -> None:
        """Drop what has stood too long without being seen."""
        self.plans = {group: it for group, it in self.plans.items() if it.until_s > now_s and it.pods}
        most_s = UNSEEN_S if self.is_watched else LONGEST_S
        self.assumed = {uid: it for uid, it in self.assumed.items() if now_s - it.since_s < most_s}

    def correct(self, rooms: Mapping[str, int], gpus: int) -> None:
        """Drop the oldest assumptions on nodes where kube-scheduler finds room for so many GPUs and we do not.

        Args:
            rooms: GPUs of each node that was offered, less those that it has lost.
            gpus: What fits on each of them.
        """
        held = self.held()
        short = {node for node, room in rooms.items() if room - held.get(node, 0) < gpus}
        for uid, it in list(self.assumed.items()) if short else ():
            if it.node in short and rooms[it.node] - held[it.node] < gpus:
                held[it.node] -= it.gpus
                del self.assumed[uid]

    def held(self) -> dict[str, int]:
        """Return how many GPUs pods hold on each node."""
        held: dict[str, int] = {}
        for it in (*self.known.values(), *self.assumed.values()):
            held[it.node] = held.get(it.node, 0) + it.gpus
        return held

    def members(self, group: str) -> list[Holding]:
        """Return where pods of a gang are."""
        return [it for it in (*self.known.values(), *self.assumed.values()) if it.group == group]

    def holdings(self, asking: str | None, now_s: float) -> Iterable[tuple[str, Holding]]:
        """Yield all that a pod of a gang (or of none) cannot have: what is held, and what is planned for others."""
        yield from self.known.items()
        yield from self.assumed.items()
        for group, plan in self.plans.items():
            if group != asking:
                for node, pods in plan.pods.items():
                    yield f"{group} {node} {pods}", Holding(node, pods * plan.gpus, group, plan.until_s, PLAN_S)
