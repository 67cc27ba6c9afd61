"""The HTTP extender: filter, prioritize and preempt of extender v1. It ranks, and never binds.

Source: SPEC K1; docs/kubernetes.md.
"""

import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import TypeVar

from fastapi import FastAPI, Request, Response
from fastapi.concurrency import run_in_threadpool
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Histogram, generate_latest

from ..api.problems import ProblemError, answer_with_problems
from .ranking import NodeRanking, Ranker, RankingOutcome, refused_nodes
from .watching import ObjectWatch
from .wire import as_json, filter_reply, preempt_reply, prioritize_reply, read_request, read_victims

BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.0, 5.0)


class RequestCounts:
    """Counts and times of answers, by verb and outcome."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self._answers = Counter(
            "longshore_extender_requests_total", "Answers to kube-scheduler, by outcome.",
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

    def metrics_page(self) -> bytes:
        """Return the metrics in Prometheus' text format."""
        return generate_latest(self.registry)


log = logging.getLogger(__name__)

MAX_EXTENDER_BODY_BYTES = 256 << 20  # some 30 KB for each of 5,000 nodes, and more
NO_BIND = "Longshore only ranks nodes and never binds; leave bindVerb out of the scheduler's configuration"


Result = TypeVar("Result")
Verb = Callable[[bytes], tuple[object, str]]  # from a body to a reply and its outcome


def create_app(ranker: Ranker, watch: ObjectWatch | None = None) -> FastAPI:
    """Return the application.

    Args:
        ranker: Ranks nodes; it is closed when the application ends.
        watch: Keeps the ranker up to date with pods and nodes, not started yet; None without the Kubernetes API.
    """

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        if watch is not None:
            watch.start()
        yield
        if watch is not None:
            watch.close()
        ranker.close()

    app = FastAPI(title="Longshore extender", lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    answer_with_problems(app)
    counts = RequestCounts()
    _add_verb(app, counts, "filter", lambda body: _filter(ranker, body))
    _add_verb(app, counts, "prioritize", lambda body: _prioritize(ranker, body))
    _add_verb(app, counts, "preempt", lambda body: (preempt_reply(read_victims(body)[1]), "passed"))
    # An error: after a success without a Binding the pod would never be bound.
    _add_verb(app, counts, "bind", lambda _: ({"Error": NO_BIND}, "refused"))
    _add_pages(app, watch, counts)
    return app


def _add_verb(app: FastAPI, counts: RequestCounts, verb: str, answer: Verb) -> None:
    @app.post(f"/{verb}", name=verb)
    async def answered(request: Request) -> Response:
        began = time.perf_counter()
        outcome = "unreadable"
        try:
            body = await _read_body(request)
            reply, reached = await run_in_threadpool(answer, body)
            text = as_json(reply)
            outcome = reached
            return Response(text, media_type="application/json")
        finally:
            counts.add(verb, outcome, time.perf_counter() - began)


async def _read_body(request: Request) -> bytes:
    if request.headers.get("content-encoding", "identity").lower() != "identity":
        raise ProblemError("compressed", "the body is compressed; kube-scheduler sends it uncompressed")
    parts, size = [], 0
    async for part in request.stream():
        parts.append(part)
        size += len(part)
        if size > MAX_EXTENDER_BODY_BYTES:
            raise ProblemError("too-much", f"the body has more than {MAX_EXTENDER_BODY_BYTES} bytes")
    return b"".join(parts)


def _filter(ranker: Ranker, body: bytes) -> tuple[object, str]:
    offer = read_request(body)
    out = refused_nodes(offer)
    left = [host for host in offer.hosts if host not in out]
    if len(left) == 1:
        # kube-scheduler requests no rank of a single node, so the placement is recorded here.
        _or_default(lambda: ranker.record_only_node(offer, left[0]), None)
    return filter_reply(offer, out), "refused" if out else "passed"


def _prioritize(ranker: Ranker, body: bytes) -> tuple[object, str]:
    offer = read_request(body)
    ranking = _or_default(lambda: ranker.rank(offer), NodeRanking([], RankingOutcome.FAILED))
    return prioritize_reply(offer.hosts, ranking.order), ranking.outcome


def _or_default(advise: Callable[[], Result], default: Result) -> Result:
    """Return advice, or a default if it fails: a bug is logged and must not fail the pod."""
    try:
        return advise()
    except Exception:
        log.exception("no advice")
        return default


def _add_pages(app: FastAPI, watch: ObjectWatch | None, counts: RequestCounts) -> None:
    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        """Answer, without checking anything else."""
        return {"status": "ok"}

    @app.get("/readyz")
    def readyz() -> dict[str, str]:
        """Return whether all pods and nodes are known."""
        if watch is not None and not watch.is_in_sync:
            raise ProblemError("not-in-sync", "not all pods and nodes have been listed yet")
        return {"status": "ok"}

    @app.get("/metrics")
    def metrics() -> Response:
        """Return all metrics."""
        return Response(counts.metrics_page(), media_type=CONTENT_TYPE_LATEST)
