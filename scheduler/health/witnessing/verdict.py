"""What is concluded of a silent node from what was found at the door of its agent. Reads no clock or network.

Source: SPEC C9; docs/nodes.md, A second look.
"""

from typing import NamedTuple

from ...model.states import Verdict
from .door import Sight

FAILED = (Sight.REFUSED, Sight.NO_ROUTE, Sight.TIMED_OUT)


class Found(NamedTuple):
    """What one who knocked has found."""

    who: str  # node of the agent that looked; "" for the scheduler
    sight: Sight
    has_been_in: bool  # it reached the same door while the node lived: else a failure says nothing of the node


class Evidence(NamedTuple):
    """All that was found at a door since its node was heard last."""

    own: Found | None = None  # by the scheduler
    other: Found | None = None  # by the agent of another node
    has_others: bool = True  # whether there is another agent that could look


NOTHING = Evidence()


def verdict_of(evidence: Evidence) -> Verdict:
    """Return what evidence says of a node from which nothing is heard."""
    own, other = evidence.own, evidence.other
    sights = [it.sight for it in (own, other) if it is not None]
    if Sight.ANSWERED in sights:
        return Verdict.REACHED
    if Sight.ACCEPTED in sights:
        return Verdict.STUCK
    if own is None or not _fails(own):
        return Verdict.NONE
    if other is None:
        # Nobody else is there to look. A refusal says alone that the agent is gone; silence may be the link's.
        return Verdict.GONE if own.sight is Sight.REFUSED and not evidence.has_others else Verdict.NONE
    if not _fails(other):
        return Verdict.NONE
    return Verdict.GONE if {own.sight, other.sight} == {Sight.REFUSED} else Verdict.SILENT


def _fails(found: Found) -> bool:
    return found.sight in FAILED and found.has_been_in


def words_of(evidence: Evidence) -> str:
    """Return what was found, "" if nobody has looked."""
    own, other = evidence.own, evidence.other
    if other is not None and other.sight is Sight.ANSWERED:
        own_too = own is not None and own.sight is Sight.ANSWERED
        return _UNHEARD if own_too else f"{other.who} reaches it: the link between it and the scheduler is broken"
    if own is not None and own.sight is Sight.ANSWERED:
        return _UNHEARD
    found = [_found(it) for it in (own, other) if it is not None]
    if not evidence.has_others:
        found.append("no other agent can look")
    if verdict_of(evidence) is Verdict.STUCK:
        found.append("so its machine lives, and its agent stands still")
    return ", ".join(found)


_UNHEARD = "its agent answers who knocks, but its reports do not come: see its log"


def _found(it: Found) -> str:
    who = it.who or "the scheduler"
    words = {
        Sight.ACCEPTED: f"{who} is let in and told nothing", Sight.OTHER: f"{who} finds somebody else at its port",
        Sight.REFUSED: f"{who} is refused", Sight.NO_ROUTE: f"{who} finds no route", Sight.UNABLE: f"{who} cannot look",
        Sight.TIMED_OUT: f"{who} gets no answer",
    }[it.sight]  # fmt: skip
    doubted = it.sight in FAILED and not it.has_been_in
    return f"{words} (it never reached it before, so that says nothing)" if doubted else words
