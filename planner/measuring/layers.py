"""How long layers take here, on a rank that is alone: standard layers of many sizes, and rates fitted to them.

The layers are ours, and not those of any user's model; a model's own are predicted by their figures.

Source: SPEC P1.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from statistics import median
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import nnls
from torch import Tensor, nn
from torch.nn import functional

from ..model.hardware import Accuracy
from ..model.host import LayerRates
from ..profile.layers import ModelProfile
from ..profile.rungs import climb
from ..search.costs import Layers, host_layers

Array = NDArray[np.float64]
LEAST_S, LEAST_CALLS = 0.25, 5  # of a measurement
BOUND_SHARE = 0.9
# Blocks: width, length, samples. Words and heads: words, width, length, samples.
BLOCKS = (
    (64, 64, 8), (128, 64, 1), (128, 128, 4), (256, 32, 1), (256, 64, 2), (256, 128, 2), (256, 128, 8), (384, 64, 4),
    (512, 64, 1), (512, 128, 4),
)  # fmt: skip
WORDS = ((1000, 128, 64, 4), (4000, 256, 128, 2), (8000, 128, 32, 8), (8000, 384, 64, 4))
HEADS = ((1000, 128, 64, 2), (2000, 256, 128, 4), (8000, 256, 64, 2), (4000, 512, 32, 4), (8000, 128, 128, 4))
Built = tuple[nn.Module, Tensor, Callable[..., Any] | None]


class Block(nn.Module):
    """Attention and an MLP, each behind a norm, as decoders have them.

    Args:
        width: Of its activation.
        heads: Of its attention.
    """

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


def block(width: int, length: int, samples: int) -> Built:
    """Return a block with a batch for it."""
    return nn.Sequential(Block(width, width // 64)), torch.randn(samples, length, width, requires_grad=True), None


def words(count: int, width: int, length: int, samples: int) -> Built:
    """Return a table of words with a batch for it."""
    return nn.Sequential(nn.Embedding(count, width)), torch.zeros(samples, length, dtype=torch.long), None


def head(count: int, width: int, length: int, samples: int) -> Built:
    """Return a head with a batch for it, and the loss of logits."""
    batch = torch.randn(samples, length, width, requires_grad=True)
    return nn.Sequential(nn.Linear(width, count, bias=False)), batch, _cross_entropy


def _cross_entropy(logits: Tensor) -> Tensor:
    target = torch.zeros(logits.shape[:2], dtype=torch.long, device=logits.device)
    return functional.cross_entropy(logits.flatten(0, 1), target.flatten())


class LayerTime(NamedTuple):
    """A standard layer with what it took."""

    layers: Layers  # its figures
    samples: int
    forward_s: float
    backward_s: float


def measured() -> Iterator[LayerTime]:
    """Measure all standard layers."""
    for build, shapes in ((block, BLOCKS), (words, WORDS), (head, HEADS)):
        for shape in shapes:
            yield _measured(partial(build, *shape))


def _measured(build: Callable[[], Built]) -> LayerTime:
    found = climb(build, {}, 0)
    profile = ModelProfile(name="standard layer", rung=found.rung, tokens_per_sample=1.0, layers=tuple(found.layers))
    model, batch, loss = build()
    model.train()
    ways = _ways_s(model, batch, loss)
    return LayerTime(host_layers(profile), int(batch.shape[0]), *ways)


def _ways_s(model: nn.Module, batch: Tensor, loss: Callable[..., Any] | None) -> tuple[float, float]:
    forward, backward = list[float](), list[float]()
    until_s = time.perf_counter() + LEAST_S
    while len(forward) <= LEAST_CALLS or time.perf_counter() < until_s:
        began_s = time.perf_counter()
        output = model(batch) if loss is None else loss(model(batch))
        between_s = time.perf_counter()
        output.backward(torch.ones_like(output))
        forward.append(between_s - began_s)
        backward.append(time.perf_counter() - between_s)
    return median(forward[1:]), median(backward[1:])


def fitted(times: Sequence[LayerTime]) -> tuple[LayerRates, LayerRates]:
    """Return rates forward and backward, with the least sum of squares of relative errors."""
    return _rates(_figures(times, 0), [it.forward_s for it in times]), _rates(
        _figures(times, 1), [it.backward_s for it in times]
    )


def accuracy(times: Sequence[LayerTime]) -> Accuracy:
    """Return how far off predictions are of layers that are left out of the fit, one after the other."""
    ratios = np.array([_ratio([*times[:at], *times[at + 1 :]], times[at]) for at in range(len(times))])
    return Accuracy(
        runs=len(times),
        mean_error=float(np.abs(ratios - 1.0).mean()),
        bias=float(ratios.mean() - 1.0),
        bound_share=BOUND_SHARE,
        bound_factor=float(np.quantile(1.0 / ratios, BOUND_SHARE)),
    )


def _ratio(others: Sequence[LayerTime], one: LayerTime) -> float:
    """Return the predicted time of a layer over the measured one."""
    predicted_s = sum(
        float(_figures([one], way)[0] @ np.array(list(rates.model_dump().values())))
        for way, rates in enumerate(fitted(others))
    )
    return predicted_s / (one.forward_s + one.backward_s)


def _figures(times: Sequence[LayerTime], way: int) -> Array:
    """Return what rates are multiplied with, shape (layers, 4), in the order of `LayerRates`."""
    rows = []
    for it in times:
        flops = (it.layers.forward_flops, it.layers.backward_flops)[way].sum() * it.samples
        kept, parameters = it.layers.saved_bytes.sum() * it.samples, it.layers.parameters.sum()
        rows.append((flops, kept, parameters, it.layers.fixed_costs.sum()))
    return np.array(rows)


def _rates(figures: Array, times_s: Sequence[float]) -> LayerRates:
    relative = figures / np.array(times_s)[:, None]
    scale = relative.max(axis=0)
    found, _ = nnls(relative / scale, np.ones(len(times_s)))
    return LayerRates(**dict(zip(LayerRates.model_fields, map(float, found / scale), strict=True)))
