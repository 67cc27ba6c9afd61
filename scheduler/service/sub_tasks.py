"""The sub-tasks of a job with a plan: which rank does what, and what it sends to whom.

Ranks count tensor-parallel members first, then replicas, then stages: members that exchange most are next to each
other, and so on one node, as a placement goes through its GPUs node by node.

Source: SPEC P1, P2.
"""

from collections.abc import Iterator
from typing import NamedTuple

from ...cluster.model.training_plan import PlanFile, StagePlan


class Edge(NamedTuple):
    """What a rank sends in an iteration, and so whom it lets wait."""

    kind: str  # tensor, ring (sum of gradients), next (activations) or back (their gradients)
    to: int  # rank
    sent_bytes: float


class SubTask(NamedTuple):
    """What one rank does."""

    rank: int
    stage: int
    replica: int
    member: int  # of its tensor-parallel group
    work: StagePlan
    edges: tuple[Edge, ...]


def sub_tasks(plan: PlanFile) -> list[SubTask]:
    """Return what each rank does, in the order of ranks."""
    return [
        SubTask(_rank(plan, k, r, t), k, r, t, plan.stages[k], tuple(_edges(plan, k, r, t)))
        for k in range(plan.pipeline)
        for r in range(plan.data)
        for t in range(plan.tensor)
    ]


def waited_for(tasks: list[SubTask]) -> list[tuple[int, ...]]:
    """Return for each rank those that send to it, ascending."""
    found: list[set[int]] = [set() for _ in tasks]
    for task in tasks:
        for edge in task.edges:
            found[edge.to].add(task.rank)
    return [tuple(sorted(it)) for it in found]


def _rank(plan: PlanFile, stage: int, replica: int, member: int) -> int:
    return (stage * plan.data + replica) * plan.tensor + member


def _edges(plan: PlanFile, k: int, r: int, t: int) -> Iterator[Edge]:
    """Find what a rank sends; groups that sum are rings, as libraries make them."""
    work = plan.stages[k]
    if plan.tensor > 1:
        yield Edge("tensor", _rank(plan, k, r, (t + 1) % plan.tensor), work.tensor_bytes)
    if plan.data > 1:
        yield Edge("ring", _rank(plan, k, (r + 1) % plan.data, t), work.ring_bytes)
    if k + 1 < plan.pipeline:
        yield Edge("next", _rank(plan, k + 1, r, t), work.next_bytes)
    if k > 0:
        yield Edge("back", _rank(plan, k - 1, r, t), plan.stages[k - 1].next_bytes)
