"""What ranks of this machine need to sum gradients, to send activations, and to update parameters.

Each is the function that a training calls, so that the prediction is of what is run.

Source: SPEC P1.
"""

import time
from collections.abc import Callable, Sequence
from statistics import median

import numpy as np
import torch
import torch.distributed as dist
from torch import nn

from ...gradients import pieces_of
from ..execution.script import adamw
from ..execution.summing import Members, average
from ..model.host import NUMBER_BYTES, Exchange

SIZES = (16_384, 262_144, 1_048_576, 4_194_304)  # numbers
PARTS = 16  # tensors that they are in
CALLS = 9


def reduce(members: int) -> Exchange:
    """Return what a sum over the first ranks takes; all ranks call it."""
    group = dist.new_group(list(range(members)))
    taken_s = []
    for size in SIZES:
        pieces, loss = pieces_of(_parameters(size)), torch.zeros(())
        if dist.get_rank() < members:
            taken_s.append(_median_s(lambda: average(pieces, loss, Members(group)), group))  # noqa: B023
        dist.barrier()
    return _line(members, taken_s) if taken_s else Exchange(members=members, start_s=0.0, byte_s=0.0)


def send() -> Exchange:
    """Return what it takes from one rank to another and back, of which half; all ranks call it."""
    taken_s = []
    for size in SIZES:
        tensor = torch.zeros(size)
        if dist.get_rank() < 2:
            taken_s.append(_median_s(lambda: _there_and_back(tensor), None) / 2.0)  # noqa: B023
        dist.barrier()
    return _line(2, taken_s) if taken_s else Exchange(members=2, start_s=0.0, byte_s=0.0)


def update() -> tuple[float, float]:
    """Return what the optimizer takes here, once and for each parameter."""
    taken_s = []
    for size in SIZES:
        parameters = _parameters(size)
        optimizer = adamw(parameters)
        taken_s.append(_median_s(optimizer.step, None))
    found = _line(2, taken_s)
    return found.start_s, found.byte_s * NUMBER_BYTES


def _parameters(size: int) -> list[nn.Parameter]:
    found = [nn.Parameter(torch.zeros(size // PARTS)) for _ in range(PARTS)]
    for it in found:
        it.grad = torch.zeros_like(it)
    return found


def _there_and_back(tensor: torch.Tensor) -> None:
    other = 1 - dist.get_rank()
    works = [dist.isend, dist.irecv] if dist.get_rank() == 0 else [dist.irecv, dist.isend]
    for work in works:
        for it in dist.batch_isend_irecv([dist.P2POp(work, tensor, other)]):
            it.wait()


def _median_s(call: Callable[[], object], group: dist.ProcessGroup | None) -> float:
    taken_s = []
    for _ in range(CALLS):
        if group is not None:
            dist.barrier(group=group)
        began_s = time.perf_counter()
        call()
        taken_s.append(time.perf_counter() - began_s)
    return median(taken_s[1:])


def _line(members: int, taken_s: Sequence[float]) -> Exchange:
    """Return start and slope, with the least sum of squares of relative errors; neither below 0."""
    from scipy.optimize import nnls

    volumes = NUMBER_BYTES * np.array(SIZES[: len(taken_s)])
    columns = np.column_stack([np.ones(volumes.size), volumes]) / np.array(taken_s)[:, None]
    scale = columns.max(axis=0)
    found, _ = nnls(columns / scale, np.ones(volumes.size))
    start_s, byte_s = map(float, found / scale)
    return Exchange(members=members, start_s=start_s, byte_s=byte_s)
