"""How much memory of a GPU training takes: parameters with gradients and optimizer, and what is kept for the way back.

Source: SPEC P1; mixed precision with Adam: 2 bytes of weights, 2 of gradients, 12 of optimizer (docs/planner.md).
"""

from ...cluster.model.training_plan import Saving as Saving

STATE_BYTES = 16.0  # weights, gradients and optimizer of one parameter
OPTIMIZER_STATE_BYTES = 12.0  # of these, what ZeRO-1 spreads
FRAGMENTATION = 1.08  # memory that the allocator holds, over what is asked of it: 5 to 10 % are usual
CONTEXT_BYTES = 1e9  # of CUDA and its libraries, on each GPU


def state_bytes(saving: Saving, data: int) -> float:
    """Return the bytes that one parameter takes on each of so many data-parallel members."""
    if saving.zero == 3:
        return STATE_BYTES / data
    if saving.zero == 1:
        return STATE_BYTES - OPTIMIZER_STATE_BYTES + OPTIMIZER_STATE_BYTES / data
    return STATE_BYTES


def optimizer_state_bytes(saving: Saving, data: int) -> float:
    """Return the bytes of optimizer that one parameter takes on each of so many data-parallel members."""
    return OPTIMIZER_STATE_BYTES / (data if saving.zero else 1)


def kept_share(tensor: int) -> float:
    """Return which share of what a layer keeps is on each of so many tensor-parallel members.

    Of the 34 s b h bytes of a decoder layer, 10 are on every member: inputs of norms, and masks of dropout.
    """
    return (10.0 + 24.0 / tensor) / 34.0


def usable_bytes(memory_bytes: float) -> float:
    """Return what training may ask for on a GPU; 0 or less if nothing is left."""
    return (memory_bytes - CONTEXT_BYTES) / FRAGMENTATION
