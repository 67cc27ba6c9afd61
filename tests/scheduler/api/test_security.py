"""Hostile requests: other origins, paths out of the folder, strings for a shell, and secrets."""

import os
from pathlib import Path
from urllib.parse import quote

import httpx
import pytest

from longshore.scheduler.service.service import Service

SECRET = "plantedZq7secret"
HOSTILE = [
    "../../../../etc/passwd",
    "..%2f..%2fetc%2fpasswd",
    "$(touch owned)",
    "`touch owned`",
    "; touch owned",
    "\x00",
]


def run(api: httpx.Client, service: Service, **spec: object) -> str:
    service.reconciler.tick()
    job = str(api.post("/v1/jobs", json={"environment": {"PATH": os.defpath}, **spec}).json()["id"])
    while api.get(f"/v1/jobs/{job}").json()["ended_s"] is None:
        service.reconciler.tick()
    return job


def test_values_of_the_environment_are_in_no_answer_and_no_log_of_ours(
    api: httpx.Client, service: Service, caplog: pytest.LogCaptureFixture
) -> None:
    spec = {"command": ["sh", "-c", "exit 3"], "environment": {"PATH": os.defpath, "TOKEN": SECRET}}
    job = run(api, service, **spec)

    refused = api.post("/v1/jobs", json={**spec, "environment": {"NOT A NAME": SECRET}})
    wrong = api.post("/v1/jobs", json={**spec, "environment": {"TOKEN": {"nested": SECRET}}})
    plan = api.post("/v1/jobs", json=spec, params={"dry_run": True})
    paths = ["", "/attempts", "/tasks", "/events", "/decisions", "/logs"]
    answers = [api.get(f"/v1/jobs/{job}{path}") for path in paths]
    answers += [api.get("/v1/jobs"), api.get("/v1/nodes"), refused, wrong, plan]
    answers += [api.get(page) for page in ("/", "/jobs", f"/jobs/{job}", "/events", "/policy", "/metrics")]

    assert api.get(f"/v1/jobs/{job}").json()["spec"]["environment"] == ["PATH", "TOKEN"]
    assert [answer.status_code for answer in (refused, wrong, plan)] == [422, 422, 200]
    assert SECRET not in "".join(f"{answer.text}{answer.headers}" for answer in answers)
    assert SECRET not in caplog.text


def test_the_folder_with_the_secrets_of_jobs_is_its_owners_alone(service: Service) -> None:
    assert service.settings.folder.stat().st_mode & 0o077 == 0


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_parameter_is_refused_or_finds_nothing(refusing_api: httpx.Client, text: str) -> None:
    names = ("state", "user", "cursor", "limit", "rank", "attempt", "offset", "follow", "after", "owner")
    job = "01m81vhm68y4wwjtayxd3pcypw"
    paths = ("/v1/jobs", f"/v1/jobs/{job}/logs", "/v1/users/me/tokens")
    answers = [refusing_api.get(path, params=dict.fromkeys(names[:size], text)) for path in paths for size in (5, 10)]
    answers += [refusing_api.get("/v1/jobs", params={name: text}) for name in names[:4]]
    answers += [
        refusing_api.get(f"/v1/{quote(text, safe='')}"),
        refusing_api.get(f"/v1/jobs/{quote(text, safe='')}/logs"),
    ]
    answers += [refusing_api.delete("/v1/users/me/tokens/x", params={"owner": text})]

    assert {answer.status_code for answer in answers} <= {200, 400, 404, 422}
    assert "root:" not in "".join(answer.text for answer in answers)


@pytest.mark.parametrize("text", HOSTILE)
def test_a_hostile_header_is_refused_or_means_nothing(refusing_api: httpx.Client, text: str) -> None:
    path = "/v1/jobs/01m81vhm68y4wwjtayxd3pcypw"
    value = text.replace("\x00", "a\tb")
    answers = [
        refusing_api.get("/v1/jobs", headers={"Authorization": value}),
        refusing_api.get("/v1/events", headers={"Last-Event-ID": value}),
        refusing_api.get(path, headers={"If-None-Match": value}),
        refusing_api.patch(path, json={"desired": "run"}, headers={"If-Match": value}),
    ]

    assert {answer.status_code for answer in answers} <= {400, 401, 404, 422}


def test_words_for_a_shell_stay_words(api: httpx.Client, service: Service, tmp_path: Path) -> None:
    words = ["$(touch owned)", "`touch owned`", "; touch owned", "a b\nc"]

    job = run(api, service, command=["printf", "<%s>", *words], folder=str(tmp_path))

    assert api.get(f"/v1/jobs/{job}/logs").text == "".join(f"<{word}>" for word in words)
    assert not (tmp_path / "owned").exists()


def test_a_log_that_the_job_made_a_link_is_not_followed(api: httpx.Client, service: Service) -> None:
    job = run(api, service, command=["echo", "mine"])
    log = service.settings.folder / "attempts" / f"ls-{job}-1" / "rank-0.log"
    log.unlink()
    log.symlink_to("/etc/passwd")

    answer = api.get(f"/v1/jobs/{job}/logs")

    assert (answer.status_code, answer.json()["code"]) == (404, "no-such-log")
    assert "root:" not in answer.text


@pytest.mark.parametrize(
    "headers",
    [
        {"Host": "evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Host": "127.0.0.1.evil.example"},
        {"Origin": "http://localhost:3000"},
        {"Origin": "http://127.0.0.1"},
        {"Origin": "http://[::1"},
        {"Host": "[::1"},
        {"Host": ""},
    ],
)
def test_no_website_asks_an_open_scheduler_through_a_browser(
    refusing_api: httpx.Client, headers: dict[str, str]
) -> None:
    answer = refusing_api.post("/v1/jobs", json={"command": ["true"]}, headers=headers)

    assert (answer.status_code, answer.json()["code"]) == (403, "wrong-host")


def test_a_token_of_another_scheduler_is_worth_what_none_is_worth_to_an_open_one(api: httpx.Client) -> None:
    strange = {"Authorization": f"Bearer ls_{'x' * 43}"}

    answers = [api.get("/v1/jobs", headers={**strange, **host}) for host in ({}, {"Host": "evil.example"})]
    assert [each.status_code for each in answers] == [200, 403]

    made = api.post("/v1/users/me/tokens", json={"name": "laptop"})
    assert made.status_code == 201, made.text
    assert api.get("/v1/jobs", headers=strange).status_code == 401


def test_no_other_origin_is_allowed_to_ask(refusing_api: httpx.Client) -> None:
    headers = {"Origin": "http://127.0.0.1:1", "Access-Control-Request-Method": "DELETE"}

    answer = refusing_api.options("/v1/jobs/x", headers=headers)

    assert not {name for name in answer.headers if name.startswith("access-control")}
