"""Checkpoints of a job: those that are registered, and a further one."""

from functools import partial
from typing import Annotated

from fastapi import APIRouter, Query
from pydantic import ConfigDict, Field

from ....cluster.files.exact_types import ExactTypes
from ...store.database.errors import OlderAttemptError
from ...store.rows.checkpoints import MOST_KEPT, CheckpointRow, checkpoints_of, register
from ..http.auth import Changing, Serving
from ..http.problems import ProblemError, problems
from ..views.lookup import NO_JOB, Found, find_attempt
from ..views.models import CheckpointPage, checkpoint_page
from .submitting import WRITER

router = APIRouter()


class NewCheckpoint(ExactTypes):
    """A checkpoint that is complete."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    attempt: Annotated[int, Field(ge=1, le=1_000_000, description="That wrote it.")]
    step: Annotated[int, Field(ge=0, lt=10**15, description="The last one that it holds.")]
    path: Annotated[
        str,
        Field(
            pattern=r"^[^\x00-\x1f\x7f-\x9f]{1,1024}$",
            description="An absolute path or a URL, 1024 characters at most.",
        ),
    ]
    digest: Annotated[
        str, Field(pattern=r"^([0-9a-f]{8,128})?$", description="8 to 128 digits in hexadecimal, or nothing.")
    ] = ""


@router.get("/v1/jobs/{job}/checkpoints", responses=NO_JOB)
def checkpoints(
    row: Found, service: Serving, limit: Annotated[int, Query(ge=1, le=MOST_KEPT)] = MOST_KEPT
) -> list[CheckpointPage]:
    """List the checkpoints of a job, the newest first; its next attempt begins with the first of them."""
    with service.store.read() as tx:
        return [checkpoint_page(it) for it in checkpoints_of(tx, row.id, limit)]


@router.post(
    "/v1/jobs/{job}/checkpoints",
    status_code=201,
    responses={**problems("no-such-job", "no-such-attempt", "older-attempt", "bad-request", "too-much")},
)
def register_checkpoint(new: NewCheckpoint, row: Found, service: Serving, _: Changing) -> CheckpointPage:
    """Register a checkpoint; of an attempt behind which another one has begun, none counts."""
    find_attempt(service, row, new.attempt)
    made = CheckpointRow(row.id, new.attempt, new.step, new.path, new.digest, service.now_s())
    try:
        service.store.write(partial(register, row=made, writer=WRITER))
    except OlderAttemptError as error:
        raise ProblemError("older-attempt", str(error)) from error
    return checkpoint_page(made)
