"""How many GPUs were held, and how busy they were by what node agents report: a day of it, kept in memory.

Source: SPEC F1, K11; docs/dashboard.md.
"""

import threading
from collections import deque
from collections.abc import Iterable, Mapping
from typing import NamedTuple

from .reports import GpuReport, Report

EVERY_S = 15.0  # between two samples
KEPT_S = 24 * 3600.0
MOST = int(KEPT_S / EVERY_S)  # samples
FRESH_S = 120.0  # older reports say nothing of the present


class Sample(NamedTuple):
    """A moment."""

    at_s: float  # Unix time
    held: float  # share of the cluster's GPUs that jobs hold, 0 to 1
    busy: float | None  # mean utilisation of the GPUs that agents report, 0 to 1; None if none does


class Usage:
    """The samples of the last day. Any thread may use it."""

    def __init__(self) -> None:
        self._samples: deque[Sample] = deque(maxlen=MOST)
        self._lock = threading.Lock()
        self.taken = 0  # samples since the start

    def is_due(self, now_s: float) -> bool:
        """Say whether it is time for another sample, also after a clock was set back."""
        with self._lock:
            return not self._samples or not 0.0 <= now_s - self._samples[-1].at_s < EVERY_S

    def take(self, sample: Sample) -> None:
        """Keep a sample; those from before a clock was set back are dropped, as they would be out of order."""
        with self._lock:
            while self._samples and self._samples[-1].at_s >= sample.at_s:
                self._samples.pop()
            self._samples.append(sample)
            self.taken += 1

    def samples(self) -> list[Sample]:
        """Return all samples, the first first."""
        with self._lock:
            return list(self._samples)


def sample_of(
    held: Iterable[tuple[str, int]], nodes: Mapping[str, int], reports: Mapping[str, Report], now_s: float
) -> Sample:  # fmt: skip
    """Return how a cluster stands.

    Args:
        held: GPUs that jobs hold: node and index.
        nodes: GPUs of each node.
        reports: The last report of each node that has an agent.
        now_s: Unix time.
    """
    gpus = sum(nodes.values())
    told = [it.utilisation for name in nodes if name in reports for it in _fresh(reports[name], nodes[name], now_s)]
    taken = sum(1 for node, gpu in held if gpu < nodes.get(node, 0))
    return Sample(now_s, taken / gpus if gpus else 0.0, sum(told) / len(told) if told else None)


def _fresh(report: Report, gpus: int, now_s: float) -> list[GpuReport]:
    """Return what a report says of GPUs that the cluster has, nothing if it is old."""
    return [it for it in report.told.gpus if it.index < gpus] if now_s - report.at_s <= FRESH_S else []
