"""Who decides: a policy in a process of its own, with a heuristic for whenever it fails.

Source: SPEC R8.
"""

import logging
import time
from collections import Counter
from enum import StrEnum
from importlib.metadata import version
from typing import NamedTuple

from ..agents.protocol import Policy
from ..cluster.errors import PluginError
from .live import ROW, LiveCluster
from .plugins.host import PolicyProcess

log = logging.getLogger(__name__)

FIRST_REST_S, LONGEST_REST_S = 5.0, 600.0  # of a policy that has missed; doubled each time


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


class Decision(NamedTuple):
    """A decision that has been carried out on the cluster's arrays."""

    job: str
    gpus: tuple[int, ...]  # none where it waits
    started: bool  # False where it waits, or would have broken a reservation
    by: str  # name of who was obeyed
    said: Said | None  # by the policy, None if it said nothing of use
    instead: Said  # what the heuristic says
    rests: bool  # all jobs wait
    took_s: float
    miss: str  # why the policy was not heard, "" if it was

    @property
    def agrees(self) -> bool | None:
        """Whether the policy says the same as the heuristic, None if it says nothing of use."""
        said, instead = self.said, self.instead
        return None if said is None else (said.job, set(said.gpus)) == (instead.job, set(instead.gpus))


class Advice(NamedTuple):
    """What somebody would do; nothing has been done."""

    said: Said
    by: str  # name of who says it
    miss: str  # why the policy was not heard, "" if it was


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
        self.misses: Counter[str] = Counter()  # by reason
        self._process: PolicyProcess | None = None
        self._in_a_row = 0
        self._rest_until = 0.0  # of `time.monotonic`

    def begin(self, live: LiveCluster) -> None:
        """Follow a cluster from here on."""
        self.end()
        self._start(live)

    def _start(self, live: LiveCluster) -> None:
        if self.policy is not None:
            self._process = PolicyProcess(self.policy, live.site, live.known())
            live.journal = []

    def end(self) -> None:
        """End the policy's process."""
        if self._process is not None:
            self._process.end()
        self._process = None

    @property
    def version(self) -> str:
        """Version of the policy that decides."""
        ready = None if self._process is None or self._process.is_over else self._process.known
        return f"longshore {version('longshore')}" if ready is None else ready.version

    def wait_until_ready(self, wait_s: float) -> None:
        """Wait until the policy can be asked.

        Raises:
            PluginError: If it cannot be loaded, or not in time.
        """
        if self._process is not None and self._process.ready(wait_s) is None:
            raise PluginError(f"policy {self.policy!r} was not loaded within {wait_s:.0f} s")

    def is_ready(self, wait_s: float = 0.0) -> bool:
        """Say whether the policy can be asked, or there is none."""
        if self.policy is None:
            return True
        try:
            return self._process is not None and self._process.ready(wait_s) is not None
        except PluginError as error:
            self._miss(error)
            return False

    def settle(self, live: LiveCluster) -> Decision:
        """Decide about the job that is due, and carry it out on the cluster's arrays."""
        began = time.perf_counter()
        said, miss = self._ask(live) if self.policy is not None else (None, "")
        instead = self._fall_back(live)
        obeyed, by = self._obeyed(said, instead)
        try:
            started = _carry_out(live, obeyed)
        except PluginError as error:
            miss, obeyed, by = str(error), instead, self.fallback.name
            self._miss(error)
            live.take_back()
            started = _carry_out(live, obeyed)
        return Decision(
            obeyed.job, obeyed.gpus, started, by, said, instead, obeyed.rests, time.perf_counter() - began, miss
        )

    def consult(self, live: LiveCluster) -> Advice:
        """Say what to do with the job that is due, without doing it; the heuristic is asked only in need."""
        said, miss = self._ask(live) if self.policy is not None else (None, "")
        if said is not None and self.policy is not None:
            try:
                live.check(said.job, said.gpus)
            except PluginError as error:
                miss = str(error)
                self._miss(error)
            else:
                return Advice(said, self.policy, miss)
        return Advice(self._fall_back(live), self.fallback.name, miss)

    def _obeyed(self, said: Said | None, instead: Said) -> tuple[Said, str]:
        if said is None or self.policy is None or self.mode is Mode.SHADOW:
            return instead, self.fallback.name
        if self.mode is Mode.VETO:
            return (said, self.policy) if not said.gpus else (instead, self.fallback.name)
        return said, self.policy

    def _fall_back(self, live: LiveCluster) -> Said:
        placed = self.fallback.place(live.sim, ROW)
        job = live.current
        said = Said(job, live.picks(job) if placed else (), not placed and live.rests)
        live.take_back()
        return said

    def _ask(self, live: LiveCluster) -> tuple[Said | None, str]:
        """Return what the policy says, or why it says nothing."""
        if self._process is None or self._process.is_over:
            live.journal = None
            if time.monotonic() < self._rest_until:
                return None, "it rests after a miss"
            self._start(live)
        if not self.is_ready():
            return None, "it is being loaded"
        assert self._process is not None
        told, live.journal = live.journal or [], []
        try:
            choice = self._process.ask(told, self.deadline_s)
        except PluginError as error:
            self._miss(error)
            return None, str(error)
        self._in_a_row = 0
        return Said(choice.job, tuple(choice.gpus), choice.rests), ""

    def _miss(self, error: PluginError) -> None:
        """Count a miss; a process that is over is started again after a rest, which grows with each miss."""
        self._in_a_row += 1
        self.misses[str(error)] += 1
        rest_s = min(LONGEST_REST_S, FIRST_REST_S * 2.0 ** (self._in_a_row - 1))
        self._rest_until = time.monotonic() + rest_s
        log.warning("policy %s: %s; the next try in %.0f s", self.policy, error, rest_s)


def _carry_out(live: LiveCluster, said: Said) -> bool:
    if said.gpus:
        return live.carry_out(said.job, said.gpus)
    live.wait(rests=said.rests)
    return False
