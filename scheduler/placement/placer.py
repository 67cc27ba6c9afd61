"""Who decides: a policy in a process of its own, with a heuristic for whenever it fails.

Source: SPEC R8, R9.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from enum import StrEnum
from importlib.metadata import version
from typing import NamedTuple

from ...agents.protocol import Policy
from ...cluster.files.errors import PluginError
from ..mirror.cluster_mirror import ROW, Asked, Expected, Known, LiveCluster, Site, Told
from ..mirror.journal import Opening, encode, encode_opening
from ..mirror.shape import fitted
from ..policy_host.answer import SeenParts, Stored, stored_of
from ..policy_host.misses import Miss, MissError
from ..policy_host.rollover import Succession

MOST_UNTOLD = 1000  # happenings between two decisions that are kept
MOST_LEFT_OVER = 10_000  # happenings without a decision that could keep them
PAST_S = 7 * 86400.0  # after which the next decisions can be replayed without those before


class Mode(StrEnum):
    """What a policy's word counts for."""

    ACTIVE = "active"  # it is obeyed
    SHADOW = "shadow"  # it decides and is logged; the heuristic is obeyed
    VETO = "veto"  # the heuristic decides; the policy may let it wait


class Said(NamedTuple):
    """What a policy would do."""

    job: str
    gpus: tuple[int, ...]  # none to wait
    rests: bool  # all jobs wait

    def agrees(self, other: "Said") -> bool:
        """Say whether both would do the same; the order in which GPUs are picked does not count."""
        return (self.job, self.rests, set(self.gpus)) == (other.job, other.rests, set(other.gpus))


class Decision(NamedTuple):
    """A decision that has been carried out on the cluster's arrays."""

    job: str
    gpus: tuple[int, ...]  # none where it waits
    started: bool  # False where it waits, or would have broken a reservation
    by: str  # name of who was obeyed
    version: str  # of the policy
    said: Said | None  # by the policy, None if it said nothing of use
    said_expected: Expected | None  # of what the policy said, None where it said nothing or waits
    expected: Expected | None  # of what is done, None where it waits
    instead: Said  # what the heuristic says
    instead_expected: Expected | None
    rests: bool  # all jobs wait
    took_s: float
    kind: Miss | None  # why the policy was not heard, None if it was
    reason: str  # the same in words
    seen: Stored | None  # by the policy, if it tells
    past: bytes  # what led to the decision, none if it is not worth to be kept


class Advice(NamedTuple):
    """What somebody would do; nothing has been done."""

    said: Said
    by: str  # name of who says it
    miss: str  # why the policy was not heard, "" if it was


def _any_nodes(_: str) -> int:
    return 0


class Deciding:
    """Decides with a policy under a deadline, and with a heuristic wherever that says nothing of use.

    Args:
        fallback: The heuristic; it decides at once, in this process.
        policy: Name of the policy, None for the heuristic alone.
        deadline_s: For one decision of the policy.
        mode: What the policy's word counts for.
    """

    def __init__(
        self, fallback: Policy, policy: str | None = None, deadline_s: float = 0.1, mode: Mode = Mode.ACTIVE
    ) -> None:
        self.fallback, self.policy, self.deadline_s, self.mode = fallback, policy, deadline_s, mode
        self.misses: Counter[Miss] = Counter()
        self.agreements: Counter[bool] = Counter()  # whether the policy said what the heuristic says
        self.succession = None if policy is None else Succession(policy, deadline_s)
        self._release = f"longshore {version('longshore')}"
        self._opening = ""  # of a past, until its first decision
        self._number = 0  # of the next decision in its past
        self._untold: list[Told] = []  # that belongs to the past of the next decision
        self._began = time.monotonic()  # of the past

    def begin(self, live: LiveCluster) -> None:
        """Follow a cluster from here on; nothing has happened to it since it was made."""
        live.journal = []
        self._opening, self._number, self._untold = encode_opening(Opening(live.site, live.origin)), 0, []
        self._began = time.monotonic()
        if self.succession is not None:
            self.succession.begin(live)

    @property
    def is_to_begin_anew(self) -> bool:
        """Whether the past has become so long that the cluster is to be read, and followed, from the beginning."""
        return len(self._untold) > MOST_LEFT_OVER or time.monotonic() - self._began > PAST_S

    def warm_up(self, site: Site) -> None:
        """Let the heuristic decide once about nothing: its first decision may have to compile it."""
        live = LiveCluster(site, Known(0.0))
        live.submit(Asked("first", 1, 60.0, 0.0))
        if live.due() is not None:
            _carry_out(live, self._fall_back(live))

    def look(self, live: LiveCluster) -> None:
        """Look for a newer version of the policy, so that it takes over also where nothing is to be decided."""
        self._untold += self._happened(live)
        if self.succession is not None:
            self.succession.look(live)

    def end(self) -> None:
        """End the policy's processes."""
        if self.succession is not None:
            self.succession.end()

    @property
    def version(self) -> str:
        """Version of the policy that decides."""
        return self._release if self.succession is None else self.succession.version

    def reload(self) -> None:
        """Look for a newer version of the policy; any thread, and a signal's handler, may call it."""
        if self.succession is not None:
            self.succession.reload()

    def wait_until_ready(self, wait_s: float) -> None:
        """Wait until the policy can be asked.

        Raises:
            PluginError: If it cannot be loaded, or not in time.
        """
        if self.succession is not None:
            self.succession.load(wait_s)

    def is_ready(self, wait_s: float = 0.0) -> bool:
        """Say whether the policy can be asked, or there is none."""
        return self.succession is None or self.succession.is_ready(wait_s)

    def settle(self, live: LiveCluster, nodes_of: Callable[[str], int] = _any_nodes) -> Decision:
        """Decide about the job that is due, and carry it out on the cluster's arrays.

        Args:
            live: The cluster.
            nodes_of: How many nodes are to give a job the same GPUs each; 0 if it takes any GPUs.
        """
        began = time.perf_counter()
        due = live.current
        if (nodes := nodes_of(due)) and not fitted(live, due, (), nodes):
            return self._pass_over(live, due, began)
        self._untold += self._happened(live)
        miss = self._ask(live)
        instead = self._fall_back(live)  # while the policy thinks
        said, seen, miss = self._hear(live) if miss is None else (None, None, miss)
        policy_version = self.version
        if said is not None:
            self.agreements[said.agrees(instead)] += 1
        obeyed, by = self._obeyed(said, instead)
        suited = _suited(live, obeyed, nodes_of)
        if suited is None:  # it turned to another job, which cannot have what it needs
            suited, by = _suited(live, instead, nodes_of), self.fallback.name
        if suited is None:
            return self._pass_over(live, due, began)
        obeyed = suited
        expected = _expected(live, obeyed)
        instead_expected = expected if obeyed.agrees(instead) else _expected(live, instead)
        said_expected = None if said is None else expected if said.agrees(obeyed) else _expected(live, said)
        started = _carry_out(live, obeyed)
        self._untold += self._happened(live)
        # What a heuristic lets wait is of no use to anybody, and at a full cluster there are many such jobs. But what
        # has happened has to go somewhere.
        is_kept = started or self.policy is not None or len(self._untold) > MOST_UNTOLD
        past = self._past() if is_kept else b""
        took_s = time.perf_counter() - began
        return Decision(
            obeyed.job, obeyed.gpus, started, by, policy_version, said, said_expected, expected, instead,
            instead_expected, obeyed.rests, took_s, None if miss is None else miss.kind,
            "" if miss is None else str(miss), seen, past,
        )  # fmt: skip

    def _pass_over(self, live: LiveCluster, job: str, began: float) -> Decision:
        """Let a job wait that cannot have what it needs."""
        self._untold += self._happened(live)
        live.pass_over()
        nothing = Said(job, (), rests=False)
        return Decision(
            job, (), started=False, by=self.fallback.name, version=self.version, said=None, said_expected=None,
            expected=None,
            instead=nothing, instead_expected=None, rests=False, took_s=time.perf_counter() - began, kind=None,
            reason="", seen=None, past=b"",
        )  # fmt: skip

    def _past(self) -> bytes:
        """Return what has happened since the last decision that is kept, this one included."""
        past = encode(self._number, self._untold, self._opening)
        self._number, self._opening, self._untold = self._number + 1, "", []
        return past

    def consult(self, live: LiveCluster) -> Advice:
        """Say what to do with the job that is due, without doing it; the heuristic is asked only in need."""
        self._happened(live)
        miss = self._ask(live)
        said, _, miss = self._hear(live) if miss is None else (None, None, miss)
        if said is not None and self.policy is not None:
            return Advice(said, self.policy, "")
        return Advice(self._fall_back(live), self.fallback.name, "" if miss is None else str(miss))

    def consult_fallback(self, live: LiveCluster) -> Advice:
        """Say what the heuristic would do with the job that is due, without doing it or asking the policy."""
        self._happened(live)
        return Advice(self._fall_back(live), self.fallback.name, "")

    def _happened(self, live: LiveCluster) -> Sequence[Told]:
        """Return what has happened since this was last asked, after the policy's processes were told."""
        told, live.journal = live.journal or [], []
        if self.succession is not None:
            self.succession.tell(told)
        return told

    def _ask(self, live: LiveCluster) -> MissError | None:
        """Ask the policy, and return why it cannot be asked if so."""
        try:
            if self.succession is not None:
                self.succession.ask(live)
        except MissError as miss:
            self.misses[miss.kind] += 1
            return miss
        return None

    def _hear(self, live: LiveCluster) -> tuple[Said | None, Stored | None, MissError | None]:
        """Return what the policy says and saw, or why it says nothing of use."""
        if self.succession is None:
            return None, None, None
        try:
            choice = self.succession.answer()
            said = Said(choice.job, tuple(choice.gpus), choice.rests and not choice.gpus)
            seen = self._checked(live, said, choice.seen)
        except MissError as miss:
            self.misses[miss.kind] += 1
            self.succession.blame(miss)
            return None, None, miss
        self.succession.thank()
        return said, seen, None

    def _checked(self, live: LiveCluster, said: Said, seen: SeenParts | None) -> Stored | None:
        """Return what the policy saw, once its decision is known to be one.

        Raises:
            MissError: If it is not.
        """
        try:
            live.check_move(said.job, said.gpus)
        except PluginError as error:
            raise MissError(Miss.REFUSED, str(error)) from error
        try:
            return None if seen is None else stored_of(seen)
        except PluginError as error:
            raise MissError(Miss.RUBBISH, str(error)) from error

    def _fall_back(self, live: LiveCluster) -> Said:
        placed = self.fallback.place(live.sim, ROW)
        job = live.current
        said = Said(job, live.picks(job) if placed else (), not placed and live.rests)
        live.take_back()
        live.due()
        return said

    def _obeyed(self, said: Said | None, instead: Said) -> tuple[Said, str]:
        if said is None or self.policy is None or self.mode is Mode.SHADOW:
            return instead, self.fallback.name
        if self.mode is Mode.VETO and said.gpus:
            return instead, self.fallback.name
        return said, self.policy


def _suited(live: LiveCluster, said: Said, nodes_of: Callable[[str], int]) -> Said | None:
    """Return what somebody said with GPUs that the job can have, None if there are none."""
    nodes = nodes_of(said.job) if said.gpus else 0
    if not nodes:
        return said
    gpus = fitted(live, said.job, said.gpus, nodes)
    return said._replace(gpus=gpus) if gpus else None


def _expected(live: LiveCluster, said: Said) -> Expected | None:
    return live.expected(said.job, said.gpus) if said.gpus else None


def _carry_out(live: LiveCluster, said: Said) -> bool:
    if said.gpus:
        return live.carry_out(said.job, said.gpus)
    live.wait(rests=said.rests)
    return False
