"""What the buttons on a job's page do: cancel, hold or release it, by forms of the scheduler's own pages.

Source: SPEC K8; docs/dashboard.md.
"""

from collections.abc import Mapping
from enum import StrEnum
from http import HTTPStatus
from types import MappingProxyType

from fastapi import APIRouter, Request, Response
from fastapi.responses import RedirectResponse

from ..api.http.auth import NOBODY_ELSE
from ..api.routes.submitting import WRITER
from ..api.views.lookup import find_job
from ..model.job import JobRow
from ..model.states import FINAL, Desired
from ..service.service import Service
from ..store.rows.jobs import set_desired
from .entering import check_origin


class Action(StrEnum):
    """A button."""

    HOLD = "hold"
    RELEASE = "release"
    CANCEL = "cancel"


WISHES: Mapping[Action, Desired] = MappingProxyType(
    {Action.HOLD: Desired.HOLD, Action.RELEASE: Desired.RUN, Action.CANCEL: Desired.CANCEL}
)


def actions_of(row: JobRow) -> list[Action]:
    """Return what may be done with a job; nothing once it has ended or is being cancelled."""
    if row.state in FINAL or row.desired is Desired.CANCEL:
        return []
    return [Action.RELEASE if row.desired is Desired.HOLD else Action.HOLD, Action.CANCEL]


def add_actions(router: APIRouter, service: Service) -> None:
    """Add what the buttons send. The router lets in only those who may change all jobs."""

    @router.post("/jobs/{job}/{action}")
    def act(job: str, action: Action, request: Request) -> Response:
        check_origin(request)
        row = find_job(service, NOBODY_ELSE, job)
        service.store.write(
            lambda tx: set_desired(tx, row.id, WISHES[action], at_s=service.now_s(), writer=WRITER)
        )  # fmt: skip
        service.wake()
        return RedirectResponse(f"/jobs/{row.id}", HTTPStatus.SEE_OTHER)
