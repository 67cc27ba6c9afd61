"""What checks nodes for a scheduler.

Where its nodes are this machine, rounds of its own do. Elsewhere checks travel with jobs, and agents check what stands
in quarantine.

Source: SPEC C1, C8; docs/preflight.md.
"""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from ...cluster.files.errors import InputError
from ..control.checks.node_checks import NodeChecks
from ..health.monitoring.check_orders import CheckOrders
from ..model.gpu_index import Layout
from ..preflight.context import Place
from ..preflight.round import check_place
from ..preflight.rounds import Rounds
from ..preflight.warm.pool import WarmNodes
from ..preflight.warm.process import load_ahead
from ..preflight.wiring.blueprint import read_blueprint
from ..preflight.wiring.facts import read_facts
from ..settings import Settings

LOCAL = "local"  # backend whose nodes are this machine

CheckPlace = Callable[[str, int | None], tuple[bool, str]]


class ServiceChecks(NamedTuple):
    """What a scheduler has of checks."""

    of_jobs: NodeChecks
    place: CheckPlace  # of a node or a GPU in quarantine
    can: Callable[[str], bool]  # whether a node can be checked
    orders: CheckOrders  # for agents
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
    choice, orders = settings.preflight, CheckOrders()

    def ask(node: str, gpu: int | None) -> tuple[bool, str]:
        return orders.ask(node, tuple(range(layout.nodes[node])) if gpu is None else (gpu,))

    def node_checks(rounds: Rounds | None) -> NodeChecks:
        links, scratch = choice.link_bytes_per_s, None if choice.scratch is None else choice.scratch.absolute()
        return NodeChecks(rounds, choice.jobs, slots=slots, link_bytes_per_s=links, scratch=scratch)

    if settings.backend.name != LOCAL:
        return ServiceChecks(node_checks(None), ask, orders.can, orders, orders.stop)
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
        return check_place(place_of(node), tuple(range(layout.nodes[node])) if gpu is None else (gpu,))

    return ServiceChecks(node_checks(rounds), check, lambda _: True, orders, rounds.close)


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(f"folder {folder} cannot be used: {error.strerror}", "choose another --folder") from error
    return folder
