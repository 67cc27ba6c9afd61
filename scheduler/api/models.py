"""What the API says, as models."""

from pydantic import BaseModel, ConfigDict

from ..backends.protocol import Placement
from ..layout import Layout
from ..store.attempts import AttemptRow
from ..store.decisions import DecisionRow
from ..store.jobs import JobRow


class _Said(BaseModel):
    model_config = ConfigDict(frozen=True)


class SharePage(_Said):
    """GPUs of one node."""

    node: str
    gpus: tuple[int, ...]


class AttemptPage(_Said):
    """One try to run a job."""

    number: int
    state: str
    placement: tuple[SharePage, ...]
    contact: str
    opened_s: float
    started_s: float | None
    ended_s: float | None
    outcome: str
    cause: str


class JobPage(_Said):
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
    attempts: tuple[AttemptPage, ...] = ()


class JobsPage(_Said):
    """Some jobs, the last submitted first."""

    jobs: tuple[JobPage, ...]
    cursor: int | None  # of the next page


class NodePage(_Said):
    """A node and who holds its GPUs."""

    name: str
    gpus: tuple[str | None, ...]  # job that holds each, none if it is free
    slots: bool  # its GPUs are slots that only behave like GPUs


class DecisionPage(_Said):
    """A decision on a job."""

    at_s: float
    attempt: int | None  # that came of it, none if the job waited
    policy: str
    version: str
    mode: str
    obeyed: str  # the policy, or the heuristic in its place
    missed: str  # why the policy was not heard, if it was not
    placement: tuple[SharePage, ...] | None  # none to wait
    fallback: tuple[SharePage, ...] | None  # what the heuristic would have chosen
    took_s: float


def share_pages(placement: Placement | None) -> tuple[SharePage, ...] | None:
    """Return what is said of a placement."""
    return None if placement is None else tuple(SharePage(node=it.node, gpus=it.gpus) for it in placement)


def decision_page(row: DecisionRow) -> DecisionPage:
    """Return what is said of a decision."""
    return DecisionPage(
        at_s=row.at_s, attempt=row.number, policy=row.policy, version=row.policy_version, mode=row.mode,
        obeyed=str(row.explanation.get("obeyed", "")), missed=str(row.explanation.get("missed", "")),
        placement=share_pages(row.placement), fallback=share_pages(row.fallback), took_s=row.took_s,
    )  # fmt: skip


def attempt_page(row: AttemptRow) -> AttemptPage:
    """Return what is said of an attempt."""
    return AttemptPage(
        number=row.number, state=row.state, placement=share_pages(row.placement) or (), contact=row.contact,
        opened_s=row.opened_s, started_s=row.started_s, ended_s=row.ended_s, outcome=row.outcome, cause=row.cause,
    )  # fmt: skip


def job_page(row: JobRow, attempts: list[AttemptRow] | None = None) -> JobPage:
    """Return what is said of a job."""
    return JobPage(
        id=row.id, name=row.name, owner=row.owner, state=row.state, desired=row.desired, gpus=row.gpus,
        priority=row.priority, submitted_s=row.submitted_s, ended_s=row.ended_s, version=row.version,
        cause=row.cause, cause_class=row.cause_class, attempts=tuple(map(attempt_page, attempts or ())),
    )  # fmt: skip


def node_pages(layout: Layout, held: dict[tuple[str, int], str], *, slots: bool) -> list[NodePage]:
    """Return what is said of all nodes.

    Args:
        layout: Of the cluster.
        held: Job that holds a GPU, by node and index.
        slots: Whether GPUs only behave like GPUs.
    """
    return [
        NodePage(name=node, gpus=tuple(held.get((node, gpu)) for gpu in range(gpus)), slots=slots)
        for node, gpus in layout.nodes.items()
    ]
