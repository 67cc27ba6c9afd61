"""Nodes and GPUs as they were last known, quarantines, computing times of jobs by node type, and turns of users.

The leading scheduler writes what it sees of a node. Whether a node is to be in service is written by the API, but for a
slow one, which the scheduler takes out of service.

Source: SPEC F1, F2, C9.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

from sqlalchemy import Connection, Row, bindparam, func, or_, select, update

from ..model.gpu_index import HardwarePlace, QuarantineEntry, Scope
from ..model.job import NewEvent
from ..model.states import ProbeVerdict
from ..rules.quarantine import closed_gpus
from .events import append, append_all, check_fence
from .schema import Liveness, compute_record, gpu, insert_if_absent, node, quarantine, upsert_all, user_turn

QUARANTINE = "quarantine"  # kind of events
SET, CLEARED, NOT_CLEARED, REFUSED = "quarantined", "cleared", "not cleared", "alarm"

_PLACE_COLUMNS = tuple(quarantine.c[name] for name in HardwarePlace._fields)
_OTHER_COLUMNS = tuple(
    quarantine.c["check_name" if name == "check" else name]
    for name in QuarantineEntry._fields
    if name not in ("seq", "place")
)
_ALL_QUARANTINES = select(quarantine.c.seq, *_PLACE_COLUMNS, *_OTHER_COLUMNS).order_by(quarantine.c.seq)
_OPEN_QUARANTINES = _ALL_QUARANTINES.where(quarantine.c.cleared_s.is_(None))
_SINCE = _ALL_QUARANTINES.where(
    or_(
        quarantine.c.cleared_s.is_(None),
        quarantine.c.since_s >= bindparam("after_s"),
        quarantine.c.cleared_s >= bindparam("after_s"),
    )
)
_LAST_CLEARANCES = (
    select(quarantine.c.gpu, func.max(quarantine.c.cleared_s))
    .where(
        quarantine.c.node == bindparam("of_node"), quarantine.c.cleared_s.is_not(None), quarantine.c.scope != Scope.LINK
    )
    .group_by(quarantine.c.gpu)
)
_PLACES = select(*_PLACE_COLUMNS).where(quarantine.c.cleared_s.is_(None)).order_by(quarantine.c.seq)
_OF_SEQ = update(quarantine).where(quarantine.c.seq == bindparam("of_seq"), quarantine.c.cleared_s.is_(None))
_SEEN = _OF_SEQ.values(symptom_s=bindparam("seen_s"), evidence=bindparam("found"))
_CHECKED = _OF_SEQ.values(checked=bindparam("result"), tries=bindparam("times"), not_before_s=bindparam("until_s"))
_CLEAR = _OF_SEQ.values(cleared_s=bindparam("at_s"), cleared_by=bindparam("who"), checked=bindparam("result"))


def open_quarantines(tx: Connection) -> list[QuarantineEntry]:
    """Return what stands in quarantine, the first first."""
    return [_quarantine_entry(row) for row in tx.execute(_OPEN_QUARANTINES)]


def quarantines_since(tx: Connection, after_s: float) -> list[QuarantineEntry]:
    """Return what stands in quarantine, or came there or was cleared since a Unix time."""
    return [_quarantine_entry(row) for row in tx.execute(_SINCE, {"after_s": after_s})]


def last_clearances(tx: Connection, node: str) -> dict[int, float]:
    """Return when GPUs of a node were cleared last, as Unix time by GPU, or WHOLE_NODE; links are no GPUs."""
    return {int(row[0]): float(row[1]) for row in tx.execute(_LAST_CLEARANCES, {"of_node": node})}


def quarantined_gpus(tx: Connection, sizes: Mapping[str, int]) -> frozenset[tuple[str, int]]:
    """Return node and index of the GPUs that take no job as they, or links of them, stand in quarantine.

    Args:
        tx: Transaction.
        sizes: GPUs of each node of the cluster.
    """
    places = [HardwarePlace(*row) for row in tx.execute(_PLACES)]
    return frozenset(closed_gpus(places, sizes)) if places else frozenset()


def add_quarantine(tx: Connection, entry: QuarantineEntry) -> bool:
    """Put something into quarantine, and return whether it was not there for the same cause already."""
    values: dict[str, Any] = {**entry._asdict(), **entry.place._asdict(), "scope": entry.place.scope}
    values["check_name"] = values.pop("check")
    del values["place"], values["seq"]
    return insert_if_absent(tx, quarantine, values)


def note_symptom(tx: Connection, entry: QuarantineEntry, evidence: str, at_s: float) -> None:
    """Note that what stands in quarantine shows its symptom again."""
    tx.execute(_SEEN, {"of_seq": entry.seq, "seen_s": max(at_s, entry.symptom_s), "found": evidence})


def note_failed_checks(tx: Connection, entry: QuarantineEntry, evidence: str, tries: int, not_before_s: float) -> None:
    """Note that checks that were to clear something did not pass."""
    tx.execute(_CHECKED, {"of_seq": entry.seq, "result": evidence, "times": tries, "until_s": not_before_s})


def clear_quarantines(tx: Connection, entries: Iterable[QuarantineEntry], by: str, evidence: str, now_s: float) -> int:
    """End quarantines, and return how many stood."""
    return sum(
        tx.execute(_CLEAR, {"of_seq": entry.seq, "at_s": now_s, "who": by, "result": evidence}).rowcount
        for entry in entries
    )


def _quarantine_entry(row: Row[Any]) -> QuarantineEntry:
    values: Sequence[Any] = tuple(row)
    places = len(HardwarePlace._fields)
    return QuarantineEntry(values[0], HardwarePlace(*values[1 : 1 + places]), *values[1 + places :])


CHANGE = "node"  # kind of events
IN_SERVICE, OUT_OF_SERVICE = "in service", "out of service"
ALARM = "alarm"  # too many nodes fell silent at once for the fault to be theirs
FAULTY, HEALTHY = "faulty", "healthy"  # of a GPU


class NodeRow(NamedTuple):
    """A node."""

    name: str
    backend: str
    kind: str  # node type of the cluster file
    slots: bool  # its GPUs are slots that only behave like GPUs
    liveness: Liveness
    since_s: float  # Unix time at which it became so
    seen_s: float  # Unix time of its last answer
    misses: int  # answers missed in a row
    agent_s: float | None = None  # Unix time of its agent's last report; None if it has no agent
    out_of_service: str = ""  # the reason; "" for a node in service
    address: str = ""  # that its agent reports from; "" without an agent
    boot_id: str = ""  # names its time since its last start, "" if unknown
    agent_version: str = ""  # of Longshore
    guarded: bool = False  # its agent kills what runs there when its lease runs out
    verdict: ProbeVerdict = ProbeVerdict.NONE  # of the probes of its agent, while it is down
    found: str = ""  # by them, in words, while it is silent


class GpuRow(NamedTuple):
    """A GPU."""

    node: str
    gpu: int  # index on the node
    healthy: bool
    since_s: float  # Unix time at which it became so


_ALL_NODES = select(*(node.c[name] for name in NodeRow._fields)).order_by(node.c.name)
_GPUS = select(*(gpu.c[name] for name in GpuRow._fields)).order_by(gpu.c.node, gpu.c.gpu)
_FAULTY = select(gpu.c.node, gpu.c.gpu).where(gpu.c.healthy.is_(False))
_OUT = select(node.c.name).where(node.c.out_of_service != "")
_BOOTS = select(node.c.name, node.c.boot_id).where(node.c.boot_id != "")
_REASON = select(node.c.out_of_service).where(node.c.name == bindparam("of_node")).with_for_update()
_SET_OUT_OF_SERVICE = update(node).where(node.c.name == bindparam("of_node")).values(out_of_service=bindparam("reason"))


def list_nodes(tx: Connection) -> list[NodeRow]:
    """Return all nodes by name."""
    return [NodeRow._make(row) for row in tx.execute(_ALL_NODES)]


def list_gpus(tx: Connection) -> list[GpuRow]:
    """Return all GPUs by node and index."""
    return [GpuRow._make(row) for row in tx.execute(_GPUS)]


def faulty_gpus(tx: Connection) -> set[tuple[str, int]]:
    """Return node and index of the GPUs that are not healthy."""
    return {(row.node, row.gpu) for row in tx.execute(_FAULTY)}


def nodes_out_of_service(tx: Connection) -> frozenset[str]:
    """Return the nodes that operators took out of service."""
    return frozenset(tx.execute(_OUT).scalars())


def boot_ids(tx: Connection) -> dict[str, str]:
    """Return what names the time since the last start of each node of which that is known."""
    return {row.name: row.boot_id for row in tx.execute(_BOOTS)}


def why_closed(row: NodeRow) -> str:
    """Return why no job starts on a node, "" if jobs do."""
    if row.out_of_service:
        return f"{OUT_OF_SERVICE}: {row.out_of_service}"
    return "" if row.liveness is Liveness.UP else "dead" if row.verdict.is_dead else str(row.liveness)


def closed_nodes(tx: Connection) -> set[str]:
    """Return the nodes that no job starts on: those that do not answer, and those out of service."""
    return {row.name for row in list_nodes(tx) if why_closed(row)}


def gpus_in_service(tx: Connection, sizes: Mapping[str, int]) -> set[tuple[str, int]]:
    """Return node and index of the GPUs that jobs can start on, or could if they were free.

    Args:
        tx: Transaction.
        sizes: GPUs of each node of the cluster.
    """
    closed, broken = closed_nodes(tx), faulty_gpus(tx) | quarantined_gpus(tx, sizes)
    every = {(node, gpu) for node, size in sizes.items() if node not in closed for gpu in range(size)}
    return every - broken


def write_health(
    tx: Connection, fence: int, nodes: Sequence[NodeRow], gpus: Sequence[GpuRow], events: Iterable[NewEvent]
) -> None:
    """Write what the leading scheduler sees of nodes and GPUs, new ones and known ones, with the events.

    Raises:
        FencedError: If another scheduler has taken over.
    """
    check_fence(tx, fence)
    seen = [row._asdict() for row in nodes]
    for row in seen:
        del row["out_of_service"]
    upsert_all(tx, node, seen)
    upsert_all(tx, gpu, [row._asdict() for row in gpus])
    append_all(tx, [event._replace(fence=fence) for event in events])


def set_out_of_service(tx: Connection, row: NodeRow, reason: str, *, at_s: float, writer: str) -> bool:
    """Take a node out of service for a reason, or back ("" for none), and return whether that changed anything."""
    insert_if_absent(tx, node, row._asdict())
    was = tx.execute(_REASON, {"of_node": row.name}).scalar_one()
    if was == reason:
        return False
    tx.execute(_SET_OUT_OF_SERVICE, {"of_node": row.name, "reason": reason})
    words = [OUT_OF_SERVICE if it else IN_SERVICE for it in (was, reason)]
    before = f" (before: {was})" if was and reason else ""  # which would be known nowhere else
    cause = f"{row.name}: {reason or 'in service again'}{before}"
    append(tx, NewEvent(CHANGE, writer, at_s, was=words[0], now=words[1], cause=cause, data={"node": row.name}))
    return True


class ComputeRecord(NamedTuple):
    """How long iterations of a job computed on one type of node, over all its attempts."""

    job_id: str
    kind: str  # node type
    iterations: int
    mean_s: float
    last_s: tuple[float, ...]  # the newest last


_RECORDS_OF_JOB = (
    select(*(compute_record.c[name] for name in ComputeRecord._fields))
    .where(compute_record.c.job_id == bindparam("of_job"))
    .order_by(compute_record.c.kind)
)


def compute_records_of(tx: Connection, job_id: str) -> list[ComputeRecord]:
    """Return what is recorded of a job, by node type."""
    rows = tx.execute(_RECORDS_OF_JOB, {"of_job": job_id})
    return [ComputeRecord(row.job_id, row.kind, row.iterations, row.mean_s, tuple(row.last_s)) for row in rows]


def put_compute_records(
    tx: Connection, job_id: str, records: Mapping[str, tuple[int, float, tuple[float, ...]]]
) -> None:
    """Write what is recorded of a job now, by node type."""
    rows = [
        {"job_id": job_id, "kind": kind, "iterations": count, "mean_s": mean_s, "last_s": list(last_s)}
        for kind, (count, mean_s, last_s) in sorted(records.items())
    ]
    upsert_all(tx, compute_record, rows)


class UserTurn(NamedTuple):
    """The last turns of a user: when, and their numbers, which order turns of one moment; 0 for none."""

    owner: str
    priority: int
    led_s: float  # a job of theirs started that passed none
    led: int
    started_s: float  # a job of theirs started
    started: int


_ALL_TURNS = select(*(user_turn.c[name] for name in UserTurn._fields))


def user_turns(tx: Connection) -> dict[tuple[str, int], UserTurn]:
    """Return the last turns of all users, by owner and priority."""
    return {row[:2]: row for row in (UserTurn._make(it) for it in tx.execute(_ALL_TURNS))}


def put_user_turns(tx: Connection, turns: Sequence[UserTurn]) -> None:
    """Write the last turns of some users; of one that is named twice, the later."""
    last = {row[:2]: row for row in turns}
    upsert_all(tx, user_turn, [row._asdict() for row in last.values()])
