"""Each process of `longshore plan measure`: `python -m longshore.planner.measuring_worker FILE`.

1. The first rank measures standard layers of many sizes and the optimizer, while no other rank is busy.
2. All ranks measure how the speed of a rank falls with the number of busy ranks.
3. All ranks measure sums of gradients, and the first two the sending of activations.
4. The first rank fits rates to the layers, and writes the profile.

Sums, sends and updates are the functions that a training calls. The standard layers are not those of a user's model,
whose times are predicted from their figures.

Source: SPEC P1.
"""

import os
import platform
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional

from ..ring.gradients import pieces_of
from .execution.cutting import adamw
from .execution.training import ReplicaGroup, average_gradients
from .hardware import HOST_NUMBER_BYTES, Accuracy, ExchangeCost, HostProfile, LayerRates
from .profile.profiling import ModelProfile
from .profile.rungs import profile_by_rungs
from .request import LayerArrays, host_layer_arrays
from .step_time import Array

TENSOR_SIZES = (16_384, 262_144, 1_048_576, 4_194_304)  # numbers
TENSORS_PER_SIZE = 16  # tensors that they are in
CALLS = 9


def measure_reduce(members: int) -> ExchangeCost:
    """Measure a sum over the first ranks; all ranks call it."""
    group = dist.new_group(list(range(members)))
    taken_s = []
    for size in TENSOR_SIZES:
        pieces, loss = pieces_of(_parameters_with_gradients(size)), torch.zeros(())
        if dist.get_rank() < members:
            taken_s.append(_median_call_s(lambda: average_gradients(pieces, loss, ReplicaGroup(group)), group))  # noqa: B023
        dist.barrier()
    return _fit_exchange_cost(members, taken_s) if taken_s else ExchangeCost(members=members, start_s=0.0, byte_s=0.0)


def measure_send() -> ExchangeCost:
    """Measure a send as half of a round trip between two ranks; all ranks call it. A single rank sends nothing."""
    taken_s = []
    for size in TENSOR_SIZES if dist.get_world_size() > 1 else ():
        tensor = torch.zeros(size)
        if dist.get_rank() < 2:
            taken_s.append(_median_call_s(lambda: _round_trip(tensor), None) / 2.0)  # noqa: B023
        dist.barrier()
    return _fit_exchange_cost(2, taken_s) if taken_s else ExchangeCost(members=2, start_s=0.0, byte_s=0.0)


def measure_update() -> tuple[float, float]:
    """Measure the optimizer; return its fixed seconds, and those for each parameter."""
    taken_s = []
    for size in TENSOR_SIZES:
        parameters = _parameters_with_gradients(size)
        optimizer = adamw(parameters)
        taken_s.append(_median_call_s(optimizer.step, None))
    found = _fit_exchange_cost(2, taken_s)
    return found.start_s, found.byte_s * HOST_NUMBER_BYTES


def _parameters_with_gradients(size: int) -> list[nn.Parameter]:
    found = [nn.Parameter(torch.zeros(size // TENSORS_PER_SIZE)) for _ in range(TENSORS_PER_SIZE)]
    for parameter in found:
        parameter.grad = torch.zeros_like(parameter)
    return found


def _round_trip(tensor: torch.Tensor) -> None:
    other = 1 - dist.get_rank()
    works = [dist.isend, dist.irecv] if dist.get_rank() == 0 else [dist.irecv, dist.isend]
    for work in works:
        for operation in dist.batch_isend_irecv([dist.P2POp(work, tensor, other)]):
            operation.wait()


def _median_call_s(call: Callable[[], object], group: dist.ProcessGroup | None) -> float:
    taken_s = []
    for _ in range(CALLS):
        if group is not None:
            dist.barrier(group=group)
        began_s = time.perf_counter()
        call()
        taken_s.append(time.perf_counter() - began_s)
    return median(taken_s[1:])


def _fit_exchange_cost(members: int, taken_s: Sequence[float]) -> ExchangeCost:
    """Fit start and slope."""
    volumes = HOST_NUMBER_BYTES * np.array(TENSOR_SIZES[: len(taken_s)])
    start_s, byte_s = _fit_factors(np.column_stack([np.ones(volumes.size), volumes]), taken_s)
    return ExchangeCost(members=members, start_s=start_s, byte_s=byte_s)


MIN_MEASURED_S, MIN_CALLS = 0.25, 5  # of a measurement
BOUND_SHARE = 0.9
# Blocks: width, length, samples. Words and heads: words, width, length, samples.
BLOCK_SHAPES = (
    (64, 64, 8), (128, 64, 1), (128, 128, 4), (256, 32, 1), (256, 64, 2), (256, 128, 2), (256, 128, 8), (384, 64, 4),
    (512, 64, 1), (512, 128, 4),
)  # fmt: skip
EMBEDDING_SHAPES = ((1000, 128, 64, 4), (4000, 256, 128, 2), (8000, 128, 32, 8), (8000, 384, 64, 4))
HEAD_SHAPES = ((1000, 128, 64, 2), (2000, 256, 128, 4), (8000, 256, 64, 2), (4000, 512, 32, 4), (8000, 128, 128, 4))
Built = tuple[nn.Module, Tensor, Callable[..., Any] | None]


class DecoderBlock(nn.Module):
    """Attention and an MLP, each after a norm, as in decoders."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before_attention, self.before_mlp = nn.LayerNorm(width), nn.LayerNorm(width)
        self.project, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """Return activations of the shape of x: (batch, sequence, width)."""
        parts = self.project(self.before_attention(x)).chunk(3, dim=-1)
        query, key, value = (part.unflatten(-1, (self.heads, -1)).transpose(1, 2) for part in parts)
        attended = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(-2))
        added: Tensor = self.down(functional.gelu(self.up(self.before_mlp(x))))
        return x + added


def block_example(width: int, length: int, samples: int) -> Built:
    """Return a block with a batch for it."""
    return (
        nn.Sequential(DecoderBlock(width, width // 64)),
        torch.randn(samples, length, width, requires_grad=True),
        None,
    )


def embedding_example(count: int, width: int, length: int, samples: int) -> Built:
    """Return a table of words with a batch for it."""
    return nn.Sequential(nn.Embedding(count, width)), torch.zeros(samples, length, dtype=torch.long), None


def head_example(count: int, width: int, length: int, samples: int) -> Built:
    """Return a head with a batch for it, and the loss of logits."""
    batch = torch.randn(samples, length, width, requires_grad=True)
    return nn.Sequential(nn.Linear(width, count, bias=False)), batch, _cross_entropy


def _cross_entropy(logits: Tensor) -> Tensor:
    target = torch.zeros(logits.shape[:2], dtype=torch.long, device=logits.device)
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


class LayerTime(NamedTuple):
    """A standard layer with its measured times."""

    layers: LayerArrays  # its figures
    samples: int
    forward_s: float
    backward_s: float


def measure_layers() -> Iterator[LayerTime]:
    """Measure all standard layers."""
    for build, shapes in (
        (block_example, BLOCK_SHAPES),
        (embedding_example, EMBEDDING_SHAPES),
        (head_example, HEAD_SHAPES),
    ):
        for shape in shapes:
            yield _measure_layer(partial(build, *shape))


def _measure_layer(build: Callable[[], Built]) -> LayerTime:
    found = profile_by_rungs(build, {}, 0)
    profile = ModelProfile(name="standard layer", rung=found.rung, tokens_per_sample=1.0, layers=tuple(found.layers))
    model, batch, loss = build()
    model.train()
    ways = _forward_and_backward_s(model, batch, loss)
    return LayerTime(host_layer_arrays(profile), int(batch.shape[0]), *ways)


def _forward_and_backward_s(model: nn.Module, batch: Tensor, loss: Callable[..., Any] | None) -> tuple[float, float]:
    forward, backward = list[float](), list[float]()
    until_s = time.perf_counter() + MIN_MEASURED_S
    while len(forward) <= MIN_CALLS or time.perf_counter() < until_s:
        began_s = time.perf_counter()
        output = model(batch) if loss is None else loss(model(batch))
        between_s = time.perf_counter()
        output.backward(torch.ones_like(output))
        forward.append(between_s - began_s)
        backward.append(time.perf_counter() - between_s)
    return median(forward[1:]), median(backward[1:])


def fit_forward_and_backward(times: Sequence[LayerTime]) -> tuple[LayerRates, LayerRates]:
    """Fit rates forward and backward, by least squares of relative errors."""
    return _fit_rates(_rate_factors(times, 0), [layer.forward_s for layer in times]), _fit_rates(
        _rate_factors(times, 1), [layer.backward_s for layer in times]
    )


def held_out_accuracy(times: Sequence[LayerTime]) -> Accuracy:
    """Return the error of predictions of layers outside of the fit, held out one by one."""
    ratios = np.array([_held_out_ratio([*times[:at], *times[at + 1 :]], times[at]) for at in range(len(times))])
    return Accuracy(
        runs=len(times),
        mean_error=float(np.abs(ratios - 1.0).mean()),
        bias=float(ratios.mean() - 1.0),
        bound_share=BOUND_SHARE,
        bound_factor=float(np.quantile(1.0 / ratios, BOUND_SHARE)),
    )


def _held_out_ratio(others: Sequence[LayerTime], held_out: LayerTime) -> float:
    """Return the predicted time of a layer over the measured one."""
    predicted_s = sum(
        float(_rate_factors([held_out], way)[0] @ np.array(list(rates.model_dump().values())))
        for way, rates in enumerate(fit_forward_and_backward(others))
    )
    return predicted_s / (held_out.forward_s + held_out.backward_s)


def _rate_factors(times: Sequence[LayerTime], direction: int) -> Array:
    """Return the figures that rates are multiplied with, shape (layers, 4), in the order of `LayerRates`."""
    rows = []
    for layer in times:
        flops = (layer.layers.forward_flops, layer.layers.backward_flops)[direction].sum() * layer.samples
        kept, parameters = layer.layers.saved_bytes.sum() * layer.samples, layer.layers.parameters.sum()
        rows.append((flops, kept, parameters, layer.layers.fixed_costs.sum()))
    return np.array(rows)


def _fit_rates(figures: Array, times_s: Sequence[float]) -> LayerRates:
    return LayerRates(**dict(zip(LayerRates.model_fields, _fit_factors(figures, times_s), strict=True)))


def _fit_factors(columns: Array, taken_s: Sequence[float]) -> list[float]:
    """Fit a factor of each column, none below 0, by least squares of relative errors."""
    from scipy.optimize import nnls

    relative = columns / np.array(taken_s)[:, None]
    scale = relative.max(axis=0)
    found, _ = nnls(relative / scale, np.ones(len(taken_s)))
    return [float(factor) for factor in found / scale]


BUSY_S, SPEED_ROUNDS = 0.4, 7  # of a measurement with N busy ranks, and its repetitions, of which the median counts
BUSY_SHAPE = (256, 128, 2)


def main() -> None:
    """Measure this machine; the first rank writes the profile."""
    dist.init_process_group("gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    times = list[LayerTime]()
    if rank == 0:
        _print_on_first_rank("layers, one busy rank")
        times = list(measure_layers())
    updates = measure_update() if rank == 0 else (0.0, 0.0)
    dist.barrier()
    speeds = _measure_speeds(rank, ranks)
    reduces = []
    for members in range(2, ranks + 1):
        _print_on_first_rank(f"sums of {members}", rank)
        reduces.append(measure_reduce(members))
    sends = measure_send()
    if rank == 0:
        forward, backward = fit_forward_and_backward(times)
        profile = HostProfile(
            name=f"{platform.node()}, {ranks} ranks of one thread", cores=len(os.sched_getaffinity(0)),
            memory_bytes=float(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")),
            forward=forward, backward=backward, speeds=tuple(speeds), send=sends, reduce=tuple(reduces),
            update_start_s=updates[0], update_parameter_s=updates[1], accuracy=held_out_accuracy(times),
        )  # fmt: skip
        Path(sys.argv[1]).write_text(profile.model_dump_json(), encoding="utf-8")
    dist.destroy_process_group()


def _measure_speeds(rank: int, ranks: int) -> list[float]:
    """Return the speed of a rank if one, two, three and so on are busy; of a single one it is 1.

    Each speed is compared with that of a single one in the same round: other work on the machine slows both down.
    """
    model, batch, _ = block_example(*BUSY_SHAPE)
    _passes_per_s(model, batch, 0.2)
    found = torch.zeros(SPEED_ROUNDS, ranks)
    for at in range(SPEED_ROUNDS):
        for busy in range(1, ranks + 1):
            _print_on_first_rank(f"{busy} busy, round {at + 1} of {SPEED_ROUNDS}", rank)
            dist.barrier()
            if rank < busy:
                found[at, busy - 1] = _passes_per_s(model, batch, BUSY_S) / busy
    dist.all_reduce(found)
    return (found / found[:, :1]).median(dim=0).values.tolist()


def _passes_per_s(model: torch.nn.Module, batch: Tensor, seconds: float) -> float:
    """Return the forward and backward passes per second, measured for a time."""
    began_s, count = time.perf_counter(), 0
    while (taken_s := time.perf_counter() - began_s) < seconds:
        model(batch).sum().backward()
        count += 1
    return count / taken_s


def _print_on_first_rank(text: str, rank: int = 0) -> None:
    if rank == 0:
        print(f"measuring: {text}", flush=True)  # noqa: T201  # the output of a process that takes half a minute


if __name__ == "__main__":
    main()
