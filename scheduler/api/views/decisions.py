"""What the API says of decisions, as models."""

from collections.abc import Collection, Mapping
from typing import Any

from ...policy_host.misses import WORDS, Miss
from ...store.rows.decisions import DecisionRow
from .models import OTHERS, Page, SharePage, share_pages


class ExpectedPage(Page):
    """What is expected of a start, by the job's estimate."""

    slowdown: float  # run time over that on the reference GPUs
    end_s: float


class WordPage(Page):
    """What a policy would do, whether it is obeyed or not."""

    job: str  # the one that is due, or another that may pass it; `-` for somebody else's
    placement: tuple[SharePage, ...] | None  # none to wait, and of somebody else's job
    expected: ExpectedPage | None  # of the start
    agrees: bool  # whether the heuristic says the same
    probability: float | None  # that the policy's network gave to it, if it tells
    options: int | None  # among which it chose first


class DecisionPage(Page):
    """A decision on a job."""

    at_s: float
    attempt: int | None  # that came of it, none if the job waited
    policy: str
    version: str
    mode: str
    heuristic: str  # that decides where the policy does not
    obeyed: str  # the policy, or the heuristic in its place
    missed: str  # why the policy was not heard, if it was not
    placement: tuple[SharePage, ...] | None  # none to wait
    fallback: tuple[SharePage, ...] | None  # what the heuristic would have chosen; none of somebody else's job
    fallback_job: str  # for which: the one that was due; `-` for somebody else's, empty if that is not known
    took_s: float
    expected: ExpectedPage | None  # of the start
    fallback_expected: ExpectedPage | None
    said: WordPage | None  # by the policy; none if there is none, or it was not heard


def decision_page(row: DecisionRow) -> DecisionPage:
    """Return what is said of a decision."""
    told: Mapping[str, Any] = row.explanation
    return DecisionPage(
        at_s=row.at_s, attempt=row.number, policy=row.policy, version=row.policy_version, mode=row.mode,
        obeyed=str(row.explanation.get("obeyed", "")), missed=str(row.explanation.get("missed", "")),
        placement=share_pages(row.placement), fallback=share_pages(row.fallback), took_s=row.took_s,
        heuristic=str(told.get("fallback", "")), fallback_job=_fallback_job(row), said=_word_page(told),
        **{name: told.get(name) for name in ("expected", "fallback_expected")},
    )  # fmt: skip


def _fallback_job(row: DecisionRow) -> str:
    """Return the job that the heuristic decided about, "" where nobody wrote down which that is."""
    told = row.explanation
    may_differ = told.get("agrees") is False and told.get("obeyed") != told.get("fallback")
    return str(told.get("fallback_job", "" if may_differ else row.job_id))


def _word_page(told: Mapping[str, Any]) -> WordPage | None:
    said = told.get("said")
    if said is None:
        return None
    return WordPage(
        job=said["job"], placement=told.get("said_placement"), expected=told.get("said_expected"),
        agrees=bool(told.get("agrees")), probability=told.get("probability"), options=told.get("options"),
    )  # fmt: skip


def users_decision_page(row: DecisionRow, own: Collection[str]) -> DecisionPage:
    """Return what is said of a decision to who may not see all jobs: nothing of somebody else's.

    Args:
        row: The decision.
        own: Jobs that its reader may see.
    """
    page = decision_page(row)
    if page.fallback_job not in {row.job_id, *own}:
        hidden = {"fallback_job": OTHERS, "fallback": None, "fallback_expected": None}
        page = page.model_copy(update=hidden)
    said, missed = page.said, page.missed
    if said is not None and said.job not in own:
        said = said.model_copy(update={"job": OTHERS, "placement": None, "expected": None})
    if missed:
        kind = str(row.explanation.get("kind"))
        missed = WORDS[Miss(kind)] if kind in set(Miss) else "it gave no answer of use"
    return page.model_copy(update={"said": said, "missed": missed})
