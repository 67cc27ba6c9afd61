"""Clients that send half of a request, or do not read: no other client waits for them."""

import asyncio
import contextlib
import errno
import logging
import os
import socket
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest
from fastapi import FastAPI
from starlette.types import Receive, Scope, Send

from longshore.scheduler.serve import server
from longshore.scheduler.serve.server import DEFAULT_PATIENCE, OncePerMinute, Patience, max_connections
from tests.scheduler.served import LONGSHORE, PATIENCE_S, SERVE, Served, until
from tests.support import processes

from .conftest import client_of

HEAD = b"POST /v1/jobs HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
BODY = b'{"command": ["true"]}'
HALVES = {
    "nothing": b"",
    "one byte": b"P",
    "half of a line": b"POST /v1/jo",
    "half of the headers": HEAD,
    "endless header": HEAD + b"X: " + b"x" * 8000,
    "headers alone": HEAD + b"Content-Length: 21\r\n\r\n",
    "half of a body": HEAD + b"Content-Length: 21\r\n\r\n{",
    "a body that says it is longer": HEAD + b"Content-Length: 22\r\n\r\n" + BODY,
    "half of a chunk": HEAD + b"Transfer-Encoding: chunked\r\n\r\n15\r\n{",
    "a body nobody waits for": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: 5\r\n\r\n",
    "half of a second request": b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\nGET /he",
}


@pytest.fixture
def patience() -> Patience:
    """How long a client may take; a test that must see the end of that has less of it."""
    return DEFAULT_PATIENCE


def connected(port: int, sent: bytes) -> socket.socket:
    it = socket.create_connection(("127.0.0.1", port))
    it.sendall(sent)
    return it


@pytest.fixture
def crowded(app: FastAPI, patience: Patience) -> Iterator[httpx.Client]:
    """A server with room for 16 connections, of which those of one address may be 8 that ask."""
    with client_of(app, files=32, patience=patience) as client:
        yield client


def port_of(client: httpx.Client) -> int:
    assert client.base_url.port is not None
    return client.base_url.port


def test_no_part_of_an_answer_waits_for_the_client_to_confirm_another(
    crowded: httpx.Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    take, found = server._Connections.take, list[int]()

    def noted(them: server._Connections, connection: server._BoundedConnection) -> bool:
        its = connection.transport.get_extra_info("socket")
        found.append(its.getsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY))
        return take(them, connection)

    monkeypatch.setattr(server._Connections, "take", noted)
    with httpx.Client(base_url=crowded.base_url, timeout=PATIENCE_S, trust_env=False) as client:
        assert client.get("/v1/nodes").status_code == 200

    assert found == [1]


@pytest.mark.few(3)
@pytest.mark.parametrize("half", HALVES)
def test_half_sent_requests_delay_no_other_client(crowded: httpx.Client, half: str) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(40):
            with contextlib.suppress(OSError):  # it may be closed already
                held.enter_context(connected(port_of(crowded), HALVES[half]))

        for _ in range(3):
            with httpx.Client(base_url=crowded.base_url, timeout=PATIENCE_S, trust_env=False) as client:
                assert client.get("/v1/nodes").status_code == 200


@pytest.mark.few(3)
@pytest.mark.parametrize("patience", [Patience(headers_s=0.1, body_s=0.1)])
@pytest.mark.parametrize("half", HALVES)
def test_half_of_a_request_is_closed_at_its_deadline_and_does_nothing(crowded: httpx.Client, half: str) -> None:
    with connected(port_of(crowded), HALVES[half]) as it:
        it.settimeout(60.0)
        with contextlib.suppress(ConnectionResetError):
            while it.recv(65536):
                pass  # the answers to what was whole

    assert crowded.get("/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize("patience", [Patience(headers_s=0.5)])
def test_bytes_that_drip_do_not_put_the_deadline_off(crowded: httpx.Client) -> None:
    it = connected(port_of(crowded), b"GET /")

    def is_closed() -> bool:
        try:
            it.sendall(b"x")
        except OSError:
            return True
        return False

    until(is_closed)
    it.close()


@pytest.mark.parametrize("patience", [Patience(unread_s=0.1)])
def test_a_client_that_does_not_read_is_given_up(app: FastAPI, crowded: httpx.Client) -> None:
    gone = threading.Event()

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"x" * 50_000_000, "more_body": True})
        while (await receive())["type"] != "http.disconnect":
            pass
        gone.set()

    app.mount("/large", answer)
    with connected(port_of(crowded), b"GET /large/ HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n"):
        assert gone.wait(PATIENCE_S)


def test_requests_that_are_being_answered_are_not_closed_for_others(crowded: httpx.Client) -> None:
    with contextlib.ExitStack() as held:
        followers = [held.enter_context(crowded.stream("GET", "/v1/events")) for _ in range(4)]
        lines = [each.iter_lines() for each in followers]
        assert {next(each) for each in lines} == {": it goes on"}
        for _ in range(40):
            held.enter_context(connected(port_of(crowded), b"P"))

        with httpx.Client(base_url=crowded.base_url, timeout=PATIENCE_S, trust_env=False) as client:
            job = client.post("/v1/jobs", json={"command": ["true"]}).json()["id"]

        for each in lines:
            assert job in next(line for line in each if job in line)


def test_where_all_connections_are_being_answered_the_next_is_refused_with_503(crowded: httpx.Client) -> None:
    with contextlib.ExitStack() as held:
        followers = [held.enter_context(crowded.stream("GET", "/v1/events")) for _ in range(16)]
        assert {each.status_code for each in followers} == {200}

        with httpx.Client(base_url=crowded.base_url, timeout=PATIENCE_S, trust_env=False) as client:
            answer = client.get("/healthz")

    assert (answer.status_code, answer.headers["Retry-After"]) == (503, "1")


@pytest.mark.parametrize(
    ("files", "connections"),
    [(20, 16), (256, 128), (1024, 512), (10**6, 1000)],
)
def test_half_of_the_files_are_left_to_others(files: int, connections: int) -> None:
    assert max_connections(files) == connections


@pytest.mark.full
def test_as_many_files_may_be_opened_as_are_allowed() -> None:
    code = (
        "import resource\n"
        "resource.setrlimit(resource.RLIMIT_NOFILE, (100, 300))\n"
        "from longshore.scheduler.serve.server import raise_file_limit\n"
        "print(raise_file_limit(), *resource.getrlimit(resource.RLIMIT_NOFILE))"
    )
    done = processes.run([sys.executable, "-c", code], capture_output=True, check=True)

    assert done.stdout == "300 300 300\n"


def test_a_line_that_anybody_can_cause_is_written_once_a_minute(caplog: pytest.LogCaptureFixture) -> None:
    now_s = [0.0]
    logger, seldom = logging.getLogger("seldom"), OncePerMinute(lambda: now_s[0])
    logger.addFilter(seldom)
    for now_s[0] in (0.0, 1.0, 59.0, 60.0):
        logger.warning("no %s", "room")
        logger.info("heard")
    logger.removeFilter(seldom)

    received = [record.getMessage() for record in caplog.records if record.levelno == logging.WARNING]
    assert received == ["no room", "no room (2 more times since the last such line)"]


def test_files_that_run_out_are_one_line_and_are_waited_for(caplog: pytest.LogCaptureFixture) -> None:
    loop = asyncio.new_event_loop()
    error = OSError(errno.EMFILE, os.strerror(errno.EMFILE))
    logger, seldom = logging.getLogger(server.__name__), OncePerMinute()
    logger.addFilter(seldom)
    for _ in range(1000):
        server._log_refused_accepts(loop, {"message": server.NO_FILES, "exception": error})
    logger.removeFilter(seldom)
    loop.close()

    [record] = caplog.records
    assert record.getMessage() == "no connection can be taken: [Errno 24] Too many open files"


@pytest.mark.full
def test_three_hundred_half_sent_requests_do_not_stop_a_scheduler_with_few_files(tmp_path: Path) -> None:
    served = Served(tmp_path)
    line = ["sh", "-c", 'ulimit -n 256 && exec "$@"', "sh", *LONGSHORE, *SERVE, "--port", str(served.port)]
    with (tmp_path / "serve.log").open("wb") as log:
        process = served.process = processes.start(
            line, cwd=tmp_path, env={**os.environ, **served.environment}, stdout=log, stderr=log,
        )  # fmt: skip
    try:
        until(lambda: process.poll() is not None or served.answers())
        with contextlib.ExitStack() as held:
            for _ in range(300):
                held.enter_context(connected(served.port, HALVES["half of a body"]))
            assert len(served.ask("/v1/nodes")) == 4

            assert served.ended(served.add("true")) == "succeeded"
        assert len((tmp_path / "serve.log").read_bytes().splitlines()) < 10
    finally:
        served.end()
