"""What neighbours of a ring send each other, and how long it takes to come."""

import time
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from ..groups import NO_ANSWER, Members, wait_for

if TYPE_CHECKING:
    import torch
    from torch import Tensor
    from torch.distributed import Work

PARTS, SKIPPED = 10, 2  # the first fifth is not counted: buffers swallow it at once
LOOK_S = 0.001


class Exchange:
    """Parts that each member of a ring sends to the next.

    On a GPU they go over NCCL, for which a send ends only once the other side receives; until then nothing else need
    run there. If all sent first, all would wait for ever. So every other member receives before it sends.

    Args:
        ring: The members.
        rank: Of this one.
        size: How many members there are.
        part: What is sent, several times.
        at_most: How long to wait for others.
    """

    def __init__(self, ring: Members, rank: int, size: int, part: "Tensor", at_most: timedelta) -> None:
        self._ring, self._part, self._at_most = ring, part, at_most
        self._after, self._before, self._receives_first = (rank + 1) % size, (rank - 1) % size, rank % 2 == 1

    def took_s(self) -> float:
        """Send and receive, and return how long the parts took to come, without those that buffers swallow.

        What fails in sending is the next member's to tell, which does not receive it.

        Raises:
            RuntimeError: If the member before does not answer in time.
        """
        if not self._part.is_cuda:
            sent: list[Work] = []
            with suppress(RuntimeError):
                sent = self._send()
            took_s = self._receive_s(self._at_most)
            with suppress(RuntimeError):
                self._end(sent, self._at_most)
        elif self._receives_first:
            try:
                took_s = self._receive_s(self._at_most / 2)
            finally:
                self._send_in_turn(self._at_most)
        else:
            self._send_in_turn(self._at_most / 2)  # whoever is second waits longer than the first
            took_s = self._receive_s(self._at_most)
        return took_s

    def _send_in_turn(self, at_most: timedelta) -> None:
        with suppress(RuntimeError):
            self._end(self._send(), at_most)

    def _send(self) -> "list[Work]":
        return [self._ring.send([self._part], self._after, tag) for tag in range(PARTS)]

    @staticmethod
    def _end(sent: "list[Work]", at_most: timedelta) -> None:
        for work in sent:
            wait_for(work, at_most)

    def _receive_s(self, at_most: timedelta) -> float:
        came = [self._part.clone() for _ in range(PARTS)]
        awaited = [self._ring.recv([it], self._before, tag) for tag, it in enumerate(came)]
        if self._part.is_cuda:
            return _by_clock_of_gpu(awaited, self._part.device, at_most)
        for work in awaited[:SKIPPED]:
            wait_for(work, at_most)
        began_s = time.perf_counter()
        for work in awaited[SKIPPED:]:
            wait_for(work, at_most)
        return time.perf_counter() - began_s


def _by_clock_of_gpu(awaited: "list[Work]", gpu: "torch.device", at_most: timedelta) -> float:
    """Return how long the counted parts took on the GPU: a thread that waits for NCCL looks far too seldom."""
    import torch

    stream = torch.cuda.current_stream(gpu)
    begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
    for count, work in enumerate(awaited, start=1):
        work.wait()  # without a time the stream waits, and this thread does not
        if count == SKIPPED:
            begin.record(stream)
    end.record(stream)
    until_s = time.monotonic() + at_most.total_seconds()
    while not end.query():  # type: ignore[no-untyped-call]
        if time.monotonic() > until_s:
            raise RuntimeError(NO_ANSWER)
        time.sleep(LOOK_S)
    return float(begin.elapsed_time(end)) / 1e3
