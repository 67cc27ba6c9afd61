"""The REST API.

Source: SPEC K8.
"""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated

from fastapi import FastAPI, Query, Response
from prometheus_client import CONTENT_TYPE_LATEST

from ...cluster.errors import BackendError
from ..dashboard.router import dashboard_router
from ..job_file import JobFile
from ..job_id import is_job_id, new_job_id
from ..service import Service
from ..settling import attempt_name
from ..states import Desired, JobState
from ..store.attempts import attempts_of
from ..store.decisions import decisions_of
from ..store.jobs import JobRow, NewJob, get_job, insert_job, list_jobs, set_desired
from ..store.reservations import held_gpus
from .models import DecisionPage, JobPage, JobsPage, NodePage, decision_page, job_page, node_pages
from .problems import ProblemError, answer_with_problems

WRITER, OWNER = "api", "local"
MOST_LOG_BYTES = 1 << 20


def create_app(service: Service) -> FastAPI:
    """Return the application of a scheduler that is not started yet; it starts and ends with the application."""

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.start()
        yield
        service.close()

    app = FastAPI(title="Longshore", lifespan=lifespan, docs_url="/docs", redoc_url=None)
    answer_with_problems(app)
    _add_jobs(app, service)
    _add_job(app, service)
    _add_cluster(app, service)
    app.include_router(dashboard_router(service))
    return app


def _job(service: Service, job: str) -> JobRow:
    row = None
    if is_job_id(job):
        with service.store.read() as tx:
            row = get_job(tx, job)
    if row is None:
        raise ProblemError(404, "no-such-job", f"there is no job {job!r}")
    return row


def _add_jobs(app: FastAPI, service: Service) -> None:
    gpus = sum(service.layout.nodes.values())

    @app.post("/v1/jobs", status_code=201)
    def submit(spec: JobFile) -> JobPage:
        """Put a job into the queue."""
        if spec.gpus > gpus:
            raise ProblemError(422, "too-large", f"the job asks for {spec.gpus} GPUs, the cluster has {gpus}")
        now_s = service.scheduler.parts.now_s()
        new = NewJob(
            new_job_id(now_s), spec.name, OWNER, spec.model_dump(mode="json"), spec.priority, spec.gpus,
            spec.estimate_s, now_s,
        )  # fmt: skip
        row = service.store.write(lambda tx: insert_job(tx, new, writer=WRITER))
        service.wake()
        return job_page(row)

    @app.get("/v1/jobs")
    def jobs(
        state: Annotated[list[JobState] | None, Query()] = None,
        limit: Annotated[int, Query(ge=1, le=200)] = 50,
        cursor: Annotated[int | None, Query(ge=0, le=2**62)] = None,
    ) -> JobsPage:
        """List jobs, the last submitted first."""
        with service.store.read() as tx:
            rows = list_jobs(tx, limit=limit, states=state, before_seq=cursor)
        more = rows[-1].submit_seq if len(rows) == limit else None
        return JobsPage(jobs=tuple(job_page(row) for row in rows), cursor=more)


def _add_job(app: FastAPI, service: Service) -> None:
    @app.get("/v1/jobs/{job}")
    def job(job: str) -> JobPage:
        """Show a job with all its attempts."""
        row = _job(service, job)
        with service.store.read() as tx:
            return job_page(row, attempts_of(tx, job))

    @app.delete("/v1/jobs/{job}", status_code=202)
    def cancel(job: str) -> JobPage:
        """Cancel a job; may be asked again."""
        row = _job(service, job)
        now_s = service.scheduler.parts.now_s()
        service.store.write(lambda tx: set_desired(tx, row.id, Desired.CANCEL, at_s=now_s, writer=WRITER))
        service.wake()
        return job_page(_job(service, job))

    @app.get("/v1/jobs/{job}/decisions")
    def decisions(job: str) -> list[DecisionPage]:
        """Show which GPUs were chosen for a job, by whom, and what the heuristic would have chosen."""
        row = _job(service, job)
        with service.store.read() as tx:
            return [decision_page(it) for it in decisions_of(tx, row.id)]

    @app.get("/v1/jobs/{job}/logs")
    def logs(
        job: str,
        rank: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
        attempt: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
        offset: Annotated[int, Query(ge=0, le=2**62)] = 0,
    ) -> Response:
        """Return what a rank wrote, from an offset on; the header Next-Offset says where to go on."""
        row = _job(service, job)
        with service.store.read() as tx:
            mine = [it for it in attempts_of(tx, row.id) if attempt in (None, it.number)]
        if not mine:
            raise ProblemError(
                404, "no-such-attempt", f"job {job} has no attempt{'' if attempt is None else f' {attempt}'}"
            )
        try:
            data, after = service.backend.logs(attempt_name(mine[-1]), rank, offset, MOST_LOG_BYTES)
        except BackendError as error:
            raise ProblemError(404, "no-such-log", str(error)) from error
        return Response(data, media_type="text/plain; charset=utf-8", headers={"Next-Offset": str(after)})


def _add_cluster(app: FastAPI, service: Service) -> None:
    @app.get("/v1/nodes")
    def nodes() -> list[NodePage]:
        """Show all nodes and who holds their GPUs."""
        with service.store.read() as tx:
            held = {(row.node, row.gpu): row.job_id for row in held_gpus(tx)}
        return node_pages(service.layout, held, slots=True)

    @app.get("/metrics")
    def metrics() -> Response:
        """Return all metrics for Prometheus."""
        return Response(service.metrics.scrape(), media_type=CONTENT_TYPE_LATEST)

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        """Say that the process answers."""
        return {"status": "ok"}
