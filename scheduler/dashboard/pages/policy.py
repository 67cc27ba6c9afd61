"""The page on who decides: how fast, how often it was heard, and where the heuristic differs."""

from fastapi import APIRouter, Response

from ...service.service import Service
from ...store.queries import last_decision_seq, last_decisions
from ...store.rows.jobs import get_job
from ..policy_view import policy_view
from ..rendering import draw, nothing_new
from .page import OPERATORS, Page, Seen

DECISIONS = 1000  # that are looked at
ROWS = 50  # of them that are listed


def add_policy(router: APIRouter, service: Service) -> None:
    """Add the page."""

    def page(template: str, seen: str) -> Response:
        policy = service.control.policy
        with service.store.read() as tx:
            now = f"{last_decision_seq(tx)}-{policy.version}"[:64]
            if now == seen:
                return nothing_new()
            rows = last_decisions(tx, DECISIONS)
            jobs = {row.job_id: get_job(tx, row.job_id) for row in rows[:ROWS]}
        names = {job: "" if row is None else row.name for job, row in jobs.items()}
        return draw(
            service, "policy", template, view=policy_view(rows, policy.deadline_s), names=names, shown=rows[:ROWS],
            version=policy.version, seen=now,
        )  # fmt: skip

    @router.get("/policy")
    def policy() -> Response:
        return page("policy.html", "")

    @router.get("/parts/policy")
    def policy_part(seen: Seen = "") -> Response:
        return page("policy_part.html", seen)


PAGE = Page("policy", "/policy", "Policy", 30, OPERATORS, add_policy)
