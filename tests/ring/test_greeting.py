"""A process that listens to a ring's connection, takes its port or replays messages gets no access."""

import contextlib
import os
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from longshore.ring import wire
from longshore.ring.ring_client import request_ring_report
from longshore.ring.wire import (
    answer_challenge,
    check_welcome,
    greet_blocking,
    make_welcome,
    new_challenge,
    proves_secret,
)
from tests.support import processes
from tests.support.processes import PYTHON_PATH

from .coordinator_process import Peer, Process, started
from .trial import LIMIT_S

SECRET = "0123456789abcdef"
texts = st.text(max_size=20)
hellos = st.builds(wire.Hello, role=texts, member=st.integers(-1, 9), token=texts, step=st.integers(0, 9), node=texts)


# The proofs themselves


@given(hellos, texts)
def test_both_ends_prove_the_secret_to_each_other(hello: wire.Hello, nonce: str) -> None:
    asked = wire.Challenge(nonce)
    proven = wire.decode(wire.encode(answer_challenge(SECRET, asked, hello)))
    assert isinstance(proven, wire.Hello)
    assert replace(proven, nonce="", proof="") == hello
    assert proves_secret(SECRET, asked, proven)
    check_welcome(SECRET, asked, proven, make_welcome(SECRET, asked, proven))


@given(hellos, hellos, texts, texts, texts)
def test_a_proof_is_of_one_challenge_one_secret_and_one_hello(
    hello: wire.Hello, other: wire.Hello, nonce: str, later: str, secret: str
) -> None:
    asked, proven = wire.Challenge(nonce), answer_challenge(SECRET, wire.Challenge(nonce), hello)
    assume(nonce != later and hello != other and secret != SECRET)
    assert not proves_secret(SECRET, wire.Challenge(later), proven)
    assert not proves_secret(secret, asked, proven)
    assert not proves_secret(SECRET, asked, replace(other, nonce=proven.nonce, proof=proven.proof))
    assert not proves_secret(SECRET, asked, replace(proven, nonce=later))


@given(hellos, st.text(max_size=80), st.sampled_from(["proof", "nonce", "secret", "hello's"]))
def test_a_welcome_is_of_one_hello_and_one_secret(hello: wire.Hello, text: str, what: str) -> None:
    asked = new_challenge()
    proven, right = (
        answer_challenge(SECRET, asked, hello),
        make_welcome(SECRET, asked, answer_challenge(SECRET, asked, hello)),
    )
    wrong = {
        "proof": wire.Welcome(text), "nonce": make_welcome(SECRET, new_challenge(), proven),
        "secret": make_welcome(text, asked, proven), "hello's": wire.Welcome(proven.proof),
    }[what]  # fmt: skip
    for it in (wrong, right, wire.Evicted("x"), asked):  # The right one is that of another hello: it has another nonce.
        with pytest.raises(wire.WireError):
            check_welcome(SECRET, asked, proven, it)


# Against a coordinator


@contextlib.contextmanager
def tapped(port: int) -> Iterator[tuple[int, list[bytes], list[bytes]]]:
    """A port that forwards to another one, and the bytes in each direction: of the client, and of the server."""
    asked, answered = list[bytes](), list[bytes]()

    def carry(one: socket.socket, other: socket.socket, sent: list[bytes]) -> None:
        with contextlib.suppress(OSError):
            while data := one.recv(1 << 16):
                sent.append(data)
                other.sendall(data)
        with contextlib.suppress(OSError):
            other.shutdown(socket.SHUT_WR)

    with contextlib.ExitStack() as opened, socket.create_server(("127.0.0.1", 0)) as listening:

        def serve() -> None:
            with contextlib.suppress(OSError):
                while True:
                    near = opened.enter_context(listening.accept()[0])
                    far = opened.enter_context(socket.create_connection(("127.0.0.1", port)))
                    ways = [(near, far, asked), (far, near, answered)]
                    serving.extend(threading.Thread(target=carry, args=way) for way in ways)
                    for thread in serving[-2:]:
                        thread.start()

        serving = [threading.Thread(target=serve)]
        serving[0].start()
        try:
            yield listening.getsockname()[1], asked, answered
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            serving[0].join()
            for thread in serving[1:]:
                thread.join()


def recorded(process: Process, role: str) -> tuple[bytes, bytes]:
    """Return the bytes of a whole greeting and what follows, of both sides."""
    with tapped(process.port) as (port, asked, answered):
        with socket.create_connection(("127.0.0.1", port)) as connection:
            until_s = time.monotonic() + LIMIT_S
            greet_blocking(connection, process.settings.secret, wire.Hello(role, 7, "t7"), until_s)
            connection.sendall(wire.encode(wire.AwaitsLayout(7, 1, 0)))
            connection.shutdown(socket.SHUT_WR)
            with contextlib.suppress(ConnectionError):
                while connection.recv(1 << 16):
                    pass
        return b"".join(asked), b"".join(answered)


@pytest.mark.parametrize("role", ["member", "launcher", "scheduler", "status"])
def test_a_listener_learns_no_secret_and_recorded_messages_are_of_no_use(role: str, ring: Process) -> None:
    asked, answered = recorded(ring, role)
    assert ring.settings.secret.encode() not in asked + answered
    assert asked.count(b"proof") == 1
    with socket.create_connection(("127.0.0.1", ring.port), LIMIT_S) as again:
        again.sendall(asked)
        received = b"".join(iter(lambda: again.recv(1 << 16), b""))
    assert [type(wire.decode(line)) for line in received.splitlines()] == [wire.Challenge]


Hostile = Callable[[socket.socket, wire.Challenge, Process], object]


def sends(of: Callable[[wire.Challenge, Process], bytes]) -> Hostile:
    return lambda connection, asked, process: connection.sendall(of(asked, process))


def right(asked: wire.Challenge, process: Process, role: str = "status") -> wire.Hello:
    return answer_challenge(process.settings.secret, asked, wire.Hello(role, 2, "t2"))


def with_proof(hello: wire.Hello, change: Callable[[str], str]) -> wire.Hello:
    return replace(hello, proof=change(hello.proof))


def drips(connection: socket.socket, asked: wire.Challenge, process: Process) -> None:
    """Send the right hello, but too slowly."""
    line = wire.encode(right(asked, process))
    for at in range(len(line) - 1):
        connection.sendall(line[at : at + 1])
        time.sleep(0.1)


HOSTILE: dict[str, Hostile] = {
    "wrong": sends(lambda asked, process: wire.encode(answer_challenge("guessed", asked, wire.Hello("status")))),
    "empty": sends(lambda asked, process: wire.encode(wire.Hello("status"))),
    "the empty secret": sends(lambda asked, process: wire.encode(answer_challenge("", asked, wire.Hello("status")))),
    "long": sends(lambda asked, process: wire.encode(replace(right(asked, process), proof="0" * 1_000_000))),
    "one character more": sends(
        lambda asked, process: wire.encode(with_proof(right(asked, process), lambda it: it + "0"))
    ),
    "one character less": sends(
        lambda asked, process: wire.encode(with_proof(right(asked, process), lambda it: it[:-1]))
    ),
    "of other signs": sends(
        lambda asked, process: wire.encode(with_proof(right(asked, process), lambda it: "\u0664" * 64))
    ),
    "half a character": sends(
        lambda asked, process: wire.encode(right(asked, process)).replace(b'"proof": "', b'"proof": "\\ud800')
    ),
    "replayed": sends(lambda asked, process: recorded(process, "status")[0]),
    "of another nonce": sends(lambda asked, process: wire.encode(right(new_challenge(), process))),
    "of another role": sends(lambda asked, process: wire.encode(replace(right(asked, process), role="launcher"))),
    "of another member": sends(
        lambda asked, process: wire.encode(replace(right(asked, process, "member"), member=1, token="t1"))
    ),
    "the challenge sent back": sends(lambda asked, process: wire.encode(asked)),
    "a welcome": sends(
        lambda asked, process: wire.encode(make_welcome(process.settings.secret, asked, right(asked, process)))
    ),
    "truncated": sends(lambda asked, process: wire.encode(right(asked, process))[:-20]),
    "the secret itself": sends(
        lambda asked, process: b'{"kind": "Hello", "role": "status", "secret": "%s"}\n'
        % process.settings.secret.encode()
    ),
    "nothing": lambda connection, asked, process: None,
    "slow": drips,
}  # fmt: skip


@pytest.mark.few(4)
@pytest.mark.parametrize("kind", HOSTILE)
def test_a_process_that_does_not_prove_the_secret_receives_nothing_and_the_ring_continues(
    kind: str, ring: Process
) -> None:
    with socket.create_connection(("127.0.0.1", ring.port), LIMIT_S) as connection:
        file = connection.makefile("rb")
        asked = wire.decode(file.readline())
        assert isinstance(asked, wire.Challenge)
        with contextlib.suppress(OSError):  # The coordinator may end it while more is sent.
            HOSTILE[kind](connection, asked, ring)
            if kind == "truncated":
                connection.shutdown(socket.SHUT_WR)
        with contextlib.suppress(ConnectionError):
            assert file.read() == b""
    report = request_ring_report(ring.folder)
    assert report is not None
    assert (report.gone, report.generation) == ({}, 1)


def test_each_connection_has_a_challenge_of_its_own(tmp_path: Path) -> None:
    with started(tmp_path) as process:
        found = set()
        for _ in range(50):
            with socket.create_connection(("127.0.0.1", process.port), LIMIT_S) as connection:
                found.add(connection.makefile("rb").readline())
        assert len(found) == 50


def test_a_hello_counts_once_on_a_connection(ring: Process) -> None:
    """Repeated after the greeting it is only an unexpected message."""
    scheduler = Peer(ring, "scheduler")
    scheduler.send(answer_challenge(ring.settings.secret, new_challenge(), wire.Hello("launcher")))
    scheduler.send(wire.Retire(2, "made up"))
    launcher = Peer(ring, "launcher")
    assert launcher.receive(wire.MemberGone) == wire.MemberGone(2, "made up")


# Against a member: another process listens at the port while the coordinator is down

MEMBER = """
import sys, time
from longshore.ring.member_client import MemberClient
client = MemberClient(sys.argv[1], sys.argv[2], 3, "n", "", 0)
client.start()
client.wait_for_layout()
"""


def line_of(connection: socket.socket) -> bytes:
    return connection.makefile("rb").readline()


def false_welcome(connection: socket.socket, of: Callable[[wire.Challenge, wire.Hello], wire.Message]) -> None:
    asked = new_challenge()
    connection.sendall(wire.encode(asked))
    hello = wire.decode(line_of(connection))
    assert isinstance(hello, wire.Hello)
    connection.sendall(wire.encode(of(asked, hello)) + wire.encode(wire.Evicted("false")))


GONE = wire.encode(wire.Evicted("false"))
THIEVES: dict[str, Callable[[socket.socket], object]] = {
    "no challenge": lambda it: it.sendall(GONE),
    "no welcome": lambda it: it.sendall(wire.encode(new_challenge()) + GONE),
    "two challenges": lambda it: it.sendall(2 * wire.encode(new_challenge()) + GONE),
    "no proof": lambda it: false_welcome(it, lambda asked, hello: wire.Welcome("")),
    "the member's own proof": lambda it: false_welcome(it, lambda asked, hello: wire.Welcome(hello.proof)),
    "a guess": lambda it: false_welcome(it, lambda asked, hello: make_welcome("guessed", asked, hello)),
    "a welcome to another": lambda it: false_welcome(
        it, lambda asked, hello: make_welcome(SECRET, asked, replace(hello, nonce="0" * 32))
    ),
    "no message": lambda it: it.sendall(b"\n"),
    "a flood": lambda it: it.sendall(b"x" * (3 << 20)),
    "its end": lambda it: None,
    "silence": lambda it: it.recv(1 << 16),
}  # fmt: skip


@pytest.mark.few(1)
@pytest.mark.parametrize("kind", THIEVES)
def test_a_member_obeys_only_a_coordinator_that_proves_the_secret(kind: str) -> None:
    received = b""
    with socket.create_server(("127.0.0.1", 0)) as listening:
        address = f"127.0.0.1:{listening.getsockname()[1]}"
        environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
        member = processes.start(
            [sys.executable, "-c", MEMBER, address, SECRET], env=environment, stderr=processes.PIPE, text=True
        )
        listening.settimeout(LIMIT_S)
        with listening.accept()[0] as thief, contextlib.suppress(OSError):
            thief.settimeout(LIMIT_S)
            THIEVES[kind](thief)
            if kind != "its end":
                received = b"".join(iter(lambda: thief.recv(1 << 16), b""))  # until the member has disconnected
        with listening.accept()[0] as connection:
            asked = new_challenge()
            connection.sendall(wire.encode(asked))
            file = connection.makefile("rb")
            hello = wire.decode(file.readline())
            assert isinstance(hello, wire.Hello)
            assert proves_secret(SECRET, asked, hello)
            connection.sendall(wire.encode(make_welcome(SECRET, asked, hello)) + wire.encode(wire.Evicted("true")))
            assert member.wait(LIMIT_S) == wire.GONE_STATUS
    assert SECRET.encode() not in received
    assert member.stderr is not None
    with member.stderr as log:
        assert "this process ends: true" in log.read()
