"""How long the pages of a large cluster take the server: 1,024 GPUs, each with a job of its own, and a long queue."""

import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

from fastapi.routing import APIRoute
from sqlalchemy import Connection

from longshore.cluster.model.placement import Share
from longshore.scheduler.dashboard.pages import page_router
from longshore.scheduler.model.job import new_job_id
from longshore.scheduler.model.states import AttemptState, JobState
from longshore.scheduler.service.service import Service
from longshore.scheduler.settings import SchedulerSettings, ServeOptions
from longshore.scheduler.store.attempts import NewAttempt, get_attempt
from longshore.scheduler.store.events import SCHEDULER_LEASE, acquire_lease
from longshore.scheduler.store.jobs import NewJob, get_job, insert_job
from longshore.scheduler.store.transitions import AttemptChange, Changes, JobChange, JobStart, write_changes

from .harness import Row, main

NODES, GPUS_PER_NODE, WAITING = 128, 8, 1000
ROUNDS = 20
MOST_MS = 50.0
CLUSTER = f"""\
name: large
node_types:
  node: {{gpus: {GPUS_PER_NODE}, peak_flops: 1e12, memory_bytes: 1e9, intra_bytes_per_s: 10e9, nic_bytes_per_s: 10e9}}
racks:
  - nodes: [{{type: node, count: {NODES}}}]
    uplink_bytes_per_s: 10e9
"""


def full_service(folder: Path) -> Service:
    """Return a service that does not run, in whose store each of its GPUs has a running job."""
    (folder / "cluster.yaml").write_text(CLUSTER, encoding="utf-8")
    service = Service(ServeOptions(SchedulerSettings(folder=folder, open=True)))
    fence = service.store.write(
        lambda tx: acquire_lease(tx, SCHEDULER_LEASE, "benchmark", now_s=time.time(), ttl_s=3600.0)
    )
    assert fence is not None
    for place in (service.layout.node_and_index(gpu) for gpu in range(NODES * GPUS_PER_NODE)):
        service.store.write(partial(_run_one, fence, place))
    for _ in range(WAITING):
        service.store.write(_submit)
    return service


def _submit(tx: Connection) -> str:
    now_s = time.time()
    job = NewJob(new_job_id(now_s), "resnet50-sweep", "local", {"command": ["true"]}, 0, 1, 3600.0, now_s)
    return insert_job(tx, job, writer="api").id


def _run_one(fence: int, place: tuple[str, int], tx: Connection) -> None:
    job = get_job(tx, _submit(tx))
    assert job is not None
    node, gpu = place
    write = partial(write_changes, tx, fence, at_s=time.time(), writer="benchmark")
    write(Changes(opened=[JobStart(job, NewAttempt("local", (Share(node, (gpu,)),), 1.0, 0.0), "placed")]))
    for now in (AttemptState.LAUNCHED, AttemptState.RUNNING):
        row = get_attempt(tx, job.id, 1)
        assert row is not None
        write(Changes(attempts=[AttemptChange(row, now, row.contact, "it runs", {})]))
    write(Changes(jobs=[JobChange(job.id, JobState.STARTING, JobState.RUNNING, "it runs", {})]))


def _median_ms(work: Callable[[], object]) -> float:
    work()  # templates are compiled once
    took = []
    for _ in range(ROUNDS):
        began = time.perf_counter()
        work()
        took.append(1000.0 * (time.perf_counter() - began))
    return statistics.median(took)


def measure() -> Iterator[Row]:
    """Time pages and metrics."""
    with tempfile.TemporaryDirectory() as name:
        service = full_service(Path(name))
        routes = page_router(service).routes
        pages = {route.path: route.endpoint for route in routes if isinstance(route, APIRoute)}
        for path in ("/", "/jobs", "/policy", "/events"):
            yield Row(f"page {path} with 1,024 GPUs", _median_ms(pages[path]), "ms", most=MOST_MS)
        seen = pages["/parts/cluster"]
        version = pages["/"]().body.decode().split("seen=")[1].split('"')[0]
        yield Row("request whether anything is new", _median_ms(partial(seen, version)), "ms", most=MOST_MS)
        yield Row("page / in bytes", len(pages["/"]().body), "bytes")
        yield Row("metrics", _median_ms(service.metrics.scrape), "ms", most=MOST_MS)
        service.close()


if __name__ == "__main__":
    main(measure)
