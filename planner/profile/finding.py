"""Which modules of a model are its layers: the parts that a pipeline may be cut between."""

from collections import Counter
from collections.abc import Iterator
from typing import NamedTuple

from torch import nn

Lists = (nn.ModuleList, nn.Sequential)


class Found(NamedTuple):
    """One layer."""

    name: str  # as `named_modules` has it
    module: nn.Module
    is_block: bool  # others in its list are like it


def layers_in(model: nn.Module) -> list[Found]:
    """Return the layers of a model, in the order in which they are defined."""
    return list(_inside(model, ""))


def likeness(module: nn.Module) -> tuple[object, ...]:
    """Return what two modules have in common that compute alike: types, settings, and shapes of parameters."""
    return tuple(
        (name, type(it).__qualname__, "" if list(it.children()) else repr(it), _shapes(it))
        for name, it in module.named_modules()
    )


def _shapes(module: nn.Module) -> tuple[object, ...]:
    own = module.named_parameters(recurse=False)
    return tuple((name, tuple(it.shape), it.dtype, it.requires_grad) for name, it in own)


def _inside(parent: nn.Module, prefix: str) -> Iterator[Found]:
    alike = Counter(likeness(it) for it in parent.children()) if isinstance(parent, Lists) else Counter[object]()
    for name, module in parent.named_children():
        full = f"{prefix}{name}"
        is_block = alike[likeness(module)] > 1 and any(True for _ in module.parameters())
        if is_block or not (isinstance(module, nn.ModuleList | nn.ModuleDict) or _holds_blocks(module)):
            yield Found(full, module, is_block)
        else:
            yield from _inside(module, f"{full}.")


def _holds_blocks(module: nn.Module) -> bool:
    """Say whether there is a list of several alike inside."""
    lists = [it for it in module.modules() if isinstance(it, Lists)]
    return any(most > 1 for it in lists for most in _counts(it))


def _counts(module: nn.Module) -> list[int]:
    kinds = Counter(likeness(it) for it in module.children() if any(True for _ in it.parameters()))
    return list(kinds.values())
