"""Made-up requests to a real scheduler, while other jobs run on it that must not be disturbed."""

import http.client
import json
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from tempfile import TemporaryDirectory
from typing import Any

from .harness import Row, progress
from .hostile_inputs import NUMBERS, TEXTS, as_json, mutated_bytes, mutated_value
from .served import Served

MOST_S = 2.0
GOOD_EVERY = 1000  # requests, between two jobs that must run well
GOOD_S = 120.0  # in which such a job is to have ended
REPORT: dict[str, Any] = {"gpus": [{"index": 0, "healthy": True, "utilisation": 0.5, "free_bytes": 1}]}
JOB: dict[str, Any] = {
    "name": "made-up", "gpus": 1, "command": ["true"], "estimate_s": 60.0, "grace_s": 1.0, "priority": 0,
    "environment": {"A": "1"}, "retry": {"user": 1}, "compute_s": 1.0, "limit_s": 5.0,
}  # fmt: skip
BODIES: tuple[tuple[str, str, dict[str, Any]], ...] = (
    ("POST", "/v1/jobs", JOB),
    ("POST", "/v1/jobs", JOB),
    ("POST", "/v1/jobs?dry_run=true", JOB),
    ("PATCH", "/v1/jobs/{job}", {"desired": "hold"}),
    ("PATCH", "/v1/jobs/{job}", {"priority": 3}),
    ("POST", "/v1/jobs/{job}/retry", {}),
    ("POST", "/v1/jobs/{job}/attempts/1/checkpoints", {"step": 1, "path": "/x", "digest": "0" * 64}),
    ("POST", "/v1/users/me/tokens", {"name": "x", "role": "read-only", "days": 1.0}),
    ("PUT", "/v1/nodes/rack0-node0/report", REPORT),
    ("PATCH", "/v1/nodes/nowhere", {"out_of_service": "a reason"}),
)
READS = (
    "/v1/jobs", "/v1/jobs?limit=5", "/v1/jobs?state=queued", "/v1/jobs/{job}", "/v1/jobs/{job}/tasks",
    "/v1/jobs/{job}/events?after=0", "/v1/jobs/{job}/decisions", "/v1/jobs/{job}/checkpoints", "/v1/nodes",
    "/v1/users/me/tokens", "/metrics", "/", "/jobs", "/jobs/{job}", "/policy", "/events", "/openapi.json",
    "/v1/jobs/{job}/logs?rank=0",
)  # fmt: skip


@dataclass
class Asked:
    """What came of requests."""

    sent: int = 0
    slow: int = 0
    unanswered: int = 0
    disturbed: int = 0  # jobs that must run well and did not
    good: int = 0
    tracebacks: int = 0
    statuses: Counter[int] = field(default_factory=Counter)

    def rows(self) -> Iterator[Row]:
        """Yield what was counted."""
        faults = sum(count for status, count in self.statuses.items() if status >= 500)
        yield Row("requests: sent", self.sent, "requests")
        yield Row("requests: accepted", sum(self.statuses[it] for it in range(200, 300)), "requests", least=1)
        yield Row("requests: answered with 5xx", faults, "requests", most=0)
        yield Row("requests: not answered", self.unanswered, "requests", most=0)
        yield Row(f"requests: over {MOST_S:g} s", self.slow, "requests", most=0)
        yield Row("requests: tracebacks in the log", self.tracebacks, "lines", most=0)
        yield Row("other jobs that were to run well", self.good, "jobs", least=1)
        yield Row("other jobs that did not", self.disturbed, "jobs", most=0)


class Client:
    """One connection to the scheduler, opened again when it breaks."""

    def __init__(self, port: int, asked: Asked) -> None:
        self._asked, self._headers = asked, dict[str, str]()
        self._connection = http.client.HTTPConnection("127.0.0.1", port, timeout=20.0)

    def send(self, method: str, path: str, body: bytes, headers: dict[str, str]) -> tuple[int, bytes]:
        """Send a request as it is and return status and body; status 0 if there is no answer."""
        began = time.monotonic()
        try:
            self._connection.putrequest(method, path, skip_accept_encoding=True)
            for name, value in {**self._headers, **headers}.items():
                self._connection.putheader(name, value)
            self._connection.putheader("Content-Length", str(len(body)))
            self._connection.endheaders(body)
            answer = self._connection.getresponse()
            status, content = answer.status, answer.read()
        except (OSError, http.client.HTTPException):
            self._connection.close()
            status, content = 0, b""
        if time.monotonic() - began > MOST_S:
            self._asked.slow += 1
            progress(f"{time.monotonic() - began:.1f} s for {method} {path[:200]}")
        return status, content

    def log_in(self) -> None:
        """Have a token from now on: an open scheduler requires one once there is any, as requests here make them."""
        status, content = self.send("POST", "/v1/users/me/tokens", as_json({"name": "own", "role": "operator"}), _JSON)
        assert status == http.HTTPStatus.CREATED, content
        self._headers["Authorization"] = f"Bearer {json.loads(content)['token']}"


def ask(count: int, seed: int) -> Asked:
    """Send a number of requests, and check the other jobs."""
    asked = Asked()
    with TemporaryDirectory() as folder:
        served = Served(Path(folder))
        try:
            served.wait_until_ready()
            client = Client(served.port, asked)
            client.log_in()
            _begin(client)
            for number in range(count):
                _one(client, asked, Random(f"requests {seed} {number}"), number)
                if number % GOOD_EVERY == 0:
                    _look_after(client, asked)
            _look_after(client, asked)
            _end(client)
        finally:
            served.end()
        log = (Path(folder) / "serve.log").read_text(errors="replace")
        asked.tracebacks = log.count("Traceback (most recent call last)")
        if asked.tracebacks:
            progress(log[log.index("Traceback (most recent") :][:3000])
    return asked


LASTING: list[str] = []  # the job that runs all the time


def _begin(client: Client) -> None:
    spec = {"name": "lasting", "command": ["sleep", "100000"], "priority": 1000}
    status, content = client.send("POST", "/v1/jobs", as_json(spec), _JSON)
    assert status == http.HTTPStatus.CREATED, content
    LASTING[:] = [json.loads(content)["id"]]


def _end(client: Client) -> None:
    """Cancel the job that runs all the time, and what was made of requests and still runs: all outlive a scheduler."""
    until = time.monotonic() + GOOD_S
    while time.monotonic() < until:
        left = [job["id"] for job in json.loads(client.send("GET", "/v1/queue", b"", {})[1])["jobs"]]
        if not left:
            break
        for job in left:
            client.send("PATCH", f"/v1/jobs/{job}", as_json({"desired": "cancel"}), {**_JSON, "If-Match": "*"})
        time.sleep(0.1)
    else:
        progress(f"{len(left)} jobs have not ended: {', '.join(left)}")
    if json.loads(client.send("GET", f"/v1/jobs/{LASTING[0]}", b"", {})[1]).get("state") != "cancelled":
        raise AssertionError("the job that ran all the time cannot be cancelled")


_JSON = {"Content-Type": "application/json"}


def _one(client: Client, asked: Asked, rng: Random, number: int) -> None:
    """Send one made-up request; a job that comes of it is mostly cancelled at once."""
    if rng.random() < 0.8:
        method, path, body = rng.choice(BODIES)
        data = as_json(mutated_value(rng, body)) if rng.random() < 0.9 else mutated_bytes(rng, as_json(body))
    else:
        method, path, data = "GET", rng.choice(READS), b""
    job = rng.choice(("none", "01" * 13, "../x", "%00", "x" * 300))
    path = path.replace("{job}", job)
    if rng.random() < 0.1:
        path = _strange_path(rng, path)
    headers = dict(_JSON) if data else {}
    if rng.random() < 0.1:
        headers[rng.choice(("If-Match", "Idempotency-Key", "Accept", "Content-Type", "Origin", "Cookie"))] = _header(
            rng
        )
    status, content = client.send(method, path, data[: 512 * 1024], headers)
    asked.sent += 1
    asked.statuses[status] += 1
    if status == 0 or status >= http.HTTPStatus.INTERNAL_SERVER_ERROR:
        asked.unanswered += status == 0
        progress(f"request {number}: status {status} for {method} {path[:200]} {data[:300]!r} {content[:300]!r}")
    if status == http.HTTPStatus.CREATED and path == "/v1/jobs" and rng.random() < 0.95:
        made = json.loads(content)["id"]
        client.send("PATCH", f"/v1/jobs/{made}", as_json({"desired": "cancel"}), _JSON)


def _strange_path(rng: Random, path: str) -> str:
    text = (
        f"{path}{rng.choice(('?', '&', '/', '//', '%', '%2f', ';'))}{rng.choice((*TEXTS, *map(str, NUMBERS)))[:2000]}"
    )
    return "".join(letter if "!" <= letter <= "~" else f"%{ord(letter) % 256:02x}" for letter in text)


def _header(rng: Random) -> str:
    text = str(rng.choice((*TEXTS, *NUMBERS, '"1"', "*", 'W/"1"')))[:3000]
    return "".join(letter for letter in text if " " <= letter <= "~")


def _look_after(client: Client, asked: Asked) -> None:
    """Let a job run to its end, and see that the lasting one still runs as it began."""
    asked.good += 1
    spec = {"name": "good", "command": ["true"], "priority": 1000}
    status, content = client.send("POST", "/v1/jobs", as_json(spec), _JSON)
    job, until = json.loads(content).get("id"), time.monotonic() + GOOD_S
    state = ""
    while status == http.HTTPStatus.CREATED and time.monotonic() < until and state not in ("succeeded", "failed"):
        time.sleep(0.1)
        state = json.loads(client.send("GET", f"/v1/jobs/{job}", b"", {})[1]).get("state", "")
    lasting = json.loads(client.send("GET", f"/v1/jobs/{LASTING[0]}", b"", {})[1])
    attempts = len(lasting.get("attempts", ()))
    if state != "succeeded" or lasting.get("state") not in ("running", "starting", "queued") or attempts > 1:
        asked.disturbed += 1
        progress(f"a good job is {state or status}, the lasting one {lasting.get('state')} in attempt {attempts}")
