"""POST /v1/jobs, safe to repeat. No answer has values of a job's environment: they may be secrets."""

import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Header, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, GetCoreSchemaHandler, ValidationError, ValidatorFunctionWrapHandler
from pydantic_core import CoreSchema
from pydantic_core.core_schema import no_info_wrap_validator_function
from sqlalchemy import Connection

from ..access.tokens import Caller, Role
from ..model.job import JobRow, new_job_id
from ..model.job_spec import JobFile
from ..service.queue_now import gpu_counts
from ..service.service import Service
from ..settings import UserLimits
from ..store.jobs import (
    GIVEN,
    UNKNOWN,
    NewJob,
    StoredAnswer,
    count_queued,
    find_answer,
    insert_job,
    keep_answer,
    with_estimate,
)
from .auth import ServiceDep, Writer
from .problems import BODY, ProblemError, openapi_problems

API_WRITER = "api"
CREATED = 201
RETRY_QUEUED_S, RETRY_FLIGHT_S, RETRY_ROOM_S = "60", "1", "60"

router = APIRouter()
Key = Annotated[
    str | None,
    Header(
        alias="Idempotency-Key",
        min_length=1,
        max_length=255,
        pattern=r"^[\x21-\x7e]+$",
        description="1 to 255 visible characters.",
    ),
]


class JobPage(BaseModel):
    """A job."""

    id: str
    name: str
    owner: str
    state: str
    desired: str
    gpus: int
    priority: int
    submitted_s: float
    ended_s: float | None
    version: int
    cause: str
    cause_class: str


class DryRunPage(BaseModel):
    """What a submission would do (`dry_run`)."""

    spec: dict[str, Any]
    jobs_ahead: int
    free_gpus: int
    would_fit: bool  # on the GPUs that are free


def job_page(row: JobRow) -> JobPage:
    """Return a job."""
    return JobPage(**job_page_fields(row))


def spec_without_secrets(spec: JobFile) -> dict[str, Any]:
    """Return a job file without the values of its environment."""
    return {**spec.model_dump(mode="json"), "environment": sorted(spec.environment)}


def job_page_fields(row: JobRow) -> dict[str, Any]:
    """Return the fields of `JobPage`."""
    return {name: getattr(row, name) for name in JobPage.model_fields}


class SentJob:
    """The body of a submission. Whether it is a valid job file matters only if its key is new."""

    def __init__(self, body: object, read: JobFile | ValidationError) -> None:
        self.body, self._read = body, read

    def job_file(self) -> JobFile:
        """Return the body as a job file.

        Raises:
            RequestValidationError: If it is none.
        """
        if isinstance(self._read, ValidationError):
            errors = [{**error, "loc": (BODY, *error["loc"])} for error in self._read.errors(include_url=False)]
            raise RequestValidationError(errors, body=self.body)
        return self._read

    @classmethod
    def __get_pydantic_core_schema__(cls, _: object, schema_of: GetCoreSchemaHandler) -> CoreSchema:
        """Let OpenAPI describe a job file, and FastAPI accept any JSON."""
        return no_info_wrap_validator_function(cls._validate, schema_of(JobFile))

    @classmethod
    def _validate(cls, body: object, validate: ValidatorFunctionWrapHandler) -> "SentJob":
        try:
            return cls(body, validate(body))
        except ValidationError as error:
            return cls(body, error)


class KeysInFlight:
    """Idempotency keys of requests in progress."""

    def __init__(self) -> None:
        self._keys: set[tuple[str, str]] = set()
        self._lock = threading.Lock()

    @contextmanager
    def hold(self, owner: str, key: str | None) -> Iterator[None]:
        """Process a request alone.

        Raises:
            ProblemError: If a request with this key is in progress.
        """
        if key is None:
            yield
            return
        with self._lock:
            if (owner, key) in self._keys:
                text = f"a request with the key {key!r} is in progress; retry soon"
                raise ProblemError("key-in-flight", text, Retry_After=RETRY_FLIGHT_S)
            self._keys.add((owner, key))
        try:
            yield
        finally:
            with self._lock:
                self._keys.discard((owner, key))


async def in_flight_of(request: Request) -> KeysInFlight:
    """Return the keys in progress of an application."""
    keys: KeysInFlight = request.app.state.in_flight
    return keys


@router.post(
    "/v1/jobs",
    status_code=CREATED,
    response_model=JobPage,
    responses={
        200: {"model": DryRunPage, "description": "What a submission would do (`dry_run`)."},
        **openapi_problems(
            "too-large", "too-high", "key-reused", "key-in-flight", "too-much", "bad-request", "too-many-queued"
        ),
    },
)
def submit(
    sent: Annotated[SentJob, Body()],
    service: ServiceDep,
    caller: Writer,
    in_flight: Annotated[KeysInFlight, Depends(in_flight_of)],
    key: Key = None,
    dry_run: Annotated[bool, Query(description="Only validate it.")] = False,  # noqa: FBT002
) -> Response:
    """Put a job into the queue. With an `Idempotency-Key`, a repeat gets the first answer again."""
    owner, key = caller.owner, None if dry_run else key
    with in_flight.hold(owner, key):
        # 1. Answer a known key, whatever has changed since its first request.
        if (first := _first_answer(service, owner, key, sent)) is not None:
            return _created_response(first)
        # 2. Check the job file, the limits and the cluster.
        spec = sent.job_file()
        check_gpus(spec.all_gpus, service, spec.spares)
        check_failover(spec, service)
        check_needs(spec, service)
        check_shape(spec, service)
        check_priority(spec.priority, caller, service)
        # 3. A dry run ends here.
        if dry_run:
            return JSONResponse(_dry_run(service, spec, owner).model_dump())
        # 4. In one transaction: estimate the run time, insert the job, remember the answer.
        check_disk(service)
        answer = _submit_once(service, spec, owner, key, sent)
    service.wake()
    return _created_response(answer)


def check_gpus(gpus: int, service: Service, spares: int = 0) -> None:
    """Refuse more GPUs than a job can ever get.

    Args:
        gpus: In all.
        service: Has the number of GPUs.
        spares: Those of them that are spares of a ring.

    Raises:
        ProblemError: With the maximum.
    """
    most, here = service.settings.limits.gpus, service.layout.gpus
    asks = f"{gpus} GPUs{_seats_and_spares_text(gpus, spares)}"
    if gpus > here:
        raise ProblemError("too-large", f"the job asks for {asks}, the cluster has {here}")
    if most is not None and gpus > most:
        raise ProblemError("too-large", f"the job asks for {asks}, and one user may have {most}")


def _seats_and_spares_text(gpus: int, spares: int) -> str:
    """Return what GPUs are for, where some are spares."""
    if not spares:
        return ""
    seats = gpus - spares
    return f" ({seats} seat{'s' * (seats > 1)} and {spares} spare{'s' * (spares > 1)})"


def check_failover(spec: JobFile, service: Service) -> None:
    """Refuse a ring where the backend has none.

    Raises:
        ProblemError: Naming the backend.
    """
    if spec.seats and not service.backend.capabilities.runs_rings:
        name = service.settings.backend.name
        raise ProblemError("invalid", f"the backend {name} cannot switch members of a ring; use `failover: restart`")


def check_needs(spec: JobFile, service: Service) -> None:
    """Refuse more GPUs than the nodes that suit a job have.

    Raises:
        ProblemError: With the number that they have.
    """
    if spec.needs is None:
        return
    here = service.layout.gpus_for(spec.node_needs)
    gpus = spec.all_gpus
    if gpus > here:
        asks = f"{gpus} GPU{'s' if gpus > 1 else ''} {spec.node_needs.words}{_seats_and_spares_text(gpus, spec.spares)}"
        raise ProblemError("too-large", f"the job asks for {asks}, and the cluster has {here or 'none'} of these")


def check_shape(spec: JobFile, service: Service) -> None:
    """Refuse a shape that the nodes never fit.

    Raises:
        ProblemError: With the possible nodes.
    """
    shape = spec.shape
    if shape is None:
        return
    able = sum(gpus >= shape.gpus_per_node for gpus in service.layout.nodes_for(spec.node_needs).values())
    if able < shape.nodes:
        have = "1 node" if able == 1 else f"{able} nodes"
        which = "that suits it has" if able == 1 else "that suit it have"
        have += " " + (which if spec.needs else "has" if able == 1 else "have")
        raise ProblemError("too-large", f"the job asks for {shape.words}, and {have} that many")


def check_queued(tx: Connection, owner: str, limits: UserLimits) -> None:
    """Refuse one more queued job of an owner than are allowed.

    Raises:
        ProblemError: With the maximum.
    """
    if count_queued(tx, owner) >= limits.queued_jobs:
        text = f"{owner} has {limits.queued_jobs} queued jobs, and no more are allowed"
        raise ProblemError("too-many-queued", text, Retry_After=RETRY_QUEUED_S)


def check_priority(priority: int, caller: Caller, service: Service) -> None:
    """Refuse a priority that only operators may give.

    Raises:
        ProblemError: With the maximum for others.
    """
    most = service.settings.limits.priority
    if most is not None and priority > most and caller.role is not Role.OPERATOR:
        raise ProblemError("too-high", f"only operators give priority {priority}; others give {most} at most")


def check_disk(service: Service) -> None:
    """Refuse a job while there is too little room for what jobs write.

    Raises:
        ProblemError: If so.
    """
    if service.room.is_low():
        text = f"fewer than {service.room.least_free_bytes} bytes are left on the disk of the scheduler"
        raise ProblemError("no-room", text, Retry_After=RETRY_ROOM_S)


def _first_answer(service: Service, owner: str, key: str | None, sent: SentJob) -> StoredAnswer | None:
    """Return the answer to the first request with a key, None if there was none.

    Raises:
        ProblemError: If that was for another job.
    """
    if key is None:
        return None
    with service.store.read() as tx:
        first = find_answer(tx, owner, key)
    # What was sent is compared first: what was a valid job file then may be none today, or have other defaults.
    if first is None or first.body == _digest(sent.body):
        return first
    if first.request != _digest(sent.job_file().model_dump(mode="json")):
        raise ProblemError("key-reused", f"the key {key!r} was used for another job")
    return first


def _digest(content: object) -> str:
    """Return the SHA-256 of content in JSON, whatever the order of its keys; of a body that is not JSON as well."""
    return hashlib.sha256(json.dumps(content, sort_keys=True, default=repr).encode()).hexdigest()


def _created_response(answer: StoredAnswer) -> Response:
    return JSONResponse(answer.response, answer.status, {"Location": f"/v1/jobs/{answer.response['id']}"})


def _dry_run(service: Service, spec: JobFile, owner: str) -> DryRunPage:
    with service.store.read() as tx:
        spec = spec.model_copy(
            update={"estimate_s": with_estimate(tx, _new_job(spec, owner, service.now_s())).estimate_s}
        )
        room = gpu_counts(tx, service.layout).on(service.layout.nodes_for(spec.node_needs))
        ahead = service.queue.ahead_of_new(tx, owner, spec.priority, service.now_s())
    fits = spec.all_gpus <= room.free and (spec.shape is None or room.has(spec.shape.nodes, spec.shape.gpus_per_node))
    return DryRunPage(spec=spec_without_secrets(spec), jobs_ahead=ahead, free_gpus=room.free, would_fit=fits)


def _submit_once(service: Service, spec: JobFile, owner: str, key: str | None, sent: SentJob) -> StoredAnswer:
    """Insert a job, unless another scheduler of this store has meanwhile answered a request with its key."""
    new, limits = _new_job(spec, owner, service.now_s()), service.settings.limits
    try:
        return service.store.write(partial(_insert_with_answer, new=new, key=key, body=sent.body, limits=limits))
    except ProblemError:
        first = _first_answer(service, owner, key, sent)
        if first is None:
            raise
        return first


def _new_job(spec: JobFile, owner: str, now_s: float) -> NewJob:
    return NewJob(
        new_job_id(now_s), spec.name, owner, spec.model_dump(mode="json"), spec.priority, spec.all_gpus,
        spec.estimate_s, now_s, GIVEN if "estimate_s" in spec.model_fields_set else UNKNOWN,
    )  # fmt: skip


def _insert_with_answer(tx: Connection, new: NewJob, key: str | None, body: object, limits: UserLimits) -> StoredAnswer:
    """Put a job into the queue with the answer to its key, both or none."""
    check_queued(tx, new.owner, limits)
    page = job_page(insert_job(tx, with_estimate(tx, new), writer=API_WRITER)).model_dump(mode="json")
    answer = StoredAnswer(_digest(new.spec), _digest(body), CREATED, page, new.submitted_s)
    if key is not None and not keep_answer(tx, new.owner, key, answer):
        raise ProblemError("key-reused", f"the key {key!r} was used for another job")
    return answer
