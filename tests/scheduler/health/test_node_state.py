"""What a node is in one word."""

import pytest

from longshore.scheduler.health.monitoring.node_state import Probe, State, state_of
from longshore.scheduler.model.quarantine import Clears, Entry, Place
from longshore.scheduler.store.database.schema import Liveness
from longshore.scheduler.store.rows.nodes import NodeRow

WHOLE = Entry(1, Place("a"), 0.0, 0.0, "dcgm.3", "failed", "", "replace it", Clears.OPERATOR, 1, "", 0.0)
GPU = WHOLE._replace(place=Place("a", 1))
OTHER = WHOLE._replace(place=Place("b"))


@pytest.mark.parametrize(
    ("liveness", "entry", "probes", "is_fenced", "state", "words"),
    [
        (Liveness.UP, OTHER, [], False, State.ALIVE, "last answer 5 s ago"),
        (Liveness.UP, GPU, [], False, State.ALIVE, "last answer"),
        (Liveness.UP, WHOLE, [], False, State.QUARANTINED, "failed (dcgm.3); replace it"),
        (Liveness.SUSPECT, WHOLE, [], False, State.SUSPECT, "4 answers missed in a row"),
        (Liveness.SUSPECT, WHOLE, [], True, State.FENCED, "its lease has run out"),
        (Liveness.DOWN, WHOLE, [], False, State.UNREACHABLE, "4 answers missed"),
        (Liveness.DOWN, OTHER, [Probe("c", answers=False)], False, State.DEAD, "c does not reach it either"),
        (Liveness.DOWN, OTHER, [Probe("c", answers=False), Probe("d", answers=True)], False, State.UNREACHABLE, "d st"),
        (Liveness.DOWN, OTHER, [Probe("c", answers=False)], True, State.FENCED, "its agent has killed"),
        (Liveness.UP, OTHER, [Probe("c", answers=False)], True, State.ALIVE, "last answer"),
    ],
)
def test_a_state_and_what_it_rests_on(
    liveness: Liveness,
    entry: Entry,
    probes: list[Probe],
    is_fenced: bool,  # noqa: FBT001
    state: State,
    words: str,
) -> None:
    row = NodeRow("a", "local", "a100", False, liveness, 0.0, 95.0, 4)  # noqa: FBT003
    found = state_of(row, [entry], probes, is_fenced=is_fenced, now_s=100.0)
    assert found.state is state
    assert words in found.evidence
