"""Nodes and their GPUs, as they were last known."""

from typing import NamedTuple

from sqlalchemy import Connection, select

from .inserting import put
from .leases import check_fence
from .schema import Liveness, gpu, node


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
    out_of_service: str  # the reason; "" for a node in service


class GpuRow(NamedTuple):
    """A GPU."""

    node: str
    gpu: int  # index on the node
    healthy: bool
    since_s: float  # Unix time at which it became so


_NODES = select(*(node.c[name] for name in NodeRow._fields)).order_by(node.c.name)
_GPUS = select(*(gpu.c[name] for name in GpuRow._fields)).order_by(gpu.c.node, gpu.c.gpu)


def list_nodes(tx: Connection) -> list[NodeRow]:
    """Return all nodes by name."""
    return [NodeRow._make(row) for row in tx.execute(_NODES)]


def list_gpus(tx: Connection) -> list[GpuRow]:
    """Return all GPUs by node and index."""
    return [GpuRow._make(row) for row in tx.execute(_GPUS)]


def put_node(tx: Connection, fence: int, row: NodeRow) -> None:
    """Write down a node, known or not.

    Raises:
        FencedError: If another scheduler has taken over.
    """
    check_fence(tx, fence)
    put(tx, node, row._asdict())


def put_gpu(tx: Connection, fence: int, row: GpuRow) -> None:
    """Write down a GPU of a known node.

    Raises:
        FencedError: If another scheduler has taken over.
    """
    check_fence(tx, fence)
    put(tx, gpu, row._asdict())
