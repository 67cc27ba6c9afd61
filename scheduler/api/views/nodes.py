"""What the API says of nodes and of what stands in quarantine."""

from collections.abc import Collection, Mapping, Sequence
from typing import NamedTuple

from ...health.monitoring.node_state import NodeState
from ...health.reports import GpuReport, Report
from ...model.quarantine import WHOLE, Entry, Place
from ...store.rows.nodes import NodeRow
from .models import Page

SCHEDULER = "scheduler"  # among witnesses


class QuarantinePage(Page):
    """What stands or stood in quarantine."""

    scope: str  # device, node or link
    node: str
    gpu: int | None  # index on the node; none for the node itself
    other_node: str | None  # of the other end of a link
    other_gpu: int | None
    since_s: float
    symptom_s: float  # when it was last seen
    check: str
    cause: str
    evidence: str
    action: str  # that mends it
    clears: str  # what ends it: checks, reboot or operator
    tries: int
    boot_id: str
    not_before_s: float  # checks alone do not end it earlier
    checking: bool  # the checks that may end it are running
    checked: str  # how they ended the last time
    cleared_s: float | None
    cleared_by: str


class ReportPage(Page):
    """What the agent of a node said last of its GPUs."""

    gpus: tuple[GpuReport, ...]


class NodePage(Page):
    """A node and who holds its GPUs."""

    name: str
    kind: str  # node type
    gpus: tuple[str | None, ...]  # job that holds each, `-` for somebody else's, none if it is free
    slots: bool  # its GPUs are slots that only behave like GPUs
    state: str  # alive, suspect, unreachable, dead, fenced or quarantined
    evidence: str  # what that rests on
    liveness: str  # up, suspect or down
    verdict: str  # of those who knock at its agent's door while it is down: reached, stuck, fast, slow, or "" for none
    since_s: float  # when it became so
    seen_s: float  # last answer, 0 if none is known
    out_of_service: str  # the reason, "" for a node in service
    faulty: tuple[int, ...]  # GPUs, by their index
    quarantined: tuple[int, ...]  # GPUs that take no job for that, by their index
    quarantine: tuple[QuarantinePage, ...]  # of it, its GPUs and their links
    peak_flops: float  # FLOP/s of each of its GPUs
    address: str  # that its agent reports from; for operators, "" for others and without an agent
    boot_id: str  # names the time since its last start, "" if unknown
    agent_version: str
    witnesses: tuple[str, ...]  # who was let in at its agent's door: `scheduler`, and nodes whose agents were
    reported: ReportPage | None  # by its agent, none if it has none


def quarantine_page(entry: Entry, running: Collection[Place]) -> QuarantinePage:
    """Return what is said of a quarantine.

    Args:
        entry: The quarantine.
        running: What is being checked.
    """
    place = entry.place
    told = {name: getattr(entry, name) for name in QuarantinePage.model_fields if hasattr(entry, name)}
    return QuarantinePage(
        **told, scope=place.scope, node=place.node, gpu=None if place.gpu == WHOLE else place.gpu,
        other_node=place.other_node or None, other_gpu=None if place.other_gpu == WHOLE else place.other_gpu,
        checking=entry.cleared_s is None and any(it == place or it.covers(place) for it in running),
    )  # fmt: skip


class Shown(NamedTuple):
    """All that is told of nodes beside their rows."""

    sizes: Mapping[str, int]  # GPUs of each
    peak_flops: Mapping[str, float]  # of each GPU of a node
    held: Mapping[tuple[str, int], str]  # job that holds a GPU, by node and index
    faulty: Collection[tuple[str, int]]  # node and index
    reports: Mapping[str, Report]  # of agents
    quarantines: Sequence[Entry]  # that stand
    closed: Collection[tuple[str, int]]  # node and index of the GPUs that take no job for them
    running: Collection[Place]  # what is being checked
    let_in: Mapping[str, Sequence[str]]  # at the door of each agent; "" is the scheduler


def node_page(row: NodeRow, shown: Shown, state: NodeState) -> NodePage:
    """Return what is said of a node."""
    name, report = row.name, shown.reports.get(row.name)
    return NodePage(
        name=name, kind=row.kind, gpus=tuple(shown.held.get((name, gpu)) for gpu in range(shown.sizes[name])),
        slots=row.slots, state=state.state, evidence=state.evidence, liveness=row.liveness, verdict=row.verdict,
        since_s=row.since_s, seen_s=row.seen_s, out_of_service=row.out_of_service, faulty=_of(name, shown.faulty),
        quarantined=_of(name, shown.closed),
        quarantine=tuple(
            quarantine_page(it, shown.running)
            for it in shown.quarantines
            if name in (it.place.node, it.place.other_node)
        ),
        peak_flops=shown.peak_flops.get(name, 0.0), address=row.address, boot_id=row.boot_id,
        agent_version=row.agent_version, witnesses=tuple(it or SCHEDULER for it in shown.let_in.get(name, ())),
        reported=None if report is None else ReportPage(gpus=report.told.gpus),
    )  # fmt: skip


def _of(node: str, places: Collection[tuple[str, int]]) -> tuple[int, ...]:
    return tuple(sorted(gpu for name, gpu in places if name == node))
