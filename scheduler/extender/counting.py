"""What an extender counts, for Prometheus."""

from prometheus_client import CollectorRegistry, Counter, Histogram, generate_latest

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)


class Counts:
    """Answers by verb and outcome, and how long they took."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._answers = Counter(
            "longshore_extender_requests_total", "Answers to kube-scheduler, by how they came about.",
            ["verb", "outcome"], registry=self.registry,
        )  # fmt: skip
        self._took = Histogram(
            "longshore_extender_request_seconds", "Time from a request's arrival to its answer.", ["verb"],
            buckets=BUCKETS_S, registry=self.registry,
        )  # fmt: skip

    def add(self, verb: str, outcome: str, took_s: float) -> None:
        """Count an answer."""
        self._answers.labels(verb, outcome).inc()
        self._took.labels(verb).observe(took_s)

    def page(self) -> bytes:
        """Return all of it in Prometheus' text format."""
        return generate_latest(self.registry)
