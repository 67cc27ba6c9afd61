"""The constants of the step-time model: what each means, and where its value is from."""

from typing import NamedTuple


class Constants(NamedTuple):
    """Eight figures of GPUs, network and training software, which measured runs can tell."""

    efficiency: float  # best share of the peak in matrix products
    half_elements: float  # elements of a micro-batch's activation at which half of that share is reached
    tensor_bytes_per_s: float  # of the all-reduces of tensor parallelism, inside a node
    inside_bytes_per_s: float  # of the all-reduce of gradients inside a node
    across_bytes_per_s: float  # of the all-reduce of gradients across nodes
    layer_s: float  # fixed cost of a decoder layer for each micro-batch
    tensor_layer_s: float  # fixed cost of tensor parallelism, for each layer and micro-batch
    iteration_s: float  # fixed cost of an iteration


class Meaning(NamedTuple):
    """How a constant is told to people."""

    text: str
    unit: str
    in_si: float  # the unit in SI units


MEANINGS = {
    "efficiency": Meaning("best share of a GPU's peak that matrix products reach", "", 1.0),
    "half_elements": Meaning("size of a micro-batch's activation that reaches half of it", "M elements", 1e6),
    "tensor_bytes_per_s": Meaning("bandwidth of tensor parallelism, inside a node", "GB/s", 1e9),
    "inside_bytes_per_s": Meaning("bandwidth of the sum of gradients, inside a node", "GB/s", 1e9),
    "across_bytes_per_s": Meaning("bandwidth of the sum of gradients, across nodes", "GB/s", 1e9),
    "layer_s": Meaning("fixed cost of a decoder layer, for each micro-batch", "ms", 1e-3),
    "tensor_layer_s": Meaning("fixed cost of tensor parallelism, for each layer and micro-batch", "ms", 1e-3),
    "iteration_s": Meaning("fixed cost of an iteration", "ms", 1e-3),
}  # in the order of Constants

# Where a fit begins, and what it stays near to: from datasheets of the A100.
PRIOR = Constants(0.55, 0.30e6, 150e9, 100e9, 20e9, 1e-3, 0.5e-3, 5e-3)
