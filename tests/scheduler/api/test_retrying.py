"""POST /v1/jobs/{id}/retry."""

import httpx
import pytest

from longshore.scheduler.access.tokens import Role, add_token, new_token
from longshore.scheduler.model.states import JobState
from longshore.scheduler.service.service import Service
from longshore.scheduler.store.jobs import NewJob, get_job, insert_job

HELD = {"If-Match": "*"}


def ended(api: httpx.Client, service: Service, command: list[str]) -> str:
    """Return a job that has ended."""
    job = str(api.post("/v1/jobs", json={"command": command, "gpus": 1}).json()["id"])
    while api.get(f"/v1/jobs/{job}").json()["ended_s"] is None:
        service.reconciler.tick()
    return job


def test_a_failed_job_is_queued_again_and_asking_again_changes_nothing(api: httpx.Client, service: Service) -> None:
    path = f"/v1/jobs/{ended(api, service, ['false'])}"

    first, second = api.post(f"{path}/retry"), api.post(f"{path}/retry")

    assert [answer.status_code for answer in (first, second)] == [202, 202]
    assert (first.json()["state"], first.json()["ended_s"]) == ("queued", None)
    assert first.json()["version"] == second.json()["version"]


@pytest.mark.parametrize("command", [["true"], ["sleep", "1000"]])
def test_what_succeeded_or_was_cancelled_is_not_tried_again(
    api: httpx.Client, service: Service, command: list[str]
) -> None:
    job = str(api.post("/v1/jobs", json={"command": command, "gpus": 1, "grace_s": 0}).json()["id"])
    service.reconciler.tick()
    if command[0] == "sleep":
        api.delete(f"/v1/jobs/{job}")
    being_cancelled = api.post(f"/v1/jobs/{job}/retry")
    while api.get(f"/v1/jobs/{job}").json()["ended_s"] is None:
        service.reconciler.tick()

    answer = api.post(f"/v1/jobs/{job}/retry")

    assert being_cancelled.status_code == (409 if command[0] == "sleep" else 202)
    assert (answer.status_code, answer.json()["code"]) == (409, "ended")


def test_a_held_job_is_let_go(api: httpx.Client, service: Service) -> None:
    path = f"/v1/jobs/{api.post('/v1/jobs', json={'command': ['true'], 'gpus': 1}).json()['id']}"
    api.patch(path, json={"desired": "hold"}, headers=HELD)
    service.reconciler.tick()

    assert api.post(f"{path}/retry").json()["desired"] == "run"


def test_the_words_of_a_refused_change_name_the_retry(api: httpx.Client, service: Service) -> None:
    path = f"/v1/jobs/{ended(api, service, ['false'])}"

    answer = api.patch(path, json={"desired": "run"}, headers=HELD)

    assert (answer.status_code, "only a retry undoes" in answer.json()["detail"]) == (409, True)


def test_a_retry_counts_against_the_bound_on_queued_jobs(api: httpx.Client, service: Service) -> None:
    job = ended(api, service, ["false"])
    for _ in range(20):  # as the settings of these tests allow
        assert api.post("/v1/jobs", json={"command": ["true"], "gpus": 1}).status_code == 201

    answer = api.post(f"/v1/jobs/{job}/retry")

    assert (answer.status_code, answer.json()["code"]) == (429, "too-many-queued")
    assert api.get(f"/v1/jobs/{job}").json()["state"] == "failed"


def test_a_job_that_came_by_sbatch_is_not_tried_again(api: httpx.Client, service: Service) -> None:
    spec = {"command": ["sbatch", "train"], "gpus": 99, "external": {"number": "17"}}
    job = "01m81vhm68y4wwjtayxd3pcypw"
    service.store.write(
        lambda tx: insert_job(tx, NewJob(job, "train", "local", spec, 0, 99, 60.0, service.now_s()), writer="backend")
    )
    service.reconciler.tick()

    answer = api.post(f"/v1/jobs/{job}/retry")

    with service.store.read() as tx:
        row = get_job(tx, job)
    assert row is not None
    assert row.state is JobState.FAILED
    assert (answer.status_code, "sbatch" in answer.json()["detail"]) == (409, True)


def test_only_its_owner_and_operators_may_retry_a_job(api: httpx.Client, service: Service) -> None:
    def known(owner: str, role: Role) -> dict[str, str]:
        made = new_token(f"t-{role}", owner, role, service.now_s(), None)
        service.store.write(lambda tx: add_token(tx, made.row))
        return {"Authorization": f"Bearer {made.secret}"}

    job = ended(api, service, ["false"])  # of the user local
    callers = [("bob", Role.USER), ("local", Role.READ_ONLY), ("node", Role.AGENT), ("eve", Role.OPERATOR)]

    answers = [api.post(f"/v1/jobs/{job}/retry", headers=known(*caller)) for caller in callers]

    assert [answer.status_code for answer in answers] == [404, 403, 403, 202]
