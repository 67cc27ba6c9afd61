"""A job may put anything into its ring's folder, and answer in its coordinator's place: no caller waits for it."""

import contextlib
import json
import os
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longshore.cluster.files.errors import BackendError
from longshore.ring.folder import RING, make_ring_folder, state_file
from longshore.ring.ring_client import RingClient, request_ring_report, retire_members
from longshore.ring.wire import Hello, RingReport, Welcome, decode, encode, make_welcome, new_challenge, proves_secret
from longshore.scheduler.backends.local.backend import LocalBackend

REPORT = RingReport("running", 1, 2, [0, 1], [], 5, {}, [])


def pipe(path: Path) -> None:
    os.mkfifo(path)


def endless(path: Path) -> None:
    path.symlink_to("/dev/zero")


def holding(content: str) -> Callable[[Path], None]:
    def write(path: Path) -> None:
        path.write_text(content)

    return write


HOSTILE: dict[str, Callable[[Path], None]] = {
    "a pipe": pipe, "an endless file": endless, "a folder": Path.mkdir, "nothing": lambda _: None,
    "no JSON": holding("{"), "a list": holding("[]"), "null": holding("null"), "no field": holding("{}"),
    "deep": holding("[" * 60_000), "of other types": holding('{"secret": [], "port": {}}'),
    "no port": holding('{"port": 1e400, "secret": ""}'), "a port too high": holding('{"port": 70000, "secret": ""}'),
    "a negative port": holding('{"port": -1, "secret": ""}'),
}  # fmt: skip


def in_time(call: Callable[[], object]) -> object:
    """Return what a call returns or raises; it would block for ever if it waited for a job."""
    found: list[object] = []

    def run() -> None:
        try:
            found.append(call())
        except Exception as error:
            found.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    thread.join(60.0)
    assert found, "it waits for ever"
    return found[0]


@pytest.fixture
def listening() -> Iterator[socket.socket]:
    with socket.create_server(("127.0.0.1", 0)) as it:
        yield it


STATE = state_file(1)


def ring_at(folder: Path, listening: socket.socket) -> Path:
    ring = folder / "ring"
    make_ring_folder(ring, 2)
    state = {"host": "127.0.0.1", "port": listening.getsockname()[1], "epoch": 0}
    (ring / STATE).write_text(json.dumps(state))
    return ring


@pytest.mark.few(1)
@pytest.mark.parametrize("name", [RING, STATE])
@pytest.mark.parametrize("kind", HOSTILE)
def test_what_is_in_the_place_of_a_file_is_never_waited_for(
    tmp_path: Path, listening: socket.socket, name: str, kind: str
) -> None:
    ring = ring_at(tmp_path, listening)
    (ring / name).unlink()
    HOSTILE[kind](ring / name)
    assert in_time(lambda: request_ring_report(ring)) is None
    assert isinstance(in_time(lambda: retire_members(ring, {0: "a test"})), TimeoutError)
    scheduler = RingClient(ring, lambda: None)
    assert in_time(scheduler.close) is None


def answering(listening: socket.socket, answer: Callable[[socket.socket], object]) -> None:
    """Answer each connection, in threads."""

    def to(connection: socket.socket) -> None:
        with connection, contextlib.suppress(OSError):
            answer(connection)
            while connection.recv(1 << 16):  # until the other end has gone
                pass

    def serve() -> None:
        with contextlib.suppress(OSError):  # once it is closed
            while True:
                threading.Thread(target=to, args=(listening.accept()[0],), daemon=True).start()

    threading.Thread(target=serve, daemon=True).start()


def welcomes(connection: socket.socket, secret: str) -> None:
    asked = new_challenge()
    connection.sendall(encode(asked))
    hello = decode(connection.makefile("rb").readline())
    assert isinstance(hello, Hello)
    assert proves_secret(secret, asked, hello)
    connection.sendall(encode(make_welcome(secret, asked, hello)) + encode(REPORT))


def drips(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"x")
        time.sleep(0.1)


def floods(connection: socket.socket) -> None:
    while True:
        connection.sendall(b"x" * 65536)


def welcomes_anybody(connection: socket.socket) -> None:
    asked = new_challenge()
    connection.sendall(encode(asked))
    hello = decode(connection.makefile("rb").readline())
    assert isinstance(hello, Hello)
    connection.sendall(encode(make_welcome("guessed", asked, hello)) + encode(REPORT))


ANSWERS: dict[str, Callable[[socket.socket], object]] = {
    "a byte now and then": drips, "a line without an end": floods, "nothing": lambda _: None,
    "its end": lambda it: it.shutdown(socket.SHUT_WR), "no message": lambda it: it.sendall(b"[1]\n"),
    "another message": lambda it: it.sendall(b'{"kind": "LeaseRenewal", "number": "x"}\n'),
    "a report, and no challenge": lambda it: it.sendall(encode(REPORT)),
    "no proof": lambda it: it.sendall(encode(new_challenge()) + encode(Welcome("")) + encode(REPORT)),
    "the proof of another secret": welcomes_anybody,
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", ANSWERS)
def test_no_process_that_answers_is_waited_for_long(tmp_path: Path, listening: socket.socket, kind: str) -> None:
    answering(listening, ANSWERS[kind])
    ring = ring_at(tmp_path, listening)
    assert in_time(lambda: request_ring_report(ring)) is None
    assert isinstance(in_time(lambda: retire_members(ring, {0: "a test"})), TimeoutError)
    scheduler = RingClient(ring, lambda: None)
    assert in_time(scheduler.close) is None


@pytest.mark.parametrize("host", ["127.0.0.2", "192.0.2.1", "localhost", "", 1, ["127.0.0.1"], None])
def test_no_machine_is_contacted_that_has_none_of_the_nodes(
    tmp_path: Path, listening: socket.socket, monkeypatch: pytest.MonkeyPatch, host: object
) -> None:
    ring = ring_at(tmp_path, listening)
    secret = json.loads((ring / RING).read_text())["secret"]
    answering(listening, lambda it: welcomes(it, secret))
    assert request_ring_report(ring) == REPORT
    state = json.loads((ring / STATE).read_text())
    (ring / STATE).write_text(json.dumps({**state, "host": host}))
    tried: list[object] = []
    monkeypatch.setattr(socket, "create_connection", lambda *given: tried.append(given))
    assert request_ring_report(ring) is None
    assert tried == []


def test_a_link_in_the_place_of_an_attempts_folder_leads_to_no_other_ring(tmp_path: Path) -> None:
    backend = LocalBackend(tmp_path, {"a": 2})
    attempts = tmp_path / "attempts"
    victim, thief = attempts / f"ls-{'0' * 26}-1", attempts / f"ls-{'1' * 26}-1"
    make_ring_folder(victim / "ring", 2)
    thief.symlink_to(victim)
    for call in (
        lambda: backend.ring_report(thief.name), lambda: backend.ring_places(thief.name),
        lambda: backend.retire_members(thief.name, [("a", 0)], "a test"),
        lambda: backend.connect_to_ring(thief.name, lambda: None), lambda: backend.add_to_ring(thief.name, 2, "a", 1),
    ):  # fmt: skip
        with pytest.raises(BackendError):
            call()
