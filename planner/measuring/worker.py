"""Each process of `longshore planner measure`: `python -m longshore.planner.measuring.worker FILE`.

The first measures alone what one rank does, then all together what they do to one another.

Source: SPEC P1.
"""

import os
import platform
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
from torch import Tensor

from ..model.host import HostProfile
from .exchanges import reduce, send, update
from .layers import LayerTime, accuracy, block, fitted, measured

BUSY_S, ROUNDS = 0.4, 7  # that so many ranks compute at the same time, and how often: the median counts
BUSY_SHAPE = (256, 128, 2)


def main() -> None:
    """Measure; the first rank writes the profile."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    times = list[LayerTime]()
    if rank == 0:
        _say("layers, one rank alone")
        times = list(measured())
    updates = update() if rank == 0 else (0.0, 0.0)
    dist.barrier()
    speeds = _speeds(rank, ranks)
    reduces = []
    for members in range(2, ranks + 1):
        _say(f"sums of {members}", rank)
        reduces.append(reduce(members))
    sends = send()
    if rank == 0:
        forward, backward = fitted(times)
        profile = HostProfile(
            name=f"{platform.node()}, {ranks} ranks of one thread", cores=len(os.sched_getaffinity(0)),
            memory_bytes=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
            forward=forward, backward=backward, speeds=tuple(speeds), send=sends, reduce=tuple(reduces),
            update_start_s=updates[0], update_parameter_s=updates[1], accuracy=accuracy(times),
        )  # fmt: skip
        Path(sys.argv[1]).write_text(profile.model_dump_json(), encoding="utf-8")
    dist.destroy_process_group()


def _speeds(rank: int, ranks: int) -> list[float]:
    """Return the speed of a rank where one, two, three and so on are busy; of one alone it is 1.

    Each speed is compared with that of one alone in the same round: other work on the machine slows both down.
    """
    model, batch, _ = block(*BUSY_SHAPE)
    _passes(model, batch, 0.2)
    found = torch.zeros(ROUNDS, ranks)
    for at in range(ROUNDS):
        for busy in range(1, ranks + 1):
            _say(f"{busy} busy, round {at + 1} of {ROUNDS}", rank)
            dist.barrier()
            if rank < busy:
                found[at, busy - 1] = _passes(model, batch, BUSY_S) / busy
    dist.all_reduce(found)
    return (found / found[:, :1]).median(dim=0).values.tolist()


def _passes(model: torch.nn.Module, batch: Tensor, seconds: float) -> float:
    """Return how many passes forth and back a second there were in a time."""
    began_s, count = time.perf_counter(), 0
    while (taken_s := time.perf_counter() - began_s) < seconds:
        model(batch).sum().backward()
        count += 1
    return count / taken_s


def _say(text: str, rank: int = 0) -> None:
    if rank == 0:
        print(f"measuring: {text}", flush=True)  # noqa: T201  # the output of a process that takes half a minute


if __name__ == "__main__":
    main()
