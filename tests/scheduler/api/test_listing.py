"""Lists of jobs: their order, where they run, and why they wait."""

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any
from unittest.mock import patch

import httpx
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sqlalchemy import Connection, Engine, event

from longshore.cluster.model.orders import OrderName
from longshore.cluster.model.problem import ORDERS
from longshore.scheduler.api.jobs import OPEN_STATES, ids_in_queue_order
from longshore.scheduler.dashboard import views
from longshore.scheduler.dashboard.views import cluster_view
from longshore.scheduler.model.states import JobState
from longshore.scheduler.serve.app import create_app
from longshore.scheduler.service.queue_now import QueueNow
from longshore.scheduler.service.service import Service
from longshore.scheduler.settings import SchedulerSettings, ServeOptions, UserLimits
from longshore.scheduler.store.attempts import NewDecision, add_decisions
from longshore.scheduler.store.jobs import NewJob, insert_job
from longshore.scheduler.store.schema import Liveness, node
from longshore.scheduler.store.schema import job as job_table
from tests.scheduler.api.conftest import client_of
from tests.support.budgets import examples

HELD = {"If-Match": "*"}
GPU = {"index": 0, "healthy": False, "utilisation": 0.5, "free_bytes": 1, "temperature_c": 40.0, "ecc_errors": 0}


def submit(api: httpx.Client, **changes: object) -> str:
    return str(api.post("/v1/jobs", json={"command": ["/bin/true"], **changes}).json()["id"])


def free(api: httpx.Client) -> int:
    plan = api.post("/v1/jobs", params={"dry_run": True}, json={"command": ["x"]}).json()
    return int(plan["free_gpus"])


def reason(api: httpx.Client, job: str) -> str:
    return str(api.get(f"/v1/jobs/{job}").json()["waiting"]["reason"])


@pytest.mark.parametrize(("out", "left"), [("drained", 12), ("down", 12), ("suspect", 12), ("faulty", 15)])
def test_a_gpu_that_is_out_of_service_is_not_free(api: httpx.Client, service: Service, out: str, left: int) -> None:
    service.reconciler.tick()
    assert free(api) == 16
    if out == "drained":
        api.post("/v1/nodes/rack0-node1/drain")
    elif out == "faulty":
        for _ in range(3):
            api.post("/v1/nodes/rack0-node1/report", json={"gpus": [GPU]})
            service.reconciler.tick()
    else:
        down = node.update().where(node.c.name == "rack0-node1").values(liveness=Liveness(out))
        service.store.write(lambda tx: tx.execute(down))
    waits = submit(api, gpus=16)

    assert free(api) == left
    assert reason(api, waits) == f"it asks for 16 GPUs, and only {left} of 16 are in service"


def test_the_queue_has_its_own_order_and_says_where_each_job_is(api: httpx.Client, service: Service) -> None:
    service.reconciler.tick()
    runs = submit(api, gpus=16, command=["/bin/sleep", "1000"], grace_s=0, name="long")
    service.reconciler.tick()
    held, waits, urgent = submit(api), submit(api, name="train-1"), submit(api, priority=5, name="train-2")
    api.patch(f"/v1/jobs/{held}", json={"desired": "hold"}, headers=HELD)

    found = api.get("/v1/queue").json()
    by_name = api.get("/v1/queue", params={"name": "train-*", "limit": 1, "offset": 1}).json()
    by_state = api.get("/v1/queue", params={"state": ["running", "starting"]}).json()
    listed = api.get("/v1/jobs", params={"name": "long"}).json()["jobs"]
    api.delete(f"/v1/jobs/{runs}")
    while api.get(f"/v1/jobs/{runs}").json()["ended_s"] is None:
        service.reconciler.tick()

    assert [job["id"] for job in found["jobs"]] == [runs, urgent, waits, held]
    assert [job["waiting"] and job["waiting"]["position"] for job in found["jobs"]][1:] == [1, 2, None]
    assert found["jobs"][3]["waiting"]["reason"] == "it is held until its owner releases it"
    assert [share["node"] for share in found["jobs"][0]["placement"]] == [f"rack0-node{number}" for number in range(4)]
    assert (by_name["total"], [job["id"] for job in by_name["jobs"]]) == (2, [waits])
    assert [job["id"] for job in by_state["jobs"]] == [runs]
    assert [job["placement"] for job in listed] == [found["jobs"][0]["placement"]]


@pytest.fixture
def statements() -> Iterator[list[str]]:
    """The statements that any store executes."""
    found: list[str] = []

    def note(_: object, __: object, statement: str, *___: object) -> None:
        found.append(statement)

    event.listen(Engine, "before_cursor_execute", note)
    yield found
    event.remove(Engine, "before_cursor_execute", note)


@pytest.mark.parametrize("path", ["/v1/jobs", "/v1/queue"])
def test_the_last_decisions_on_all_jobs_of_a_list_are_read_at_once(
    api: httpx.Client, service: Service, statements: list[str], path: str
) -> None:
    jobs = [submit(api) for _ in range(5)]
    waits = [
        NewDecision(job, None, 1.0, "p", "1", "active", None, None, {"decided_by": obeyed}, None, None, None, None, 0.0)
        for job in jobs[:3]
        for obeyed in ("an older one", f"p-{job[-4:]}")
    ]
    service.store.write(lambda tx: add_decisions(tx, waits))
    statements.clear()

    found = {job["id"]: job["waiting"]["reason"] for job in api.get(path).json()["jobs"]}

    assert len([each for each in statements if "FROM decision" in each]) == 1
    assert [found[job] for job in jobs] == [
        *(f"p-{job[-4:]} lets it wait for better GPUs" for job in jobs[:3]),
        "3 jobs stand before it", "4 jobs stand before it",
    ]  # fmt: skip


def test_the_queue_is_read_once_until_something_happens(
    api: httpx.Client, service: Service, statements: list[str]
) -> None:
    service.queue = QueueNow(service.settings, service.layout, service.control, fresh_s=1e9)

    def place(job: str) -> int:
        return int(api.get(f"/v1/jobs/{job}").json()["waiting"]["position"])

    def reads() -> int:
        return len([each for each in statements if "job.guess_s" in each and "job.spec" not in each])

    first = submit(api)
    places = [place(first) for _ in range(5)]
    before = reads()
    urgent = submit(api, priority=5)

    assert (places, before) == ([1] * 5, 1)
    assert [place(job) for job in (urgent, first, urgent)] == [1, 2, 1]
    assert reads() == 2


@pytest.fixture
def bounded(tmp_path: Path) -> Iterator[httpx.Client]:
    """An API of a scheduler where one user may have four GPUs."""
    service = Service(ServeOptions(SchedulerSettings(folder=tmp_path / "served", open=True, limits=UserLimits(gpus=4))))
    with client_of(create_app(service)) as client:
        service.reconciler.tick()
        client.post("/v1/jobs", json={"command": ["/bin/sleep", "1000"], "gpus": 3, "grace_s": 0})
        service.reconciler.tick()
        yield client
        client.delete(f"/v1/jobs/{client.get('/v1/jobs').json()['jobs'][-1]['id']}")
        while client.get("/v1/queue", params={"state": ["running", "starting", "stopping"]}).json()["total"]:
            service.reconciler.tick()
        service.ends.set()
    service.close()


def test_a_job_that_its_owners_other_jobs_keep_out_says_so(bounded: httpx.Client) -> None:
    waits = submit(bounded, gpus=2)

    assert reason(bounded, waits) == "it asks for 2 GPUs, its owner's jobs hold 3, and one user may have 4"


@pytest.mark.parametrize("path", ["/v1/queue", "/v1/jobs"])
def test_a_name_that_no_job_can_have_is_refused(refusing_api: httpx.Client, path: str) -> None:
    answer = refusing_api.get(path, params={"name": "100%"})

    assert answer.status_code == 422
    assert answer.json()["detail"].startswith("name: '100%' cannot be used; it should be ")


SUBMISSIONS = st.lists(
    st.tuples(
        st.sampled_from(["ada", "bob", "eve"]), st.integers(1, 16), st.sampled_from([10.0, 600.0, 36000.0]),
        st.sampled_from([-1, 0, 0, 1]), st.sampled_from(["", "", "hold", "retry"]),
    ),
    min_size=1, max_size=12,
)  # fmt: skip


@given(order=st.sampled_from(sorted(ORDERS)), turns=st.booleans(), submissions=SUBMISSIONS)
@settings(max_examples=examples(40))
def test_the_page_lists_what_waits_as_the_queue_does(
    tmp_path_factory: pytest.TempPathFactory,
    order: OrderName,
    turns: bool,  # noqa: FBT001
    submissions: list[tuple[Any, ...]],
) -> None:
    chosen = SchedulerSettings(folder=tmp_path_factory.mktemp("queue"), open=True, order=order, turns=turns)
    service = Service(ServeOptions(chosen))
    for number, (owner, gpus, estimate_s, priority, state) in enumerate(submissions):
        spec = {"command": ["x"], "gpus": gpus}
        new = NewJob(f"{number:026}", "job", owner, spec, priority, gpus, estimate_s, 1e9 - 60.0 * number)
        service.store.write(partial(insert_job, new=new, writer="t"))
        by_state: dict[str, dict[str, Any]] = {"hold": {"state": JobState.HELD}, "retry": {"not_before_s": 1e12}}
        if state in by_state:
            change = job_table.update().where(job_table.c.id == new.id).values(**by_state[state])
            service.store.write(partial(Connection.execute, statement=change))

    with service.store.read() as tx:
        queue = service.queue.read(tx, service.now_s())
        shown = cluster_view(tx, service.layout, service.node_types, queue)
        listed = ids_in_queue_order(tx, OPEN_STATES, None, None, queue)
        first = min(queue.places, key=queue.places.__getitem__, default=None)
    service.close()

    assert [row.id for row in shown.waiting] == listed
    assert (shown.first and shown.first.id) == first


def test_the_page_has_the_first_waiting_jobs_though_many_are_held(api: httpx.Client) -> None:
    held = [submit(api) for _ in range(10)]
    for job in held:
        api.patch(f"/v1/jobs/{job}", json={"desired": "hold"}, headers=HELD)
    waits = [submit(api) for _ in range(5)]

    with patch.object(views, "MAX_JOB_ROWS", 5):
        page = api.get("/").text

    assert [job in page for job in (*held, *waits)] == [False] * 10 + [True] * 5


def test_the_last_decisions_on_a_job_are_shown_in_their_order(api: httpx.Client, service: Service) -> None:
    job = submit(api)
    waits = [
        NewDecision(job, None, float(at), "p", "1", "active", None, None, {}, None, None, None, None, 0.0)
        for at in range(300)
    ]
    service.store.write(lambda tx: add_decisions(tx, waits))

    def shown(**asked: int) -> list[float]:
        return [each["at_s"] for each in api.get(f"/v1/jobs/{job}/decisions", params=asked).json()]

    assert shown() == list(range(100, 300))
    assert shown(limit=1) == [299.0]
    assert shown(limit=1000) == list(range(300))
