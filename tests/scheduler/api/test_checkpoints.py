"""Checkpoints through the API: those of an attempt that a later one has replaced are refused."""

import httpx
import pytest

from longshore.scheduler.model.states import JobState
from longshore.scheduler.service.service import Service
from longshore.scheduler.store.attempts import starting_checkpoint
from longshore.scheduler.store.jobs import get_job
from tests.scheduler.served import until

DIES_ONCE = (
    'case $LONGSHORE_ATTEMPT in *-1) while [ ! -e "$0" ]; do sleep 0.05; done; kill -9 $$;; esac; exec sleep 1000'
)


@pytest.fixture
def job(api: httpx.Client, service: Service) -> str:
    """A job that runs, and that is killed once a file is there."""
    die = str(service.settings.folder / "die")
    spec = {"command": ["sh", "-c", DIES_ONCE, die], "retry": {"ambiguous": 1}, "grace_s": 1}
    made: str = api.post("/v1/jobs", json=spec, headers={"Idempotency-Key": "one"}).json()["id"]
    tick_until(service, made, JobState.RUNNING, 1)
    return made


def tick_until(service: Service, job: str, state: JobState, attempt: int) -> None:
    def is_there() -> bool:
        service.reconciler.tick()
        with service.store.read() as tx:
            row = get_job(tx, job)
        return row is not None and (row.state, row.attempt) == (state, attempt)

    until(is_there)


def register(api: httpx.Client, job: str, attempt: int, step: int, **more: object) -> httpx.Response:
    body = {"attempt": attempt, "step": step, "path": f"/ckpt/{step}", **more}
    return api.post(f"/v1/jobs/{job}/checkpoints", json=body)


def steps(api: httpx.Client, job: str) -> list[tuple[int, int]]:
    return [(each["attempt"], each["step"]) for each in api.get(f"/v1/jobs/{job}/checkpoints").json()]


def cancel(api: httpx.Client, service: Service, job: str) -> None:
    attempt = api.get(f"/v1/jobs/{job}").json()["attempts"][-1]["number"]
    api.delete(f"/v1/jobs/{job}")
    tick_until(service, job, JobState.CANCELLED, attempt)


def test_what_an_older_attempt_registers_after_the_next_has_begun_is_refused_and_changes_nothing(
    api: httpx.Client, service: Service, job: str
) -> None:
    assert [register(api, job, 1, step).status_code for step in (100, 200)] == [201, 201]
    (service.settings.folder / "die").touch()
    tick_until(service, job, JobState.RUNNING, 2)

    refusal = register(api, job, 1, 300)

    assert (refusal.status_code, refusal.json()["code"]) == (409, "older-attempt")
    assert steps(api, job) == [(1, 200), (1, 100)]
    assert register(api, job, 2, 250, digest="ab12cd34").status_code == 201
    assert api.get(f"/v1/jobs/{job}/checkpoints?limit=1").json()[0]["path"] == "/ckpt/250"
    with service.store.read() as tx:
        restored = [starting_checkpoint(tx, job, number) for number in (2, 3)]
    assert [row and row.path for row in restored] == ["/ckpt/200", "/ckpt/250"]
    assert "/ckpt/250" in api.get(f"/jobs/{job}").text
    cancel(api, service, job)


WRONG: list[tuple[dict[str, object], int]] = [
    ({"attempt": 2}, 404), ({"attempt": 0}, 422), ({"step": -1}, 422), ({"path": ""}, 422), ({"path": "a\nb"}, 422),
    ({"path": "a" * 1025}, 422), ({"digest": "sha256"}, 422), ({"more": 1}, 422),
]  # fmt: skip


def test_what_is_no_checkpoint_of_the_job_is_refused(api: httpx.Client, service: Service, job: str) -> None:
    body = {"attempt": 1, "step": 1, "path": "/ckpt"}
    for wrong, status in WRONG:
        assert api.post(f"/v1/jobs/{job}/checkpoints", json={**body, **wrong}).status_code == status, wrong
    assert steps(api, job) == []
    cancel(api, service, job)


def test_the_same_checkpoint_is_registered_once(api: httpx.Client, service: Service, job: str) -> None:
    assert [register(api, job, 1, 5).status_code for _ in range(2)] == [201, 201]
    assert [each["kind"] for each in api.get(f"/v1/jobs/{job}/events").json()].count("checkpoint") == 1
    cancel(api, service, job)
