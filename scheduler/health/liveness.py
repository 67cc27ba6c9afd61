"""Which nodes answer, by reports, leases and probes of the port of their agents.

The door of an agent: a port at which it says which node it lives on, and what somebody finds who knocks there.

Whoever connects is told a line and is not read. So nobody can hold the agent up or make it do anything.

Leases of nodes: proof by time that nothing of the scheduler's jobs runs on a node that does not answer.

An agent that guards its node kills the processes of all attempts there once it has had no answer for `LEASE_S` by its
own clock. It counts from the moment at which it sent what was answered, the scheduler from the moment of its answer,
which is later. So after `LEASE_S` and `MARGIN_S` without an answer the processes are gone. All clocks here are ones
that nobody sets.

Source: SPEC C9, F1; SPEC C9, F1. Several unanswered polls are needed before anything is concluded, and what is
concluded is a fact about the node, never about its jobs; docs/nodes.md, Probes of silent nodes; docs/nodes.md, Leases.
"""

import asyncio
import errno
import ipaddress
import json
import logging
import socket
import threading
import time
from bisect import bisect_left
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from enum import StrEnum
from types import MappingProxyType
from typing import Annotated, NamedTuple

from pydantic import ConfigDict, Field, field_validator

from ...cluster.files.yaml_file import ExactTypes
from ...cluster.model.placement import Placement
from ..model.states import ProbeVerdict
from ..store.nodes import NodeRow
from ..store.schema import Liveness
from .link_probes import ProbePlace

log = logging.getLogger(__name__)

WITHIN_S = 2.0  # for a connection, and for the line behind it
LINE_BYTES = 1024
AT_ONCE = 64  # doors that one process knocks at
PAUSE_S = 0.1  # after an accept that failed, as where this process has no descriptor left


class Sight(StrEnum):
    """What somebody finds who knocks at a door."""

    ANSWERED = "answered"  # the agent of that node said that it lives
    ACCEPTED = "accepted"  # a connection was taken, and nothing was said: the machine lives, the agent stands still
    OTHER = "other"  # somebody else speaks there
    REFUSED = "refused"  # the machine lives, and no process has the port: the agent's connections are closed
    NO_ROUTE = "no route"
    TIMED_OUT = "timed out"
    UNABLE = "unable"  # who knocks could not look at all


class Knock(NamedTuple):
    """A door that somebody is to knock at."""

    node: str  # whose agent should answer
    address: str
    port: int


class Door:
    """Tells whoever connects which node this is, in a thread of its own.

    Args:
        node: Of the agent.
        boot_id: Names the time since the machine's start.
        port: To listen at, 0 for any that is free.

    Raises:
        OSError: If nobody can listen there.
    """

    def __init__(self, node: str, boot_id: str, port: int = 0) -> None:
        self._line = json.dumps({"node": node, "boot_id": boot_id}).encode() + b"\n"
        self._socket = _listening(port)
        self.port = int(self._socket.getsockname()[1])
        self._closed = False
        threading.Thread(target=self._serve, name="door", daemon=True).start()

    def close(self) -> None:
        """Answer nobody any more."""
        self._closed = True
        with suppress(OSError):
            self._socket.shutdown(socket.SHUT_RDWR)  # wakes the thread
        self._socket.close()

    def _serve(self) -> None:
        while not self._closed:
            try:
                connection, _ = self._socket.accept()
            except OSError:
                time.sleep(PAUSE_S)
                continue
            with connection, suppress(OSError):
                connection.settimeout(0.0)  # The line fits in any socket's buffer.
                connection.send(self._line)


def _listening(port: int) -> socket.socket:
    # As many may wait as the system lets: of a process that stands still none is taken.
    most = socket.SOMAXCONN
    if socket.has_dualstack_ipv6():
        with suppress(OSError):  # IPv6 may be there and forbidden.
            return socket.create_server(("", port), family=socket.AF_INET6, backlog=most, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=most)


def look_at(knocks: Sequence[Knock], within_s: float = WITHIN_S) -> list[Sight]:
    """Knock at doors, many at once, and return what is found at each.

    Args:
        knocks: The doors.
        within_s: For a connection, and again for what is said behind it.
    """

    async def every() -> list[Sight]:
        turns = asyncio.Semaphore(AT_ONCE)

        async def one(knock: Knock) -> Sight:
            async with turns:
                return await _look(knock, within_s)

        return await asyncio.gather(*map(one, knocks))

    return asyncio.run(every())


async def _look(knock: Knock, within_s: float) -> Sight:
    try:
        ipaddress.ip_address(knock.address)  # No name is looked up: that may take long, and ask anybody.
        async with asyncio.timeout(within_s):
            reader, writer = await asyncio.open_connection(knock.address, knock.port, limit=LINE_BYTES)
    except TimeoutError:
        return Sight.TIMED_OUT
    except ConnectionRefusedError:
        return Sight.REFUSED
    except (OSError, ValueError, OverflowError) as error:
        away = (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENETDOWN, errno.EHOSTDOWN)
        return Sight.NO_ROUTE if getattr(error, "errno", None) in away else Sight.UNABLE
    try:
        async with asyncio.timeout(within_s):
            line = await reader.readline()
    except TimeoutError:
        return Sight.ACCEPTED
    except (OSError, ValueError):
        return Sight.OTHER
    finally:
        writer.close()
    return Sight.ANSWERED if _node_of(line) == knock.node else Sight.OTHER


def _node_of(line: bytes) -> object:
    try:
        told = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return told.get("node") if isinstance(told, dict) else None


FAILED = (Sight.REFUSED, Sight.NO_ROUTE, Sight.TIMED_OUT)


class Found(NamedTuple):
    """What one who knocked has found."""

    who: str  # node of the agent that looked; "" for the scheduler
    sight: Sight
    has_been_in: bool  # it reached the same door while the node lived: else a failure says nothing of the node


class Evidence(NamedTuple):
    """All that was found at a door since its node was heard last."""

    own: Found | None = None  # by the scheduler
    other: Found | None = None  # by the agent of another node
    has_others: bool = True  # whether there is another agent that could look


NOTHING = Evidence()


def verdict_of(evidence: Evidence) -> ProbeVerdict:
    """Return what evidence says of a node from which nothing is heard."""
    own, other = evidence.own, evidence.other
    sights = [it.sight for it in (own, other) if it is not None]
    if Sight.ANSWERED in sights:
        return ProbeVerdict.REACHED
    if Sight.ACCEPTED in sights:
        return ProbeVerdict.STUCK
    if own is None or not _fails(own):
        return ProbeVerdict.NONE
    if other is None:
        # Nobody else is there to look. A refusal says alone that the agent is gone; silence may be the link's.
        return ProbeVerdict.GONE if own.sight is Sight.REFUSED and not evidence.has_others else ProbeVerdict.NONE
    if not _fails(other):
        return ProbeVerdict.NONE
    return ProbeVerdict.GONE if {own.sight, other.sight} == {Sight.REFUSED} else ProbeVerdict.SILENT


def _fails(found: Found) -> bool:
    return found.sight in FAILED and found.has_been_in


def words_of(evidence: Evidence) -> str:
    """Return what was found, "" if nobody has looked."""
    own, other = evidence.own, evidence.other
    if other is not None and other.sight is Sight.ANSWERED:
        own_too = own is not None and own.sight is Sight.ANSWERED
        return _UNHEARD if own_too else f"{other.who} reaches it: the link between it and the scheduler is broken"
    if own is not None and own.sight is Sight.ANSWERED:
        return _UNHEARD
    found = [_found(it) for it in (own, other) if it is not None]
    if not evidence.has_others:
        found.append("no other agent can look")
    if verdict_of(evidence) is ProbeVerdict.STUCK:
        found.append("so its machine lives, and its agent stands still")
    return ", ".join(found)


_UNHEARD = "its agent answers who knocks, but its reports do not come: see its log"


def _found(it: Found) -> str:
    who = it.who or "the scheduler"
    words = {
        Sight.ACCEPTED: f"{who} is let in and told nothing", Sight.OTHER: f"{who} finds somebody else at its port",
        Sight.REFUSED: f"{who} is refused", Sight.NO_ROUTE: f"{who} finds no route", Sight.UNABLE: f"{who} cannot look",
        Sight.TIMED_OUT: f"{who} gets no answer",
    }[it.sight]  # fmt: skip
    doubted = it.sight in FAILED and not it.has_been_in
    return f"{words} (it never reached it before, so that says nothing)" if doubted else words


SUSPECT_MISSES, DOWN_MISSES = 3, 6  # polls without an answer, in a row
AT_ONCE_S, AT_ONCE_SHARE, AT_ONCE_LEAST = 60.0, 0.3, 2  # nodes that fall silent together are not to blame themselves


class Judged(NamedTuple):
    """Nodes as they stand after a look."""

    nodes: list[NodeRow]
    at_once: frozenset[str]  # nodes that fell silent within a minute, more than can be their own fault; often none


def judge(
    nodes: Sequence[NodeRow], answered_s: Mapping[str, float], now_s: float, *, polls: bool,
    found: Mapping[str, Evidence] = MappingProxyType({}),
) -> Judged:  # fmt: skip
    """Return how nodes stand after a look at them.

    Args:
        nodes: As they stood before.
        answered_s: Unix time of the last answer that is known of each; one that is not there has not answered.
        now_s: The present.
        polls: Whether an answer is due, so that one that has not come is missed. A scheduler that was held up itself
            has missed one poll, however long it took.
        found: At the doors of agents that are silent.
    """
    heard = [_heard(row, answered_s.get(row.name, 0.0), polls=polls) for row in nodes]
    silent = at_once([(row.seen_s, row.name) for row in heard if row.misses >= SUSPECT_MISSES], len(heard))
    return Judged([_named(row, silent, found.get(row.name, NOTHING), now_s) for row in heard], silent)


def _heard(row: NodeRow, answered_s: float, *, polls: bool) -> NodeRow:
    # Any other time than the last one is an answer: clocks are set back.
    if answered_s > 0.0 and answered_s != row.seen_s:
        return row._replace(seen_s=answered_s, misses=0)
    return row._replace(misses=row.misses + 1) if polls else row


def at_once(troubled: Iterable[tuple[float, str]], nodes: int) -> frozenset[str]:
    """Return the nodes that fell ill in the same minute as so many others that it cannot be the fault of each.

    Args:
        troubled: Unix time at which each began, and its name.
        nodes: All that there are.
    """
    troubled = sorted(troubled)
    times_s = [began_s for began_s, _ in troubled]
    found: set[str] = set()
    for last, (began_s, _) in enumerate(troubled):
        first = bisect_left(times_s, began_s - AT_ONCE_S)
        many = last + 1 - first
        if many >= AT_ONCE_LEAST and many > AT_ONCE_SHARE * nodes:
            found.update(name for _, name in troubled[first : last + 1])
    return frozenset(found)


def _named(row: NodeRow, at_once: frozenset[str], found: Evidence, now_s: float) -> NodeRow:
    verdict = verdict_of(found)
    liveness = _liveness(row, at_once, verdict)
    if liveness is Liveness.UP:
        row = row._replace(verdict=ProbeVerdict.NONE, found="")
    else:
        row = row._replace(verdict=_verdict(row, liveness, verdict), found=words_of(found) or row.found)
    return row if liveness is row.liveness else row._replace(liveness=liveness, since_s=now_s)


def _liveness(row: NodeRow, at_once: frozenset[str], verdict: ProbeVerdict) -> Liveness:
    was_down = row.liveness is Liveness.DOWN
    if row.misses < SUSPECT_MISSES:
        return Liveness.UP
    if row.name in at_once or (at_once and not was_down):
        return Liveness.SUSPECT
    return Liveness.DOWN if was_down or row.misses >= DOWN_MISSES or verdict is ProbeVerdict.GONE else Liveness.SUSPECT


def _verdict(row: NodeRow, liveness: Liveness, verdict: ProbeVerdict) -> ProbeVerdict:
    """Return what a node counts as: as long as it is down, what was concluded stands until something else is."""
    if liveness is not Liveness.DOWN:
        return ProbeVerdict.NONE
    before = row.verdict if row.liveness is Liveness.DOWN else ProbeVerdict.NONE
    return before if verdict is ProbeVerdict.NONE or (before.is_dead and verdict.is_dead) else verdict


Count = Annotated[int, Field(ge=0, le=2**53)]
BOOT_WORDS = "At most 64 characters: digits, a to f and -."
VERSION_WORDS = "At most 40 characters: letters, digits, ., + and -."

ATTEMPT_WORDS = "A name such as ls-01m8a7dhgyfn818zs4bjbd4enq-1: ls-, the id of a job, - and a number."

AttemptName = Annotated[str, Field(pattern=r"^ls-[0-9a-z]{1,40}-[0-9]{1,9}$", description=ATTEMPT_WORDS)]


class _Told(ExactTypes):
    model_config = ConfigDict(frozen=True, extra="forbid")


class GpuReport(_Told):
    """A GPU as the agent of its node sees it."""

    index: Annotated[int, Field(ge=0, le=1023)]
    healthy: bool  # it answers, and has no error that only a reset mends
    utilisation: Annotated[float, Field(ge=0.0, le=1.0)]
    free_bytes: Count  # of its memory
    temperature_c: Annotated[float, Field(ge=-273.15, le=1000.0)] | None = None
    ecc_errors: Count | None = None  # uncorrected ones since the driver was loaded; none if it counts none
    link_errors: Count | None = None  # of all its links to other GPUs; none if it has none


class NodeReport(_Told):
    """What an agent tells of its node."""

    gpus: Annotated[tuple[GpuReport, ...], Field(max_length=1024)] = ()  # none where there are no GPUs, only slots
    # Names the time since the node's last start.
    boot_id: Annotated[str, Field(pattern=r"^[0-9a-f-]{0,64}$", description=BOOT_WORDS)] = ""
    # Attempts that have processes there, by an agent that sees and kills them all; none is told by other agents.
    attempts: Annotated[tuple[AttemptName, ...], Field(max_length=4096)] | None = None
    version: Annotated[str, Field(pattern=r"^[0-9A-Za-z.+-]{0,40}$", description=VERSION_WORDS)] = ""  # the agent's
    checks: bool = False  # whether the agent runs the checks that it is asked for
    door: Annotated[int, Field(ge=0, le=65535)] = 0  # port at which it says that it lives; 0 for none
    probes: ProbePlace | None = None  # where the agent listens for probes of links; none if it does not

    @field_validator("gpus")
    @classmethod
    def _each_once(cls, gpus: tuple[GpuReport, ...]) -> tuple[GpuReport, ...]:
        if twice := [index for index, times in Counter(it.index for it in gpus).items() if times > 1]:
            raise ValueError(f"GPU {twice[0]} is told of twice")
        return gpus


class Report(NamedTuple):
    """A report and when it came."""

    at_s: float  # Unix time
    told: NodeReport
    before: NodeReport | None = None  # the one before it
    address: str = ""  # that it came from
    came_s: float = 0.0  # when it came, by the monotonic clock

    def accuses(self, gpu: int, *, slots: bool) -> bool:
        """Return whether a GPU is faulty by this report alone."""
        return accuses(self.told, gpu, slots=slots)

    def is_faulty(self, gpu: int, *, slots: bool) -> bool:
        """Return whether a GPU is faulty by two reports in a row."""
        return self.before is not None and all(accuses(it, gpu, slots=slots) for it in (self.told, self.before))


def accuses(told: NodeReport, gpu: int, *, slots: bool) -> bool:
    """Return whether a report calls a GPU faulty; one that is missing among others is, unless it is a slot."""
    found = next((it for it in told.gpus if it.index == gpu), None)
    return bool(told.gpus) and not slots if found is None else not found.healthy


class Reports:
    """The last report of each node that has an agent. Any thread may use it."""

    def __init__(self) -> None:
        self._last: dict[str, Report] = {}
        self._dismissed = set[str]()
        self._lock = threading.Lock()

    def take(self, node: str, told: NodeReport, at_s: float, address: str = "", came_s: float = 0.0) -> None:
        """Keep a report, with where it came from and when, by the monotonic clock."""
        with self._lock:
            last = self._last.get(node)
            self._last[node] = Report(at_s, told, None if last is None else last.told, address, came_s)
            self._dismissed.discard(node)

    def dismiss(self, node: str) -> None:
        """Wait for a node's agent no more, until it reports again."""
        with self._lock:
            self._last.pop(node, None)
            self._dismissed.add(node)

    def last(self) -> dict[str, Report]:
        """Return the last report of each node."""
        with self._lock:
            return self._last.copy()

    def probe_places(self) -> dict[str, ProbePlace]:
        """Return where agents listen for probes, by node."""
        return {node: it.told.probes for node, it in self.last().items() if it.told.probes is not None}

    def dismissed(self) -> frozenset[str]:
        """Return the nodes whose agents nobody waits for."""
        with self._lock:
            return frozenset(self._dismissed)


LEASE_S = 10.0  # for which an answer lets processes live
MARGIN_S = 2.0  # for the kill itself, and for clocks that do not run equally fast
FENCED = "fenced"  # of a node: the word of the event


class Granted(NamedTuple):
    """What the agent of a node is answered."""

    lease_s: float | None  # None where nobody grants leases
    token: int  # of who grants it: the agent heeds none of a lower one
    kill: tuple[str, ...] = ()  # attempts that the store has given up, and that must not live there


NO_LEASE = Granted(None, 0)


class Leases:
    """The leases of all nodes as one scheduler knows them. Any thread may use it.

    Args:
        passed_s: By a clock that nobody sets.
    """

    def __init__(self, passed_s: Callable[[], float] = time.monotonic) -> None:
        self._passed_s = passed_s
        self._lock = threading.Lock()
        self._began_s = passed_s()
        self._granted_s: dict[str, float] = {}

    def begin(self) -> None:
        """Begin to lead: another scheduler may have granted leases up to now."""
        with self._lock:
            self._began_s = self._passed_s()
            self._granted_s.clear()

    def grant(self, node: str, token: int, leads: Callable[[], bool]) -> Granted:
        """Grant a lease to the agent of a node, if this scheduler surely leads at this moment.

        Args:
            node: Of the agent.
            token: Of the scheduler's own lease.
            leads: Says whether it leads, once the lease is noted: who takes over meanwhile waits for longer.
        """
        with self._lock:
            self._granted_s[node] = self._passed_s()
            return Granted(LEASE_S, token) if leads() else NO_LEASE

    def has_run_out(self, node: str) -> bool:
        """Return whether no lease of a node can be valid any more, whoever granted it."""
        with self._lock:
            last_s = max(self._granted_s.get(node, self._began_s), self._began_s)
            return self._passed_s() - last_s > LEASE_S + MARGIN_S


def is_gone(
    attempt: str, placement: Placement, fenced: Collection[str], reports: Mapping[str, Report], since_s: float
) -> bool:  # fmt: skip
    """Return whether no process of an attempt that ran lives on any of its nodes, by leases and by what agents see.

    Args:
        attempt: Its name. All its ranks ran, so none of them starts any more.
        placement: Its GPUs.
        fenced: Nodes whose leases have run out.
        reports: The last report of each agent.
        since_s: When the backend was told to stop it, by the clock of the reports' arrival.
    """
    return all(share.node in fenced or _does_not_see(reports.get(share.node), attempt, since_s) for share in placement)


def _does_not_see(report: Report | None, attempt: str, since_s: float) -> bool:
    """Return whether an agent that sees all processes of its node does not see an attempt any more."""
    if report is None or report.told.attempts is None or report.came_s <= since_s:
        return False
    return attempt not in report.told.attempts
