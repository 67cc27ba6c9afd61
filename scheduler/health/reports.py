"""What node agents tell of their nodes: the last report of each, kept in memory.

Source: SPEC F1.
"""

import threading
from collections import Counter
from typing import Annotated, NamedTuple

from pydantic import ConfigDict, Field, field_validator

from ...cluster.files.exact_types import ExactTypes
from .links.messages import ProbePlace

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
    came_s: float = 0.0  # when it came, by a clock that nobody sets

    def accuses(self, gpu: int, *, slots: bool) -> bool:
        """Say whether a GPU is faulty by this report alone."""
        return accuses(self.told, gpu, slots=slots)

    def is_faulty(self, gpu: int, *, slots: bool) -> bool:
        """Say whether a GPU is faulty by two reports in a row."""
        return self.before is not None and all(accuses(it, gpu, slots=slots) for it in (self.told, self.before))


def accuses(told: NodeReport, gpu: int, *, slots: bool) -> bool:
    """Say whether a report calls a GPU faulty; one that is missing among others is, unless it is a slot."""
    found = next((it for it in told.gpus if it.index == gpu), None)
    return bool(told.gpus) and not slots if found is None else not found.healthy


class Reports:
    """The last report of each node that has an agent. Any thread may use it."""

    def __init__(self) -> None:
        self._last: dict[str, Report] = {}
        self._dismissed = set[str]()
        self._lock = threading.Lock()

    def take(self, node: str, told: NodeReport, at_s: float, address: str = "", came_s: float = 0.0) -> None:
        """Keep a report, with where it came from and when, by a clock that nobody sets."""
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
