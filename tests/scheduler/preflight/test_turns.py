"""Neighbours of a ring send and receive as NCCL demands. No GPU is here: a twin behaves as NCCL is known to.

Over NCCL a call to send goes on only once the other side calls to receive, and the other way round: the first exchange
of two GPUs connects them, and a send may wait for its receiver (NCCL's documentation, Point-to-point communication).
The twin's parts come at moments that are told, by the clock of a stream. It leaves out memory of GPUs, and that NCCL
may also let a small send end early.
"""

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import pytest
import torch

from longshore.scheduler.preflight.link_checks.exchange import PARTS, SKIPPED, Exchange

PATIENCE_S = 10.0
SHORT_S = 0.4  # for those that wait for ever
PART_S, LATE_S = 0.25, 7.0  # by the clock of a stream


class Wire:
    """What all members share: for each message a place where both sides meet."""

    def __init__(self, patience_s: float, dead: tuple[int, int] | None = None) -> None:
        self.patience_s, self._dead, self._lock = patience_s, dead, threading.Lock()
        self._places: dict[tuple[int, int, int], threading.Barrier] = defaultdict(lambda: threading.Barrier(2))
        self.sent: dict[tuple[int, int, int], int] = {}
        self.gave_up = 0  # calls that nobody answered

    def meet(self, message: tuple[int, int, int]) -> None:
        with self._lock:
            place = self._places[message]
        try:
            if message[:2] == self._dead:
                place.abort()
            place.wait(self.patience_s)
        except threading.BrokenBarrierError:
            self.gave_up += 1
            raise RuntimeError("nobody came") from None


@dataclass
class Part:
    """Memory of a GPU, in which is who filled it."""

    value: int
    is_cuda = True
    device = "cuda:0"

    def clone(self) -> "Part":
        return Part(-1)


@dataclass
class Work:
    """What was begun; it ends at a moment by the clock of the stream."""

    ends_s: float
    streams: "Streams"

    def wait(self, timeout: timedelta | None = None) -> bool:
        if timeout is None:
            self.streams.now_s = max(self.streams.now_s, self.ends_s)
        return True


class Streams(threading.local):
    """The streams of a thread's GPU, which is what is used of `torch.cuda`."""

    now_s = 0.0

    def current_stream(self, gpu: str) -> "Streams":
        assert gpu == Part.device
        return self

    def Event(self, *, enable_timing: bool) -> Any:  # noqa: N802  # its name in PyTorch
        assert enable_timing
        return Event()


class Event:
    at_s = -1.0

    def record(self, stream: Streams) -> None:
        self.at_s = stream.now_s

    def query(self) -> bool:
        return self.at_s >= 0.0

    def elapsed_time(self, end: "Event") -> float:
        return 1e3 * (end.at_s - self.at_s)


class Twin:
    """A member's side of PyTorch's group of NCCL. Messages come one after the other, the first of them late."""

    def __init__(self, wire: Wire, rank: int, streams: Streams) -> None:
        self._wire, self._rank, self._streams = wire, rank, streams

    def send(self, tensors: list[Part], to: int, tag: int) -> Work:
        self._wire.sent[self._rank, to, tag] = tensors[0].value
        self._wire.meet((self._rank, to, tag))
        return Work(0.0, self._streams)

    def recv(self, tensors: list[Part], sender: int, tag: int) -> Work:
        self._wire.meet((sender, self._rank, tag))
        tensors[0].value = self._wire.sent[sender, self._rank, tag]
        return Work(LATE_S + tag * PART_S, self._streams)


def exchanged(wire: Wire, size: int, monkeypatch: pytest.MonkeyPatch) -> list[float | str]:
    """Let all members send and receive, each in a thread of its own; return what each tells."""
    streams = Streams()
    monkeypatch.setattr(torch, "cuda", streams)

    def member(rank: int) -> float | str:
        streams.now_s = 0.0
        twin, part = cast("Any", Twin(wire, rank, streams)), cast("Any", Part(rank))
        try:
            return Exchange(twin, rank, size, part, timedelta(seconds=wire.patience_s)).took_s()
        except RuntimeError as error:
            return str(error)

    with ThreadPoolExecutor(size) as pool:
        return list(pool.map(member, range(size)))


SIZES = pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 9])


@SIZES
def test_every_part_comes_in_rings_of_any_size_and_the_clock_of_the_gpu_counts(
    size: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    wire = Wire(PATIENCE_S)
    assert exchanged(wire, size, monkeypatch) == [pytest.approx((PARTS - SKIPPED) * PART_S)] * size
    assert wire.gave_up == 0
    assert wire.sent == {(rank, (rank + 1) % size, tag): rank for rank in range(size) for tag in range(PARTS)}


@pytest.mark.parametrize("first", [0, 1, 2])
@SIZES
def test_of_a_dead_link_only_who_does_not_receive_tells(size: int, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = (first % size, (first + 1) % size)
    told = exchanged(Wire(PATIENCE_S, dead), size, monkeypatch)
    assert [rank for rank, it in enumerate(told) if it == "nobody came"] == [dead[1]]


@pytest.mark.parametrize("size", [2, 3, 4])
def test_in_the_twin_members_wait_for_ever_where_all_send_first(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Part, "is_cuda", False)
    wire = Wire(SHORT_S)
    exchanged(wire, size, monkeypatch)
    assert wire.gave_up > 0


def test_parts_that_never_come_are_not_waited_for_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Event, "query", lambda _: False)
    told = exchanged(Wire(SHORT_S), 2, monkeypatch)
    assert told == ["the others did not answer in time"] * 2
