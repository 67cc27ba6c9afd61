"""What a node is in one word."""

import re
from pathlib import Path

import pytest

from longshore.scheduler.health.monitor import NodeWord, node_state_of
from longshore.scheduler.model.gpu_index import Clears, HardwarePlace, QuarantineEntry
from longshore.scheduler.model.states import ProbeVerdict
from longshore.scheduler.store.nodes import NodeRow
from longshore.scheduler.store.schema import Liveness

WHOLE = QuarantineEntry(
    1, HardwarePlace("a"), 0.0, 0.0, "dcgm.3", "failed", "", "replace it", Clears.OPERATOR, 1, "", 0.0
)
GPU = WHOLE._replace(place=HardwarePlace("a", 1))
OTHER = WHOLE._replace(place=HardwarePlace("b"))


@pytest.mark.parametrize(
    ("liveness", "entry", "fenced", "state", "words"),
    [
        (Liveness.UP, OTHER, "b", NodeWord.ALIVE, "last answer 5 s ago"),
        (Liveness.UP, GPU, "b", NodeWord.ALIVE, "last answer"),
        (Liveness.UP, WHOLE, "b", NodeWord.QUARANTINED, "failed (dcgm.3); replace it"),
        (Liveness.SUSPECT, WHOLE, "b", NodeWord.SUSPECT, "4 answers missed in a row"),
        (Liveness.DOWN, WHOLE, "b", NodeWord.UNREACHABLE, "4 answers missed in a row"),
        (Liveness.DOWN, OTHER, "a", NodeWord.FENCED, "its lease has run out"),
    ],
)
def test_a_state_and_what_it_rests_on(
    liveness: Liveness, entry: QuarantineEntry, fenced: str, state: NodeWord, words: str
) -> None:
    row = NodeRow("a", "local", "a100", False, liveness, 0.0, 95.0, 4)  # noqa: FBT003
    found = node_state_of(row, [entry], is_fenced=fenced == "a", now_s=100.0)
    assert found.state is state
    assert words in found.evidence


@pytest.mark.parametrize(
    ("verdict", "fenced", "state", "begins"),
    [
        (ProbeVerdict.NONE, False, NodeWord.UNREACHABLE, "4 answers missed in a row"),
        (ProbeVerdict.REACHED, False, NodeWord.UNREACHABLE, "4 answers missed in a row"),
        (ProbeVerdict.STUCK, False, NodeWord.UNREACHABLE, "4 answers missed in a row"),
        (ProbeVerdict.GONE, False, NodeWord.DEAD, "fast: 4 answers missed in a row"),
        (ProbeVerdict.SILENT, False, NodeWord.DEAD, "slow: 4 answers missed in a row"),
        (ProbeVerdict.GONE, True, NodeWord.FENCED, "4 answers missed in a row"),
    ],
)
def test_what_was_found_at_a_node_that_is_down_is_part_of_its_evidence(
    verdict: ProbeVerdict,
    fenced: bool,  # noqa: FBT001
    state: NodeWord,
    begins: str,
) -> None:
    row = NodeRow("a", "local", "a100", False, Liveness.DOWN, 0.0, 95.0, 4, verdict=verdict, found="b is refused")  # noqa: FBT003
    found = node_state_of(row, [], is_fenced=fenced, now_s=100.0)
    assert (found.state, found.evidence.startswith(begins)) == (state, True)
    assert "b is refused" in found.evidence


@pytest.mark.parametrize(("misses", "frozen"), [(3, False), (5, False), (6, True), (60, True)])
def test_a_node_that_is_suspect_for_long_says_that_none_of_many_is_declared(misses: int, frozen: bool) -> None:  # noqa: FBT001
    row = NodeRow("a", "local", "a100", False, Liveness.SUSPECT, 0.0, 95.0, misses, found="b is refused")  # noqa: FBT003
    found = node_state_of(row, [], is_fenced=False, now_s=100.0)
    assert found.state is NodeWord.SUSPECT
    assert ("many nodes fell silent together" in found.evidence) == frozen


def test_the_page_has_every_state_in_its_table() -> None:
    page = (Path(__file__).parents[3] / "docs" / "nodes.md").read_text()
    rows = [line for line in page.partition("## States")[2].partition("\n## ")[0].splitlines() if line[:3] == "| `"]
    assert {re.findall(r"`(\w+)`", line)[0] for line in rows} == {state.value for state in NodeWord}
    lines = {word for line in rows for word in re.findall(r"`(\w+)`", line.split("|")[2])}
    assert lines == {it.value for it in Liveness}
    assert {"fast", "slow"} <= {word for line in rows for word in re.findall(r"`(\w+)`", line.split("|")[1])}
