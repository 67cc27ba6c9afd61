"""The client of a stream: it reads any text, and continues wherever the stream was cut off."""

import json
from collections.abc import Callable, Iterator
from types import SimpleNamespace

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.files.errors import BackendError, InputError, LongshoreError
from longshore.scheduler import client as client_module
from longshore.scheduler.api.streaming import END, SentEvent, _as_bytes, _sent_event
from longshore.scheduler.client import OUTAGE_S, Client, parse_events
from longshore.scheduler.store.events import EventRow

URL = "http://127.0.0.1:9"
Handler = Callable[[httpx.Request], httpx.Response]


def chunked(data: bytes, sizes: list[int]) -> Iterator[bytes]:
    """Yield bytes in chunks of some sizes, and then the rest."""
    for size in sizes:
        yield data[:size]
        data = data[size:]
    yield data


@given(
    causes=st.lists(st.text(st.characters(codec="utf-8"), max_size=20) | st.sampled_from("\u2028\u2029\x85\x0b\x0c\r")),
    sizes=st.lists(st.integers(0, 40), max_size=10),
)
def test_an_event_is_read_as_it_was_sent_whatever_its_text_is(causes: list[str], sizes: list[int]) -> None:
    rows = [
        EventRow(seq, "change", "api", 1.0, "a", 1, 1, "", "", None, cause, None) for seq, cause in enumerate(causes, 1)
    ]
    sent = [_sent_event(row) for row in rows]
    # Other servers of the same stream, such as an older one, do not escape.
    raw = [event._replace(data=json.dumps(json.loads(event.data), ensure_ascii=False)) for event in sent]

    for events in (sent, raw):
        received = list(parse_events(chunked(b"".join(map(_as_bytes, events)), sizes)))
        assert [event.data["cause"] for event in received] == causes
        assert [event.id for event in received] == [str(row.seq) for row in rows]
    assert all(event.data.isascii() for event in sent)


class FakeServer:
    """Answers each request for a stream by the next turn of a script, and all further ones up to its end.

    Args:
        turns: Events to send before the stream is cut off, or a status with which it is refused, 0 for no connection.
        events: Number of all events.
    """

    def __init__(self, turns: list[tuple[str, int]], events: int) -> None:
        self.turns, self.events, self.began_s = list(turns), events, 0

    def __call__(self, request: httpx.Request) -> httpx.Response:
        kind, number = self.turns.pop(0) if self.turns else ("send", self.events)
        if kind == "refuse" and number == 0:
            raise httpx.ConnectError("refused", request=request)
        if kind == "refuse":
            headers = {"Retry-After": "1"} if number in (429, 503) else {}
            return httpx.Response(number, json={"detail": "later"}, headers=headers)
        # Without a position the stream begins with the next event, and time has passed.
        after = int(request.headers.get("Last-Event-ID", self.began_s))
        self.began_s = max(self.began_s, after) + 1
        return httpx.Response(200, stream=CutStream(after, number, self.events))


class CutStream(httpx.SyncByteStream):
    """A position, and events behind it, until the connection is cut off."""

    def __init__(self, after: int, most: int, events: int) -> None:
        self.after, self.most, self.events = after, most, events

    def __iter__(self) -> Iterator[bytes]:
        yield b": it goes on\n\n" + _as_bytes(SentEvent("", str(self.after), ""))
        last = min(self.after + self.most, self.events)
        for seq in range(self.after + 1, last + 1):
            yield _as_bytes(SentEvent(json.dumps({"seq": seq}), str(seq), "change"))
        if last < self.events:
            raise httpx.ReadError("cut off")
        yield _as_bytes(SentEvent("{}", "", END))


def client_at(handler: Handler) -> Client:
    made = Client(URL)
    made._http.close()
    made._http = httpx.Client(base_url=URL, transport=httpx.MockTransport(handler))
    return made


class Clock:
    """A clock that only sleep moves."""

    def __init__(self) -> None:
        self.now_s = 0.0

    def install(self, monkeypatch: pytest.MonkeyPatch) -> None:
        clock = SimpleNamespace(monotonic=lambda: self.now_s, sleep=self.sleep)
        monkeypatch.setattr(client_module, "time", clock)

    def sleep(self, seconds: float) -> None:
        self.now_s += seconds


SENDS = st.tuples(st.just("send"), st.integers(0, 3))
REFUSALS = st.tuples(st.just("refuse"), st.sampled_from([0, 429, 500, 502, 503, 504]))


@given(first=SENDS, turns=st.lists(SENDS | REFUSALS, max_size=15), events=st.integers(0, 12))
def test_a_follower_gets_all_events_once_and_in_order_over_cuts_and_outages(
    first: tuple[str, int], turns: list[tuple[str, int]], events: int
) -> None:
    with pytest.MonkeyPatch.context() as monkeypatch:
        Clock().install(monkeypatch)
        follower = client_at(FakeServer([first, *turns], events))

        assert [event["seq"] for event in follower.follow_events(None)] == list(range(1, events + 1))


@pytest.mark.parametrize(
    ("turns", "error", "least_s", "most_s"),
    [
        ([("refuse", 0)] * 5000, BackendError, 3.0, 30.0),
        ([("refuse", 503)] * 5000, BackendError, 3.0, 30.0),
        ([("send", 1), *[("refuse", 0)] * 5000], BackendError, OUTAGE_S, OUTAGE_S + 30.0),
        ([("send", 1), *[("refuse", 502)] * 5000], BackendError, OUTAGE_S, OUTAGE_S + 30.0),
        ([("send", 1), *[("refuse", 429)] * 5000], InputError, OUTAGE_S, OUTAGE_S + 30.0),
        ([("send", 1), ("refuse", 401)], InputError, 0.0, 1.0),
        ([("refuse", 404)], InputError, 0.0, 0.0),
    ],
)
def test_a_follower_gives_up_at_once_or_after_an_outage(
    monkeypatch: pytest.MonkeyPatch, turns: list[tuple[str, int]], error: type[LongshoreError], least_s: float,
    most_s: float,
) -> None:  # fmt: skip
    clock = Clock()
    clock.install(monkeypatch)

    with pytest.raises(error):
        list(client_at(FakeServer(turns, 9)).follow_events(None))

    assert least_s <= clock.now_s <= most_s


@pytest.mark.parametrize(
    "body", [b"<html>\n\n", b"data: {\n\n", b"data: [1]\n\n", b"data: \xff\n\n", b"event: x\n\n", b"\x00\xff: \n\n"]
)
def test_what_sends_no_events_is_reported_in_one_line(monkeypatch: pytest.MonkeyPatch, body: bytes) -> None:
    Clock().install(monkeypatch)

    with pytest.raises(BackendError):
        list(client_at(lambda _request: httpx.Response(200, content=body)).follow_events(None))


@pytest.mark.parametrize("is_done", [True, False])
def test_a_token_is_requested_once_although_its_answer_is_lost(is_done: bool) -> None:  # noqa: FBT001
    made: list[httpx.Request] = []

    def lose(request: httpx.Request) -> httpx.Response:
        made.append(request)
        if is_done and len(made) > 1:
            return httpx.Response(409, json={"detail": "the name is taken"})
        raise httpx.ReadError("cut off", request=request)

    with pytest.raises(BackendError):
        client_at(lose).create_token({"name": "laptop"})

    assert len(made) == 1
