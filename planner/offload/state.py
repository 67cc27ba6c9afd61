"""What of a training's state may leave memory.

Source: SPEC P4.
"""

from collections.abc import Iterable, Sequence

import torch
from torch import Tensor, nn

from .places import Storage

LEAST_BYTES = 512  # smaller tensors, such as the count of steps, stay: little is won


def of_optimizer(optimizer: torch.optim.Optimizer) -> list[Storage]:
    """Return the memory of an optimizer's state."""
    values = [value for state in optimizer.state.values() for value in state.values()]
    return _storages(it for it in values if isinstance(it, Tensor))


def of_parameters(parameters: Sequence[nn.Parameter]) -> list[Storage]:
    """Return the memory of parameters."""
    return _storages(it.data for it in parameters)


def _storages(tensors: Iterable[Tensor]) -> list[Storage]:
    """Return what is large, once each, and may be given back: what others share with us may not."""
    found = {it.untyped_storage().data_ptr(): it.untyped_storage() for it in tensors}
    return [it for it in found.values() if it.nbytes() >= LEAST_BYTES and it.resizable()]
