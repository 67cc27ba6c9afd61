"""What the API says of nodes and of what stands in quarantine."""

from collections.abc import Collection, Iterable, Mapping, Sequence

from ...health.reports import NodeReport, Report
from ...model.quarantine import WHOLE, Entry, Place
from ...store.rows.nodes import NodeRow
from .models import Page


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


class NodePage(Page):
    """A node and who holds its GPUs."""

    name: str
    kind: str  # node type
    gpus: tuple[str | None, ...]  # job that holds each, `-` for somebody else's, none if it is free
    slots: bool  # its GPUs are slots that only behave like GPUs
    liveness: str
    since_s: float  # when it became so
    seen_s: float  # last answer, 0 if none is known
    out_of_service: str  # the reason, "" for a node in service
    faulty: tuple[int, ...]  # GPUs, by their index
    quarantined: tuple[int, ...]  # GPUs that take no job for that, by their index
    quarantine: tuple[QuarantinePage, ...]  # of it, its GPUs and their links
    reported: NodeReport | None  # by its agent, none if it has none


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


def node_pages(
    rows: Iterable[NodeRow], sizes: Mapping[str, int], held: Mapping[tuple[str, int], str],
    faulty: Collection[tuple[str, int]], reports: Mapping[str, Report], quarantines: Sequence[QuarantinePage],
    closed: Collection[tuple[str, int]],
) -> list[NodePage]:  # fmt: skip
    """Return what is said of nodes.

    Args:
        rows: The nodes.
        sizes: GPUs of each.
        held: Job that holds a GPU, by node and index.
        faulty: Node and index of the GPUs that are faulty.
        reports: Of agents.
        quarantines: That stand.
        closed: Node and index of the GPUs that take no job for them.
    """
    return [
        NodePage(
            name=row.name, kind=row.kind, gpus=tuple(held.get((row.name, gpu)) for gpu in range(sizes[row.name])),
            slots=row.slots, liveness=row.liveness, since_s=row.since_s, seen_s=row.seen_s,
            out_of_service=row.out_of_service, faulty=tuple(sorted(gpu for node, gpu in faulty if node == row.name)),
            quarantined=tuple(sorted(gpu for node, gpu in closed if node == row.name)),
            quarantine=tuple(it for it in quarantines if row.name in (it.node, it.other_node)),
            reported=reports[row.name].told if row.name in reports else None,
        )
        for row in rows
    ]  # fmt: skip
