"""Quarantine: what stands there, what is put there, and what is cleared."""

from typing import Annotated, Self

from fastapi import APIRouter, Query
from pydantic import BaseModel, ConfigDict, Field, model_validator

from ....cluster.files.errors import InputError
from ....cluster.files.exact_types import ExactTypes
from ...access.tokens import Role
from ...health.quarantining import Acted, by_hand
from ...model.quarantine import WHOLE, Clears, Finding, Place
from ...rules.device_quarantine import BY_HAND, CLEARED_S
from ...service.service import Service
from ...store.monitoring.quarantines import entries_since, open_entries
from ..http.auth import Asking, Operating, Reporting, Serving
from ..http.problems import ProblemError, problems
from ..views.nodes import QuarantinePage, quarantine_page

WRITER = "api"
LINE = r"^[^\x00-\x1f\x7f-\x9f]*$"

router = APIRouter()

Node = Annotated[str, Field(min_length=1, max_length=253, pattern=LINE)]
Gpu = Annotated[int | None, Field(ge=0, le=1023, description="Index on the node; the whole node if left out.")]


class _Asked(ExactTypes):
    model_config = ConfigDict(frozen=True, extra="forbid")


class NewFinding(_Asked):
    """What was found to be broken."""

    node: Node
    gpu: Gpu = None
    other_node: Annotated[Node | None, Field(description="Of the other end, where it is a link.")] = None
    other_gpu: Gpu = None
    check: Annotated[str, Field(min_length=1, max_length=100, pattern=LINE)] = BY_HAND
    cause: Annotated[str, Field(min_length=1, max_length=200, pattern=LINE, description="The same words each time.")]
    evidence: Annotated[str, Field(max_length=2000, pattern=LINE)] = ""
    action: Annotated[str, Field(min_length=1, max_length=200, pattern=LINE)] = "look at it"
    clears: Clears = Clears.OPERATOR
    at_s: Annotated[float | None, Field(ge=0.0, le=1e12, description="When it was seen; now if left out.")] = None
    boot_id: Annotated[str, Field(pattern=r"^[0-9a-f-]{0,64}$", description="Of the node then.")] = ""

    @model_validator(mode="after")
    def _link_has_two_ends(self) -> Self:
        if self.other_node is None and self.other_gpu is not None:
            raise ValueError("other_gpu needs other_node")
        if (self.node, self.gpu) == (self.other_node, self.other_gpu):
            raise ValueError("a link has two ends")
        return self

    @property
    def place(self) -> Place:
        """What it is about."""
        gpus = (WHOLE if gpu is None else gpu for gpu in (self.gpu, self.other_gpu))
        first, last = gpus
        return Place(self.node, first, self.other_node or "", last)


class ActedPage(BaseModel):
    """What came of a finding."""

    acted: Acted


class ClearWish(_Asked):
    """What is to be cleared."""

    node: Node
    gpu: Gpu = None
    unchecked: Annotated[bool, Field(description="Whether no checks are run before.")] = False


class ClearedPage(BaseModel):
    """What came of a wish to clear."""

    cleared: int  # quarantines that ended; 0 while they are checked
    checking: bool


@router.get("/v1/quarantine")
def quarantines(
    service: Serving,
    _: Asking,
    *,
    cleared: Annotated[bool, Query(description="Those of the last 30 days, too, that are cleared.")] = False,
) -> list[QuarantinePage]:
    """List what stands in quarantine, the first first."""
    with service.store.read() as tx:
        found = entries_since(tx, service.now_s() - CLEARED_S) if cleared else open_entries(tx)
    running = service.clearing.running
    return [quarantine_page(it, running) for it in found]


@router.post("/v1/quarantine", responses=problems("no-such-node", "bad-request", "too-much"))
def put(found: NewFinding, service: Serving, caller: Reporting) -> ActedPage:
    """Put what was found to be broken into quarantine, unless the rules are against it; safe to repeat."""
    if caller.role is Role.AGENT and {found.node, found.other_node or found.node} != {caller.node}:
        raise ProblemError("forbidden", f"the token is for node {caller.node}, its GPUs and the links between them")
    if caller.role is Role.AGENT and found.check == BY_HAND:
        raise ProblemError("forbidden", f"an agent names the check that found it, and not {BY_HAND!r}")
    now_s = service.now_s()
    finding = by_hand(found.place, found.cause, found.action, now_s)
    if found.check != BY_HAND:
        at_s = now_s if found.at_s is None else min(found.at_s, now_s)
        finding = Finding(
            found.place, found.check, found.cause, found.evidence, found.action, found.clears, at_s, found.boot_id
        )
    try:
        acted = service.control.quarantine(finding, WRITER)
    except InputError as error:
        raise ProblemError("no-such-node", str(error)) from error
    service.wake()
    return ActedPage(acted=acted)


@router.post(
    "/v1/quarantine/clear",
    responses=problems("no-such-node", "not-in-quarantine", "no-checks", "bad-request", "too-much"),
)
def clear(wish: ClearWish, service: Serving, caller: Operating) -> ClearedPage:
    """Run the checks of what stands in quarantine and clear it if they pass, or clear it without any."""
    place = Place(wish.node, WHOLE if wish.gpu is None else wish.gpu)
    _check_there(place, service)
    if not (wish.unchecked or service.clearing.can_check(place)):
        raise ProblemError(
            "no-checks",
            f"nobody runs checks on {place.node}: start its agent by `longshore agent --node {place.node} --checks`; "
            "`unchecked` clears it without any",
        )
    by = f"operator {caller.owner}"
    try:
        if not wish.unchecked:
            service.clearing.ask(place, by)
            return ClearedPage(cleared=0, checking=True)
        ended = service.clearing.skip_checks(place, by)
    except InputError as error:
        raise ProblemError("not-in-quarantine", str(error)) from error
    service.wake()
    return ClearedPage(cleared=ended, checking=False)


def _check_there(place: Place, service: Service) -> None:
    if place.node not in service.layout.nodes:
        raise ProblemError("no-such-node", f"there is no node {place.node!r}")
