"""GET /v1/jobs/{id}/decisions: the GPUs chosen for a job, and what the policy and the heuristic would have chosen."""

from collections.abc import Collection, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query
from pydantic import BaseModel

from ..policy_host.process import MISS_WORDS, Miss
from ..store.attempts import DecisionRow, last_decisions
from ..store.jobs import owners_of
from .auth import Reader, ServiceDep
from .jobs import HIDDEN_JOB, JOB_PROBLEMS, FoundJob, SharePage, share_pages, visible_owner

router = APIRouter()


class ExpectedPage(BaseModel):
    """What is expected of a start, by the job's estimate."""

    slowdown: float  # run time over that on the reference GPUs
    end_s: float


class ProposalPage(BaseModel):
    """What a policy would do, whether that is carried out or not."""

    job: str  # the one that is due, or another that may pass it; `-` for another user's
    placement: tuple[SharePage, ...] | None  # none to wait, and of another user's job
    expected: ExpectedPage | None  # of the start
    agrees: bool  # whether the heuristic would do the same
    probability: float | None  # by the policy's network, if it has one
    options: int | None  # number of moves to choose from


class DecisionPage(BaseModel):
    """A decision on a job."""

    at_s: float
    attempt: int | None  # that the decision opened, none if the job waited
    policy: str
    version: str
    mode: str
    heuristic: str  # that decides where the policy does not
    decided_by: str  # the policy, or the heuristic in its place
    policy_error: str  # why there is no usable proposal, if there is none
    placement: tuple[SharePage, ...] | None  # none to wait
    fallback: tuple[SharePage, ...] | None  # what the heuristic would have chosen; none of another user's job
    fallback_job: str  # for which: the one that was due; `-` for another user's, empty if unknown
    took_s: float
    expected: ExpectedPage | None  # of the start
    fallback_expected: ExpectedPage | None
    proposal: ProposalPage | None  # of the policy; none if there is none, or no usable one


def decision_page(row: DecisionRow) -> DecisionPage:
    """Return a decision."""
    explanation: Mapping[str, Any] = row.explanation
    return DecisionPage(
        at_s=row.at_s, attempt=row.number, policy=row.policy, version=row.policy_version, mode=row.mode,
        decided_by=str(explanation.get("decided_by", "")), policy_error=str(explanation.get("policy_error", "")),
        placement=share_pages(row.placement), fallback=share_pages(row.fallback), took_s=row.took_s,
        heuristic=str(explanation.get("fallback", "")), fallback_job=_fallback_job(row),
        proposal=_proposal_page(explanation),
        **{name: explanation.get(name) for name in ("expected", "fallback_expected")},
    )  # fmt: skip


def _fallback_job(row: DecisionRow) -> str:
    """Return the job that the heuristic decided about, "" where that was not recorded."""
    found = row.explanation
    may_differ = found.get("agrees") is False and found.get("decided_by") != found.get("fallback")
    return str(found.get("fallback_job", "" if may_differ else row.job_id))


def _proposal_page(explanation: Mapping[str, Any]) -> ProposalPage | None:
    proposal = explanation.get("proposal")
    if proposal is None:
        return None
    return ProposalPage(
        job=proposal["job"], placement=explanation.get("proposal_placement"),
        expected=explanation.get("proposal_expected"), agrees=bool(explanation.get("agrees")),
        probability=explanation.get("probability"), options=explanation.get("options"),
    )  # fmt: skip


def users_decision_page(row: DecisionRow, own: Collection[str]) -> DecisionPage:
    """Return a decision without other users' jobs, for a caller who sees only his `own` jobs."""
    page = decision_page(row)
    if page.fallback_job not in {row.job_id, *own}:
        hidden = {"fallback_job": HIDDEN_JOB, "fallback": None, "fallback_expected": None}
        page = page.model_copy(update=hidden)
    proposal, error = page.proposal, page.policy_error
    if proposal is not None and proposal.job not in own:
        proposal = proposal.model_copy(update={"job": HIDDEN_JOB, "placement": None, "expected": None})
    if error:
        kind = str(row.explanation.get("kind"))
        error = MISS_WORDS[Miss(kind)] if kind in set(Miss) else "it gave no usable answer"
    return page.model_copy(update={"proposal": proposal, "policy_error": error})


@router.get("/v1/jobs/{job}/decisions", responses=JOB_PROBLEMS)
def decisions(
    row: FoundJob,
    service: ServiceDep,
    caller: Reader,
    limit: Annotated[int, Query(ge=1, le=1000, description="Only the last ones.")] = 200,
) -> list[DecisionPage]:
    """Show the GPUs chosen for a job, and what the policy and the heuristic would have chosen; the last one comes last.

    There is one for each time that the policy let the job wait.
    """
    with service.store.read() as tx:
        rows = last_decisions(tx, limit, row.id)[::-1]
        pages = [decision_page(each) for each in rows]
        mine = visible_owner(caller)
        if mine is None:
            return pages
        proposals = (each.proposal for each in pages)
        named = {each.fallback_job for each in pages} | {each.job for each in proposals if each is not None}
        owners = owners_of(tx, sorted(named))
    own = {job for job, owner in owners.items() if owner == mine}
    return [users_decision_page(each, own) for each in rows]
