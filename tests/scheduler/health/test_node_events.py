"""The events of a node whose state changed."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.health.monitor import DEAD, RESTARTED, UNREACHABLE, node_events
from longshore.scheduler.model.states import ProbeVerdict
from longshore.scheduler.store.nodes import NodeRow
from longshore.scheduler.store.schema import Liveness

BOOTS = ["", "b1", "b2"]
rows = st.builds(
    lambda liveness, verdict, boot, misses: NodeRow(
        "n1", "b", "a100", False, liveness, 1.0, 2.0, misses, boot_id=boot, verdict=verdict, found="n2 is refused"  # noqa: FBT003
    ),
    st.sampled_from(Liveness), st.sampled_from(ProbeVerdict), st.sampled_from(BOOTS), st.integers(0, 9),
)  # fmt: skip


@given(rows, rows)
def test_each_change_has_one_event_and_nothing_else_has(was: NodeRow, row: NodeRow) -> None:
    reported = [event.now for event in node_events(was, row, 5.0)]
    words = [row.liveness.value] if row.liveness is not was.liveness else []
    if row.verdict is not was.verdict and row.verdict is not ProbeVerdict.NONE:
        words.append(DEAD if row.verdict in (ProbeVerdict.GONE, ProbeVerdict.SILENT) else UNREACHABLE)
    if "" not in (was.boot_id, row.boot_id) and was.boot_id != row.boot_id:
        words.append(RESTARTED)
    assert reported == words
    assert all(event.data is not None and event.data["node"] == "n1" for event in node_events(was, row, 5.0))


@given(rows, st.sampled_from(BOOTS), st.sampled_from(BOOTS))
def test_a_node_that_answers_again_says_whether_it_was_restarted(row: NodeRow, before: str, after: str) -> None:
    was = row._replace(liveness=Liveness.DOWN, misses=9, boot_id=before)
    now = row._replace(liveness=Liveness.UP, misses=0, boot_id=after, verdict=was.verdict)
    causes = " ".join(event.cause for event in node_events(was, now, 5.0))
    assert ("was not restarted" in causes) == (before == after != "")
    assert ("was restarted: its boot id is another one" in causes) == ("" not in (before, after) and before != after)
