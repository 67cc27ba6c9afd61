"""What checks nodes for a scheduler: rounds where its nodes are this machine, else checks that travel with jobs.

Source: SPEC C1, C8; docs/preflight.md.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ...cluster.files.errors import InputError
from ..control.checks.node_checks import NodeChecks
from ..model.gpu_index import Layout
from ..model.placement import Share
from ..preflight.context import Place
from ..preflight.round import preflight
from ..preflight.rounds import Rounds
from ..preflight.warm.pool import WarmNodes
from ..preflight.warm.process import LocalNode, load_ahead
from ..preflight.wiring.blueprint import read_blueprint
from ..preflight.wiring.facts import read_facts
from ..preflight.workload import Workload
from ..settings import Settings

LOCAL = "local"  # backend whose nodes are this machine

CheckPlace = Callable[[str, int | None], tuple[bool, str]]


class ServiceChecks(NamedTuple):
    """What a scheduler has of checks."""

    of_jobs: NodeChecks
    place: CheckPlace | None  # of a node or a GPU in quarantine; None where there are none
    close: Callable[[], None]


def checks_of(settings: Settings, layout: Layout, wake: Callable[[], None], *, slots: bool) -> ServiceChecks:
    """Return what checks the nodes of a scheduler.

    Args:
        settings: Of the scheduler.
        layout: Of its cluster.
        wake: Called when a round has ended.
        slots: Whether slots stand for GPUs.

    Raises:
        InputError: If a file of expected wiring or of facts of ports cannot be used.
    """
    choice = settings.preflight
    if settings.backend.name != LOCAL:
        return ServiceChecks(NodeChecks(None, choice.jobs, slots=slots), None, lambda: None)
    if choice.wiring is not None:
        read_blueprint(choice.wiring)
    read_facts(choice.port_facts)
    if choice.jobs == "auto":
        load_ahead()
    home = _made(settings.folder.absolute() / "preflight")

    def place_of(node: str) -> Place:
        return Place(node, home, slots, wiring=choice.wiring, port_facts=choice.port_facts)

    rounds = Rounds(WarmNodes(place_of), wake)

    def check(node: str, gpu: int | None) -> tuple[bool, str]:
        return _check(place_of(node), tuple(range(layout.nodes[node])) if gpu is None else (gpu,))

    return ServiceChecks(NodeChecks(rounds, choice.jobs, slots=slots), check, rounds.close)


def _check(place: Place, gpus: tuple[int, ...]) -> tuple[bool, str]:
    """Check some GPUs of a node that no job uses; return whether all passed, and what was found.

    Its process is its own, so that no job waits for it. Level 1 does: no hardware is behind slots that could fail under
    load, and the local backend has nothing else.
    """
    node = LocalNode(place)
    try:
        report = preflight((Share(place.node, gpus),), Workload(), {place.node: node})
    finally:
        node.close()
    ran = [it for it in report.results if it.outcome != "skipped"]
    return report.passed, "; ".join(report.diagnostics()) or f"{len(ran)} checks passed in {report.seconds:.1f} s"


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(f"folder {folder} cannot be used: {error.strerror}", "choose another --folder") from error
    return folder
