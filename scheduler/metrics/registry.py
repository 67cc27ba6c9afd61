"""All metrics of one service. Every service has a registry of its own; nothing is global.

Source: SPEC K11; docs/metrics.md says what each means, and a test compares the two.
"""

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from importlib.metadata import version

from prometheus_client import CollectorRegistry, Gauge, Histogram, Info, ProcessCollector, generate_latest

from ..files.disk_space import Room
from ..health.step_monitor import Figures
from ..model.gpu_index import Layout
from ..store.database.errors import StoreUnreachableError
from ..store.opening import Store
from .following import Following
from .standing import Standing
from .stepping import Stepping

TICKS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 10.0)
COMMITS_S = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 1.0, 5.0)


class Metrics:
    """Metrics of a scheduler.

    Args:
        store: Its store.
        layout: Of the cluster.
        types: Node type of each node.
        leads: Says whether this scheduler leads.
        steps: Returns how the steps of each job stand.
        room: On its disks.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        types: Mapping[str, str],
        leads: Callable[[], bool],
        steps: Callable[[], Mapping[str, Figures]],
        room: Room,
    ) -> None:
        self.registry = CollectorRegistry()
        self._ended = time.monotonic()  # of the last tick
        self.reconcile_s = Histogram(
            "longshore_reconcile_seconds", "Time of each pass of the reconcile loop.", buckets=TICKS_S,
            registry=self.registry,
        )  # fmt: skip
        self.commit_s = Histogram(
            "longshore_store_commit_seconds", "Time of each transaction that writes, with all that share it.",
            buckets=COMMITS_S, registry=self.registry,
        )  # fmt: skip
        lag_s = Gauge(
            "longshore_reconcile_lag_seconds", "Time since the last pass of the reconcile loop ended.",
            registry=self.registry,
        )  # fmt: skip
        lag_s.set_function(lambda: time.monotonic() - self._ended)
        free = Gauge(
            "longshore_disk_free_bytes", "Room left where the scheduler writes, without its reserve.",
            registry=self.registry,
        )  # fmt: skip
        free.set_function(lambda: _free_bytes(room))
        least = Gauge(
            "longshore_disk_least_free_bytes", "With less room no job is admitted and none starts.",
            registry=self.registry,
        )  # fmt: skip
        least.set(room.least_free_bytes)
        leader = Gauge("longshore_leader", "1 if this scheduler holds the lease.", registry=self.registry)
        leader.set_function(lambda: float(leads()))
        Info("longshore_build", "Version of Longshore.", registry=self.registry).info({"version": version("longshore")})
        ProcessCollector(registry=self.registry)
        self._following = Following(store, self.registry)
        self.registry.register(Standing(store, layout, types, time.time))
        self.registry.register(Stepping(steps))

    @contextmanager
    def tick(self) -> Iterator[None]:
        """Time a pass of the reconcile loop; one that fails does not end the lag."""
        with self.reconcile_s.time():
            yield
        self._ended = time.monotonic()

    def scrape(self) -> bytes:
        """Return all metrics in Prometheus' text format; without a store, what can be told without it."""
        with suppress(StoreUnreachableError):  # longshore_store_up tells it
            self._following.follow()
        return generate_latest(self.registry)


def _free_bytes(room: Room) -> float:
    """Return the room that is left, nan where nothing can be seen."""
    try:
        return float(room.free_bytes())
    except OSError:
        return float("nan")
