"""What layouts take at least, all at once: so that few of thousands have to be worked out.

Nothing here is told to anybody. A bound that were too high would hide a good plan, so tests hold each against the plan
that is worked out.

Source: SPEC P1.
"""

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..model.memory import OPTIMIZER_STATE_BYTES, STATE_BYTES, kept_share, usable_bytes
from ..model.pool import GpuType
from ..model.step_time import NUMBER_BYTES, Array, Machine, compute_s, iteration_s, micro_batch_s
from .costs import Layers, pieces
from .evaluating import rounds
from .layouts import SAVINGS, Layouts
from .question import Chain, Question

RECOMPUTES = np.array([float(saving.recomputes) for saving in SAVINGS])
ZERO = np.array([float(saving.zero) for saving in SAVINGS])


class _Least(NamedTuple):
    """What a micro-batch takes on the fastest type, by case: arrays of shape (cases,)."""

    total_s: Array
    compute_s: Array
    longest_s: Array  # of any layer
    block_s: Array  # of the block that takes least


def best(chain: Chain) -> GpuType:
    """Return a type that is in each figure as good as the best of a chain."""
    figures = list(zip(*chain, strict=True))[2:]
    return GpuType("best", sum(it.gpus for it in chain), *(max(column) for column in figures))


def least_step_s(asked: Question, chain: Chain, found: Layouts) -> Array:
    """Return what an iteration takes at least by each layout, shape (layouts,)."""
    it = best(chain)
    constants, p, m = asked.constants(it), found.pipeline, asked.batch // (found.data * found.micro_batch)
    least = _least(asked, it, found)
    # One of the stages has at least its share of the blocks, and at least its share of everything.
    blocks = np.ceil(float(asked.layers.is_block.sum()) / p) * least.block_s
    balanced = np.maximum(least.total_s / p, least.compute_s / _speeds(chain, found))
    micro_s = np.maximum(np.maximum(blocks, balanced), least.longest_s)
    parameters = float(asked.layers.parameters.sum()) / (p * found.tensor)
    frozen_bytes = float(asked.layers.frozen_bytes.sum()) / (p * found.tensor)
    done = rounds(
        parameters, frozen_bytes, found.data.astype(np.float64), m.astype(np.float64), ZERO[found.saving],
        (found.gpus <= it.gpus_per_node).astype(np.float64), (m + p - 1).astype(np.float64),
    )  # fmt: skip
    machine = Machine(it.peak_flops, asked.fitted.measured_on.memory_bytes_per_s, it.nic_bytes_per_s)
    return iteration_s(micro_s, done, machine, constants) * (1.0 - 1e-9)  # sums of other orders round otherwise


def _least(asked: Question, it: GpuType, found: Layouts) -> _Least:
    """Work out each case of tensor degree, micro-batch and recomputation once."""
    kinds = np.stack([found.tensor, found.micro_batch, RECOMPUTES[found.saving].astype(np.int64)], axis=1)
    key = (kinds[:, 0] * 1_000_000 + kinds[:, 1]) * 2 + kinds[:, 2]
    _, first, which = np.unique(key, return_index=True, return_inverse=True)
    work = pieces(asked.layers, *(kinds[first][:, [column]].astype(np.float64) for column in range(3)))
    constants = asked.constants(it)
    each_s = micro_batch_s(work, it.peak_flops, constants)
    products_s = compute_s(work, it.peak_flops, constants).sum(axis=1)
    is_block = asked.layers.is_block > 0
    block_s = each_s[:, is_block].min(axis=1) if is_block.any() else np.zeros(first.size)
    return _Least(*(values[which] for values in (each_s.sum(axis=1), products_s, each_s.max(axis=1), block_s)))


def _speeds(chain: Chain, found: Layouts) -> Array:
    """Return the speeds of all stages together, that of the fastest type being 1, shape (layouts,)."""
    each, total, before, passed = found.data * found.tensor, np.zeros(found.data.size), np.zeros(found.data.size), 0
    for it in chain:
        passed += it.gpus
        ends_here = np.minimum(found.pipeline, passed // each).astype(np.float64)  # the slowest GPU comes last
        total += (ends_here - before) * it.peak_flops / chain[0].peak_flops
        before = ends_here
    return np.maximum(total, 1e-30)


def may_fit(asked: Question, chain: Chain, found: Layouts) -> NDArray[np.bool_]:
    """Say which layouts may fit into memory; for the others no cuts do. Shape (layouts,)."""
    layers, usable = asked.layers, max(usable_bytes(it.memory_bytes) for it in chain)
    zero, data = ZERO[found.saving], found.data.astype(np.float64)
    kept = 1.0 - OPTIMIZER_STATE_BYTES / STATE_BYTES  # of the state, what ZeRO-1 does not spread
    state = STATE_BYTES * np.where(zero == 3, 1 / data, np.where(zero == 1, kept + (1 - kept) / data, 1.0))
    share = _kept_share(found)
    again = RECOMPUTES[found.saving] > 0
    per_sample = np.where(again, _kept_by_recomputing(layers, share), layers.saved_bytes.sum() * share)
    frozen = layers.frozen_bytes.sum() / found.tensor / np.where(zero == 3, data, 1.0)
    states, activations = layers.parameters.sum() / found.tensor * state + frozen, per_sample * found.micro_batch
    needed = states + activations
    if asked.offload:
        optimizer = OPTIMIZER_STATE_BYTES / STATE_BYTES * np.where(zero == 1, 1 / data / state * STATE_BYTES, 1.0)
        needed = np.maximum(states - (states - frozen) * optimizer + activations, states)
    fits: NDArray[np.bool_] = needed <= usable * found.pipeline * (1.0 + 1e-9)
    return fits


def _kept_share(found: Layouts) -> Array:
    degrees = np.unique(found.tensor)
    shares = np.array([kept_share(int(degree)) for degree in degrees])
    return shares[np.searchsorted(degrees, found.tensor)]


def _kept_by_recomputing(layers: Layers, share: Array) -> Array:
    inputs = float((layers.input_elements * layers.is_block).sum()) * NUMBER_BYTES
    others: Array = float((layers.saved_bytes * (1.0 - layers.is_block)).sum()) * share
    return inputs + others
