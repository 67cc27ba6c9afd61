"""Pages of the scheduler.

All of them are of one router, so that one dependency can guard them.

Source: SPEC K8, K11; docs/dashboard.md.
"""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from fastapi.responses import HTMLResponse
from sqlalchemy import Connection

from ...cluster.files.errors import BackendError
from ..control.attempt_driver import attempt_name
from ..model.job import JobRow
from ..model.job_id import is_job_id
from ..model.states import FINAL, JobState
from ..service.service import Service
from ..store.queries import last_decision_seq, last_decisions, last_event_of, last_events
from ..store.rows.attempts import AttemptRow, attempts_of
from ..store.rows.events import last_seq
from ..store.rows.jobs import get_job, list_jobs
from .acting import actions_of, add_actions
from .charts.gantt import gantt
from .charts.step_chart import step_chart
from .charts.use_chart import use_chart
from .cluster_view import LETTERS, cluster_view
from .folding import ROWS, page_of
from .job_view import JobView, job_view
from .log_text import Part, part_after, tail
from .policy_view import policy_view
from .rendering import HEADERS, render, static_files

PAGE_ROWS = 50
DECISIONS = 1000  # that the policy's page looks at
GROWS_S = 5.0  # between two pictures of a job that runs
KEPT = "public, max-age=31536000, immutable"
Seen = Annotated[str, Query(max_length=64)]  # state of the page that asks
Before = Annotated[int | None, Query(ge=1, le=2**62)]  # number of the last row of the page before


def dashboard_router(service: Service) -> APIRouter:
    """Return all pages of a scheduler."""
    router = APIRouter(include_in_schema=False, default_response_class=HTMLResponse)
    for add in (_add_cluster, _add_jobs, _add_job, _add_logs, _add_policy, _add_events, _add_static, add_actions):
        add(router, service)
    return router


def _add_cluster(router: APIRouter, service: Service) -> None:
    def draw(template: str, seen: str) -> Response:
        with service.store.read() as tx:
            now = f"{last_seq(tx)}-{service.leads():d}-{service.usage.taken}"
            if now == seen:
                return _nothing_new()
            view = cluster_view(tx, service.layout, service.node_types)
        use = use_chart(service.usage.samples())
        return render(template, page="cluster", view=view, use=use, seen=now, letters=LETTERS, **_about(service))

    @router.get("/")
    def cluster() -> Response:
        return draw("cluster.html", "")

    @router.get("/parts/cluster")
    def cluster_part(seen: Seen = "") -> Response:
        return draw("cluster_part.html", seen)


def _nothing_new() -> Response:
    """Return what leaves a page as it is."""
    return Response(status_code=204, headers=HEADERS)


def _no_part() -> Response:
    return Response(status_code=404, headers=HEADERS)


def _about(service: Service) -> dict[str, object]:
    policy = service.control.policy
    return {
        "now_s": service.now_s(), "leads": service.leads(), "mode": policy.mode,
        "policy": policy.name, "fallback": policy.fallback, "deadline_s": policy.deadline_s,
        "asks_for_tokens": not service.is_open,
    }  # fmt: skip


def _add_jobs(router: APIRouter, service: Service) -> None:
    def draw(template: str, state: JobState | None, before: int | None, seen: str) -> Response:
        with service.store.read() as tx:
            now = str(last_seq(tx))
            if now == seen:
                return _nothing_new()
            rows = list_jobs(tx, limit=PAGE_ROWS + 1, states=None if state is None else [state], before_seq=before)
        more = rows[PAGE_ROWS - 1].submit_seq if len(rows) > PAGE_ROWS else None
        return render(
            template, page="jobs", jobs=rows[:PAGE_ROWS], state=state, states=list(JobState), more=more,
            before=before, seen=now, **_about(service),
        )  # fmt: skip

    @router.get("/jobs")
    def jobs(state: JobState | None = None, before: Before = None) -> Response:
        return draw("jobs.html", state, before, "")

    @router.get("/parts/jobs")
    def jobs_part(state: JobState | None = None, before: Before = None, seen: Seen = "") -> Response:
        return draw("jobs_part.html", state, before, seen)


def _missing(what: str, service: Service) -> Response:
    answer = render("missing.html", page="", what=what, **_about(service))
    answer.status_code = 404
    return answer


def _job_in(tx: Connection, job: str) -> JobRow | None:
    return get_job(tx, job) if is_job_id(job) else None


def _add_job(router: APIRouter, service: Service) -> None:
    def seen_of(tx: Connection, row: JobRow) -> str:
        # A picture of a job that has not ended grows with time as well.
        grown = 0 if row.state in FINAL else int(service.now_s() / GROWS_S)
        return f"{last_event_of(tx, row.id)}-{grown}"

    def values_of(view: JobView, seen: str) -> dict[str, object]:
        now_s, control = service.now_s(), service.control
        times_s = control.step_times_s(attempt_name(view.attempts[-1])) if view.attempts else ()
        return {
            "page": "jobs", "view": view, "gantt": gantt(view.events, now_s), "seen": seen,
            "steps": control.step_figures().get(view.job.id), "chart": step_chart(times_s),
            "actions": actions_of(view.job),
        }  # fmt: skip

    @router.get("/jobs/{job}")
    def job_page(
        job: str,
        attempt: Annotated[int | None, Query(ge=1, le=1_000_000)] = None,
        rank: Annotated[int, Query(ge=0, le=1_000_000)] = 0,
    ) -> Response:
        with service.store.read() as tx:
            row = _job_in(tx, job)
            if row is None:
                return _missing(f"There is no job {job[:40]!r}.", service)
            now, view = seen_of(tx, row), job_view(tx, row, service)
        log, problem = _log(service, view.job, view.attempts, attempt, rank)
        number = attempt or (view.attempts[-1].number if view.attempts else None)
        return render(
            "job.html", log=log, problem=problem, number=number, rank=rank, **values_of(view, now), **_about(service)
        )

    @router.get("/parts/jobs/{job}")
    def job_part(job: str, seen: Seen = "") -> Response:
        with service.store.read() as tx:
            row = _job_in(tx, job)
            if row is None:
                return _no_part()
            now = seen_of(tx, row)
            if now == seen:
                return _nothing_new()
            view = job_view(tx, row, service)
        return render("job_poll.html", **values_of(view, now), **_about(service))


def _log(service: Service, job: JobRow, attempts: list[AttemptRow], number: int | None, rank: int) -> tuple[Part, str]:
    """Return the end of an output, or why there is none."""
    mine = [row for row in attempts if number in (None, row.number)]
    if not mine:
        return Part("", 0), "" if number is None else f"There is no attempt {number}."
    name = attempt_name(mine[-1])
    try:
        part = tail(lambda offset, most: service.backend.logs(name, rank, offset, most), is_over=job.state in FINAL)
    except BackendError as error:
        return Part("", 0), str(error)
    return part, ""


def _add_logs(router: APIRouter, service: Service) -> None:
    @router.get("/parts/jobs/{job}/logs")
    def logs(
        job: str,
        attempt: Annotated[int, Query(ge=1, le=1_000_000)],
        rank: Annotated[int, Query(ge=0, le=1_000_000)],
        offset: Annotated[int, Query(ge=0, le=2**62)],
    ) -> Response:
        with service.store.read() as tx:
            row = _job_in(tx, job)
            mine = [it for it in attempts_of(tx, job) if it.number == attempt] if row is not None else []
        if row is None or not mine:
            return _no_part()
        name, over = attempt_name(mine[0]), row.state in FINAL or row.attempt > attempt
        try:
            part = part_after(lambda begin, most: service.backend.logs(name, rank, begin, most), offset, is_over=over)
        except BackendError:
            return _nothing_new()
        if part.offset == offset and not over:
            return _nothing_new()
        follows = not over or part.offset != offset
        newer = row.attempt if row.attempt > attempt else None
        return render("log_part.html", log=part, job_id=row.id, number=attempt, rank=rank, follows=follows, newer=newer)


def _add_policy(router: APIRouter, service: Service) -> None:
    def draw(template: str, seen: str) -> Response:
        policy = service.control.policy
        with service.store.read() as tx:
            now = f"{last_decision_seq(tx)}-{policy.version}"[:64]
            if now == seen:
                return _nothing_new()
            rows = last_decisions(tx, DECISIONS)
            jobs = {row.job_id: get_job(tx, row.job_id) for row in rows[:PAGE_ROWS]}
        names = {job: "" if row is None else row.name for job, row in jobs.items()}
        return render(
            template, page="policy", view=policy_view(rows, policy.deadline_s), names=names, shown=rows[:PAGE_ROWS],
            version=policy.version, seen=now, **_about(service),
        )  # fmt: skip

    @router.get("/policy")
    def policy() -> Response:
        return draw("policy.html", "")

    @router.get("/parts/policy")
    def policy_part(seen: Seen = "") -> Response:
        return draw("policy_part.html", seen)


def _add_events(router: APIRouter, service: Service) -> None:
    def draw(template: str, before: int | None, seen: str) -> Response:
        with service.store.read() as tx:
            now = str(last_seq(tx))
            if now == seen:
                return _nothing_new()
            lines, more = page_of(lambda seq: last_events(tx, ROWS, before_seq=seq), before)
        return render(template, page="events", lines=lines, seen=now, before=before, more=more, **_about(service))

    @router.get("/events")
    def events(before: Before = None) -> Response:
        return draw("events.html", before, "")

    @router.get("/parts/events")
    def events_part(seen: Seen = "") -> Response:
        return draw("events_part.html", None, seen)


def _add_static(router: APIRouter, service: Service) -> None:
    @router.get("/static/{name}")
    def static_file(name: str) -> Response:
        found = static_files().get(name)
        if found is None:
            return _no_part()
        headers = {"Cache-Control": KEPT, "X-Content-Type-Options": "nosniff"}
        return Response(found.content, media_type=found.media_type, headers=headers)
