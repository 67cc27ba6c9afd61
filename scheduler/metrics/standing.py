"""Gauges: how things stand at the moment of a scrape, read from the store."""

from collections import Counter
from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector
from sqlalchemy import Connection

from ..model.gpu_index import Layout
from ..model.stored_spec import stored_or_usual
from ..store.database.errors import StoreUnreachableError
from ..store.database.schema import Liveness
from ..store.monitoring.quarantines import quarantined
from ..store.opening import Store
from ..store.queries import GpuState, count_jobs, count_unknown, drains, lease_tokens, occupied_gpus, waits_since
from ..store.rows.nodes import closed_nodes, faulty_gpus, list_nodes

LEAKS_AFTER_S = 60.0  # beyond a job's grace; killing takes seconds


class Standing(Collector):
    """Reads the store whenever it is scraped.

    Args:
        store: Where everything stands.
        layout: Of the cluster.
        types: Node type of each node.
        now_s: Unix time.
    """

    def __init__(
        self,
        store: Store,
        layout: Layout,
        types: Mapping[str, str],
        now_s: Callable[[], float],
    ) -> None:
        self._store, self._layout, self._types, self._now_s = store, layout, types, now_s

    def describe(self) -> Iterable[Metric]:
        """Return nothing, so that registering does not read the store."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return all gauges; of a store that does not answer, only that it does not."""
        found: list[Metric] = []
        try:
            with self._store.read() as tx:
                found = [
                    self._jobs(tx),
                    self._gpus(tx),
                    *self._attempts(tx),
                    self._oldest(tx),
                    self._leases(tx),
                    self._nodes(tx),
                ]
        except StoreUnreachableError:
            found = []
        yield GaugeMetricFamily("longshore_store_up", "1 if the store answers.", value=float(bool(found)))
        yield from found

    def _jobs(self, tx: Connection) -> Metric:
        jobs = GaugeMetricFamily("longshore_jobs", "Jobs by state.", labels=["state"])
        for state, count in count_jobs(tx).items():
            jobs.add_metric([state.value], count)
        return jobs

    def _gpus(self, tx: Connection) -> Metric:
        counts = Counter({(state, kind): 0 for state in GpuState for kind in set(self._types.values())})
        states = {(it.node, it.gpu): it.state for it in occupied_gpus(tx)}
        states.update(dict.fromkeys(faulty_gpus(tx), GpuState.OUT))
        closed, broken = closed_nodes(tx), quarantined(tx, self._layout.nodes)
        for node, gpus in self._layout.nodes.items():
            for gpu in range(gpus):
                is_out = node in closed or (node, gpu) in broken
                empty = GpuState.OUT if is_out else GpuState.FREE
                counts[states.get((node, gpu), empty), self._types[node]] += 1
        family = GaugeMetricFamily("longshore_gpus", "GPUs by state and node type.", labels=["state", "type"])
        for (state, kind), count in sorted(counts.items()):
            family.add_metric([state.value.replace(" ", "_"), kind], count)
        return family

    def _nodes(self, tx: Connection) -> Metric:
        counts = Counter(dict.fromkeys((*map(str, Liveness), "out_of_service"), 0))
        rows = {row.name: row for row in list_nodes(tx)}
        for row in (rows[name] for name in self._layout.nodes if name in rows):
            counts["out_of_service" if row.out_of_service else str(row.liveness)] += 1
        family = GaugeMetricFamily("longshore_nodes", "Nodes by state.", labels=["state"])
        for state, count in counts.items():
            family.add_metric([state], count)
        return family

    def _attempts(self, tx: Connection) -> Iterable[Metric]:
        now_s = self._now_s()
        leaking = sum(
            it.gpus for it in drains(tx) if now_s - it.since_s > stored_or_usual(it.spec).grace_s + LEAKS_AFTER_S
        )
        text = "GPUs of attempts that were to be gone, by their grace and a minute more."
        yield GaugeMetricFamily("longshore_gpus_leaking", text, value=leaking)
        text = "Open attempts that cannot be reached."
        yield GaugeMetricFamily("longshore_contact_unknown", text, value=count_unknown(tx))

    def _oldest(self, tx: Connection) -> Metric:
        since_s = waits_since(tx)
        oldest_s = 0.0 if since_s is None else max(0.0, self._now_s() - since_s)
        text = "Time that the job has waited that came into the queue first; 0 if none waits."
        return GaugeMetricFamily("longshore_queue_oldest_seconds", text, value=oldest_s)

    def _leases(self, tx: Connection) -> Metric:
        text = "How often each lease was taken, over the life of the store."
        family = CounterMetricFamily("longshore_lease_takeovers", text, labels=["name"])
        for name, token in lease_tokens(tx).items():
            family.add_metric([name], token)
        return family
