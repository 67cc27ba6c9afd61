"""What neighbours of a ring send each other, and how long it takes to come."""

import time
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import TYPE_CHECKING

from ..groups import NO_ANSWER, Members, wait_for

if TYPE_CHECKING:
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
        until_s = time.monotonic() + self._at_most.total_seconds()
        half_s = until_s - self._at_most.total_seconds() / 2.0
        if not self._part.is_cuda:
            sent: list[Work] = []
            with suppress(RuntimeError):
                sent = self._send()
            took_s = self._receive_s(until_s)
            with suppress(RuntimeError):
                _wait_for_all(sent, until_s)
        elif self._receives_first:
            try:
                took_s = self._receive_s(half_s)
            finally:
                self._send_in_turn(until_s)
        else:
            self._send_in_turn(half_s)
            took_s = self._receive_s(until_s)
        return took_s

    def _send(self) -> "list[Work]":
        return [self._ring.send([self._part], self._after, tag) for tag in range(PARTS)]

    def _send_in_turn(self, until_s: float) -> None:
        with suppress(RuntimeError):
            sent = self._send()
            _look_until(lambda: all(it.is_completed() for it in sent), until_s)

    def _receive_s(self, until_s: float) -> float:
        if self._part.is_cuda:
            return self._receive_on_gpu_s(until_s)
        awaited = self._receive(self._room())
        _wait_for_all(awaited[:SKIPPED], until_s)
        began_s = time.perf_counter()
        _wait_for_all(awaited[SKIPPED:], until_s)
        return time.perf_counter() - began_s

    def _room(self) -> "list[Tensor]":
        return [self._part.clone() for _ in range(PARTS)]

    def _receive(self, came: "list[Tensor]", first_tag: int = 0) -> "list[Work]":
        return [self._ring.recv([it], self._before, tag) for tag, it in enumerate(came, start=first_tag)]

    def _receive_on_gpu_s(self, until_s: float) -> float:
        """Receive, and return how long that took by the clock of the GPU: a thread looks far too seldom.

        A stream of its own waits for what comes: on the one that sends begin behind, they would wait for it too. The
        clock is read before the counted parts are asked for, or some would have come by then.
        """
        import torch

        stream = torch.cuda.Stream(self._part.device)  # type: ignore[no-untyped-call]
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        with torch.cuda.stream(stream):
            came = self._room()
            for work in self._receive(came[:SKIPPED]):
                work.wait()  # without a time the stream waits, and this thread does not
            begin.record(stream)
            for work in self._receive(came[SKIPPED:], SKIPPED):
                work.wait()
            end.record(stream)
        _look_until(end.query, until_s)
        return float(begin.elapsed_time(end)) / 1e3


def _wait_for_all(works: "list[Work]", until_s: float) -> None:
    for work in works:
        wait_for(work, timedelta(seconds=max(until_s - time.monotonic(), LOOK_S)))


def _look_until(is_over: Callable[[], bool], until_s: float) -> None:
    while not is_over():
        if time.monotonic() > until_s:
            raise RuntimeError(NO_ANSWER)
        time.sleep(LOOK_S)
