"""Nodes."""

from fastapi import APIRouter

from ..store.queued import owners_of
from ..store.reservations import held_gpus
from .found import seen_owner
from .models import OTHERS, NodePage, node_pages
from .services import Asking, Serving

router = APIRouter()


@router.get("/v1/nodes")
def nodes(service: Serving, caller: Asking) -> list[NodePage]:
    """Show all nodes and who holds their GPUs."""
    mine = seen_owner(caller)
    with service.store.read() as tx:
        held = {(row.node, row.gpu): row.job_id for row in held_gpus(tx)}
        owners = {} if mine is None else owners_of(tx, sorted(set(held.values())))
    if mine is not None:
        held = {gpu: job if owners.get(job) == mine else OTHERS for gpu, job in held.items()}
    return node_pages(service.layout, held, slots=service.slots)
