"""The step-time model: the time of an iteration on GPUs, from shapes, constants and hardware.

A micro-batch of a stage takes

    flops / (peak * e) + tensor_bytes / tensor_bytes_per_s + layer_s * layers + tensor_layer_s * tensor layers,
    e = efficiency * x / (x + half_elements),    x = elements of the micro-batch's activation on one GPU

and an iteration with m micro-batches over p stages, whose pace is that of the slowest,

    micro_batch_s * (m + (p - 1) / v) + gradient_bytes / bandwidth + optimizer_bytes / memory bandwidth + iteration_s

The eight constants are fitted to measured runs (planner/calibration.py). Ranks of a machine without GPUs are simulated
instead (planner/schedule.py).

Source: SPEC P1; mixed precision with Adam: 2 bytes of weights, 2 of gradients, 12 of optimizer (docs/planner.md).
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


class Constants(NamedTuple):
    """Eight figures of GPUs, network and training software, fitted to measured runs."""

    efficiency: float  # best share of the peak in matrix products
    half_elements: float  # elements of a micro-batch's activation at which half of that share is reached
    tensor_bytes_per_s: float  # of the all-reduces of tensor parallelism, inside a node
    inside_bytes_per_s: float  # of the all-reduce of gradients inside a node
    across_bytes_per_s: float  # of the all-reduce of gradients across nodes
    layer_s: float  # fixed cost of a decoder layer for each micro-batch
    tensor_layer_s: float  # fixed cost of tensor parallelism, for each layer and micro-batch
    iteration_s: float  # fixed cost of an iteration


OPTIMIZER_BYTES = 20.0  # that Adam in mixed precision reads and writes for each parameter
NUMBER_BYTES = 2.0  # of a weight, a gradient or an activation: fp16 or bf16


class MicroBatchWork(NamedTuple):
    """The work of a micro-batch on one GPU, by layer, by stage or by run: arrays of one shape."""

    flops: Array  # forward, backward, and recomputation
    elements: Array  # of the activation that its matrix products multiply
    tensor_bytes: Array  # that the all-reduces of tensor parallelism send
    layers: Array  # decoder layers, or others in their measure
    tensor_layers: Array  # the same where there is tensor parallelism, else 0


class IterationWork(NamedTuple):
    """The work of an iteration beside its micro-batches, on the busiest GPU: arrays of one shape."""

    steps: Array  # micro-batches, and the steps to fill and empty the pipeline
    inside_bytes: Array  # of gradients that a GPU sends inside its node
    across_bytes: Array  # of gradients that a GPU sends across nodes
    gathered_bytes: Array  # that ZeRO-3 sends across nodes, with no wait between
    optimizer_bytes: Array  # that the optimizer reads and writes


class HardwareRates(NamedTuple):
    """Figures of the hardware's datasheet; each a number, or an array like the work."""

    peak_flops: Array | float
    memory_bytes_per_s: Array | float
    nic_bytes_per_s: Array | float  # of a node's network


def compute_s(work: MicroBatchWork, peak_flops: Array | float, constants: Constants) -> Array:
    """Return the time of the matrix products of each piece, in its shape."""
    # e = efficiency / (1 + half / x): nothing to multiply takes no time.
    slower: Array = 1.0 + constants.half_elements / np.maximum(work.elements, 1.0)
    products_s: Array = work.flops * slower / (peak_flops * constants.efficiency)
    return products_s


def micro_batch_s(work: MicroBatchWork, peak_flops: Array | float, constants: Constants) -> Array:
    """Return the time of each piece, in its shape."""
    beside_s: Array = (  # whatever the GPU's speed
        work.tensor_bytes / constants.tensor_bytes_per_s
        + constants.layer_s * work.layers
        + constants.tensor_layer_s * work.tensor_layers
    )
    return compute_s(work, peak_flops, constants) + beside_s


def iteration_s(micro_batches_s: Array, work: IterationWork, machine: HardwareRates, constants: Constants) -> Array:
    """Return the time of each iteration, in the shape of the work.

    Args:
        micro_batches_s: Time of a micro-batch on the slowest stage, in the same shape.
        work: What else it does.
        machine: Memory and network.
        constants: Fitted ones.
    """
    taken_s: Array = micro_batches_s * work.steps + synchronisation_s(work, machine, constants)
    return taken_s + constants.iteration_s


def synchronisation_s(work: IterationWork, machine: HardwareRates, constants: Constants) -> Array:
    """Return the time of gradients and optimizer of each iteration, in the shape of the work."""
    taken_s: Array = (
        work.inside_bytes / constants.inside_bytes_per_s
        + work.across_bytes / constants.across_bytes_per_s
        + work.gathered_bytes / machine.nic_bytes_per_s
        + work.optimizer_bytes / machine.memory_bytes_per_s
    )
    return taken_s


def all_reduce_bytes(members: Array, volume_bytes: Array) -> Array:
    """Return what each member of a ring sends when it sums a volume over all, in their common shape."""
    sent: Array = 2.0 * (members - 1.0) / members * volume_bytes
    return sent
