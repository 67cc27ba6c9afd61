"""Checks of nodes for a scheduler, and those that end a quarantine.

What checks nodes for a scheduler.

Where its nodes are this machine, rounds of its own do. Elsewhere checks travel with jobs, and agents check what stands
in quarantine.

Checks that end a quarantine: asked for by an operator, or when rest and action have done their part.

Checks that clear a GPU may take half an hour, so each runs in a thread of its own, and its outcome is written to the
store. A scheduler that ends meanwhile loses only that outcome.

Source: SPEC C1, C8, C4; docs/preflight.md; docs/nodes.md, Quarantine.
"""

import logging
import threading
from collections.abc import Callable, Collection
from pathlib import Path
from typing import NamedTuple

from sqlalchemy import Connection

from ...cluster.files.errors import InputError, error_line
from ...preflight.context import NodeSetup
from ...preflight.rounds import BackgroundRounds, check_node
from ...preflight.warm import WarmNodes, load_ahead
from ...preflight.wiring import read_blueprint, read_facts
from ..control.node_checks import NodeChecks
from ..health.quarantining import CheckOrders, clear, entries_for, keep
from ..model.gpu_index import WHOLE_NODE, HardwarePlace, Layout, QuarantineEntry
from ..rules.quarantine import BY_CHECKS, Fleet, is_due
from ..settings import SchedulerSettings
from ..store.attempts import held_gpus
from ..store.database import Store
from ..store.nodes import boot_ids, open_entries

LOCAL = "local"  # backend whose nodes are this machine

CheckPlace = Callable[[str, int | None], tuple[bool, str]]


class ServiceChecks(NamedTuple):
    """What a scheduler has of checks."""

    of_jobs: NodeChecks
    place: CheckPlace  # of a node or a GPU in quarantine
    can: Callable[[str], bool]  # whether a node can be checked
    orders: CheckOrders  # for agents
    close: Callable[[], None]


def checks_of(settings: SchedulerSettings, layout: Layout, wake: Callable[[], None], *, slots: bool) -> ServiceChecks:
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
        return orders.run(node, tuple(range(layout.nodes[node])) if gpu is None else (gpu,))

    def node_checks(rounds: BackgroundRounds | None) -> NodeChecks:
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

    def place_of(node: str) -> NodeSetup:
        return NodeSetup(node, home, slots, wiring=choice.wiring, port_facts=choice.port_facts)

    rounds = BackgroundRounds(WarmNodes(place_of), wake)

    def check(node: str, gpu: int | None) -> tuple[bool, str]:
        return check_node(place_of(node), tuple(range(layout.nodes[node])) if gpu is None else (gpu,))

    return ServiceChecks(node_checks(rounds), check, lambda _: True, orders, rounds.close)


def _made(folder: Path) -> Path:
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(f"folder {folder} cannot be used: {error.strerror}", "choose another --folder") from error
    return folder


log = logging.getLogger(__name__)

QUARANTINE_WRITER = "quarantine"
MAX_CHECKS_AT_ONCE = 4  # checks that begin by themselves: more would slow each other below the limits of speed
CLEARED_UNCHECKED = "cleared by an operator, no checks were run"


class Clearing:
    """Runs the checks that end quarantines. Any thread may use it.

    Args:
        store: Where quarantines are.
        check: Runs the checks of a node or of a GPU that no job uses; None where there are none.
        fleet: The nodes of the cluster.
        now_s: Returns Unix time.
        can: Says whether a node can be checked, where there are checks.
    """

    def __init__(
        self,
        store: Store,
        check: CheckPlace | None,
        fleet: Fleet,
        now_s: Callable[[], float],
        can: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._store, self._check, self._fleet, self._now_s, self._can = store, check, fleet, now_s, can
        self._running: set[HardwarePlace] = set()
        self._lock = threading.Lock()

    def can_check(self, place: HardwarePlace) -> bool:
        """Return whether there are checks of a place."""
        return self._check is not None and all(self._can(end.node) for end in place.ends)

    @property
    def running(self) -> frozenset[HardwarePlace]:
        """The places that are being checked."""
        with self._lock:
            return frozenset(self._running)

    def ask(self, place: HardwarePlace, by: str) -> None:
        """Begin to check a place, and end its quarantine if the checks pass.

        Args:
            place: Of a quarantine, or the node of some.
            by: Who asks for it.

        Raises:
            InputError: If it is not in quarantine, or jobs run there.
        """
        with self._store.read() as tx:
            entries_for(open_entries(tx), place)
            if jobs := self._jobs_on(tx, place):
                raise InputError(
                    f"{place.words} cannot be checked while it is used by {', '.join(sorted(jobs))}",
                    "wait for their ends, or cancel them",
                )
        self._begin(place, by)

    def skip_checks(self, place: HardwarePlace, by: str) -> int:
        """End the quarantine of a place without any check, and return how many ended.

        Raises:
            InputError: If it is not in quarantine.
        """
        return self._store.write(
            lambda tx: clear(tx, place, by, CLEARED_UNCHECKED, self._now_s(), writer=QUARANTINE_WRITER)
        )

    def check_due(self) -> None:
        """Begin to check all that checks may clear by themselves by now."""
        with self._store.read() as tx:
            boots = boot_ids(tx)
            due = {
                entry.place
                for entry in open_entries(tx)
                if is_due(entry, boots.get(entry.place.node, ""), self._now_s())
            }
            free = [place for place in sorted(due) if self.can_check(place) and not self._jobs_on(tx, place)]
        for place in free[: max(MAX_CHECKS_AT_ONCE - len(self.running), 0)]:
            self._begin(place, BY_CHECKS)

    def _jobs_on(self, tx: Connection, place: HardwarePlace) -> Collection[str]:
        return {
            row.job_id
            for row in held_gpus(tx)
            if any(end.node == row.node and end.gpu in (WHOLE_NODE, row.gpu) for end in place.ends)
        }

    def _begin(self, place: HardwarePlace, by: str) -> None:
        with self._lock:
            if place in self._running:
                return
            self._running.add(place)
        threading.Thread(target=self._run, args=(place, by), name=f"checks of {place.words}", daemon=True).start()

    def _run(self, place: HardwarePlace, by: str) -> None:
        try:
            passed, evidence = self._checked(place)
            self._store.write(lambda tx: self._finish(tx, place, by, evidence, passed=passed))
        except InputError:
            log.info("%s was cleared while it was checked", place.words)
        except Exception:  # the store may be away; the quarantine stands, and it is tried again
            log.exception("the result of the checks of %s is not stored", place.words)
        finally:
            with self._lock:
                self._running.discard(place)

    def _checked(self, place: HardwarePlace) -> tuple[bool, str]:
        """Run the checks of all ends of a place; what they raise is no pass."""
        assert self._check is not None
        found = []
        for end in place.ends:
            try:
                passed, evidence = self._check(end.node, None if end.gpu == WHOLE_NODE else end.gpu)
            except Exception as error:  # a check may fail in any way
                passed, evidence = False, f"the checks themselves failed: {error_line(error)}"
            found.append((bool(passed), f"{end.words}: {evidence}"))
        return all(passed for passed, _ in found), "; ".join(words for _, words in found)

    def _finish(self, tx: Connection, place: HardwarePlace, by: str, evidence: str, *, passed: bool) -> None:
        now_s = self._now_s()
        if not passed:
            keep(tx, place, evidence, now_s, writer=QUARANTINE_WRITER)
            return
        boots = boot_ids(tx)

        def is_ready(entry: QuarantineEntry) -> bool:
            """Return whether a quarantine ends; without a request only one that the rules let checks end."""
            return by != BY_CHECKS or (entry.place == place and is_due(entry, boots.get(entry.place.node, ""), now_s))

        clear(tx, place, by, evidence, now_s, writer=QUARANTINE_WRITER, is_ready=is_ready)
