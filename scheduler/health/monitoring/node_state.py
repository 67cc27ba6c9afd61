"""What a node is in one word, and what that rests on. Reads no clock or store.

Source: SPEC F1, C9; docs/nodes.md, States.
"""

from collections.abc import Sequence
from enum import StrEnum
from typing import NamedTuple

from ...model.quarantine import Entry, Place
from ...store.database.schema import Liveness
from ...store.rows.nodes import NodeRow
from ..liveness import DOWN_MISSES


class State(StrEnum):
    """What a node is."""

    ALIVE = "alive"
    SUSPECT = "suspect"  # it has missed answers
    UNREACHABLE = "unreachable"  # it has missed twice as many; what runs there may run on
    DEAD = "dead"  # the same, and nobody else gets through to its agent either
    FENCED = "fenced"  # its lease has run out: its agent has killed what ran there
    QUARANTINED = "quarantined"  # it answers, and is in quarantine


class NodeState(NamedTuple):
    """A state, and what it rests on."""

    state: State
    evidence: str


def state_of(row: NodeRow, quarantines: Sequence[Entry], *, is_fenced: bool, now_s: float) -> NodeState:
    """Return what a node is.

    Args:
        row: The node.
        quarantines: That stand, of any node.
        is_fenced: Whether its lease has run out.
        now_s: Unix time.
    """
    if row.liveness is Liveness.UP:
        whole = next((it for it in quarantines if it.place == Place(row.name)), None)
        if whole is not None:
            return NodeState(State.QUARANTINED, f"{whole.cause} ({whole.check}); {whole.action}")
        return NodeState(State.ALIVE, _seen(row, now_s))
    silence = f"{row.misses} answers missed in a row, {_seen(row, now_s)}"
    if row.found:
        silence += f"; {row.found}"
    if is_fenced:
        return NodeState(State.FENCED, f"{silence}; its lease has run out, so its agent has killed what ran there")
    if row.liveness is Liveness.SUSPECT:
        frozen = "" if row.misses < DOWN_MISSES else "; many nodes fell silent together, so none of them is declared"
        return NodeState(State.SUSPECT, silence + frozen)
    if row.verdict.is_dead:
        return NodeState(State.DEAD, f"{row.verdict}: {silence}")
    return NodeState(State.UNREACHABLE, silence)


def _seen(row: NodeRow, now_s: float) -> str:
    return f"last answer {max(now_s - row.seen_s, 0.0):.0f} s ago" if row.seen_s else "no answer yet"
