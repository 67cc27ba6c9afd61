"""GET /v1/jobs/{id}/ring: how the ring of a job stands that goes on without members that fail."""

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from typing import Any

from fastapi import APIRouter

from ...backends.asking import ask
from ...backends.protocol import MemberPlace, Seats
from ...control.attempt_driver import attempt_name
from ...failover.wire import Recovery, Report
from ...files.typed_json import from_json
from ...service.planned import Sitting
from ...service.service import Service
from ...store.monitoring.replacements import ReplacementRow, replacements_of
from ...store.monitoring.ring_ends import ENDED, ring_ends
from ...store.rows.attempts import attempts_of
from ...store.rows.reservations import held_gpus
from ..http.auth import Serving
from ..views.lookup import NO_JOB, Found
from ..views.models import Page

router = APIRouter()

OVER = ("done", "lost")


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
    """A GPU that was given to the ring for an empty seat or as a backup, and why it was that one."""

    rank: int  # of the process there, as its log has it
    node: str
    gpu: int
    at_s: float  # Unix time
    formula: str = ""  # that decided: ring or source; "" for a GPU that was found in use
    average_s: float = 0.0  # of an iteration before
    took_s: float = 0.0  # that the choice took
    considered: int = 0  # candidates
    candidates: tuple[CandidatePage, ...] = ()  # the chosen one first, then the best of the others
    backup_for: int | None = None  # slow member in whose place it computes; none for an empty seat


class PlacePage(Page):
    """A GPU of the ring."""

    node: str
    gpu: int


class MemberPage(Page):
    """A member of the ring, or the last one that was on a GPU of it."""

    member: int
    seat: int | None  # none of a spare, and of one that is gone
    node: str
    gpu: int
    rank: int  # by which `longshore logs` knows its GPU
    pid: int | None  # on the node, by the node's numbers; none if it does not run


class RingPage(Page):
    """A ring at present, or as it stood last."""

    phase: str  # stopping, forming, running, done or lost; ended if it was ended from outside
    generation: int
    seats: int
    order: tuple[int, ...]  # member on each seat, -1 for none
    spares: tuple[int, ...]
    relieved: tuple[int, ...]  # slow members in whose place others compute
    step: int
    gone: dict[str, str]
    recoveries: tuple[Recovery, ...]
    hints: tuple[str, ...]  # what may be wrong with the script
    members: tuple[MemberPage, ...]  # by rank; of GPUs that were left those alone that have a seat
    gpus: tuple[PlacePage, ...]  # that it holds, or held last
    replacements: tuple[ReplacementPage, ...]


@router.get("/v1/jobs/{job}/ring", responses=NO_JOB)
def ring(row: Found, service: Serving) -> RingPage | None:
    """Show who sits on which seat, who is gone and why, the seconds of each recovery, and GPUs that came.

    That is how the ring of the last attempt stands, or stood last; none where nobody knows. Source: SPEC F6, F7.
    """
    return ring_page(row.id, service)


def ring_page(job: str, service: Service) -> RingPage | None:
    """Return what is shown of the ring of a job."""
    with service.store.read() as tx:
        attempts = attempts_of(tx, job)
        if not attempts:
            return None
        last = attempts[-1]
        given = replacements_of(tx, job, last.number)
        held = [(it.node, it.gpu) for it in held_gpus(tx) if it.job_id == job and it.number == last.number]
        kept = ring_ends(tx, job).get(last.number)
    if kept is not None:
        return _kept_page(kept, given)
    if not isinstance(service.backend, Seats):
        return None
    report = ask(partial(service.backend.ring, attempt_name(last)))
    if report is None:
        return None
    places = ask(partial(service.backend.places, attempt_name(last))) or ()
    return _page(report, places, held, given)


def seats_of(job: str, service: Service) -> dict[int, Sitting]:
    """Return who has which seat of the ring of a job; nobody where that is not known."""
    page = ring_page(job, service)
    members = () if page is None else page.members
    return {it.seat: Sitting(it.node, it.gpu, it.rank) for it in members if it.seat is not None}


def _kept_page(kept: Mapping[str, Any], given: Sequence[ReplacementRow]) -> RingPage | None:
    """Return the page of a ring whose attempt has ended; none of one of which another version kept something else."""
    try:
        report: Report = from_json(kept["report"], Report)
        places = [MemberPlace(*it)._replace(pid=0) for it in kept["places"]]
        gpus = [(node, gpu) for node, gpu in kept["gpus"]]
    except (KeyError, TypeError, ValueError):
        return None
    return _page(report if report.phase in OVER else replace(report, phase=ENDED), places, gpus, given)


def _page(
    report: Report, places: Sequence[MemberPlace], held: Sequence[tuple[str, int]], given: Sequence[ReplacementRow]
) -> RingPage:
    told = {field.name: getattr(report, field.name) for field in fields(report)}
    gpus = tuple(PlacePage(node=node, gpu=gpu) for node, gpu in held)
    seats = {member: seat for seat, member in enumerate(report.order) if member >= 0}
    members = tuple(
        MemberPage(member=it.member, seat=seats.get(it.member), node=it.node, gpu=it.gpu, rank=rank, pid=it.pid or None)
        for rank, it in enumerate(places)
        if it.member >= 0 and (it.member in seats or not it.is_left)  # at the end some have gone before others
    )
    return RingPage(**told, members=members, gpus=gpus, replacements=tuple(map(_replacement, given)))


def _replacement(row: ReplacementRow) -> ReplacementPage:
    why = {name: row.choice[name] for name in ReplacementPage.model_fields if name in row.choice}
    return ReplacementPage(rank=row.rank, node=row.node, gpu=row.gpu, at_s=row.at_s, **why)
