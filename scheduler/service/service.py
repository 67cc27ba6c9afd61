"""A scheduler as it runs: its parts put together, its threads, what becomes of failed ticks, and checks of nodes.

Source: SPEC C1, C4, C8; docs/preflight.md; docs/nodes.md, Quarantine.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import numpy as np
from sqlalchemy import Connection

from ...agents.learned.schema import USERS, conditions_of_use, training_mismatch
from ...agents.registry import check_policy_name, find_policy
from ...cluster.files.disk_space import DiskSpace
from ...cluster.files.errors import BackendError, InputError, LongshoreError, error_line
from ...cluster.files.processes import this_process_name
from ...cluster.model.problem import ORDERS, rules_stopping_at_faults
from ...cluster.presets.cluster_file import ClusterSetup, draw_faults, read_cluster
from ...preflight.context import NodeSetup
from ...preflight.rounds import BackgroundRounds, check_node
from ...preflight.warm import WarmNodes, start_fork_server
from ...preflight.wiring import read_blueprint, read_port_facts
from ..access.tokens import Role, agent_tokens_without_node, first_operator_token, has_valid_tokens
from ..backends.building import build, full_name
from ..backends.protocol import Backend
from ..control.node_checks import NodeChecks
from ..control.reconciler import Reconciler
from ..control.state_cache import Parts
from ..health.evidence import Usage, use_sample_of
from ..health.monitor import Leases, Monitor
from ..health.quarantining import CheckOrders, clear_quarantine, entries_ended_by, record_failed_checks
from ..metrics import SchedulerMetrics
from ..mirror.cluster_mirror import ClusterSite
from ..model.gpu_index import WHOLE_NODE, HardwarePlace, Layout, QuarantineEntry
from ..placement.placer import Mode, Placer
from ..rules.quarantine import BY_CHECKS, is_check_due
from ..settings import SchedulerSettings, ServeOptions, check_open_is_local
from ..store.attempts import held_gpus
from ..store.database import Store, StoreUnreachableError, file_of, open_store
from ..store.jobs import delete_answers
from ..store.nodes import boot_ids, last_clearances, open_quarantines
from .own_cluster import default_cluster
from .queue_now import QueueNow
from .retention import horizon_of, prune
from .running_scheduler import RunningScheduler

log = logging.getLogger(__name__)

# Before the next pass, doubled with each failure; the lease lasts 15 s.
FIRST_TICK_WAIT_S, LONGEST_TICK_WAIT_S = 0.25, 5.0
REPEATED = 3  # in a row, from which on the scheduler is not ready


class LoopFailures:
    """How often the loop has failed since it last came to its end."""

    def __init__(self) -> None:
        self._number, self._words = 0, ""

    def count(self, error: Exception) -> float:
        """Note a failure, and return after how many seconds to try again."""
        self._number += 1
        self._words = error_line(error)
        log.error("a tick failed: %s", self._words, exc_info=error)
        return min(LONGEST_TICK_WAIT_S, FIRST_TICK_WAIT_S * 2.0 ** min(self._number - 1, 16))

    def end(self) -> None:
        """Note that the loop has come to its end."""
        if self._number:
            log.warning("a tick has come to its end, after %d that failed: %s", self._number, self._words)
        self._number = 0

    @property
    def reason(self) -> str:
        """Why nothing is scheduled, "" while the loop works; its words are no secret."""
        if self._number < REPEATED:
            return ""
        kind = self._words.partition(":")[0].partition(" ")[0]
        return f"the scheduler's loop has failed {self._number} times in a row ({kind}); its log says why"


TICK_S, TICK_REST_S = 0.25, 0.02  # between two ticks at most, and at least: a stream of requests wakes it all the time
BACKFILL_DEPTH = 100  # each job that may pass costs a decision at each moment; Slurm's main loop tests as many
LOADED_S = 300.0  # far more than a policy takes to be loaded and compiled
TICK_STALLED_S = 60.0  # without the end of a tick
FORGET_EVERY_S = 3600.0  # between two times that old answers are forgotten
ANSWERS_KEPT_S = 24 * 3600.0  # how long answers are kept for requests that come again
CLEAR_EVERY_S = 10.0  # between two passes over what checks may clear
PRUNE_EVERY_S = 3600.0  # between two times that old history is deleted
UPKEEP_EVERY_S = 1.0  # between two checks of free disk space
PRUNE_PAUSE_S = 0.05  # between two batches of it, in which others read and write


class Service:
    """A scheduler in a thread of its own.

    Raises:
        LongshoreError: If the cluster file, the store, the backend or a policy cannot be used, or if other
            machines reach the API and there is no token.
    """

    def __init__(self, chosen: ServeOptions) -> None:
        settings = self.settings = chosen.settings
        check_open_is_local(settings)
        choice = settings.policy
        fallback = find_policy(choice.fallback)
        if choice.name is not None:
            check_policy_name(choice.name)  # it is loaded in a process of its own
        given = None if settings.cluster is None else read_cluster(settings.cluster)
        make_folder(settings.folder)
        self.room = _disk_space_of(settings)  # first: what follows writes files
        setup = given or read_cluster(default_cluster(settings.folder))
        self.layout = layout_of(setup)
        kind = settings.backend
        self.backend: Backend = build(kind.name, kind.settings, settings.folder, self.layout, chosen.file)
        self.slots = _has_slots(self.backend)
        placer = Placer(
            fallback, choice.name, choice.deadline_s, Mode(choice.mode), sample_temperature=choice.sample_temperature,
        )  # fmt: skip
        self.store: Store = open_store(settings.store_url)
        self.store.make_room = self.room.release_reserve
        try:
            self.first_token = self._first_token()
        except InputError:
            self.store.close()
            raise
        self._warn_of_agents()
        site = site_of(setup, settings)
        # The policy's own process warns for the policy.
        if remark := training_mismatch(fallback, conditions_of_use(site.rules, USERS)):
            log.warning("policy %s: %s", fallback.name, remark)
        self.node_types = node_types_of(setup)
        self.peak_flops = dict(zip(setup.node_names, setup.cluster.peak_flops.tolist(), strict=True))  # of each GPU
        leases = Leases() if settings.fencing == "leases" else None
        monitor = Monitor(self.backend, kind.name, self.layout, self.node_types, settings.poll_s, leases)
        self._woken = threading.Event()
        self.checks = checks_of(settings, self.layout, self._woken.set, slots=self.slots)
        parts = Parts(
            store=self.store, backend=self.backend, backend_name=full_name(kind.name, self.backend), site=site,
            layout=self.layout, placer=placer, now_s=time.time, owner=this_process_name(), monitor=monitor,
            gpus_per_user=settings.limits.gpus, why_no_starts=self.room.reason_against_starts,
            checks=self.checks.of_jobs, wake=self.wake,
            gpus_in_check=lambda: self.clearing.take_gpus(self.layout.nodes),
        )  # fmt: skip
        self.reconciler = Reconciler(parts)
        self.control = RunningScheduler(self.reconciler)
        self.clearing = Clearing(self.store, self.checks.place, parts.now_s, self.checks.can)
        self.metrics = SchedulerMetrics(
            self.store, self.layout, self.node_types, self.leads,
            lambda: monitor.steps.figures if self.leads() else {}, self.room,
        )  # fmt: skip
        self.store.watch_commits(self.metrics.commit_s.observe)
        self.queue = QueueNow(settings, self.layout, self.control)
        self.failures, self.usage = LoopFailures(), Usage()
        self.ends = threading.Event()  # the scheduler is to stop: all waits end
        self._ticked, self._forgot, self._pruned = time.monotonic(), float("-inf"), float("-inf")
        self._cleared = float("-inf")
        self._thread = threading.Thread(target=self._run_loop, name="scheduler", daemon=True)
        self._keeping = threading.Thread(target=self._do_upkeep, name="keeping", daemon=True)

    @property
    def is_open(self) -> bool:
        """Whether any user of this machine may use the API without a token, as long as the store has none."""
        return self.settings.open and self.settings.is_loopback

    @property
    def is_stalled(self) -> bool:
        """Whether no tick has ended for a long time."""
        return time.monotonic() - self._ticked > TICK_STALLED_S

    def now_s(self) -> float:
        """Return the present: Unix time."""
        return self.reconciler.parts.now_s()

    def leads(self) -> bool:
        """Return whether this scheduler leads."""
        return self.control.leads()

    def lead(self) -> None:
        """Take the lease if it is free, and wait until the policy is loaded.

        Raises:
            PluginError: If the policy cannot be loaded.
            StoreError: If the store does not answer.
        """
        self.reconciler.warm_up()
        try:
            leads = self.reconciler.tick()
        except LongshoreError:
            raise
        except Exception as error:  # the loop tries again, and the API shows the error
            self.failures.count(error)
            return
        if leads:
            self.reconciler.parts.placer.wait_until_ready(LOADED_S)

    def start(self) -> None:
        """Begin to schedule."""
        self._thread.start()
        self._keeping.start()

    def wake(self) -> None:
        """Make the next tick begin at once."""
        self._woken.set()

    def close(self) -> None:
        """Stop scheduling; jobs run on, and the next scheduler continues them."""
        self.ends.set()
        self._woken.set()
        for thread in (self._thread, self._keeping):
            if thread.is_alive():
                thread.join()
        self.clearing.close()
        self.checks.close()
        self.reconciler.close()
        self.backend.close()
        self.store.close()

    def _first_token(self) -> str | None:
        """Return the token in the folder, made if it is the first; refuse to serve others without any."""
        settings = self.settings
        if self.is_open:
            return None
        secret = first_operator_token(self.store, settings.folder, time.time())
        with self.store.read() as tx:
            if not settings.is_loopback and not has_valid_tokens(tx, time.time()):
                raise InputError(
                    f"host {settings.host} lets other machines run programs here, and there is no valid token",
                    f"make one with `longshore token create NAME --role operator --folder {settings.folder}`",
                )
        return secret

    def _warn_of_agents(self) -> None:
        """Warn of tokens of agents that are for no node, as their reports are refused."""
        with self.store.read() as tx:
            found = agent_tokens_without_node(tx, Role.AGENT.value, time.time())
        for row in found:
            log.warning(
                "the token %s of %s has the role agent but no node, so its reports are refused: make one for each "
                "node by `longshore token create NAME --role agent --node NODE`",
                row.name, row.owner,
            )  # fmt: skip

    def _run_loop(self) -> None:
        while not self.ends.is_set():
            try:
                with self.metrics.timed_tick():
                    self.reconciler.tick()
                self._ticked = time.monotonic()
                self._delete_old_answers()
                self.failures.end()
            except Exception as error:
                # A scheduler that stops is worse than one that fails a tick: jobs run on, and it tries again.
                self.ends.wait(self.failures.count(error))
            if not self.reconciler.is_behind:
                self.ends.wait(TICK_REST_S)
                self._woken.wait(TICK_S - TICK_REST_S)
            self._woken.clear()

    def _delete_old_answers(self) -> None:
        """Forget old answers to requests, now and then."""
        if time.monotonic() - self._forgot > FORGET_EVERY_S:
            self._forgot = time.monotonic()
            self.store.write(lambda tx: delete_answers(tx, self.now_s() - ANSWERS_KEPT_S))

    def _do_upkeep(self, every_s: float = UPKEEP_EVERY_S) -> None:
        """Watch the disk and how GPUs are used, and delete old history; beside the ticks, for it may take long."""
        tasks = (
            ("free disk space could not be checked", self.room.adjust_reserve),
            ("the use of GPUs could not be recorded", self._note_use),
            ("old history could not be deleted", self._prune),
            ("quarantines could not be checked", self._check_quarantines),
        )
        while not self.ends.wait(every_s):
            for failure, task in tasks:
                try:
                    task()
                except Exception:
                    # History that is kept for longer does no harm, a thread that ends does.
                    log.exception("%s", failure)

    def _note_use(self) -> None:
        """Note now and then how many GPUs are held, and how busy they are; not while the store does not answer."""
        now_s = self.now_s()
        if self.usage.is_due(now_s):
            with suppress(StoreUnreachableError), self.store.read() as tx:
                held = [(row.node, row.gpu) for row in held_gpus(tx)]
                reports = self.control.last_reports()
                self.usage.add(use_sample_of(held, self.layout.nodes, reports, now_s))

    def _check_quarantines(self) -> None:
        """Let checks clear what has rested long enough, now and then."""
        if self.leads() and time.monotonic() - self._cleared > CLEAR_EVERY_S:
            self._cleared = time.monotonic()
            with suppress(StoreUnreachableError):
                self.clearing.begin_due_checks()

    def _prune(self) -> None:
        """Delete old history, now and then."""
        if not self.leads() or time.monotonic() - self._pruned <= PRUNE_EVERY_S:
            return
        self._pruned = time.monotonic()
        horizon = horizon_of(self.settings.retention, self.now_s())
        prune(self.store, self.settings.folder, horizon, lambda: not self.ends.wait(PRUNE_PAUSE_S) and self.leads())


LOCAL = "local"  # backend whose nodes are this machine

CheckPlace = Callable[[str, int | None, Mapping[int, float]], tuple[bool, str]]


class ServiceChecks(NamedTuple):
    """What a scheduler has of checks."""

    of_jobs: NodeChecks
    place: CheckPlace  # of a node or a GPU in quarantine; faults before the last clearances do not count
    can: Callable[[str], bool]  # whether a node can be checked
    orders: CheckOrders  # for agents
    close: Callable[[], None]


def checks_of(settings: SchedulerSettings, layout: Layout, wake: Callable[[], None], *, slots: bool) -> ServiceChecks:
    """Return what checks the nodes of a scheduler.

    Where its nodes are this machine, it runs rounds itself. Elsewhere checks travel with jobs, and agents check what is
    in quarantine.

    Args:
        settings: Of the scheduler.
        layout: Of its cluster.
        wake: Called when a round has ended.
        slots: Whether slots stand for GPUs.

    Raises:
        InputError: If a file of expected wiring or of facts of ports cannot be used.
    """
    choice, orders = settings.preflight, CheckOrders(slots=slots)

    def request(node: str, gpu: int | None, cleared_s: Mapping[int, float]) -> tuple[bool, str]:
        return orders.run_checks(node, tuple(range(layout.nodes[node])) if gpu is None else (gpu,), cleared_s)

    def node_checks(rounds: BackgroundRounds | None) -> NodeChecks:
        links, scratch = choice.link_bytes_per_s, None if choice.scratch is None else choice.scratch.absolute()
        return NodeChecks(rounds, choice.jobs, slots=slots, link_bytes_per_s=links, scratch=scratch)

    if settings.backend.name != LOCAL:
        return ServiceChecks(node_checks(None), request, orders.can_check, orders, orders.wake_waiters)
    if choice.wiring is not None:
        read_blueprint(choice.wiring)
    read_port_facts(choice.port_facts)
    if choice.jobs == "auto":
        start_fork_server()
    home = settings.folder.absolute() / "preflight"
    make_folder(home)

    def place_of(node: str) -> NodeSetup:
        return NodeSetup(node, home, slots, wiring=choice.wiring, port_facts=choice.port_facts)

    rounds = BackgroundRounds(WarmNodes(place_of), wake)

    def check(node: str, gpu: int | None, cleared_s: Mapping[int, float]) -> tuple[bool, str]:
        return check_node(place_of(node), tuple(range(layout.nodes[node])) if gpu is None else (gpu,), cleared_s)

    return ServiceChecks(node_checks(rounds), check, lambda _: True, orders, rounds.close)


QUARANTINE_WRITER = "quarantine"
MAX_CHECKS_AT_ONCE = 4  # checks that begin by themselves: more would slow each other below the limits of speed
CLEARED_UNCHECKED = "cleared by an operator, no checks were run"
TAKE_LIMIT_S = 60.0  # for the leader to keep jobs off a place before its checks


class Clearing:
    """Runs the checks that end quarantines: on request of an operator, or once a quarantine has rested long enough.

    They may take half an hour, so each runs in a thread of its own, and its outcome is written to the store. A
    scheduler that ends meanwhile loses only that outcome. No job starts on the GPUs until then: the checks begin once
    the leader has called `take_gpus`. Any thread may use it.

    Args:
        store: Where quarantines are.
        check: Runs the checks of a node or of a GPU that no job uses.
        now_s: Returns Unix time.
        can: Returns whether a node can be checked.
    """

    def __init__(
        self,
        store: Store,
        check: CheckPlace,
        now_s: Callable[[], float],
        can: Callable[[str], bool] = lambda _: True,
    ) -> None:
        self._store, self._check, self._now_s, self._can = store, check, now_s, can
        self._running: dict[HardwarePlace, threading.Event] = {}  # and whether the leader keeps jobs off each
        self._lock = threading.Lock()
        self._ends = threading.Event()

    def close(self) -> None:
        """Begin no more checks, and ignore those that fail from here on, as the end of the scheduler stops them."""
        self._ends.set()
        with self._lock:
            for is_taken in self._running.values():
                is_taken.set()

    def take_gpus(self, sizes: Mapping[str, int]) -> frozenset[tuple[str, int]]:
        """Return the GPUs that are being checked; the leader calls it in each cycle, and then starts no job there.

        Jobs that earlier cycles placed are in the store by then, so it shows from here on whether a place is free.

        Args:
            sizes: GPUs of each node.
        """
        with self._lock:
            for is_taken in self._running.values():
                is_taken.set()
            ends = [end for place in self._running for end in place.ends]
        return frozenset(
            (end.node, gpu)
            for end in ends
            for gpu in range(sizes.get(end.node, 0))  # of those that the cluster file still has
            if end.gpu in (WHOLE_NODE, gpu)
        )

    def can_check(self, place: HardwarePlace) -> bool:
        """Return whether there are checks of a place."""
        return all(self._can(end.node) for end in place.ends)

    @property
    def running(self) -> frozenset[HardwarePlace]:
        """The places that are being checked."""
        with self._lock:
            return frozenset(self._running)

    def request(self, place: HardwarePlace, by: str) -> None:
        """Begin to check a place, and end its quarantine if the checks pass.

        Args:
            place: Of a quarantine, or the node of some.
            by: An operator, or the rules of quarantine.

        Raises:
            InputError: If it is not in quarantine, or jobs run there.
        """
        with self._store.read() as tx:
            entries_ended_by(open_quarantines(tx), place)
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
            lambda tx: clear_quarantine(tx, place, by, CLEARED_UNCHECKED, self._now_s(), writer=QUARANTINE_WRITER)
        )

    def begin_due_checks(self) -> None:
        """Begin to check all that checks may clear by themselves by now."""
        with self._store.read() as tx:
            boots = boot_ids(tx)
            due = {
                entry.place
                for entry in open_quarantines(tx)
                if is_check_due(entry, boots.get(entry.place.node, ""), self._now_s())
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
            if place in self._running or self._ends.is_set():
                return
            is_taken = self._running[place] = threading.Event()
        name = f"checks of {place.words}"
        threading.Thread(target=self._check_and_finish, args=(place, by, is_taken), name=name, daemon=True).start()

    def _check_and_finish(self, place: HardwarePlace, by: str, is_taken: threading.Event) -> None:
        try:
            if not is_taken.wait(TAKE_LIMIT_S):
                log.warning("%s is not checked: no cycle of the scheduler ran for %.0f s", place.words, TAKE_LIMIT_S)
                return
            if self._ends.is_set() or self._is_used(place):
                return
            passed, evidence = self._run_checks(place, by)
            if self._ends.is_set() and not passed:
                return  # the checks were stopped: this is no finding about the place
            self._store.write(lambda tx: self._finish(tx, place, by, evidence, passed=passed))
        except InputError:
            log.info("%s was cleared while it was checked", place.words)
        except Exception:  # the store may be away; the quarantine stands, and it is tried again
            log.exception("the result of the checks of %s is not stored", place.words)
        finally:
            with self._lock:
                del self._running[place]

    def _is_used(self, place: HardwarePlace) -> bool:
        """Return whether a job has started on a place since its checks were requested."""
        with self._store.read() as tx:
            jobs = self._jobs_on(tx, place)
        if jobs:
            log.warning("%s is not checked: %s started there", place.words, ", ".join(sorted(jobs)))
        return bool(jobs)

    def _run_checks(self, place: HardwarePlace, by: str) -> tuple[bool, str]:
        """Run the checks of all ends of a place; what they raise is no pass."""
        found = []
        for end in place.ends:
            try:
                with self._store.read() as tx:
                    cleared_s = last_clearances(tx, end.node)
                if by != BY_CHECKS:  # an operator requests them after the repair: no earlier fault counts
                    cleared_s[end.gpu] = self._now_s()
                passed, evidence = self._check(end.node, None if end.gpu == WHOLE_NODE else end.gpu, cleared_s)
            except Exception as error:  # a check may fail in any way
                passed, evidence = False, f"the checks themselves failed: {error_line(error)}"
            found.append((bool(passed), f"{end.words}: {evidence}"))
        return all(passed for passed, _ in found), "; ".join(words for _, words in found)

    def _finish(self, tx: Connection, place: HardwarePlace, by: str, evidence: str, *, passed: bool) -> None:
        now_s = self._now_s()
        if not passed:
            record_failed_checks(tx, place, evidence, now_s, writer=QUARANTINE_WRITER)
            return
        boots = boot_ids(tx)

        def is_ready(entry: QuarantineEntry) -> bool:
            """Return whether a quarantine ends; without a request only one that the rules let checks end."""
            return by != BY_CHECKS or (
                entry.place == place and is_check_due(entry, boots.get(entry.place.node, ""), now_s)
            )

        clear_quarantine(tx, place, by, evidence, now_s, writer=QUARANTINE_WRITER, is_ready=is_ready)


def make_folder(folder: Path) -> None:
    """Make a scheduler's folder, its user's alone, if it is not there.

    Raises:
        InputError: If it cannot be made.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    except OSError as error:
        raise InputError(f"folder {folder} cannot be used: {error.strerror}", "choose another --folder") from error


def _disk_space_of(settings: SchedulerSettings) -> DiskSpace:
    """Return what watches the disks of a scheduler; where they are full, the reserve lets it start."""
    file = file_of(settings.store_url)
    room = DiskSpace([settings.folder] if file is None else [file.parent, settings.folder], settings.least_free_bytes)
    with suppress(OSError):  # opening the store gives a better error about its folder
        room.adjust_reserve()
    return room


def layout_of(setup: ClusterSetup) -> Layout:
    """Return names and sizes of a cluster's nodes."""
    sizes, types = np.diff(setup.cluster.first_gpu).tolist(), setup.cluster.node_type.tolist()
    return Layout(setup.node_names, sizes, types, setup.offers)


def node_types_of(setup: ClusterSetup) -> dict[str, str]:
    """Return the node type of each node."""
    types = [setup.type_names[number] for number in setup.cluster.node_type.tolist()]
    return dict(zip(setup.node_names, types, strict=True))


def site_of(setup: ClusterSetup, settings: SchedulerSettings) -> ClusterSite:
    """Return what policies know of a cluster."""
    rules = rules_stopping_at_faults(setup.rules)._replace(
        order=ORDERS[settings.order], ageing_s=settings.ageing_s, waiting=settings.waiting,
        backfill_depth=BACKFILL_DEPTH, estimated_hazards=True, turns=settings.turns,
    )  # fmt: skip
    process = draw_faults(setup, 0)[1]
    return ClusterSite(setup.cluster, rules, process, setup.hazard_per_s, setup.type_names)


def _has_slots(backend: Backend) -> bool:
    try:
        return any(node.slots for node in backend.observe())
    except BackendError as error:
        log.warning("nodes cannot be seen: %s", error)
        return False
