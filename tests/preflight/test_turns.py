"""Neighbours of a ring send and receive as NCCL demands. No GPU is here: a twin behaves as NCCL is known to.

Over NCCL a call to send goes on only once the other side calls to receive, and the other way round: the first exchange
of two GPUs connects them, and a send may wait for its receiver (NCCL's documentation, Point-to-point communication).
What is sent goes off once the stream is done that the sender was on. It arrives at given moments, by the clocks
of streams; over a dead link it never comes. The twin omits memory of GPUs, and that NCCL may let a small send end
early, or wait for ever on both sides of a dead link.
"""

import math
import threading
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast

import pytest
import torch

from longshore.preflight.groups import NO_ANSWER
from longshore.preflight.link_checks import PROBE_PARTS, SKIPPED_PARTS, NeighbourExchange

PATIENCE_S = 10.0
SHORT_S, DEAD_S = 0.4, 1.5  # for those that wait for ever
PART_S, LATE_S = 0.25, 7.0  # by the clocks of streams


class Wire:
    """What all members share: for each message a place where both sides meet."""

    def __init__(self, patience_s: float, dead: tuple[int, int] | None = None) -> None:
        self.patience_s, self._dead, self._lock = patience_s, dead, threading.Lock()
        self._places: dict[tuple[int, int, int], threading.Barrier] = defaultdict(lambda: threading.Barrier(2))
        self.sent: dict[tuple[int, int, int], int] = {}
        self.leaves_s: dict[tuple[int, int, int], float] = {}
        self.gave_up = 0  # calls without an answer

    def meet(self, message: tuple[int, int, int]) -> None:
        with self._lock:
            place = self._places[message]
        try:
            place.wait(self.patience_s)
        except threading.BrokenBarrierError:
            self.gave_up += 1
            raise RuntimeError("no partner") from None

    def comes_s(self, message: tuple[int, int, int]) -> float:
        """Return when a message is there, the first of them late and the others one after the other."""
        return math.inf if message[:2] == self._dead else self.leaves_s[message] + LATE_S + message[2] * PART_S


@dataclass
class Part:
    """Memory of a GPU, in which is who filled it."""

    value: int
    is_cuda = True
    device = "cuda:0"

    def clone(self) -> "Part":
        return Part(-1)


@dataclass
class Order:
    """A stream: what is asked of it is done in order."""

    now_s: float = 0.0  # when all that was asked of it is done


@dataclass
class Work:
    """What was begun, and when it ends."""

    ends_s: float
    gpu: "Gpu"

    def wait(self, timeout: timedelta | None = None) -> bool:
        if timeout is not None:
            return True  # at once, as some versions do
        self.gpu.current.now_s = max(self.gpu.current.now_s, self.ends_s)
        return True

    def is_completed(self) -> bool:
        return self.ends_s < math.inf


class Gpu(threading.local):
    """The GPU of a thread, which is what is used of `torch.cuda`."""

    def begin(self) -> None:
        self.current = Order()

    def Stream(self, gpu: str) -> Order:  # noqa: N802  # its name in PyTorch
        assert gpu == Part.device
        return Order()

    @contextmanager
    def stream(self, stream: Order) -> Iterator[None]:
        before, self.current = self.current, stream
        try:
            yield
        finally:
            self.current = before

    def Event(self, *, enable_timing: bool) -> Any:  # noqa: N802
        assert enable_timing
        return Event()


class Event:
    at_s = math.inf

    def record(self, stream: Order) -> None:
        self.at_s = stream.now_s

    def query(self) -> bool:
        return self.at_s < math.inf

    def elapsed_time(self, end: "Event") -> float:
        return 1e3 * (end.at_s - self.at_s)


class Twin:
    """A member's side of PyTorch's group of NCCL."""

    def __init__(self, wire: Wire, rank: int, gpu: Gpu) -> None:
        self._wire, self._rank, self._gpu = wire, rank, gpu

    def send(self, tensors: list[Part], to: int, tag: int) -> Work:
        message = (self._rank, to, tag)
        self._wire.sent[message], self._wire.leaves_s[message] = tensors[0].value, self._gpu.current.now_s
        self._wire.meet(message)
        return Work(self._wire.comes_s(message), self._gpu)

    def recv(self, tensors: list[Part], sender: int, tag: int) -> Work:
        message = (sender, self._rank, tag)
        self._wire.meet(message)
        tensors[0].value = self._wire.sent[message]
        return Work(self._wire.comes_s(message), self._gpu)


def exchanged(wire: Wire, size: int, monkeypatch: pytest.MonkeyPatch) -> list[float | str]:
    """Let all members send and receive, each in a thread of its own; return the result of each."""
    gpu = Gpu()
    monkeypatch.setattr(torch, "cuda", gpu)

    def member(rank: int) -> float | str:
        gpu.begin()
        twin, part = cast("Any", Twin(wire, rank, gpu)), cast("Any", Part(rank))
        try:
            return NeighbourExchange(twin, rank, size, part, timedelta(seconds=wire.patience_s)).exchange_s()
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
    assert exchanged(wire, size, monkeypatch) == [pytest.approx((PROBE_PARTS - SKIPPED_PARTS) * PART_S)] * size
    assert wire.gave_up == 0
    assert wire.sent == {(rank, (rank + 1) % size, tag): rank for rank in range(size) for tag in range(PROBE_PARTS)}


@pytest.mark.few(1)
@pytest.mark.parametrize(("size", "first"), [(2, 0), (2, 1), (3, 0), (3, 1), (3, 2), (4, 0), (4, 1), (5, 3), (5, 4)])
def test_of_a_dead_link_only_the_receiver_reports(size: int, first: int, monkeypatch: pytest.MonkeyPatch) -> None:
    dead = (first, (first + 1) % size)
    results = exchanged(Wire(DEAD_S, dead), size, monkeypatch)
    assert [rank for rank, it in enumerate(results) if it == NO_ANSWER] == [dead[1]]
    assert [it for it in results if it != NO_ANSWER] == [pytest.approx((PROBE_PARTS - SKIPPED_PARTS) * PART_S)] * (
        size - 1
    )


@pytest.mark.parametrize("size", [2, 3, 4])
def test_in_the_twin_members_wait_for_ever_where_all_send_first(size: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Part, "is_cuda", False)
    wire = Wire(SHORT_S)
    exchanged(wire, size, monkeypatch)
    assert wire.gave_up > 0
