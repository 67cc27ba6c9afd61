"""How long an iteration takes: a formula of eight constants, over arrays of layers, of stages or of runs.

A micro-batch of a stage takes

    flops / (peak * e) + tensor_bytes / tensor_bytes_per_s + layer_s * layers + tensor_layer_s * tensor layers,
    e = efficiency * x / (x + half_elements),    x = elements of the micro-batch's activation on one GPU

and an iteration with m micro-batches over p stages, the slowest of which sets the pace,

    micro_batch_s * (m + (p - 1) / v) + gradient_bytes / bandwidth + optimizer_bytes / memory bandwidth + iteration_s

Source: SPEC P1; the constants are fitted to measured runs (docs/planner.md).
"""

from typing import NamedTuple, TypeVar

import numpy as np
from numpy.typing import NDArray

from .constants import Constants

Array = NDArray[np.float64]
OPTIMIZER_BYTES = 20.0  # that Adam in mixed precision reads and writes for each parameter
NUMBER_BYTES = 2.0  # of a weight, a gradient or an activation: fp16 or bf16
SharesT = TypeVar("SharesT", bound="Array | float")


class Pieces(NamedTuple):
    """What a micro-batch does on one GPU, by layer, by stage or by run: arrays of one shape."""

    flops: Array  # forward, backward, and forward again where it is computed twice
    elements: Array  # of the activation that its matrix products multiply
    tensor_bytes: Array  # that the all-reduces of tensor parallelism send
    layers: Array  # decoder layers, or others in their measure
    tensor_layers: Array  # the same where there is tensor parallelism, else 0


class Rounds(NamedTuple):
    """What an iteration does beside its micro-batches, on the GPU that does most: arrays of one shape."""

    steps: Array  # micro-batches, and those that the pipeline takes to fill and empty
    inside_bytes: Array  # of gradients that a GPU sends inside its node
    across_bytes: Array  # of gradients that a GPU sends across nodes
    gathered_bytes: Array  # that ZeRO-3 sends across nodes, with no wait between
    optimizer_bytes: Array  # that the optimizer reads and writes


class Machine(NamedTuple):
    """Figures of hardware that are known without a measurement; each a number, or an array like the rounds."""

    peak_flops: Array | float
    memory_bytes_per_s: Array | float
    nic_bytes_per_s: Array | float  # of a node's network, as its datasheet has it


def compute_s(pieces: Pieces, peak_flops: Array | float, constants: Constants) -> Array:
    """Return the time of the matrix products of each piece, in its shape."""
    # e = efficiency / (1 + half / x): nothing to multiply takes no time.
    slower: Array = 1.0 + constants.half_elements / np.maximum(pieces.elements, 1.0)
    products_s: Array = pieces.flops * slower / (peak_flops * constants.efficiency)
    return products_s


def other_s(pieces: Pieces, constants: Constants) -> Array:
    """Return the time of each piece that no faster GPU would save: tensor parallelism and fixed costs."""
    taken_s: Array = (
        pieces.tensor_bytes / constants.tensor_bytes_per_s
        + constants.layer_s * pieces.layers
        + constants.tensor_layer_s * pieces.tensor_layers
    )
    return taken_s


def micro_batch_s(pieces: Pieces, peak_flops: Array | float, constants: Constants) -> Array:
    """Return the time of each piece, in its shape."""
    return compute_s(pieces, peak_flops, constants) + other_s(pieces, constants)


def iteration_s(micro_batches_s: Array, rounds: Rounds, machine: Machine, constants: Constants) -> Array:
    """Return the time of each iteration, in the shape of the rounds.

    Args:
        micro_batches_s: Time of a micro-batch on the slowest stage, in the same shape.
        rounds: What else it does.
        machine: Memory and network.
        constants: Fitted ones.
    """
    taken_s: Array = micro_batches_s * rounds.steps + synchronisation_s(rounds, machine, constants)
    return taken_s + constants.iteration_s


def synchronisation_s(rounds: Rounds, machine: Machine, constants: Constants) -> Array:
    """Return the time of gradients and optimizer of each iteration, in the shape of the rounds."""
    taken_s: Array = (
        rounds.inside_bytes / constants.inside_bytes_per_s
        + rounds.across_bytes / constants.across_bytes_per_s
        + rounds.gathered_bytes / machine.nic_bytes_per_s
        + rounds.optimizer_bytes / machine.memory_bytes_per_s
    )
    return taken_s


def all_reduce_bytes(members: Array, volume_bytes: Array) -> Array:
    """Return what each member of a ring sends when it sums a volume over all, in their common shape."""
    sent: Array = 2.0 * (members - 1.0) / members * volume_bytes
    return sent
