"""The routes of all pages: cluster, jobs, policy and events; and what the buttons on a job's page do.

Source: SPEC K8; docs/operate.md, Dashboard.
"""

from collections.abc import Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import HTMLResponse, RedirectResponse
from sqlalchemy import Connection

from ...cluster.files.errors import BackendError
from ..api.auth import LOCAL_OPERATOR
from ..api.jobs import find_attempt, find_job
from ..api.logs import whole_log_response
from ..api.rings import planned_job
from ..api.submitting import API_WRITER
from ..backends.protocol import NoLogError
from ..model.job import JobRow, is_job_id
from ..model.states import FINAL, Desired, JobState
from ..service.service import Service
from ..store.attempts import AttemptRow, attempts_of, last_attempts, last_decision_seq, last_decisions
from ..store.events import last_events, last_seq, last_seq_of_job
from ..store.jobs import get_job, list_jobs, set_desired
from .charts import gantt_chart, step_chart, use_chart
from .entering import check_origin
from .rendering import no_such_part, render, render_with_state, unchanged_response
from .views import (
    GPU_LETTERS,
    MIN_EVENT_LINES,
    JobView,
    OutputPart,
    cluster_view,
    job_view,
    last_part,
    page_of_events,
    part_after,
    policy_view,
)

Seen = Annotated[str, Query(max_length=64)]  # state of the page in the browser
Before = Annotated[int | None, Query(ge=1, le=2**62)]  # number of the last row of the previous page


def _add_cluster(router: APIRouter, service: Service) -> None:
    def page(template: str, seen: str) -> Response:
        with service.store.read() as tx:
            now = f"{last_seq(tx)}-{service.leads():d}-{service.usage.taken}"
            if now == seen:
                return unchanged_response()
            view = cluster_view(tx, service.layout, service.node_types, service.queue.read(tx, service.now_s()))
        use = use_chart(service.usage.samples())
        return render_with_state(service, "cluster", template, view=view, use=use, seen=now, letters=GPU_LETTERS)

    @router.get("/")
    def cluster() -> Response:
        return page("cluster.html", "")

    @router.get("/parts/cluster")
    def cluster_part(seen: Seen = "") -> Response:
        return page("cluster_part.html", seen)


def _add_events(router: APIRouter, service: Service) -> None:
    def page(template: str, before: int | None, seen: str) -> Response:
        with service.store.read() as tx:
            now = str(last_seq(tx))
            if now == seen:
                return unchanged_response()
            lines, more = page_of_events(lambda seq: last_events(tx, MIN_EVENT_LINES, before_seq=seq), before)
        return render_with_state(service, "events", template, lines=lines, seen=now, before=before, more=more)

    @router.get("/events")
    def events(before: Before = None) -> Response:
        return page("events.html", before, "")

    @router.get("/parts/events")
    def events_part(seen: Seen = "") -> Response:
        return page("events_part.html", None, seen)


Action = Literal["hold", "release", "cancel"]  # a button
DESIRED_BY_ACTION: Mapping[Action, Desired] = MappingProxyType(
    {"hold": Desired.HOLD, "release": Desired.RUN, "cancel": Desired.CANCEL}
)


def actions_of(row: JobRow) -> list[Action]:
    """Return the possible actions on a job; none once it has ended or is being cancelled."""
    if row.state in FINAL or row.desired is Desired.CANCEL:
        return []
    return ["release" if row.desired is Desired.HOLD else "hold", "cancel"]


def _add_actions(router: APIRouter, service: Service) -> None:
    @router.post("/jobs/{job}/{action}")
    def act(job: str, action: Action, request: Request) -> Response:
        check_origin(request)
        row = find_job(service, LOCAL_OPERATOR, job)
        service.store.write(
            lambda tx: set_desired(tx, row.id, DESIRED_BY_ACTION[action], at_s=service.now_s(), writer=API_WRITER)
        )  # fmt: skip
        service.wake()
        return RedirectResponse(f"/jobs/{row.id}", HTTPStatus.SEE_OTHER)


JOB_ROWS = 50
PICTURE_STEP_S = 5.0  # between two charts of a running job


def _add_list(router: APIRouter, service: Service) -> None:
    def page(template: str, state: JobState | None, before: int | None, seen: str) -> Response:
        with service.store.read() as tx:
            now = str(last_seq(tx))
            if now == seen:
                return unchanged_response()
            rows = list_jobs(tx, limit=JOB_ROWS + 1, states=None if state is None else [state], before_seq=before)
            attempts = last_attempts(tx, [row.id for row in rows])
        more = rows[JOB_ROWS - 1].submit_seq if len(rows) > JOB_ROWS else None
        return render_with_state(
            service, "jobs", template, jobs=rows[:JOB_ROWS], attempts=attempts, state=state, states=list(JobState),
            more=more, before=before, seen=now,
        )  # fmt: skip

    @router.get("/jobs")
    def jobs(state: JobState | None = None, before: Before = None) -> Response:
        return page("jobs.html", state, before, "")

    @router.get("/parts/jobs")
    def jobs_part(state: JobState | None = None, before: Before = None, seen: Seen = "") -> Response:
        return page("jobs_part.html", state, before, seen)


def _find_job(tx: Connection, job: str) -> JobRow | None:
    return get_job(tx, job) if is_job_id(job) else None


def _add_job(router: APIRouter, service: Service) -> None:
    def seen_of(tx: Connection, row: JobRow) -> str:
        # The chart of a job that has not ended grows with time.
        grown = 0 if row.state in FINAL else int(service.now_s() / PICTURE_STEP_S)
        return f"{last_seq_of_job(tx, row.id)}-{grown}"

    def values_of(view: JobView, seen: str) -> dict[str, object]:
        now_s, control = service.now_s(), service.control
        times_s = control.monitor.steps.recent_train_steps_s(view.attempts[-1].name) if view.attempts else ()
        return {
            "view": view, "gantt": gantt_chart(view.events, now_s), "seen": seen,
            "steps": control.step_figures().get(view.job.id), "chart": step_chart(times_s),
            "actions": actions_of(view.job), "planned": planned_job(view.job, view.attempts, service),
        }  # fmt: skip

    @router.get("/jobs/{job}")
    def job_page(
        job: str,
        attempt: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
        rank: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    ) -> Response:
        with service.store.read() as tx:
            row = _find_job(tx, job)
            if row is None:
                return render_with_state(service, "", "missing.html", 404, what=f"There is no job {job[:40]!r}.")
            now, view = seen_of(tx, row), job_view(tx, row, service)
        log, problem = _end_of_output(service, view.job, view.attempts, attempt, rank)
        number = attempt or (view.attempts[-1].number if view.attempts else None)
        is_final = isinstance(problem, NoLogError)
        shown = next((each for each in view.attempts if each.number == number), None)
        why = "It has not started yet." if is_final and shown and _is_starting(shown) else str(problem or "")
        is_missing = problem is not None or number is None
        return render_with_state(
            service, "jobs", "job.html", log=log, problem=why, number=number, rank=rank, requested=attempt,
            polls=is_missing and _may_follow(view, shown, attempt, is_final=is_final),
            **values_of(view, now),
        )  # fmt: skip

    @router.get("/parts/jobs/{job}")
    def job_part(job: str, seen: Seen = "") -> Response:
        with service.store.read() as tx:
            row = _find_job(tx, job)
            if row is None:
                return no_such_part()
            now = seen_of(tx, row)
            if now == seen:
                return unchanged_response()
            view = job_view(tx, row, service)
        return render_with_state(service, "jobs", "job_poll.html", **values_of(view, now))


def _is_starting(row: AttemptRow) -> bool:
    return row.started_s is None and row.ended_s is None


def _may_follow(view: JobView, row: AttemptRow | None, requested: int | None, *, is_final: bool) -> bool:
    """Return whether output may follow where there is none; `is_final`: the backend has no such output."""
    if view.is_over:
        return False
    if row is None:
        return requested is None
    if row.ended_s is not None:
        return requested is None  # but of the next attempt
    return _is_starting(row) or not is_final


def _end_of_output(
    service: Service, job: JobRow, attempts: list[AttemptRow], number: int | None, rank: int
) -> tuple[OutputPart, BackendError | None]:
    """Return the end of an output, or why there is none."""
    mine = [row for row in attempts if number in (None, row.number)]
    if not mine:
        return OutputPart("", 0), None if number is None else NoLogError(f"There is no attempt {number}.")
    name = mine[-1].name
    try:
        part = last_part(
            lambda offset, most: service.backend.logs(name, rank, offset, most), is_over=job.state in FINAL
        )
    except BackendError as error:
        return OutputPart("", 0), error
    return part, None


def _add_logs(router: APIRouter, service: Service) -> None:
    @router.get("/jobs/{job}/logs")
    def whole_log(
        job: str,
        attempt: Annotated[int, Query(ge=1, le=1_000_000)],
        rank: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    ) -> Response:
        found = find_attempt(service, find_job(service, LOCAL_OPERATOR, job), attempt)
        return whole_log_response(service, found, rank)

    @router.get("/parts/jobs/{job}/logs")
    def logs(
        job: str,
        attempt: Annotated[int, Query(ge=1, le=1_000_000)],
        rank: Annotated[int, Query(ge=0, le=1_000_000)],
        offset: Annotated[int, Query(ge=0, le=2**62)],
    ) -> Response:
        with service.store.read() as tx:
            row = _find_job(tx, job)
            mine = [each for each in attempts_of(tx, job) if each.number == attempt] if row is not None else []
        if row is None or not mine:
            return no_such_part()
        name, over = mine[0].name, row.state in FINAL or row.attempt > attempt
        try:
            part = part_after(lambda begin, most: service.backend.logs(name, rank, begin, most), offset, is_over=over)
        except BackendError:
            return unchanged_response()
        if part.offset == offset and not over:
            return unchanged_response()
        follows = not over or part.offset != offset
        newer = row.attempt if row.attempt > attempt else None
        return render("log_part.html", log=part, job_id=row.id, number=attempt, rank=rank, follows=follows, newer=newer)


MAX_DECISIONS = 1000  # that are summed up
POLICY_ROWS = 50  # of them that are listed


def _add_policy(router: APIRouter, service: Service) -> None:
    def page(template: str, seen: str) -> Response:
        placer = service.control.placer
        with service.store.read() as tx:
            now = f"{last_decision_seq(tx)}-{placer.version}"[:64]
            if now == seen:
                return unchanged_response()
            rows = last_decisions(tx, MAX_DECISIONS)
            jobs = {row.job_id: get_job(tx, row.job_id) for row in rows[:POLICY_ROWS]}
        names = {job: "" if row is None else row.name for job, row in jobs.items()}
        return render_with_state(
            service, "policy", template, view=policy_view(rows, placer.deadline_s), names=names,
            shown=rows[:POLICY_ROWS], version=placer.version, seen=now,
        )  # fmt: skip

    @router.get("/policy")
    def policy() -> Response:
        return page("policy.html", "")

    @router.get("/parts/policy")
    def policy_part(seen: Seen = "") -> Response:
        return page("policy_part.html", seen)


def page_router(service: Service) -> APIRouter:
    """Return the routes of all pages, which show the jobs of all users: `let_operators_in` must guard them."""
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    for add in (_add_cluster, _add_events, _add_list, _add_job, _add_logs, _add_actions, _add_policy):
        add(router, service)
    return router
