"""Lists of jobs, one job, and what its owner wants of it."""

import re

import httpx
import pytest

from longshore.cluster.files.errors import BackendError
from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.control import attempt_driver
from longshore.scheduler.control.reconciler import Reconciler
from longshore.scheduler.service.service import Service

HELD = {"If-Match": "*"}


def submit(api: httpx.Client, **changes: object) -> str:
    return str(api.post("/v1/jobs", json={"command": ["true"], **changes}).json()["id"])


def test_pages_of_a_list_hold_every_job_once_the_last_submitted_first(api: httpx.Client) -> None:
    submitted = [submit(api) for _ in range(5)]
    pages = [api.get("/v1/jobs", params={"limit": 2}).json()]
    while pages[-1]["cursor"]:
        pages.append(api.get("/v1/jobs", params={"limit": 2, "cursor": pages[-1]["cursor"]}).json())
    listed = [job["id"] for page in pages for job in page["jobs"]]

    assert listed == submitted[::-1]


def test_a_list_has_only_the_requested_states(api: httpx.Client, service: Service) -> None:
    queued, held = submit(api), submit(api)
    api.patch(f"/v1/jobs/{held}", json={"desired": "hold"}, headers=HELD)
    api.patch(f"/v1/jobs/{queued}", json={"desired": "hold"}, headers=HELD)
    service.reconciler.tick()
    api.patch(f"/v1/jobs/{queued}", json={"desired": "run"}, headers=HELD)

    assert [job["id"] for job in api.get("/v1/jobs", params={"state": ["held"]}).json()["jobs"]] == [held, queued]
    assert api.get("/v1/jobs", params={"state": ["queued", "running"]}).json()["jobs"] == []


@pytest.mark.parametrize("cursor", ["x", "am9iczoxMjM0NTY3ODkwMTIzNDU2Nzg5MA", "%00", "..", "/etc/passwd"])
def test_a_cursor_that_no_list_gave_is_refused(refusing_api: httpx.Client, cursor: str) -> None:
    answer = refusing_api.get("/v1/jobs", params={"cursor": cursor})

    assert (answer.status_code, answer.json()["code"]) == (400, "bad-cursor")


def test_a_job_that_is_as_it_was_is_not_sent_again(api: httpx.Client) -> None:
    path = f"/v1/jobs/{submit(api)}"
    etag = api.get(path).headers["ETag"]

    same = api.get(path, headers={"If-None-Match": f'"x", {etag}'})
    api.delete(path)
    changed = api.get(path, headers={"If-None-Match": etag})

    assert (same.status_code, same.content, same.headers["ETag"]) == (304, b"", etag)
    assert changed.status_code == 200
    assert changed.headers["ETag"] != etag


def test_a_waiting_job_knows_its_place_behind_those_of_a_higher_priority(api: httpx.Client) -> None:
    first, second = submit(api), submit(api)
    urgent = submit(api, priority=5)

    places = [api.get(f"/v1/jobs/{job}").json()["waiting"]["position"] for job in (urgent, first, second)]

    assert places == [1, 2, 3]


def test_a_job_of_more_gpus_than_are_free_shows_that(api: httpx.Client, service: Service) -> None:
    service.reconciler.tick()
    fills = submit(api, gpus=16, command=["/bin/sleep", "1000"], grace_s=0)
    service.reconciler.tick()
    waits = submit(api, gpus=2)

    reason = api.get(f"/v1/jobs/{waits}").json()["waiting"]["reason"]
    api.delete(f"/v1/jobs/{fills}")
    while api.get(f"/v1/jobs/{fills}").json()["ended_s"] is None:
        service.reconciler.tick()

    assert reason == "it asks for 2 GPUs, and 0 are free"


def test_a_held_job_waits_for_its_release(api: httpx.Client, service: Service) -> None:
    path = f"/v1/jobs/{submit(api)}"

    api.patch(path, json={"desired": "hold"}, headers=HELD)
    service.reconciler.tick()

    held = api.get(path).json()
    assert (held["state"], held["waiting"]["reason"]) == ("held", "it is held until its owner releases it")
    assert api.patch(path, json={"desired": "run"}, headers=HELD).json()["desired"] == "run"


def test_a_change_needs_the_version_that_was_seen(api: httpx.Client) -> None:
    path = f"/v1/jobs/{submit(api)}"
    etag, body = api.get(path).headers["ETag"], {"desired": "hold"}

    blind = api.patch(path, json=body)
    unreadable = api.patch(path, json=body, headers={"If-Match": "latest"})
    seen = api.patch(path, json=body, headers={"If-Match": etag})
    stale = api.patch(path, json={"desired": "run"}, headers={"If-Match": etag})

    codes = [answer.json().get("code") for answer in (blind, unreadable, seen, stale)]
    assert [answer.status_code for answer in (blind, unreadable, seen, stale)] == [428, 400, 200, 412]
    assert codes == ["unconditional", "bad-header", None, "stale"]


def test_the_place_in_the_queue_may_move_between_reading_and_changing(api: httpx.Client) -> None:
    path = f"/v1/jobs/{submit(api)}"
    etag = api.get(path).headers["ETag"]
    submit(api, priority=5)

    assert api.get(path).headers["ETag"] != etag
    assert api.patch(path, json={"desired": "hold"}, headers={"If-Match": etag}).status_code == 200


def test_a_job_is_cancelled_once_however_often_that_is_requested(api: httpx.Client, service: Service) -> None:
    path = f"/v1/jobs/{submit(api)}"

    first, second = api.delete(path), api.delete(path)
    service.reconciler.tick()
    third = api.delete(path)

    assert [answer.status_code for answer in (first, second, third)] == [202, 202, 202]
    assert third.json()["state"] == "cancelled"
    assert len([event for event in api.get(f"{path}/events").json() if event["kind"] == "desired"]) == 1


def test_a_cancel_is_never_taken_back(api: httpx.Client) -> None:
    path = f"/v1/jobs/{submit(api)}"
    api.delete(path)

    answer = api.patch(path, json={"desired": "run"}, headers=HELD)

    assert (answer.status_code, answer.json()["code"]) == (409, "ended")


@pytest.mark.parametrize("path", ["", "/attempts", "/tasks", "/events", "/decisions", "/logs"])
@pytest.mark.parametrize("job", ["nobody", "01m81vhm68y4wwjtayxd3pcypw", "..%2f..%2fetc", "$(id)", "%00", "a" * 200])
def test_what_is_no_job_is_not_found_anywhere(refusing_api: httpx.Client, job: str, path: str) -> None:
    answer = refusing_api.get(f"/v1/jobs/{job}{path}")

    assert answer.status_code in (404, 422)
    assert answer.headers["Content-Type"] == "application/problem+json"
    assert re.fullmatch("no-such-job|not-found|invalid", answer.json()["code"])


def test_a_job_of_a_higher_priority_goes_before_those_that_were_there_first(api: httpx.Client) -> None:
    first, second, third = (submit(api) for _ in range(3))

    answer = api.patch(f"/v1/jobs/{third}", json={"priority": 7}, headers=HELD)

    assert (answer.status_code, answer.json()["priority"], answer.json()["waiting"]["position"]) == (200, 7, 1)
    assert [api.get(f"/v1/jobs/{job}").json()["waiting"]["position"] for job in (first, second)] == [2, 3]


def test_a_change_of_both_needs_the_version_once(api: httpx.Client) -> None:
    path = f"/v1/jobs/{submit(api)}"
    etag = api.get(path).headers["ETag"]

    answer = api.patch(path, json={"priority": -3, "desired": "hold"}, headers={"If-Match": etag})

    assert (answer.status_code, answer.json()["priority"], answer.json()["desired"]) == (200, -3, "hold")
    assert api.patch(path, json={"priority": 1}, headers={"If-Match": etag}).json()["code"] == "stale"
    assert api.patch(path, json={"priority": 1001}, headers=HELD).status_code == 422


def test_ranks_tell_where_they_run_and_how_they_ended(api: httpx.Client, service: Service) -> None:
    service.reconciler.tick()
    script = "[ $RANK = 0 ] || exit 3; exec sleep 1000"
    spec = {"command": ["sh", "-c", script], "gpus": 2, "grace_s": 0}
    job = api.post("/v1/jobs", json=spec).json()["id"]
    service.reconciler.tick()
    begun = api.get(f"/v1/jobs/{job}/tasks").json()
    while api.get(f"/v1/jobs/{job}").json()["ended_s"] is None:
        service.reconciler.tick()
    ended = api.get(f"/v1/jobs/{job}/tasks").json()

    assert [(each["rank"], each["gpu"], each["code"], each["signal"]) for each in begun] == [
        (0, 0, None, None),
        (1, 1, None, None),
    ]
    assert [(each["rank"], each["gpu"], each["code"]) for each in ended] == [(0, 0, 0), (1, 1, 3)]
    assert ended[0]["signal"] in (9, 15)


def test_a_job_that_waits_as_the_disk_is_nearly_full_says_so(
    api: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = submit(api)
    with monkeypatch.context() as full:
        full.setattr(service.room, "least_free_bytes", 1 << 62)
        service.reconciler.tick()
        waiting = api.get(f"/v1/jobs/{job}").json()["waiting"]
        assert waiting["reason"] == "nothing starts, as the disk that the scheduler writes to is nearly full"
    service.reconciler.tick()
    assert api.get(f"/v1/jobs/{job}").json()["state"] != "queued"


def test_a_job_that_waits_as_running_attempts_are_unknown_shows_that_and_the_log_has_why(
    api: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_backend: LocalBackend) -> None:
        raise BackendError("ls-bobs-1: [Errno 13] Permission denied: 'spec.json'")

    monkeypatch.setattr(LocalBackend, "launched", fail)
    job = submit(api)
    service.reconciler.tick()

    waiting = api.get(f"/v1/jobs/{job}").json()["waiting"]
    assert waiting["reason"] == ("nothing starts, as it is not known which attempts run; the scheduler's log says why")
    assert "ls-bobs-1" not in api.get("/v1/queue").text
    assert "which attempts run: ls-bobs-1: [Errno 13] Permission denied: 'spec.json'" in caplog.text


def test_a_job_that_cannot_be_handled_says_why_while_it_is_tried_again(
    api: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Reconciler, "_apply_decision", lambda *_: 1 / 0)
    job = submit(api)
    service.reconciler.tick()

    reason = api.get(f"/v1/jobs/{job}").json()["waiting"]["reason"]
    assert reason.startswith("it could not be handled, and is tried again: ZeroDivisionError")


@pytest.mark.parametrize("where", ["backend", "control"])
def test_a_job_that_cannot_be_launched_says_why_while_it_is_tried_again(
    api: httpx.Client, service: Service, monkeypatch: pytest.MonkeyPatch, where: str
) -> None:
    def fail(*_: object) -> None:
        raise KeyError("uid not found: 54321")

    if where == "backend":
        monkeypatch.setattr(LocalBackend, "launch", fail)
    else:
        monkeypatch.setattr(attempt_driver, "attempt_to_launch", fail)
    job = submit(api)
    service.reconciler.tick()

    found = api.get(f"/v1/jobs/{job}").json()
    assert found["state"] == "starting"
    assert "uid not found: 54321" in found["waiting"]["reason"]
