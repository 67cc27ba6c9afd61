"""Nodes and their GPUs, as they were last known.

The leading scheduler writes what it sees of a node. Whether a node is to be in service is written by the API, but for a
slow one, which the scheduler takes out of service.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from sqlalchemy import Connection, bindparam, select, update

from ...model.event import NewEvent
from ...model.states import Verdict
from ..database.schema import Liveness, gpu, node
from ..monitoring.quarantines import quarantined
from .events import append, append_all
from .leases import check_fence
from .upsert import insert_if_absent, put_all

CHANGE = "node"  # kind of events
IN_SERVICE, OUT_OF_SERVICE = "in service", "out of service"
ALARM = "alarm"  # so many nodes fell silent at once that the fault is not theirs
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
    verdict: Verdict = Verdict.NONE  # of those who knock at its agent's door, while it is down
    found: str = ""  # by them, in words, while it is silent


class GpuRow(NamedTuple):
    """A GPU."""

    node: str
    gpu: int  # index on the node
    healthy: bool
    since_s: float  # Unix time at which it became so


_NODES = select(*(node.c[name] for name in NodeRow._fields)).order_by(node.c.name)
_GPUS = select(*(gpu.c[name] for name in GpuRow._fields)).order_by(gpu.c.node, gpu.c.gpu)
_FAULTY = select(gpu.c.node, gpu.c.gpu).where(gpu.c.healthy.is_(False))
_OUT = select(node.c.name).where(node.c.out_of_service != "")
_BOOTS = select(node.c.name, node.c.boot_id).where(node.c.boot_id != "")
_REASON = select(node.c.out_of_service).where(node.c.name == bindparam("of_node")).with_for_update()
_WISH = update(node).where(node.c.name == bindparam("of_node")).values(out_of_service=bindparam("reason"))


def list_nodes(tx: Connection) -> list[NodeRow]:
    """Return all nodes by name."""
    return [NodeRow._make(row) for row in tx.execute(_NODES)]


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


def words_on(row: NodeRow) -> str:
    """Return why no job starts on a node, "" if jobs do."""
    if row.out_of_service:
        return f"{OUT_OF_SERVICE}: {row.out_of_service}"
    return "" if row.liveness is Liveness.UP else "dead" if row.verdict.is_dead else str(row.liveness)


def closed_nodes(tx: Connection) -> set[str]:
    """Return the nodes that no job starts on: those that do not answer, and those out of service."""
    return {row.name for row in list_nodes(tx) if words_on(row)}


def gpus_in_service(tx: Connection, sizes: Mapping[str, int]) -> set[tuple[str, int]]:
    """Return node and index of the GPUs that jobs can start on, or could if they were free.

    Args:
        tx: Transaction.
        sizes: GPUs of each node of the cluster.
    """
    closed, broken = closed_nodes(tx), faulty_gpus(tx) | quarantined(tx, sizes)
    every = {(node, gpu) for node, size in sizes.items() if node not in closed for gpu in range(size)}
    return every - broken


def write_health(
    tx: Connection, fence: int, nodes: Sequence[NodeRow], gpus: Sequence[GpuRow], events: Iterable[NewEvent]
) -> None:
    """Write what the leading scheduler sees of nodes and GPUs, new ones and known ones, with what is told of it.

    Raises:
        FencedError: If another scheduler has taken over.
    """
    check_fence(tx, fence)
    seen = [row._asdict() for row in nodes]
    for row in seen:
        del row["out_of_service"]
    put_all(tx, node, seen)
    put_all(tx, gpu, [row._asdict() for row in gpus])
    append_all(tx, [it._replace(fence=fence) for it in events])


def set_out_of_service(tx: Connection, row: NodeRow, reason: str, *, at_s: float, writer: str) -> bool:
    """Take a node out of service, or bring it back, and return whether that changed anything.

    Args:
        tx: Transaction.
        row: The node, as it is written if no scheduler has seen it yet.
        reason: For people; "" to bring it back.
        at_s: Unix time.
        writer: Role that writes it.
    """
    insert_if_absent(tx, node, row._asdict())
    was = tx.execute(_REASON, {"of_node": row.name}).scalar_one()
    if was == reason:
        return False
    tx.execute(_WISH, {"of_node": row.name, "reason": reason})
    words = [OUT_OF_SERVICE if it else IN_SERVICE for it in (was, reason)]
    before = f" (before: {was})" if was and reason else ""  # which would be known nowhere else
    cause = f"{row.name}: {reason or 'in service again'}{before}"
    append(tx, NewEvent(CHANGE, writer, at_s, was=words[0], now=words[1], cause=cause, data={"node": row.name}))
    return True
