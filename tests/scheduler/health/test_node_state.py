"""What a node is in one word."""

import pytest

from longshore.scheduler.health.monitoring.node_state import State, state_of
from longshore.scheduler.model.quarantine import Clears, Entry, Place
from longshore.scheduler.store.database.schema import Liveness
from longshore.scheduler.store.rows.nodes import NodeRow

WHOLE = Entry(1, Place("a"), 0.0, 0.0, "dcgm.3", "failed", "", "replace it", Clears.OPERATOR, 1, "", 0.0)
GPU = WHOLE._replace(place=Place("a", 1))
OTHER = WHOLE._replace(place=Place("b"))


@pytest.mark.parametrize(
    ("liveness", "entry", "fenced", "state", "words"),
    [
        (Liveness.UP, OTHER, "b", State.ALIVE, "last answer 5 s ago"),
        (Liveness.UP, GPU, "b", State.ALIVE, "last answer"),
        (Liveness.UP, WHOLE, "b", State.QUARANTINED, "failed (dcgm.3); replace it"),
        (Liveness.SUSPECT, WHOLE, "b", State.SUSPECT, "4 answers missed in a row"),
        (Liveness.DOWN, WHOLE, "b", State.UNREACHABLE, "4 answers missed in a row"),
        (Liveness.DOWN, OTHER, "a", State.FENCED, "its lease has run out"),
    ],
)
def test_a_state_and_what_it_rests_on(liveness: Liveness, entry: Entry, fenced: str, state: State, words: str) -> None:
    row = NodeRow("a", "local", "a100", False, liveness, 0.0, 95.0, 4)  # noqa: FBT003
    found = state_of(row, [entry], is_fenced=fenced == "a", now_s=100.0)
    assert found.state is state
    assert words in found.evidence
