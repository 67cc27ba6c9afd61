"""Probes between real agents over real sockets: good ones, and ones that refuse, hang and lie."""

import hashlib
import hmac
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.files.errors import InputError
from longshore.cluster.switching import SURE_BYTES_PER_S, believed_bytes_per_s
from longshore.preflight.link_checks import MAX_PROBE_BYTES
from longshore.scheduler.health import link_probes
from longshore.scheduler.health.link_probes import (
    BLOCK,
    MAX_CONNECTIONS,
    MAX_PROBE_LINE_BYTES,
    BrokenError,
    LinkState,
    ProbeMeasurement,
    ProbeOrder,
    ProbePlace,
    Prober,
    Sender,
    connect_to_sender,
    new_probe_id,
    open_prober,
    order_proof,
    probe_link,
    read_line,
    sender_at,
    signed_line,
    verified_message,
)
from tests.scheduler.served import PATIENCE_S, until
from tests.support.budgets import examples

HERE = "127.0.0.1"
LONG_S = 60.0  # for a probe on a busy machine
Serve = Callable[[socket.socket], None]


@pytest.fixture(scope="module")
def agents() -> Iterator[tuple[Prober, Prober]]:
    made = Prober(HERE), Prober(HERE)
    yield made
    for it in made:
        it.close()


class Impostor:
    """Listens as an agent does, and does what a test says.

    Args:
        serve: Measured of each connection.
        key: Of the agent; another one if left out.
    """

    def __init__(self, serve: Serve, key: str = "f" * 64) -> None:
        self._listening, self._serve = socket.create_server((HERE, 0)), serve
        self.place = ProbePlace(address=HERE, port=self._listening.getsockname()[1], key=key)
        threading.Thread(target=self._run, daemon=True).start()

    def _run(self) -> None:
        with suppress(OSError):
            while True:
                connection, _ = self._listening.accept()
                threading.Thread(target=self._one, args=(connection,), daemon=True).start()

    def _one(self, connection: socket.socket) -> None:
        with connection, suppress(OSError):
            self._serve(connection)

    def close(self) -> None:
        self._listening.shutdown(socket.SHUT_RDWR)
        self._listening.close()


@pytest.fixture
def impostors() -> Iterator[Callable[[Serve], ProbePlace]]:
    made: list[Impostor] = []

    def another(serve: Serve) -> ProbePlace:
        made.append(Impostor(serve))
        return made[-1].place

    yield another
    for it in made:
        it.close()


def order_on(connection: socket.socket) -> ProbeOrder:
    return verified_message(ProbeOrder, "f" * 64, read_line(connection, time.monotonic() + LONG_S))


def test_a_link_is_measured(agents: tuple[Prober, Prober]) -> None:
    for sender, receiver in (agents, agents[::-1]):
        found = probe_link(sender.place, receiver.place, LONG_S)
        assert (found.state, found.why) == (LinkState.MEASURED, "")
        assert found.bytes_per_s > 0.0


def test_a_link_to_an_agent_that_has_ended_is_not_known(agents: tuple[Prober, Prober]) -> None:
    ended = Prober(HERE)
    ended.close()
    found = probe_link(ended.place, agents[0].place, LONG_S)
    assert found.state is LinkState.UNKNOWN
    assert found.why.startswith("the agent that should send does not answer")
    found = probe_link(agents[0].place, ended.place, LONG_S)
    assert found.state is LinkState.UNKNOWN
    assert found.why.startswith("the agent that should receive does not answer")


def test_a_link_over_which_a_node_is_not_reached_is_broken_if_the_scheduler_reaches_it(
    agents: tuple[Prober, Prober], monkeypatch: pytest.MonkeyPatch
) -> None:
    scheduler = threading.current_thread()

    def refuse(sender: Sender, until_s: float) -> socket.socket:
        if threading.current_thread() is scheduler:
            return connect_to_sender(sender, until_s)
        raise BrokenError("127.0.0.1:1: Connection refused")

    monkeypatch.setattr(
        link_probes, "connect_to_sender", refuse
    )  # as the receiver does; the scheduler connects as ever
    found = probe_link(agents[0].place, agents[1].place, LONG_S)
    assert (found.state, found.why) == (LinkState.BROKEN, "127.0.0.1:1: Connection refused")


def test_a_refused_connection_is_a_broken_link() -> None:
    ended = Prober(HERE)
    ended.close()
    with pytest.raises(BrokenError, match="Connection refused"):
        connect_to_sender(sender_at(ended.place, ProbeOrder(id=new_probe_id(), limit_s=1.0)), time.monotonic() + LONG_S)


def silent(connection: socket.socket) -> None:
    connection.recv(1 << 16)
    time.sleep(2.0)


def proves_and_is_silent(connection: socket.socket) -> None:
    connection.sendall(f"{order_proof('f' * 64, order_on(connection).id)}\n".encode())
    time.sleep(2.0)


def sends_a_little(connection: socket.socket) -> None:
    connection.sendall(f"{order_proof('f' * 64, order_on(connection).id)}\n".encode() + bytes(100_000))
    time.sleep(2.0)


def closes(connection: socket.socket) -> None:
    order_on(connection)


def is_another(connection: socket.socket) -> None:
    connection.sendall(f"{'0' * 64}\n".encode() + bytes(1 << 20))


@pytest.mark.parametrize("serve", [silent, proves_and_is_silent, sends_a_little, closes, is_another])
def test_a_sender_that_hangs_or_is_another_one_leaves_a_link_that_is_not_known(
    serve: Serve, agents: tuple[Prober, Prober], impostors: Callable[[Serve], ProbePlace]
) -> None:
    found = probe_link(impostors(serve), agents[0].place, LONG_S)
    assert found.state is LinkState.UNKNOWN
    assert found.why


def test_a_receiver_that_hangs_is_waited_for_no_longer_than_the_limit(
    agents: tuple[Prober, Prober], impostors: Callable[[Serve], ProbePlace]
) -> None:
    place = impostors(lambda connection: time.sleep(PATIENCE_S))
    found = probe_link(agents[0].place, place)
    assert (found.state, found.why) == (LinkState.UNKNOWN, "the agent that should receive does not answer: timed out")


def liar(tell: Callable[[ProbeOrder], str]) -> Serve:
    def serve(connection: socket.socket) -> None:
        connection.sendall(f"{tell(order_on(connection))}\n".encode())

    return serve


def signed(**reported: Any) -> Callable[[ProbeOrder], str]:
    """Return what tells anything at all with the right signature."""

    def tell(order: ProbeOrder) -> str:
        text = json.dumps({"id": order.id, **reported})
        signed_text = f"{ProbeMeasurement.__name__} {text}".encode()
        return f"{hmac.new(bytes.fromhex('f' * 64), signed_text, hashlib.sha256).hexdigest()} {text}"

    return tell


LIES = {
    "of another probe": signed(id="0" * 32, counted_bytes=1000, seconds=1e-6),
    "nothing in no time": signed(counted_bytes=0, seconds=0.0),
    "something in no time": signed(counted_bytes=1 << 20, seconds=0.0),
    "more than is ever sent": signed(counted_bytes=MAX_PROBE_BYTES + BLOCK + 1, seconds=1e-6),
    "longer than all took": signed(counted_bytes=1 << 20, seconds=59.0),
    "less than nothing": signed(counted_bytes=-1, seconds=1e-6),
    "backwards": signed(counted_bytes=1 << 20, seconds=-1e-3),
    "no number": signed(counted_bytes=1 << 20, seconds=float("nan")),
    "for ever": signed(counted_bytes=1 << 20, seconds=float("inf")),
    "a text": signed(counted_bytes="1", seconds=1e-6),
    "what nobody asked": signed(extra=1, counted_bytes=1 << 20, seconds=1e-6),
    "unsigned": lambda order: f"{'0' * 64} " + json.dumps({"id": order.id, "counted_bytes": 1, "seconds": 1e-3}),
    "as an order": lambda order: signed_line("f" * 64, order),
    "by another key": lambda order: signed_line(
        "0" * 64, ProbeMeasurement(id=order.id, counted_bytes=1 << 20, seconds=1e-6)
    ),
    "without an end": lambda order: "x" * (2 * MAX_PROBE_LINE_BYTES),
    "nothing": lambda order: "",
    "no text": lambda order: "\xff" * 10,
}


def test_what_can_be_is_believed(agents: tuple[Prober, Prober], impostors: Callable[[Serve], ProbePlace]) -> None:
    place = impostors(liar(signed(counted_bytes=1 << 20, seconds=1e-6)))
    assert probe_link(agents[0].place, place, LONG_S).bytes_per_s == pytest.approx((1 << 20) / 1e-6)


@pytest.mark.parametrize("lie", LIES)
def test_what_cannot_be_is_not_believed(
    lie: str, agents: tuple[Prober, Prober], impostors: Callable[[Serve], ProbePlace]
) -> None:
    found = probe_link(agents[0].place, impostors(liar(LIES[lie])), LONG_S)
    assert found.state is LinkState.UNKNOWN
    assert found.why


@given(st.floats(1e3, 1e13), st.floats(0.0, 1e18))
def test_who_lies_that_a_link_is_fast_gains_no_more_than_a_link_that_is_merely_fast(
    reckoned: float, measured: float
) -> None:
    believed = believed_bytes_per_s(reckoned, measured)
    assert believed <= max(reckoned, SURE_BYTES_PER_S)
    assert believed == measured or believed >= SURE_BYTES_PER_S


def answer_to(place: ProbePlace, said: bytes) -> bytes:
    """Return what an agent answers, at most as much as a proof is long."""
    with socket.create_connection((place.address, place.port), LONG_S) as connection:
        connection.sendall(said)
        with suppress(ConnectionError):
            return connection.recv(65, socket.MSG_WAITALL)
    return b""


def test_an_order_is_carried_out_once(agents: tuple[Prober, Prober]) -> None:
    place = agents[0].place
    order = ProbeOrder(id=new_probe_id(), limit_s=0.25)
    line = f"{signed_line(place.key, order)}\n".encode()
    assert answer_to(place, line) == f"{order_proof(place.key, order.id)}\n".encode()
    assert answer_to(place, line) == b""


@settings(max_examples=examples(50))
@given(st.binary(max_size=200) | st.text(alphabet='0123456789abcdef {}":,', max_size=200).map(str.encode))
def test_an_agent_answers_only_with_its_key(said: bytes) -> None:
    found = Prober(HERE)
    try:
        assert answer_to(found.place, said + b"\n") == b""
        order = ProbeOrder(id=new_probe_id(), limit_s=0.25)
        assert answer_to(found.place, f"{signed_line('0' * 64, order)}\n".encode()) == b""
        assert answer_to(found.place, f"{signed_line(found.place.key, order)}\n".encode()) != b""
    finally:
        found.close()


def test_an_agent_is_not_used_up_by_connections_that_say_nothing(agents: tuple[Prober, Prober]) -> None:
    place = agents[0].place
    held = [socket.create_connection((place.address, place.port)) for _ in range(2 * MAX_CONNECTIONS)]
    try:
        until(lambda: probe_link(place, agents[1].place, LONG_S).state is LinkState.MEASURED)
    finally:
        for it in held:
            it.close()


@pytest.mark.parametrize(
    ("reported", "why"),
    [
        ("here", "'here' does not appear to be an IPv4 or IPv6 address"),
        ("192.0.2.1", "Cannot assign requested address"),
        ("127.0.0.1:x", "'x' in 127.0.0.1:x is no port"),
        ("127.0.0.1:65536", "'65536' in 127.0.0.1:65536 is no port"),
    ],
)
def test_an_address_of_another_machine_is_refused(reported: str, why: str) -> None:
    with pytest.raises(InputError) as refused:
        open_prober(reported)
    assert why in str(refused.value)


@pytest.mark.parametrize("reported", ["127.0.0.1", "127.0.0.1:0", "::1", "[::1]:0"])
def test_a_place_is_an_address_with_or_without_a_port(reported: str) -> None:
    try:
        one, other = open_prober(reported), open_prober(reported)
    except InputError as error:
        pytest.skip(str(error))  # no IPv6 here
    assert one.place.address in ("127.0.0.1", "::1")
    assert probe_link(one.place, other.place, LONG_S).state is LinkState.MEASURED
    one.close()
    other.close()
