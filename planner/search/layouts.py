"""Every layout that could be: degrees of parallelism, micro-batch and memory saving, as arrays.

Source: SPEC P1.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.memory import Saving
from ..model.pool import GpuType

Counts = NDArray[np.int64]
SAVINGS = tuple(Saving)
MICRO_BATCHES = (1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 48, 64)  # samples: efficiency is flat long before the last
MOST_LAYOUTS = 2_000_000  # beyond, longer pipelines are left out: only batches of hundreds of divisors have so many


class Layout(NamedTuple):
    """How a model is spread over GPUs."""

    data: int
    pipeline: int
    tensor: int
    micro_batch: int  # samples
    saving: Saving

    @property
    def gpus(self) -> int:
        """GPUs that it takes."""
        return self.data * self.pipeline * self.tensor


class Layouts(NamedTuple):
    """Many layouts, each array of shape (layouts,)."""

    data: Counts
    pipeline: Counts
    tensor: Counts
    micro_batch: Counts
    saving: Counts  # index in SAVINGS

    @property
    def gpus(self) -> Counts:
        """GPUs that each takes, shape (layouts,)."""
        return self.data * self.pipeline * self.tensor

    def one(self, at: int) -> Layout:
        """Return one of them."""
        data, pipeline, tensor, micro_batch, saving = (int(column[at]) for column in self)
        return Layout(data, pipeline, tensor, micro_batch, SAVINGS[saving])


def divisors(number: int, most: int) -> list[int]:
    """Return the divisors of a number up to a bound, in ascending order."""
    return [it for it in range(1, min(number, most) + 1) if number % it == 0]


def tensor_degrees(heads: int, node: GpuType) -> list[int]:
    """Return the degrees of tensor parallelism: inside a node, and each member with as many attention heads."""
    return divisors(int(np.gcd(heads, node.gpus_per_node)), node.gpus_per_node) if heads else [1]


def layouts(batch: int, layers: int, tensor: list[int], gpus: int, least_samples: int = 1) -> Layouts:
    """Return every layout that takes at most so many GPUs.

    Args:
        batch: Samples of an iteration; data-parallel members get as many each, in equal micro-batches.
        layers: Of the model; each stage has one at least.
        tensor: Degrees of tensor parallelism to try.
        gpus: At most.
        least_samples: Of a micro-batch.
    """
    # Members, and what each computes at a time.
    sizes = sorted(it for it in {*MICRO_BATCHES, least_samples} if it >= least_samples)
    data = [(d, b) for d in divisors(batch, gpus) for b in sizes if batch // d % b == 0]
    if not data:
        return Layouts(*(np.zeros(0, dtype=np.int64) for _ in Layouts._fields))
    most_stages = MOST_LAYOUTS // (len(data) * len(tensor) * len(SAVINGS))
    stages = np.arange(1, min(layers, gpus, max(1, most_stages)) + 1)
    grid = np.meshgrid(np.arange(len(data)), stages, np.array(tensor), np.arange(len(SAVINGS)), indexing="ij")
    pair, p, t, saving = (axis.ravel() for axis in grid)
    d, b = np.array(data, dtype=np.int64)[pair].T
    found = Layouts(d, p, t, b, saving)
    keep = (found.gpus <= gpus) & _makes_sense(found)
    return Layouts(*(column[keep] for column in found))


def _makes_sense(found: Layouts) -> NDArray[np.bool_]:
    """Say which layouts are no other one in disguise: ZeRO spreads over data-parallel members alone."""
    zero = np.array([saving.zero for saving in SAVINGS])[found.saving]
    alone: NDArray[np.bool_] = (zero == 0) | (found.data > 1)
    # ZeRO-3 gathers a layer for every micro-batch: in a pipeline it would do so too often, and no library offers it.
    whole: NDArray[np.bool_] = (zero != 3) | ((found.pipeline == 1) & (found.tensor == 1))
    return alone & whole
