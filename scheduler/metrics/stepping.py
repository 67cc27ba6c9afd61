"""Step times of jobs that tell of their steps, as the leading scheduler knows them at the moment of a scrape."""

from collections.abc import Callable, Iterable, Mapping

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from ..health.step_monitor import Figures


class Stepping(Collector):
    """Tells of running jobs only, so that no label outlives its job.

    Args:
        figures: Returns how the steps of each job stand.
    """

    def __init__(self, figures: Callable[[], Mapping[str, Figures]]) -> None:
        self._figures = figures

    def describe(self) -> Iterable[Metric]:
        """Return nothing: which jobs there are is known at a scrape."""
        return ()

    def collect(self) -> Iterable[Metric]:
        """Return the gauge."""
        family = GaugeMetricFamily("longshore_step_seconds", "Present step time of running jobs.", labels=["job_id"])
        for job, it in self._figures().items():
            if it.step_s is not None:
                family.add_metric([job], it.step_s)
        yield family
