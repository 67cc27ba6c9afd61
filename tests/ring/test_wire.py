import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.ring import wire
from longshore.ring.wire import as_json

EVERY = st.one_of(*(st.from_type(kind) for kind in wire._MESSAGE_KINDS.values()))


def numbers(it: object) -> list[float]:
    if isinstance(it, dict):
        return [one for part in it.values() for one in numbers(part)]
    if isinstance(it, list):
        return [one for part in it for one in numbers(part)]
    return [float(it)] if isinstance(it, int | float) else []


@given(EVERY.filter(lambda it: all(abs(one) < 1e15 for one in numbers(as_json(it)))))
def test_what_is_sent_is_what_comes(message: wire.Message) -> None:
    assert wire.decode(wire.encode(message)) == message


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=6,
)


@given(st.binary() | json_values.map(lambda it: json.dumps(it).encode()))
def test_any_other_line_is_refused(line: bytes) -> None:
    with pytest.raises(wire.WireError):
        wire.decode(line)


@given(
    st.sampled_from(sorted(wire._MESSAGE_KINDS)),
    st.dictionaries(st.sampled_from(["member", "generation", "step", "awaits_layout"]), json_values),
)
def test_a_message_of_other_fields_or_types_is_refused_or_whole(kind: str, fields: dict[str, object]) -> None:
    try:
        message = wire.decode(json.dumps({"kind": kind, **fields}).encode())
    except wire.WireError:
        return
    assert wire.decode(wire.encode(message)) == message


@given(st.lists(EVERY.filter(lambda it: all(abs(one) < 1e15 for one in numbers(as_json(it)))), max_size=4), st.data())
def test_messages_come_whole_however_their_bytes_are_cut(messages: list[wire.Message], data: st.DataObject) -> None:
    stream = b"".join(wire.encode(it) for it in messages)
    lines, found = wire.MessageBuffer(), []
    while stream:
        size = data.draw(st.integers(1, len(stream)))
        found += lines.feed(stream[:size])
        stream = stream[size:]
    assert found == messages


def test_a_line_that_never_ends_is_refused() -> None:
    lines = wire.MessageBuffer()
    for _ in range(3):
        assert lines.feed(b"x" * (wire.MAX_LINE_BYTES // 3)) == []
    with pytest.raises(wire.WireError):
        lines.feed(b"xx")
