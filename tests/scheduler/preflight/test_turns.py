"""Neighbours of a ring send and receive as NCCL demands. No GPU is here: a twin behaves as NCCL is known to.

Over NCCL a call to send goes on only once the other side calls to receive, and the other way round: the first exchange
of two GPUs connects them, and a send may wait for its receiver (NCCL's documentation, Point-to-point communication).
The twin leaves out streams and memory of GPUs, and that NCCL may also let a small send end early.
"""

import threading
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from longshore.scheduler.preflight.context import Chosen, Context, Place
from longshore.scheduler.preflight.link_checks.bandwidth import PARTS, Exchange

PATIENCE_S = 10.0
SHORT_S = 0.2  # for those that wait for ever


class Wire:
    """What all members share: for each message a place where both sides meet."""

    def __init__(self, patience_s: float) -> None:
        self._patience_s, self._lock = patience_s, threading.Lock()
        self._places: dict[tuple[int, int, int], threading.Barrier] = defaultdict(lambda: threading.Barrier(2))
        self.tensors: dict[tuple[int, int, int], torch.Tensor] = {}

    def meet(self, message: tuple[int, int, int]) -> None:
        with self._lock:
            place = self._places[message]
        try:
            place.wait(self._patience_s)
        except threading.BrokenBarrierError:
            raise RuntimeError("nobody came") from None


class Twin:
    """A member's side of PyTorch's group of NCCL."""

    def __init__(self, wire: Wire, rank: int) -> None:
        self._wire, self._rank = wire, rank

    def allreduce(self, tensors: Any) -> Any:
        raise NotImplementedError("nobody sums up here")

    def send(self, tensors: Any, to: int, tag: int) -> Any:
        self._wire.tensors[self._rank, to, tag] = tensors[0].clone()
        self._wire.meet((self._rank, to, tag))
        return self._ended()

    def recv(self, tensors: Any, sender: int, tag: int) -> Any:
        self._wire.meet((sender, self._rank, tag))
        tensors[0].copy_(self._wire.tensors[sender, self._rank, tag])
        return self._ended()

    @staticmethod
    def _ended() -> Any:
        def wait(timeout: timedelta) -> bool:
            return timeout > timedelta(0)

        return SimpleNamespace(wait=wait)


def exchanged(size: int, folder: Path, patience_s: float, *, takes_turns: bool) -> Wire:
    """Let all members send and receive, each in a thread of its own."""
    wire, context = Wire(patience_s), Context(Place("node", folder), None, chosen=Chosen((0,), (), 1, 1.0))

    def member(rank: int) -> float:
        part = torch.full((4,), rank, dtype=torch.uint8)
        return Exchange(context, Twin(wire, rank), rank, size, part).took_s(takes_turns=takes_turns)

    with ThreadPoolExecutor(size) as pool:
        assert all(took_s >= 0.0 for took_s in pool.map(member, range(size)))
    return wire


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8, 9])
def test_every_part_comes_in_rings_of_any_size_where_members_take_turns(size: int, tmp_path: Path) -> None:
    wire = exchanged(size, tmp_path, PATIENCE_S, takes_turns=True)
    assert {message: int(it[0]) for message, it in wire.tensors.items()} == {
        (rank, (rank + 1) % size, tag): rank for rank in range(size) for tag in range(PARTS)
    }


@pytest.mark.parametrize("size", [2, 3, 4])
def test_the_twin_waits_for_ever_where_all_send_first(size: int, tmp_path: Path) -> None:
    with pytest.raises(RuntimeError, match="nobody came"):
        exchanged(size, tmp_path, SHORT_S, takes_turns=False)
