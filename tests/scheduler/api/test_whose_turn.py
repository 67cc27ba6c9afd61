"""Whose turn it is in the queue, as users read it: by numbers, as the names of others are not theirs to see."""

from typing import Any

import httpx

from longshore.scheduler.access.tokens import Role, add_token, new_token
from longshore.scheduler.service.service import Service

USERS = ("ada", "bob", "eve")
JOB = {"command": ["true"], "gpus": 16}


def test_a_job_shows_how_many_users_have_their_turn_first_without_their_names(
    api: httpx.Client, service: Service
) -> None:
    headers = {}
    for user in USERS:
        made = new_token("laptop", user, Role.USER, service.now_s(), None)
        service.store.write(lambda tx, made=made: add_token(tx, made.row))  # type: ignore[misc]
        headers[user] = {"Authorization": f"Bearer {made.secret}"}

    def submit(user: str, path: str = "/v1/jobs") -> Any:
        answer = api.post(path, json=JOB, headers=headers[user])
        assert answer.status_code < 300, answer.text
        return answer.json()

    jobs = [(user, submit(user)["id"]) for user in ("ada", "ada", "bob", "eve")]
    found = [api.get(f"/v1/jobs/{job}", headers=headers[user]).json()["waiting"] for user, job in jobs]
    ahead = [submit(user, "/v1/jobs?dry_run=true")["jobs_ahead"] for user in ("ada", "bob")]

    assert [(each["position"], each["turn"]) for each in found] == [(1, 0), (4, 0), (2, 1), (3, 2)]
    assert not any(user in str(found) for user in USERS)
    assert ahead == [4, 4]
