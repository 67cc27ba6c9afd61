"""The memory of a GPU: what training takes of it, and whether to offload state that is idle.

Source: SPEC P1, P4; mixed precision with Adam: 2 bytes of weights, 2 of gradients, 12 of optimizer (docs/planner.md).
"""

from enum import StrEnum
from typing import NamedTuple

from ..cluster.model.training_plan import MemorySaving
from .step_time import Array

STATE_BYTES = 16.0  # weights, gradients and optimizer of one parameter
OPTIMIZER_STATE_BYTES = 12.0  # of these, what ZeRO-1 spreads
FRAGMENTATION = 1.08  # memory of the allocator over that of tensors: 5 to 10 % are usual
CONTEXT_BYTES = 1e9  # of CUDA and its libraries, on each GPU


def state_bytes_per_parameter(saving: MemorySaving, data: int) -> float:
    """Return the bytes of one parameter on each of N data-parallel members."""
    if saving.zero == 3:
        return STATE_BYTES / data
    if saving.zero == 1:
        return STATE_BYTES - OPTIMIZER_STATE_BYTES + OPTIMIZER_STATE_BYTES / data
    return STATE_BYTES


def optimizer_bytes_per_parameter(saving: MemorySaving, data: int) -> float:
    """Return the optimizer's bytes of one parameter on each of N data-parallel members."""
    return OPTIMIZER_STATE_BYTES / (data if saving.zero else 1)


def kept_activation_share(tensor: Array | float) -> Array | float:
    """Return the share of a layer's activations on each of N tensor-parallel members.

    Of the 34 s b h bytes of a decoder layer, 10 are on every member: inputs of norms, and masks of dropout.
    """
    return (10.0 + 24.0 / tensor) / 34.0


def usable_memory_bytes(memory_bytes: float) -> float:
    """Return the bytes that training may allocate on a GPU; 0 or less if nothing remains."""
    return (memory_bytes - CONTEXT_BYTES) / FRAGMENTATION


OFFLOAD_MARGIN_S = 0.005  # error of predictions that is allowed for; a copy back begins that much earlier, too


class OffloadMode(StrEnum):
    """Whether state is offloaded."""

    never = "never"
    auto = "auto"  # if it is idle for longer than both copies take
    one_copy = "one-copy"  # as in the source: if it is idle for longer than one copy takes


class CopyTimes(NamedTuple):
    """Times of the copies of one piece of state."""

    out_s: float
    back_s: float
    out_core_s: float = 0.0  # of these, what keeps a core busy
    back_core_s: float = 0.0


def offload_pays(idle_s: float, copies: CopyTimes, how: OffloadMode) -> bool:
    """Return whether to offload state that is idle for a time."""
    if how is OffloadMode.never:
        return False
    return idle_s > (copies.out_s if how is OffloadMode.one_copy else copies.out_s + copies.back_s) + OFFLOAD_MARGIN_S


def copy_back_begins_s(needed_at_s: float, copies: CopyTimes) -> float:
    """Return when the copy back has to begin."""
    return needed_at_s - copies.back_s - OFFLOAD_MARGIN_S


def unhidden_copy_s(wait_s: float, copies: CopyTimes, *, both_in_wait: bool, has_own_core: bool) -> float:
    """Return how much longer a step takes if the state is offloaded in it.

    Args:
        wait_s: For other ranks; the state is needed at its end. The copy back begins no earlier than the wait.
        copies: Their times.
        both_in_wait: Whether the copy out, too, is in the wait; else it runs while the rank computes.
        has_own_core: Whether copies run beside the computation, and do not take its core.
    """
    late_s = max(0.0, copies.back_s + (copies.out_s if both_in_wait else 0.0) - wait_s)
    return late_s if both_in_wait or has_own_core else late_s + copies.out_core_s


def offload_reason(state_name: str, size_bytes: int, idle_s: float, copies: CopyTimes, how: OffloadMode) -> str:
    """Return in one line whether state is offloaded, and why."""
    goes = offload_pays(idle_s, copies, how)
    sides = [f"{1e3 * copies.out_s:.1f} ms out"]
    sides += [] if how is OffloadMode.one_copy else [f"{1e3 * copies.back_s:.1f} ms back"]
    sides += [f"{1e3 * OFFLOAD_MARGIN_S:.0f} ms margin"]
    return (
        f"{state_name} ({size_bytes / 1e6:.1f} MB) {'is offloaded' if goes else 'stays'}: it is idle for "
        f"{1e3 * idle_s:.1f} ms, {'more' if goes else 'not more'} than {' + '.join(sides)}"
    )
