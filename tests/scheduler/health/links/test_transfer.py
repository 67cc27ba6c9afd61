"""What a receiver measures of a transfer, by a clock and a connection in the hands of the test."""

import math
import socket
from typing import cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.health.links import transfer
from longshore.scheduler.health.links.transfer import LIMIT_S, STALLED_S, Figure, receive
from longshore.scheduler.preflight.link_checks.bandwidth import LEAST_BYTES, MOST_BYTES, PROBE_S

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

    def recv_into(self, block: bytearray) -> int:
        size = int(min(CHUNK, self.most - self.taken))
        if size <= 0 and self.closes:
            return 0
        due_s = max(self.now_s, (self.taken + size - self.burst) / self.rate) if size > 0 else math.inf
        if due_s - self.now_s > self.wait_s:
            self.now_s += self.wait_s
            raise TimeoutError
        self.now_s, self.taken = due_s, self.taken + size
        return size


def measured(line: Line) -> Figure | None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(transfer, "time", line)
        return receive(cast("socket.socket", line), LIMIT_S)


@given(st.floats(5e6, 1e10), st.integers(0, 150_000))
def test_the_bandwidth_is_that_of_the_link_whatever_was_buffered_in_the_beginning(rate: float, burst: int) -> None:
    line = Line(rate, burst)
    figure = measured(line)
    assert figure is not None
    assert figure.bytes_per_s == pytest.approx(rate, rel=0.01)
    assert LEAST_BYTES <= line.taken <= MOST_BYTES + CHUNK
    assert figure.seconds >= PROBE_S or line.taken >= MOST_BYTES
    assert figure.counted_bytes <= 0.8 * line.taken


@given(st.floats(2e5, 3e6))
def test_a_link_that_is_too_slow_for_the_least_bytes_is_known_as_slow(rate: float) -> None:
    line = Line(rate, 0)
    figure = measured(line)
    assert line.now_s <= LIMIT_S + 1e-9
    assert figure is not None
    assert figure.bytes_per_s == pytest.approx(rate, rel=0.2)


@given(st.integers(0, LEAST_BYTES // 2))
def test_of_a_transfer_that_hangs_nothing_is_known(most: int) -> None:
    line = Line(1e7, 0, most)
    if most / 1e7 < LIMIT_S - STALLED_S - 0.01:
        assert measured(line) is None
    assert line.now_s <= LIMIT_S + 1e-9


def test_of_a_transfer_in_which_nothing_came_nothing_is_known() -> None:
    assert measured(Line(1e7, 0, 0.0, closes=True)) is None
