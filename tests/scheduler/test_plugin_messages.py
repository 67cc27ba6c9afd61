"""Messages between the scheduler and a policy's process, and what is refused of them."""

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import suppress

import numpy as np
import pytest

from longshore.agents.protocol import DecisionRecord
from longshore.cluster.files.errors import PluginError
from longshore.scheduler.policy_host.messages import (
    LENGTH_BYTES,
    Channel,
    RecordParts,
    decision_record_of,
    read_message,
    record_parts_of,
    stored_record_of,
)

Pair = tuple[socket.socket, Channel]


@pytest.fixture
def pair() -> Iterator[Pair]:
    """Return one end of a connection, and a channel on the other."""
    ours, theirs = socket.socketpair()
    with ours, theirs:
        yield theirs, Channel(ours, 1000)


def frame(data: bytes) -> bytes:
    return len(data).to_bytes(LENGTH_BYTES) + data


def test_messages_come_in_order_and_whole_however_they_are_cut(pair: Pair) -> None:
    theirs, channel = pair
    sent = frame(b"one") + frame(b"") + frame(b"three")
    for at in range(len(sent) - 1):
        theirs.sendall(sent[at : at + 1])
    received = [channel.receive(time.monotonic()) for _ in range(2)]

    with pytest.raises(TimeoutError):
        channel.receive(time.monotonic() + 0.001)
    theirs.sendall(sent[-1:])

    assert [*received, channel.receive()] == [b"one", b"", b"three"]


def test_a_message_that_comes_byte_by_byte_is_late_all_the_same() -> None:
    ours, theirs = socket.socketpair()
    with ours:
        theirs.sendall((1 << 40).to_bytes(LENGTH_BYTES))
        dripping = threading.Thread(target=drip, args=(theirs,))
        dripping.start()

        with pytest.raises(TimeoutError):
            Channel(ours, 1 << 40).receive(time.monotonic() + 0.05)

        ours.shutdown(socket.SHUT_RDWR)
        dripping.join()


def drip(connection: socket.socket) -> None:
    """Send bytes as fast as they are read until nobody reads any more."""
    with connection, suppress(OSError):
        while True:
            connection.sendall(b" ")


def test_a_message_that_is_too_long_is_refused_by_its_length(pair: Pair) -> None:
    theirs, channel = pair
    theirs.sendall((1 << 62).to_bytes(LENGTH_BYTES))

    with pytest.raises(OSError, match="a message of 4611686018427387904 bytes"):
        channel.receive()


def test_who_does_not_listen_is_not_waited_for(pair: Pair) -> None:
    _, channel = pair

    with pytest.raises(TimeoutError):
        channel.send(bytes(1 << 24), time.monotonic() + 0.01)


def test_an_end_is_reported(pair: Pair) -> None:
    theirs, channel = pair
    theirs.shutdown(socket.SHUT_RDWR)

    with pytest.raises(EOFError):
        channel.receive()


@pytest.mark.parametrize(
    "data",
    [
        b"\x80\x04\x95", b"[]", b"null", b'{"kind":"dance"}', b'{"kind":"choice","number":1,"job":"a"}',
        b'{"kind":"choice","number":1,"job":"a","gpus":[0.5]}', b'{"kind":"choice","number":1,"job":"a","gpus":["0"]}',
        b'{"kind":"choice","number":1,"job":"a","gpus":[0],"took_s":NaN}',
        b'{"kind":"choice","number":1,"job":"a","gpus":[0],"more":1}',
        b'{"kind":"choice","number":1,"job":"' + b"a" * 1000 + b'","gpus":[0]}',
    ],
)  # fmt: skip
def test_what_is_no_message_is_refused(data: bytes) -> None:
    with pytest.raises(PluginError, match="sent what is no answer"):
        read_message(data)


RECORD = DecisionRecord(
    np.arange(6, dtype=np.float32).reshape(2, 3), np.array([[True, False], [True, True]]),
    np.array([[0.0, -np.inf], [-0.5, -1.0]], dtype=np.float32), np.array([0, 1], dtype=np.int32),
)  # fmt: skip


def parts(record: DecisionRecord) -> RecordParts:
    found = record_parts_of(record)
    assert found is not None
    return found


def test_what_a_network_saw_comes_back_as_it_was() -> None:
    found = decision_record_of(stored_record_of(parts(RECORD)))

    assert all((a == b).all() for a, b in zip(found, RECORD, strict=True))


@pytest.mark.parametrize(
    "spoiled",
    [
        RECORD._replace(observations=RECORD.observations + np.float32(np.inf)),
        RECORD._replace(observations=RECORD.observations[:1]),
        RECORD._replace(log_probabilities=np.full((2, 2), np.nan, dtype=np.float32)),
        RECORD._replace(log_probabilities=np.full((2, 2), 3.0, dtype=np.float32)),
        RECORD._replace(log_probabilities=RECORD.log_probabilities[:, :1]),
        RECORD._replace(masks=np.ones((2, 2), dtype=np.bool_)),
        RECORD._replace(actions=np.array([1, 1], dtype=np.int32)),
        RECORD._replace(actions=np.array([0, 2], dtype=np.int32)),
        RECORD._replace(actions=np.array([0, -1], dtype=np.int32)),
        RECORD._replace(actions=np.array([], dtype=np.int32)),
    ],
)
def test_what_no_network_can_have_seen_is_refused(spoiled: DecisionRecord) -> None:
    with pytest.raises(PluginError):
        stored_record_of(parts(spoiled))


@pytest.mark.parametrize("field", ["observations", "masks", "log_probabilities"])
@pytest.mark.parametrize("text", ["a", "=", "====", " ", "\x00", "ü", "\u202e", "😀", "AACAPw==x", "_-_-"])
def test_what_is_no_base64_is_refused(field: str, text: str) -> None:
    with pytest.raises(PluginError):
        stored_record_of(parts(RECORD).model_copy(update={field: text}))


def test_what_is_too_much_is_not_sent() -> None:
    assert record_parts_of(RECORD._replace(observations=np.zeros((2, 1 << 18), dtype=np.float32))) is None
