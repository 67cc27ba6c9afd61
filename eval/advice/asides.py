"""What else an evaluation answers under its best policy: whether jobs should switch, what backups and plans save."""

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from ...agents.protocol import Policy
from ...cluster.model.layouts import BEST, FIXED, OFFLOAD
from ...cluster.model.outcome import Outcome
from ...cluster.model.problem import Problem
from ...cluster.presets.problems import Regime
from ..terminal import Tell
from . import handling, planning

PAIRS = (("what planning saves", FIXED, BEST), ("what offload saves", BEST, OFFLOAD))


class Aside(NamedTuple):
    """One such answer."""

    title: str
    words: str
    document: dict[str, Any]  # as JSON has it

    @property
    def key(self) -> str:
        """Under which JSON has it."""
        return self.title.replace(" ", "_")


def switching_aside(problem: Problem, policy: Policy, outcome: Outcome, tell: Tell) -> list[Aside]:
    """Return what switching saves; nothing where no job met a fault.

    Args:
        problem: What was run, on a user's cluster.
        policy: The best one.
        outcome: Its outcome.
        tell: Told what is done.
    """
    if not (outcome.stops.any() or outcome.switches.any()):
        return []
    tell(f"running {policy.name} with restarts and with switching")
    found = handling.compare_handlings(problem, policy)
    return [Aside("restart or switch", handling.words_of(found), handling.document_of(found))]


def backup_aside(problem: Problem, policy: Policy, outcome: Outcome, tell: Tell) -> list[Aside]:
    """Return what backups save; nothing where there are none, or no job met a slow node.

    The arguments are those of `switching_aside`.
    """
    if problem.rules.backups == 0 or not outcome.slowed.any():
        return []
    tell(f"running {policy.name} without backups and with them")
    found = handling.compare_backups(problem, policy)
    return [Aside("what backups save", handling.backups_in_words(found), handling.backups_document(found))]


def planning_aside(
    layouts: Mapping[str, Problem], compared: Collection[str], regime: Regime, policy: Policy, tell: Tell
) -> list[Aside]:
    """Return what plans save, and what offload adds to that where plans know of it; nothing where no job has a plan.

    Args:
        layouts: The problem by each layout of its jobs that fits the cluster.
        compared: Layouts that are to be compared; none without plans.
        regime: Under which the policy runs.
        policy: The best one.
        tell: Told what is done.
    """
    ruled = {name: it._replace(rules=regime.over(it.rules)) for name, it in layouts.items()}
    asides = []
    for title, before, after in PAIRS:
        if after not in compared:
            continue
        tell(f"running {policy.name} with the plans of two layouts: {before} and {after}")
        if before in ruled and after in ruled:
            found = planning.compare_layouts(ruled, policy, before, after)
            words = "not told: with one of the layouts jobs had not ended at the cut"
        else:
            found, words = None, "not told: the nodes of this cluster have no room for some of the plans"
        if found is not None:
            words = planning.words_of(found)
        asides.append(Aside(title, words, {} if found is None else planning.document_of(found)))
    return asides
