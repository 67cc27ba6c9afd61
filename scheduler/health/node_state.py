"""The state of a node in one word, the evidence for it, and how busy its GPUs were.

Source: SPEC F1, C9, K11; docs/nodes.md, States; docs/operate.md, Dashboard.
"""

import threading
from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum
from typing import NamedTuple

from ..model.gpu_index import HardwarePlace, QuarantineEntry
from ..store.nodes import NodeRow
from ..store.schema import Liveness
from .liveness import DOWN_MISSES, AgentReport, GpuReport


class NodeWord(StrEnum):
    """The state of a node."""

    ALIVE = "alive"
    SUSPECT = "suspect"  # it has missed answers
    UNREACHABLE = "unreachable"  # it has missed twice as many; jobs there may continue
    DEAD = "dead"  # the same, and no other node reaches its agent either
    FENCED = "fenced"  # its lease has run out: its agent has killed what ran there
    QUARANTINED = "quarantined"  # it answers, and is in quarantine


class NodeState(NamedTuple):
    """A state, and the evidence for it."""

    state: NodeWord
    evidence: str


def state_of(row: NodeRow, quarantines: Sequence[QuarantineEntry], *, is_fenced: bool, now_s: float) -> NodeState:
    """Return the state of a node.

    Args:
        row: The node.
        quarantines: All open ones, of any node.
        is_fenced: Whether its lease has run out.
        now_s: Unix time.
    """
    if row.liveness is Liveness.UP:
        whole = next((quarantine for quarantine in quarantines if quarantine.place == HardwarePlace(row.name)), None)
        if whole is not None:
            return NodeState(NodeWord.QUARANTINED, f"{whole.cause} ({whole.check}); {whole.action}")
        return NodeState(NodeWord.ALIVE, _seen(row, now_s))
    silence = f"{row.misses} answers missed in a row, {_seen(row, now_s)}"
    if row.found:
        silence += f"; {row.found}"
    if is_fenced:
        return NodeState(NodeWord.FENCED, f"{silence}; its lease has run out, so its agent has killed what ran there")
    if row.liveness is Liveness.SUSPECT:
        frozen = "" if row.misses < DOWN_MISSES else "; many nodes fell silent together, so none of them is declared"
        return NodeState(NodeWord.SUSPECT, silence + frozen)
    if row.verdict.is_dead:
        return NodeState(NodeWord.DEAD, f"{row.verdict}: {silence}")
    return NodeState(NodeWord.UNREACHABLE, silence)


def _seen(row: NodeRow, now_s: float) -> str:
    return f"last answer {max(now_s - row.seen_s, 0.0):.0f} s ago" if row.seen_s else "no answer yet"


SAMPLE_EVERY_S = 15.0  # between two samples
SAMPLES_KEPT_S = 24 * 3600.0
MAX_USE_SAMPLES = int(SAMPLES_KEPT_S / SAMPLE_EVERY_S)  # samples
FRESH_REPORT_S = 120.0  # older reports do not count


class UseSample(NamedTuple):
    """A moment."""

    at_s: float  # Unix time
    held: float  # share of the cluster's GPUs that jobs hold, 0 to 1
    busy: float | None  # mean utilisation of the GPUs that agents report, 0 to 1; None if none does


class Usage:
    """The samples of the last day. Any thread may use it."""

    def __init__(self) -> None:
        self._samples: deque[UseSample] = deque(maxlen=MAX_USE_SAMPLES)
        self._lock = threading.Lock()
        self.taken = 0  # samples since the start

    def is_due(self, now_s: float) -> bool:
        """Return whether it is time for another sample, also after a clock was set back."""
        with self._lock:
            return not self._samples or not 0.0 <= now_s - self._samples[-1].at_s < SAMPLE_EVERY_S

    def take(self, sample: UseSample) -> None:
        """Store a sample; drop those from before a clock was set back, as they would be out of order."""
        with self._lock:
            while self._samples and self._samples[-1].at_s >= sample.at_s:
                self._samples.pop()
            self._samples.append(sample)
            self.taken += 1

    def samples(self) -> list[UseSample]:
        """Return all samples, the first first."""
        with self._lock:
            return list(self._samples)


def sample_of(
    held: Iterable[tuple[str, int]], nodes: Mapping[str, int], reports: Mapping[str, AgentReport], now_s: float
) -> UseSample:  # fmt: skip
    """Return the use of a cluster.

    Args:
        held: GPUs that jobs hold: node and index.
        nodes: GPUs of each node.
        reports: The last report of each node that has an agent.
        now_s: Unix time.
    """
    gpus = sum(nodes.values())
    busy = [each.utilisation for name in nodes if name in reports for each in _fresh(reports[name], nodes[name], now_s)]
    taken = sum(1 for node, gpu in held if gpu < nodes.get(node, 0))
    return UseSample(now_s, taken / gpus if gpus else 0.0, sum(busy) / len(busy) if busy else None)


def _fresh(report: AgentReport, gpus: int, now_s: float) -> list[GpuReport]:
    """Return a report's entries of GPUs that the cluster has, none if it is old."""
    return [gpu for gpu in report.content.gpus if gpu.index < gpus] if now_s - report.at_s <= FRESH_REPORT_S else []
