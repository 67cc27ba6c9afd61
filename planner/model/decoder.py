"""Measured runs of decoders (GPT and its kin), from shapes to what the step-time model asks for.

One dense decoder layer has 24 s h^2 + 4 s^2 h forward FLOPs for a sample, and 12 h^2 parameters; the head 2 s h V.
The last stage is the slowest, as it holds the head too.

Source: SPEC P1.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .constants import Constants
from .step_time import (
    NUMBER_BYTES,
    OPTIMIZER_BYTES,
    Array,
    Machine,
    Pieces,
    Rounds,
    all_reduce_bytes,
    iteration_s,
    micro_batch_s,
)

FULL, SELECTIVE, NONE = 2.0, 1.0, 0.0  # how much of a layer is computed twice


class Runs(NamedTuple):
    """Runs of decoders, each array of shape (runs,)."""

    gpus: Array
    batch: Array  # global, in samples
    micro_batch: Array
    hidden: Array
    layers: Array
    sequence: Array
    vocabulary: Array
    tensor: Array  # degrees of parallelism
    pipeline: Array
    data: Array
    recompute: Array  # FULL, SELECTIVE or NONE
    interleave: Array  # parts of the model on each stage
    zero3: Array  # 1 where parameters are spread over all members, else 0
    iteration_s: Array  # as measured


def select(runs: Runs, rows: NDArray[np.int64]) -> Runs:
    """Return some of the runs, by their indices."""
    return Runs(*(column[rows] for column in runs))


class DecoderWork(NamedTuple):
    """What runs do, for a prediction with any constants."""

    pieces: Pieces
    rounds: Rounds
    machine: Machine


def work_of(runs: Runs, machine: Machine, gpus_per_node: int) -> DecoderWork:
    """Return what each run does on its slowest stage, arrays of shape (runs,)."""
    t, p, d = runs.tensor, runs.pipeline, runs.data
    local = runs.layers / p
    parameters = 12.0 * runs.hidden**2 * local / t + runs.vocabulary * runs.hidden / t
    micro_batches = runs.batch / (d * runs.micro_batch)
    summed = np.where(runs.zero3 > 0, 0.0, all_reduce_bytes(d, NUMBER_BYTES * parameters))
    gathered = 3.0 * NUMBER_BYTES * parameters * micro_batches * (d - 1.0) / d
    is_inside = runs.gpus <= gpus_per_node
    rounds = Rounds(
        steps=micro_batches + (p - 1.0) / runs.interleave,
        inside_bytes=np.where(is_inside, summed, 0.0),
        across_bytes=np.where(is_inside, 0.0, summed),
        gathered_bytes=np.where(runs.zero3 > 0, gathered, 0.0),
        optimizer_bytes=OPTIMIZER_BYTES * parameters,
    )
    return DecoderWork(_pieces(runs, local), rounds, machine)


def _pieces(runs: Runs, local: Array) -> Pieces:
    t, b, s, h = runs.tensor, runs.micro_batch, runs.sequence, runs.hidden
    layer = 24.0 * s * h**2 + 4.0 * s**2 * h
    # Selective recomputation does the products of attention a second time, and no others.
    passes = np.where(runs.recompute == FULL, 4.0, 3.0)
    again = np.where(runs.recompute == SELECTIVE, 4.0 * s**2 * h, 0.0)
    reduces = np.where(runs.recompute == FULL, 6.0, 4.0)  # all-reduces of a layer
    head = 3.0 * 2.0 * s * h * runs.vocabulary
    activation = b * s * h
    return Pieces(
        flops=b / t * ((passes * layer + again) * local + head),
        elements=activation / t,
        tensor_bytes=all_reduce_bytes(t, reduces * local * activation * NUMBER_BYTES),
        layers=local,
        tensor_layers=np.where(t > 1, local, 0.0),
    )


def predicted_s(work: DecoderWork, constants: Constants) -> Array:
    """Return the iteration time of each run, shape (runs,)."""
    each_s = micro_batch_s(work.pieces, work.machine.peak_flops, constants)
    return iteration_s(each_s, work.rounds, work.machine, constants)
