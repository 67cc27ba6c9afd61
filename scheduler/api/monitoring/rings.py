"""GET /v1/jobs/{id}/ring: how the ring of a job stands that goes on without members that fail."""

from collections.abc import Sequence
from dataclasses import fields
from functools import partial

from fastapi import APIRouter

from ...backends.asking import ask
from ...backends.protocol import Seats
from ...control.attempt_driver import attempt_name
from ...failover.wire import Recovery, Report
from ...model.placement import ReservationRow
from ...store.monitoring.replacements import ReplacementRow, replacements_of
from ...store.rows.attempts import attempts_of
from ...store.rows.reservations import held_gpus
from ..http.auth import Serving
from ..views.lookup import NO_JOB, Found
from ..views.models import Page

router = APIRouter()


class CandidatePage(Page):
    """A GPU that could have taken a seat; times of an iteration in seconds, none where nobody can tell.

    One that cannot exchange with the neighbours of the seat has none of these figures; `links` says why.
    """

    node: str
    gpu: int
    source_s: float | None  # by its own links and computing
    ring_s: float | None  # of the whole ring with it
    compute_s: float | None  # of its computing alone
    from_previous_bytes_per_s: float | None = None  # bandwidth from the member before the seat
    to_next_bytes_per_s: float | None = None  # and to the one behind it
    from_previous_measured_s: float | None = None  # seconds before the choice; none if it is by the cluster file
    to_next_measured_s: float | None = None
    links: str = ""  # whether these bandwidths were measured, and when; in words


class ReplacementPage(Page):
    """A GPU that was given to the ring for an empty seat, and why it was that one."""

    rank: int  # of the process there, as its log has it
    node: str
    gpu: int
    at_s: float  # Unix time
    formula: str = ""  # that decided: ring or source; "" for a GPU that was found in use
    average_s: float = 0.0  # of an iteration before
    took_s: float = 0.0  # that the choice took
    considered: int = 0  # candidates
    candidates: tuple[CandidatePage, ...] = ()  # the chosen one first, then the best of the others


class PlacePage(Page):
    """A GPU of the ring."""

    node: str
    gpu: int


class RingPage(Page):
    """A ring at present."""

    phase: str
    generation: int
    seats: int
    order: tuple[int, ...]  # member on each seat, -1 for none
    spares: tuple[int, ...]
    step: int
    gone: dict[str, str]
    recoveries: tuple[Recovery, ...]
    gpus: tuple[PlacePage, ...]  # that it holds
    replacements: tuple[ReplacementPage, ...]


@router.get("/v1/jobs/{job}/ring", responses=NO_JOB)
def ring(row: Found, service: Serving) -> RingPage | None:
    """Show who sits on which seat, who is gone and why, the seconds of each recovery, and GPUs that came; if one runs.

    Source: SPEC F6, F7.
    """
    with service.store.read() as tx:
        attempts = attempts_of(tx, row.id)
        given = replacements_of(tx, row.id, attempts[-1].number) if attempts else []
        held = [it for it in held_gpus(tx) if it.job_id == row.id and it.number == attempts[-1].number]
    if not attempts or not isinstance(service.backend, Seats):
        return None
    report = ask(partial(service.backend.ring, attempt_name(attempts[-1])))
    return None if report is None else _page(report, held, given)


def _page(report: Report, held: Sequence[ReservationRow], given: Sequence[ReplacementRow]) -> RingPage:
    told = {field.name: getattr(report, field.name) for field in fields(report)}
    gpus = tuple(PlacePage(node=it.node, gpu=it.gpu) for it in held)
    return RingPage(**told, gpus=gpus, replacements=tuple(map(_replacement, given)))


def _replacement(row: ReplacementRow) -> ReplacementPage:
    why = {name: row.choice[name] for name in ReplacementPage.model_fields if name in row.choice}
    return ReplacementPage(rank=row.rank, node=row.node, gpu=row.gpu, at_s=row.at_s, **why)
