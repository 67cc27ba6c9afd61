"""Tensors of a training put into one piece of memory, so that they leave and come back together.

Source: SPEC P4.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from .places import Place

ALIGNED_BYTES = 64  # products of matrices may differ in the last bit where these are not
LEAST_BYTES = 256  # smaller tensors, such as the count of steps, stay


class Slot(NamedTuple):
    """Where a tensor of a training is kept, by whoever trains."""

    get: Callable[[], Any]
    put: Callable[[Tensor], None]


def optimizer_slots(optimizer: torch.optim.Optimizer) -> list[Slot]:
    """Return the slots of an optimizer's state whose tensors can move."""
    return [
        _of_state(state, name)
        for state in optimizer.state.values()
        for name, value in state.items()
        if isinstance(value, Tensor) and _moves(value)
    ]


def parameter_slots(parameters: Sequence[nn.Parameter]) -> list[Slot]:
    """Return the slots of parameters whose tensors can move; those that share memory stay."""
    storages = [it.untyped_storage().data_ptr() for it in parameters]
    return [
        _of_parameter(it)
        for it, storage in zip(parameters, storages, strict=True)
        if _moves(it.data) and storages.count(storage) == 1
    ]


def _of_state(state: dict[str, Any], name: str) -> Slot:
    def put(tensor: Tensor) -> None:
        state[name] = tensor

    return Slot(lambda: state.get(name), put)


def _of_parameter(parameter: nn.Parameter) -> Slot:
    def put(tensor: Tensor) -> None:
        parameter.data = tensor

    return Slot(lambda: parameter.data, put)


def _moves(tensor: Tensor) -> bool:
    return tensor.is_contiguous() and tensor.nbytes >= LEAST_BYTES and tensor.layout is torch.strided


def size_bytes(slots: Sequence[Slot]) -> int:
    """Return the memory that the tensors of slots take in one piece."""
    return sum(_aligned(slot.get().nbytes) for slot in slots)


def _aligned(size: int) -> int:
    return -(-size // ALIGNED_BYTES) * ALIGNED_BYTES


class Pack:
    """Tensors in one piece of memory.

    Args:
        slots: Where they are kept; each gets a tensor in the place, with the content that it had.
        place: As large as they are together.
    """

    def __init__(self, slots: Sequence[Slot], place: Place) -> None:
        self._slots, self._views = slots, list(_views(slots, place.buffer))
        for slot, view in zip(slots, self._views, strict=True):
            view.copy_(slot.get())
            slot.put(view)

    def holds(self) -> bool:
        """Return whether all tensors are in the place; those that an update has replaced are put there again."""
        for slot, view in zip(self._slots, self._views, strict=True):
            now = slot.get()
            if not isinstance(now, Tensor) or now.shape != view.shape or now.dtype != view.dtype:
                return False
            if now.data_ptr() != view.data_ptr():
                view.copy_(now)
                slot.put(view)
        return True


def _views(slots: Sequence[Slot], buffer: Tensor) -> Iterator[Tensor]:
    at = 0
    for slot in slots:
        tensor = slot.get()
        yield buffer[at : at + tensor.nbytes].view(tensor.dtype).view(tensor.shape)
        at += _aligned(tensor.nbytes)
