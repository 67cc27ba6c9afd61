"""Nodes: how they stand, whether they are in service, and what their agents report."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Path, Request, Response
from pydantic import BaseModel, ConfigDict, Field

from ....cluster.files.exact_types import ExactTypes
from ....cluster.files.input_problems import nearest
from ...access.tokens import Caller, Role
from ...control.health.steps import SLOW_NODE
from ...health.monitoring.check_orders import Outcome
from ...health.monitoring.node_state import state_of
from ...health.reports import NodeReport
from ...health.witnessing.door import Sight
from ...service.service import Service
from ...store.database.schema import Liveness
from ...store.monitoring.quarantines import open_entries, quarantined
from ...store.queue_position import owners_of
from ...store.rows.nodes import NodeRow, faulty_gpus, list_nodes, set_out_of_service
from ...store.rows.reservations import held_gpus
from ..http.auth import Asking, Operating, Reporting, Serving
from ..http.problems import ProblemError, problems
from ..views.lookup import seen_owner
from ..views.models import OTHERS
from ..views.nodes import NodePage, Shown, node_page

WRITER = "api"

router = APIRouter()


class DrainWish(ExactTypes):
    """Why a node is taken out of service."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: Annotated[
        str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,200}$", description="One line of 1 to 200 characters.")
    ] = "drained"


Node = Annotated[str, Path(max_length=253)]
OrderId = Annotated[str, Path(max_length=64)]
LINE = r"^[^\x00-\x1f\x7f]*$"
NO_NODE = problems("no-such-node", "bad-request", "too-much")


@router.get("/v1/nodes")
def nodes(service: Serving, caller: Asking) -> list[NodePage]:
    """Show all nodes and who holds their GPUs."""
    mine = seen_owner(caller)
    with service.store.read() as tx:
        held = {(row.node, row.gpu): row.job_id for row in held_gpus(tx)}
        owners = {} if mine is None else owners_of(tx, sorted(set(held.values())))
        rows, faulty = {row.name: row for row in list_nodes(tx)}, faulty_gpus(tx)
        broken, closed = open_entries(tx), quarantined(tx, service.layout.nodes)
    if mine is not None:
        held = {gpu: job if owners.get(job) == mine else OTHERS for gpu, job in held.items()}
        rows = {name: _for_users(row) for name, row in rows.items()}
    control, now_s = service.control, service.now_s()
    shown = Shown(
        service.layout.nodes, service.peak_flops, held, faulty, control.last_reports(), broken, closed,
        service.clearing.running, control.let_in(),
    )  # fmt: skip
    seen = [rows.get(name, _unseen(service, name)) for name in service.layout.nodes]
    fenced = control.fenced_nodes()
    states = [state_of(row, broken, is_fenced=row.name in fenced, now_s=now_s) for row in seen]
    return [node_page(row, shown, state) for row, state in zip(seen, states, strict=True)]


def _for_users(row: NodeRow) -> NodeRow:
    """Return a node without its address, and without the job that told that it is slow, which may be another's."""
    is_slow = row.out_of_service.startswith(SLOW_NODE)
    return row._replace(address="", out_of_service="slow, as a job told" if is_slow else row.out_of_service)


@router.post("/v1/nodes/{node}/drain", status_code=204, responses=NO_NODE)
def drain(node: Node, service: Serving, _: Operating, wish: DrainWish | None = None) -> Response:
    """Take a node out of service: jobs on it run on, and none starts there."""
    return _set(service, node, (wish or DrainWish()).reason)


@router.post("/v1/nodes/{node}/resume", status_code=204, responses=NO_NODE)
def resume(node: Node, service: Serving, _: Operating) -> Response:
    """Put a node into service again; its agent, if it has one, is waited for no more until it reports again."""
    _check_known(node, service)
    service.control.dismiss_reports(node)
    return _set(service, node, "")


class OrderPage(BaseModel):
    """Checks that an agent is to run."""

    id: str
    gpus: tuple[int, ...]
    level: int


class NewOutcome(ExactTypes):
    """What an agent's checks found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    passed: bool
    evidence: Annotated[str, Field(max_length=2000, pattern=LINE, description="One line.")]


class KnockPage(BaseModel):
    """A door at which an agent is to knock."""

    id: str
    node: str  # whose agent should answer there
    address: str
    port: int


class NewSights(ExactTypes):
    """What an agent found at doors of others."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    sights: Annotated[dict[Annotated[str, Field(max_length=64)], Sight], Field(max_length=4096)]  # by id


class LeasePage(BaseModel):
    """What the agent of a node is answered."""

    lease_s: float | None  # for which processes of attempts may live there; none where no leases are granted
    token: int  # of who grants it: the agent heeds none of a lower one
    kill: tuple[str, ...]  # attempts that must not live there
    checks: tuple[OrderPage, ...]  # that the agent is to run, until it has told of their outcome
    knocks: tuple[KnockPage, ...]  # doors of others at which it is to knock, until it has told what it found


@router.post("/v1/nodes/{node}/report", responses=NO_NODE)
def report(node: Node, told: NodeReport, service: Serving, caller: Reporting, request: Request) -> LeasePage:
    """Take the report of a node's agent; from the first one on the node counts as silent without further ones."""
    _check_own(node, service, caller)
    granted = service.control.take_report(node, told, request.client.host if request.client else "")
    orders = service.checks.orders.fetch(node, able=told.checks)
    knocks = service.control.knocks_for(node) if told.door else ()
    return LeasePage(
        **granted._asdict(), checks=tuple(OrderPage(**it._asdict()) for it in orders),
        knocks=tuple(KnockPage(id=it.id, **it.knock._asdict()) for it in knocks),
    )  # fmt: skip


@router.post("/v1/nodes/{node}/checks/{order}", status_code=204, responses=NO_NODE)
def settle(node: Node, order: OrderId, told: NewOutcome, service: Serving, caller: Reporting) -> Response:
    """Take what a node's agent has found; nothing happens if nobody waits for it any more."""
    _check_own(node, service, caller)
    service.checks.orders.settle(node, order, Outcome(told.passed, told.evidence))
    return Response(status_code=204)


@router.post("/v1/nodes/{node}/sights", status_code=204, responses=NO_NODE)
def sights(node: Node, told: NewSights, service: Serving, caller: Reporting) -> Response:
    """Take what a node's agent has found at the doors of others; what nobody waits for any more is left out."""
    _check_own(node, service, caller)
    service.control.take_sights(node, told.sights)
    return Response(status_code=204)


def _check_own(node: str, service: Service, caller: Caller) -> None:
    """Refuse what is told of another node than the one that a token is for."""
    if caller.role is Role.AGENT and caller.node != node:
        its = "no node: make one with `longshore token create NAME --role agent --node NODE`"
        raise ProblemError("forbidden", f"the token is for {its if caller.node is None else f'node {caller.node}'}")
    _check_known(node, service)


def _check_known(node: str, service: Service) -> None:
    """Refuse a node that is not there.

    No dependency, as its answer names nodes: whoever may not ask must be refused before.
    """
    if node not in service.layout.nodes:
        raise ProblemError("no-such-node", f"there is no node {node!r}; {nearest(node, service.layout.nodes)}")


def _set(service: Service, node: str, reason: str) -> Response:
    _check_known(node, service)
    row = _unseen(service, node)
    service.store.write(
        partial(set_out_of_service, row=row, reason=reason, at_s=service.now_s(), writer=WRITER)
    )  # fmt: skip
    service.wake()
    return Response(status_code=204)


def _unseen(service: Service, node: str) -> NodeRow:
    """Return a node that no scheduler has looked at."""
    now_s, backend = service.now_s(), service.settings.backend.name
    return NodeRow(node, backend, service.node_types[node], service.slots, Liveness.UP, now_s, 0.0, 0)
