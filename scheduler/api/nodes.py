"""Nodes, GPUs, faults and quarantine.

Source: SPEC P1.
"""

from collections import Counter
from collections.abc import Collection
from functools import partial
from typing import Annotated, Self

import numpy as np
from fastapi import APIRouter, Path, Query, Request, Response
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ...cluster.files.errors import InputError
from ...cluster.files.input_problems import name_advice
from ...cluster.files.yaml_file import ExactTypes
from ...cluster.model.topology import Cluster
from ..access.tokens import Caller, Role
from ..control.steps import SLOW_NODE
from ..health.evidence import GpuReport, NodeReport, PortState
from ..health.fault_report import FaultReport
from ..health.monitor import node_state_of
from ..health.quarantining import CheckOrder, QuarantineOutcome
from ..model.gpu_index import WHOLE_NODE, Clears, HardwarePlace, QuarantineEntry, QuarantineFinding
from ..rules.quarantine import BY_HAND, CLEARED_S
from ..service.service import Service
from ..store.attempts import held_gpus
from ..store.jobs import owners_of
from ..store.nodes import (
    NodeRow,
    faulty_gpus,
    gpus_in_service,
    list_nodes,
    open_quarantines,
    quarantined_gpus,
    quarantines_since,
    set_out_of_service,
)
from ..store.schema import Liveness
from .auth import Operator, Reader, Reporter, ServiceDep, check_leads
from .jobs import HIDDEN_JOB, visible_owner
from .problems import ProblemError, openapi_problems
from .submitting import API_WRITER

SCHEDULER = "scheduler"  # among witnesses


class QuarantinePage(BaseModel):
    """A GPU, link or node that is or was in quarantine."""

    scope: str  # device, node or link
    node: str
    gpu: int | None  # index on the node; none for the node itself
    other_node: str | None  # of the other end of a link
    other_gpu: int | None
    since_s: float
    symptom_s: float  # when it was last seen
    check: str
    cause: str
    evidence: str
    action: str  # that mends it
    clears: str  # what ends it: checks, reboot or operator
    tries: int
    boot_id: str
    not_before_s: float  # checks alone do not end it earlier
    checking: bool  # the checks that may end it are running
    checked: str  # how they ended the last time
    cleared_s: float | None
    cleared_by: str


class NodePage(BaseModel):
    """A node and the jobs that hold its GPUs."""

    name: str
    kind: str  # node type
    gpus: tuple[str | None, ...]  # job that holds each, `-` for another user's, none if it is free
    slots: bool  # its GPUs are slots that only behave like GPUs
    state: str  # alive, suspect, unreachable, dead, fenced or quarantined
    evidence: str  # what that rests on
    liveness: str  # up, suspect or down
    verdict: str  # of probes of its agent's port while it is down: reached, stuck, fast, slow, or "" for none
    since_s: float  # when it became so
    seen_s: float  # last answer, 0 if none is known
    out_of_service: str  # the reason, "" for a node in service
    faulty: tuple[int, ...]  # GPUs, by their index
    quarantined: tuple[int, ...]  # GPUs that take no job for that, by their index
    quarantine: tuple[QuarantinePage, ...]  # of it, its GPUs and their links
    peak_flops: float  # FLOP/s of each of its GPUs
    address: str  # that its agent reports from; for operators, "" for others and without an agent
    boot_id: str  # names the time since its last start, "" if unknown
    agent_version: str
    witnesses: tuple[str, ...]  # probers that reached its agent's port: `scheduler`, and nodes
    reported: dict[str, tuple[GpuReport, ...]] | None  # `gpus`, as its agent last reported them; none before


def quarantine_page(entry: QuarantineEntry, running: Collection[HardwarePlace]) -> QuarantinePage:
    """Return a quarantine; `running` has what is being checked."""
    place = entry.place
    fields = {name: getattr(entry, name) for name in QuarantinePage.model_fields if hasattr(entry, name)}
    return QuarantinePage(
        **fields, scope=place.scope, node=place.node, gpu=None if place.gpu == WHOLE_NODE else place.gpu,
        other_node=place.other_node or None, other_gpu=None if place.other_gpu == WHOLE_NODE else place.other_gpu,
        checking=entry.cleared_s is None and any(checked == place or checked.covers(place) for checked in running),
    )  # fmt: skip


def _gpus_on(node: str, places: Collection[tuple[str, int]]) -> tuple[int, ...]:
    return tuple(sorted(gpu for name, gpu in places if name == node))


router = APIRouter()


class DrainRequest(ExactTypes):
    """Body of a drain."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    reason: Annotated[
        str, Field(pattern=r"^[^\x00-\x1f\x7f]{1,200}$", description="One line of 1 to 200 characters.")
    ] = "drained"


Node = Annotated[str, Path(max_length=253)]
OrderId = Annotated[str, Path(max_length=64)]
LINE = r"^[^\x00-\x1f\x7f]*$"
NODE_PROBLEMS = openapi_problems("no-such-node", "bad-request", "too-much", "not-ready")


@router.get("/v1/nodes")
def nodes(service: ServiceDep, caller: Reader) -> list[NodePage]:
    """List all nodes, and the jobs that hold their GPUs."""
    mine = visible_owner(caller)
    with service.store.read() as tx:
        held = {(row.node, row.gpu): row.job_id for row in held_gpus(tx)}
        owners = {} if mine is None else owners_of(tx, sorted(set(held.values())))
        rows, faulty = {row.name: row for row in list_nodes(tx)}, faulty_gpus(tx)
        broken, closed = open_quarantines(tx), quarantined_gpus(tx, service.layout.nodes)
    if mine is not None:
        held = {gpu: job if owners.get(job) == mine else HIDDEN_JOB for gpu, job in held.items()}
        rows = {name: _row_for_users(row) for name, row in rows.items()}
    control, now_s = service.control, service.now_s()
    fenced, reports, reached_by = control.fenced_nodes(), control.last_reports(), control.successful_probers()
    running = service.clearing.running

    def page(name: str, gpus: int) -> NodePage:
        row, report = rows.get(name, _row_of_unseen(service, name)), reports.get(name)
        state = node_state_of(row, broken, is_fenced=name in fenced, now_s=now_s)
        return NodePage(
            name=name, kind=row.kind, gpus=tuple(held.get((name, gpu)) for gpu in range(gpus)), slots=row.slots,
            state=state.state, evidence=state.evidence, liveness=row.liveness, verdict=row.verdict,
            since_s=row.since_s, seen_s=row.seen_s, out_of_service=row.out_of_service, faulty=_gpus_on(name, faulty),
            quarantined=_gpus_on(name, closed),
            quarantine=tuple(
                quarantine_page(each, running) for each in broken if name in (each.place.node, each.place.other_node)
            ),
            peak_flops=service.peak_flops.get(name, 0.0), address=row.address, boot_id=row.boot_id,
            agent_version=row.agent_version, witnesses=tuple(each or SCHEDULER for each in reached_by.get(name, ())),
            reported=None if report is None else {"gpus": report.content.gpus},
        )  # fmt: skip

    return [page(name, gpus) for name, gpus in service.layout.nodes.items()]


def _row_for_users(row: NodeRow) -> NodeRow:
    """Return a node without its address, and without the job that found it slow, which may be another user's."""
    is_slow = row.out_of_service.startswith(SLOW_NODE)
    return row._replace(address="", out_of_service="slow, as a job reported" if is_slow else row.out_of_service)


@router.post("/v1/nodes/{node}/drain", status_code=204, responses=NODE_PROBLEMS)
def drain(node: Node, service: ServiceDep, _: Operator, body: DrainRequest | None = None) -> Response:
    """Take a node out of service: its jobs continue, and none starts there."""
    return _write_out_of_service(service, node, (body or DrainRequest()).reason)


@router.post("/v1/nodes/{node}/resume", status_code=204, responses=NODE_PROBLEMS)
def resume(node: Node, service: ServiceDep, _: Operator) -> Response:
    """Put a node back into service; without reports of its agent it is not down until the agent reports again."""
    _check_node_exists(node, service)
    check_leads(service)
    service.control.monitor.reports.dismiss(node)
    return _write_out_of_service(service, node, "")


class NewCheckOutcome(ExactTypes):
    """Outcome of an agent's checks."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    passed: bool
    evidence: Annotated[str, Field(max_length=2000, pattern=LINE, description="One line.")]


class PortProbePage(BaseModel):
    """A port that an agent is to probe."""

    id: str
    node: str  # whose agent should answer there
    address: str
    port: int


class NewPortProbes(ExactTypes):
    """Results of an agent's probes of other agents' ports."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    results: Annotated[dict[Annotated[str, Field(max_length=64)], PortState], Field(max_length=4096)]  # by id


class LeasePage(BaseModel):
    """What the agent of a node is answered."""

    lease_s: float | None  # for which processes of attempts may live there; none where no leases are granted
    token: int  # of who grants it: the agent heeds none of a lower one
    kill: tuple[str, ...]  # attempts that must not live there
    checks: tuple[CheckOrder, ...]  # that the agent is to run, until it has reported their outcome
    port_probes: tuple[PortProbePage, ...]  # ports of others that it is to probe, until it has reported the results


@router.post("/v1/nodes/{node}/report", responses=NODE_PROBLEMS)
def receive_report(node: Node, body: NodeReport, service: ServiceDep, caller: Reporter, request: Request) -> LeasePage:
    """Take the report of a node's agent; from the first one on the node counts as silent without further ones."""
    _check_agent_of(node, service, caller)
    granted = service.control.take_report(node, body, request.client.host if request.client else "")
    orders = service.checks.orders.fetch_orders(node, able=body.checks)
    port_probes = service.control.monitor.witnesses.orders_for(node) if body.agent_port else ()
    return LeasePage(
        **granted._asdict(), checks=orders,
        port_probes=tuple(PortProbePage(id=each.id, **each.probe._asdict()) for each in port_probes),
    )  # fmt: skip


@router.post("/v1/nodes/{node}/checks/{order}", status_code=204, responses=NODE_PROBLEMS)
def receive_check_outcome(
    node: Node, order: OrderId, outcome: NewCheckOutcome, service: ServiceDep, caller: Reporter
) -> Response:
    """Take the outcome of an agent's checks; ignored if it is no longer expected."""
    _check_agent_of(node, service, caller)
    service.checks.orders.record_outcome(node, order, outcome.evidence, passed=outcome.passed)
    return Response(status_code=204)


@router.post("/v1/nodes/{node}/port-probes", status_code=204, responses=NODE_PROBLEMS)
def record_port_probes(node: Node, body: NewPortProbes, service: ServiceDep, caller: Reporter) -> Response:
    """Record the results of a node's probes of other agents' ports; unexpected ones are ignored."""
    _check_agent_of(node, service, caller)
    service.control.record_port_probes(node, body.results)
    return Response(status_code=204)


def _check_agent_of(node: str, service: Service, caller: Caller) -> None:
    """Refuse an agent that reports on another node than that of its token."""
    if caller.role is Role.AGENT and caller.node != node:
        its = "no node: make one with `longshore token create NAME --role agent --node NODE`"
        raise ProblemError("forbidden", f"the token is for {its if caller.node is None else f'node {caller.node}'}")
    _check_node_exists(node, service)
    check_leads(service)


def _check_node_exists(node: str, service: Service) -> None:
    """Refuse a node that is not there.

    Not a dependency, as the answer names nodes: callers without rights must be refused first.
    """
    if node not in service.layout.nodes:
        raise ProblemError("no-such-node", f"there is no node {node!r}; {name_advice(node, service.layout.nodes)}")


def _write_out_of_service(service: Service, node: str, reason: str) -> Response:
    _check_node_exists(node, service)
    row = _row_of_unseen(service, node)
    service.store.write(
        partial(set_out_of_service, row=row, reason=reason, at_s=service.now_s(), writer=API_WRITER)
    )  # fmt: skip
    service.wake()
    return Response(status_code=204)


def _row_of_unseen(service: Service, node: str) -> NodeRow:
    """Return the row of a node without a report or probe."""
    now_s, backend = service.now_s(), service.settings.backend.name
    return NodeRow(node, backend, service.node_types[node], service.slots, Liveness.UP, now_s, 0.0, 0)


SET_BY_OPERATOR = "set by an operator"  # evidence of a finding without a check, where none is given
QUARANTINE_LINE = r"^[^\x00-\x1f\x7f-\x9f]*$"
QuarantinedNode = Annotated[str, Field(min_length=1, max_length=253, pattern=QUARANTINE_LINE)]
Gpu = Annotated[int | None, Field(ge=0, le=1023, description="Index on the node; default: the whole node.")]


class NewFinding(ExactTypes):
    """A fault that an operator or a check found."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: QuarantinedNode
    gpu: Gpu = None
    other_node: Annotated[QuarantinedNode | None, Field(description="Of the other end, where it is a link.")] = None
    other_gpu: Gpu = None
    check: Annotated[str, Field(min_length=1, max_length=100, pattern=QUARANTINE_LINE)] = BY_HAND
    cause: Annotated[
        str, Field(min_length=1, max_length=200, pattern=QUARANTINE_LINE, description="The same text each time.")
    ]
    evidence: Annotated[str, Field(max_length=2000, pattern=QUARANTINE_LINE)] = ""
    action: Annotated[str, Field(min_length=1, max_length=200, pattern=QUARANTINE_LINE)] = "inspect it"
    clears: Clears = Clears.OPERATOR
    at_s: Annotated[float | None, Field(ge=0.0, le=1e12, description="When it was found; default: now.")] = None
    boot_id: Annotated[str, Field(pattern=r"^[0-9a-f-]{0,64}$", description="Of the node then.")] = ""

    @model_validator(mode="after")
    def _link_has_two_ends(self) -> Self:
        if self.other_node is None and self.other_gpu is not None:
            raise ValueError("other_gpu needs other_node")
        if (self.node, self.gpu) == (self.other_node, self.other_gpu):
            raise ValueError("a link has two ends")
        return self

    @property
    def place(self) -> HardwarePlace:
        """What it is about."""
        first, last = (WHOLE_NODE if gpu is None else gpu for gpu in (self.gpu, self.other_gpu))
        return HardwarePlace(self.node, first, self.other_node or "", last)


class ClearRequest(ExactTypes):
    """A node or GPU to clear."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    node: QuarantinedNode
    gpu: Gpu = None
    unchecked: Annotated[bool, Field(description="Clear it without checks.")] = False


class ClearedPage(BaseModel):
    """Result of a request to clear."""

    cleared: int  # quarantines that ended; 0 while they are checked
    checking: bool


@router.get("/v1/quarantine")
def quarantines(
    service: ServiceDep,
    _: Reader,
    *,
    cleared: Annotated[bool, Query(description="Also what was cleared in the last 30 days.")] = False,
) -> list[QuarantinePage]:
    """List what is in quarantine, the oldest first."""
    with service.store.read() as tx:
        found = quarantines_since(tx, service.now_s() - CLEARED_S) if cleared else open_quarantines(tx)
    running = service.clearing.running
    return [quarantine_page(entry, running) for entry in found]


@router.post("/v1/quarantine", responses=openapi_problems("no-such-node", "bad-request", "too-much"))
def put_into_quarantine(found: NewFinding, service: ServiceDep, caller: Reporter) -> dict[str, QuarantineOutcome]:
    """Put a broken GPU, link or node into quarantine, unless the rules forbid it; safe to repeat."""
    if caller.role is Role.AGENT and {found.node, found.other_node or found.node} != {caller.node}:
        raise ProblemError("forbidden", f"the token is for node {caller.node}, its GPUs and the links between them")
    if caller.role is Role.AGENT and found.check == BY_HAND:
        raise ProblemError("forbidden", f"an agent names the check that found it, and not {BY_HAND!r}")
    now_s = service.now_s()
    at_s = now_s if found.at_s is None else min(found.at_s, now_s)
    evidence = found.evidence or (SET_BY_OPERATOR if found.check == BY_HAND else "")
    finding = QuarantineFinding(
        found.place, found.check, found.cause, evidence, found.action, found.clears, at_s, found.boot_id
    )
    try:
        acted = service.control.quarantine(finding, API_WRITER)
    except InputError as error:
        raise ProblemError("no-such-node", str(error)) from error
    service.wake()
    return {"acted": acted}


@router.post(
    "/v1/quarantine/clear",
    responses={**NODE_PROBLEMS, **openapi_problems("not-in-quarantine", "no-checks")},
)
def clear_quarantine(body: ClearRequest, service: ServiceDep, caller: Operator) -> ClearedPage:
    """Check what is in quarantine and clear it if the checks pass, or clear it without checks."""
    place = HardwarePlace(body.node, WHOLE_NODE if body.gpu is None else body.gpu)
    if place.node not in service.layout.nodes:
        raise ProblemError("no-such-node", f"there is no node {place.node!r}")
    if not body.unchecked:
        check_leads(service)
    if not (body.unchecked or service.clearing.can_check(place)):
        raise ProblemError(
            "no-checks",
            f"no agent runs checks on {place.node}: start `longshore node agent --node {place.node} --checks`; "
            "`unchecked` clears it without any",
        )
    by = f"operator {caller.owner}"
    try:
        if not body.unchecked:
            service.clearing.request(place, by)
            return ClearedPage(cleared=0, checking=True)
        ended = service.clearing.skip_checks(place, by)
    except InputError as error:
        raise ProblemError("not-in-quarantine", str(error)) from error
    service.wake()
    return ClearedPage(cleared=ended, checking=False)


class NodeTypePage(BaseModel):
    """Nodes of one type. Figures of GPUs are of one GPU."""

    name: str
    nodes: int
    gpus: int  # of all these nodes
    gpus_in_service: int  # of these, free or not
    gpus_per_node: int  # of the smallest node
    speed: float  # over that of the reference type
    peak_flops: float
    memory_bytes: float
    intra_bytes_per_s: float  # between two GPUs of a node
    nic_bytes_per_s: float  # between a node and others of its rack
    uplink_bytes_per_s: float | None  # of the slowest rack with such nodes; none where they are in one rack


class ClusterPage(BaseModel):
    """A cluster."""

    backend: str
    slots: bool  # its GPUs are slots that only behave like GPUs
    node_types: tuple[NodeTypePage, ...]  # in the order of the cluster file's nodes


@router.get("/v1/cluster")
def cluster(service: ServiceDep, _: Reader) -> ClusterPage:
    """Show the node types of the cluster and their GPUs."""
    with service.store.read() as tx:
        usable = gpus_in_service(tx, service.layout.nodes)
    in_service = Counter(service.node_types[node] for node, _ in usable)
    names = list(service.node_types.values())
    here, found = service.control.cluster(), []
    for name in dict.fromkeys(names):
        nodes = np.array([number for number, kind in enumerate(names) if kind == name])
        found.append(_node_type_page(here, name, nodes, in_service[name]))
    return ClusterPage(backend=service.settings.backend.name, slots=service.slots, node_types=tuple(found))


def _node_type_page(here: Cluster, name: str, nodes: NDArray[np.int64], in_service: int) -> NodeTypePage:
    counts, first = np.diff(here.first_gpu)[nodes], nodes[0]
    racks = np.unique(here.node_rack[nodes])
    return NodeTypePage(
        name=name, nodes=nodes.size, gpus=int(counts.sum()), gpus_in_service=in_service,
        gpus_per_node=int(counts.min()), speed=float(here.speed[first]), peak_flops=float(here.peak_flops[first]),
        memory_bytes=float(here.memory_bytes[first]), intra_bytes_per_s=float(here.intra_bytes_per_s[first]),
        nic_bytes_per_s=float(here.nic_bytes_per_s[first]),
        uplink_bytes_per_s=float(here.uplink_bytes_per_s[racks].min()) if racks.size > 1 else None,
    )  # fmt: skip


@router.get("/v1/faults")
def faults(service: ServiceDep, _: Reader) -> FaultReport:
    """Show how often nodes failed, for how long, and the rates that policies use."""
    return service.control.fault_report()
