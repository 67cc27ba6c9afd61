"""What a receiver measures of a transfer, by a clock and a connection in the hands of the test."""

import math
import socket
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.preflight.link_checks import MAX_PROBE_BYTES, MIN_PROBE_BYTES, PROBE_S
from longshore.scheduler.health import link_probes
from longshore.scheduler.health.link_probes import (
    STAMP,
    STAMPS,
    TRANSFER_LIMIT_S,
    TRANSFER_STALLED_S,
    _counted_bytes_and_seconds,
    measure_received,
)

CHUNK = 16 << 10  # bytes that come at a time


class Line:
    """A connection over a link: first a burst that was buffered, then bytes at a rate, then nothing.

    Args:
        rate: Bytes a second.
        burst: Bytes that are there at once.
        most: Bytes in all; then it is closed, or silent.
    """

    def __init__(self, rate: float, burst: int, most: float = math.inf, *, closes: bool = False) -> None:
        self.rate, self.burst, self.most, self.closes = rate, burst, most, closes
        self.now_s, self.taken, self.wait_s = 0.0, 0, 0.0

    def monotonic(self) -> float:
        return self.now_s

    def settimeout(self, wait_s: float) -> None:
        self.wait_s = wait_s

    def setsockopt(self, *option: int) -> None: ...

    def recvmsg_into(self, blocks: list[bytearray], space: int) -> tuple[int, list[tuple[int, int, bytes]], int, None]:
        return self.read(), self.stamps(), 0, None

    def stamps(self) -> list[tuple[int, int, bytes]]:
        return []

    def read(self) -> int:
        size = int(min(CHUNK, self.most - self.taken))
        if size <= 0 and self.closes:
            return 0
        due_s = max(self.now_s, (self.taken + size - self.burst) / self.rate) if size > 0 else math.inf
        if due_s - self.now_s > self.wait_s:
            self.now_s += self.wait_s
            raise TimeoutError
        self.now_s, self.taken = due_s, self.taken + size
        return size


def measured(line: Line) -> tuple[int, float] | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(link_probes, "time", line)
        return measure_received(cast("socket.socket", line), TRANSFER_LIMIT_S)


@given(st.floats(5e6, 1e10), st.integers(0, 150_000))
def test_the_bandwidth_is_that_of_the_link_whatever_was_buffered_in_the_beginning(rate: float, burst: int) -> None:
    line = Line(rate, burst)
    counted_bytes, seconds = measured(line) or (0, 0.0)
    assert counted_bytes / seconds == pytest.approx(rate, rel=0.01)
    assert MIN_PROBE_BYTES <= line.taken <= MAX_PROBE_BYTES + CHUNK
    assert seconds >= PROBE_S or line.taken >= MAX_PROBE_BYTES
    assert counted_bytes <= 0.8 * line.taken


@given(st.floats(2e5, 3e6))
def test_a_link_that_is_too_slow_for_the_least_bytes_is_known_as_slow(rate: float) -> None:
    line = Line(rate, 0)
    counted_bytes, seconds = measured(line) or (0, 0.0)
    assert line.now_s <= TRANSFER_LIMIT_S + 1e-9
    assert counted_bytes / seconds == pytest.approx(rate, rel=0.2)


@given(st.integers(0, MIN_PROBE_BYTES // 2))
def test_of_a_transfer_that_hangs_nothing_is_known(most: int) -> None:
    line = Line(1e7, 0, most)
    if most / 1e7 < TRANSFER_LIMIT_S - TRANSFER_STALLED_S - 0.01:
        assert measured(line) is None
    assert line.now_s <= TRANSFER_LIMIT_S + 1e-9


def test_of_a_transfer_in_which_nothing_came_nothing_is_known() -> None:
    assert measured(Line(1e7, 0, 0.0, closes=True)) is None


class BusyLine(Line):
    """The same where the reader has to wait for a processor again and again, and its kernel tells when bytes came.

    Args:
        rate: Bytes a second.
        waits_s: Of the reader, before each read in turn.
    """

    def __init__(self, rate: float, waits_s: list[float]) -> None:
        super().__init__(rate, 0)
        self.waits_s, self.reads, self.came_s = waits_s, 0, 0.0

    def read(self) -> int:
        self.came_s = (self.taken + CHUNK) / self.rate
        size = super().read()
        self.now_s += self.waits_s[self.reads % len(self.waits_s)] if self.waits_s else 0.0
        self.reads += 1
        return size

    def stamps(self) -> list[tuple[int, int, bytes]]:
        return [(socket.SOL_SOCKET, STAMPS, STAMP.pack(int(self.came_s), int(self.came_s % 1.0 * 1e9)))]


@given(st.floats(2e7, 1e9), st.lists(st.sampled_from([0.0, 0.0, 0.0, 0.0, 0.01]), min_size=20))
def test_a_late_reader_makes_no_link_slow_where_the_kernel_has_time_stamps(rate: float, waits_s: list[float]) -> None:
    counted_bytes, seconds = measured(BusyLine(rate, waits_s)) or (0, 0.0)
    assert counted_bytes / seconds == pytest.approx(rate, rel=0.01)


@given(st.floats(2e7, 2e8), st.integers(1, 3))
def test_a_sender_that_pauses_for_less_than_half_of_the_time_makes_no_link_slow(rate: float, pauses: int) -> None:
    """In each of the pauses nothing comes for 5 ms; between them bytes come at the rate of the link."""
    came, now_s = [], 0.0
    for at in range(400):
        now_s += CHUNK / rate + (0.005 if at % (400 // pauses) == 150 // pauses else 0.0)
        came.append((at * CHUNK, now_s))
    counted_bytes, seconds = _counted_bytes_and_seconds(came) or (0, 0.0)
    assert counted_bytes / seconds == pytest.approx(rate, rel=0.01)
