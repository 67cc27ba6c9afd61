"""What the stored past tells of faults."""

from fastapi import APIRouter
from pydantic import BaseModel

from ..http.auth import Asking, Serving

router = APIRouter()


class NodeFaultsPage(BaseModel):
    """What is known of the faults of a node."""

    node: str
    type: str
    faults: int
    per_day: float  # faults per node-day
    repair_s: float | None  # mean time from a fault to its end
    hazard_per_s: float | None  # rate that policies reckon with, for each GPU
    is_lemon: bool


class TypeFaultsPage(BaseModel):
    """The same of all nodes of a type."""

    type: str
    nodes: int
    faults: int
    per_day: float
    repair_s: float | None


class FaultsPage(BaseModel):
    """What is known of the faults of the cluster."""

    since_s: float  # from when on it is known
    nodes: tuple[NodeFaultsPage, ...]  # lemons first, then by rate
    types: tuple[TypeFaultsPage, ...]


@router.get("/v1/faults")
def faults(service: Serving, _: Asking) -> FaultsPage:
    """Show how often nodes failed, how long that lasted, and what policies make of it."""
    report = service.control.fault_report()
    return FaultsPage(
        since_s=report.since_s,
        nodes=tuple(NodeFaultsPage(**it._asdict()) for it in report.nodes),
        types=tuple(TypeFaultsPage(**it._asdict()) for it in report.types),
    )
