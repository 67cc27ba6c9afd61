"""The events that tell of nodes and GPUs: what turned, and what that rests on. Reads no clock or store.

Source: SPEC C9; docs/events.md.
"""

from collections.abc import Iterator

from ...model.event import NewEvent
from ...model.states import Verdict
from ...store.rows.nodes import CHANGE, FAULTY, HEALTHY, GpuRow, NodeRow
from .leases import FENCED

WRITER = "monitor"
DEAD, UNREACHABLE, RESTARTED = "dead", "unreachable", "restarted"  # words of events


def told_of(was: NodeRow, row: NodeRow, now_s: float) -> Iterator[NewEvent]:
    """Yield what there is to tell of a node, compared with how it stood before."""
    if row.liveness is not was.liveness:
        yield _turned(was, row, now_s)
    if row.verdict is not was.verdict and row.verdict is not Verdict.NONE:
        yield _judged(row, now_s)
    if was.boot_id and row.boot_id and row.boot_id != was.boot_id:
        text = f"{row.name} was restarted: its boot id is another one, so nothing that ran there before runs there now"
        yield NewEvent(CHANGE, WRITER, now_s, now=RESTARTED, cause=text, data={"node": row.name})


def _turned(was: NodeRow, row: NodeRow, now_s: float) -> NewEvent:
    missed = f"has not answered {row.misses} times" if row.misses else "answers again"
    if not row.misses and row.boot_id and row.boot_id == was.boot_id:
        missed += ", and was not restarted meanwhile"
    return NewEvent(
        CHANGE, WRITER, now_s, was=was.liveness.value, now=row.liveness.value,
        cause=f"{row.name} is {row.liveness}: it {missed}", data={"node": row.name, "seen_s": row.seen_s},
    )  # fmt: skip


def _judged(row: NodeRow, now_s: float) -> NewEvent:
    now, state = (DEAD, f"dead ({row.verdict})") if row.verdict.is_dead else (UNREACHABLE, UNREACHABLE)
    data = {"node": row.name, "verdict": row.verdict.value, "found": row.found}
    return NewEvent(CHANGE, WRITER, now_s, now=now, cause=f"{row.name} is {state}: {row.found}", data=data)


def fenced(node: str, now_s: float) -> NewEvent:
    """Return what tells that the lease of a node has run out."""
    text = f"{node} is fenced: its lease has run out, so its agent has killed what ran there"
    return NewEvent(CHANGE, WRITER, now_s, now=FENCED, cause=text, data={"node": node})


def gpu_turned(row: GpuRow) -> NewEvent:
    """Return what tells that a GPU turned faulty or healthy."""
    words = (FAULTY, HEALTHY) if row.healthy else (HEALTHY, FAULTY)
    return NewEvent(
        CHANGE, WRITER, row.since_s, was=words[0], now=words[1], cause=f"{row.node}: GPU {row.gpu} is {words[1]}",
        data={"node": row.node, "gpu": row.gpu},
    )  # fmt: skip
