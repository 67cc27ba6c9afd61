"""Kernels by number: how compiled code calls what packages register."""

import inspect
from collections.abc import Callable, Sequence
from types import FunctionType
from typing import Any

import numba
from numba.core.dispatcher import Dispatcher

from ..files.errors import PluginError
from .compiled import kernel

MIDDLE, LOWER, UPPER, CALLED = 0, None, None, None  # each kernel has its own: globals are constants for Numba


def _branch(number: int, *arguments: Any) -> float:
    if number < MIDDLE:
        return LOWER(number, *arguments)  # type: ignore[misc,no-any-return]
    return UPPER(number, *arguments)  # type: ignore[misc,no-any-return]


def _leaf(number: int, *arguments: Any) -> float:  # its number is all that is left
    return 1.0 * CALLED(*arguments)  # type: ignore[misc,no-any-return]


def one_of(what: str, kernels: Sequence[Callable[..., float]]) -> Callable[..., float]:
    """Return a kernel that calls one of several: by its first argument, the number, with its other arguments.

    Args:
        what: Name of the choice, another one for each: Numba keeps compiled code by it.
        kernels: At least one. Each returns a number, or a bool, which becomes 0 or 1. A number that is too large calls
            the last one.
    """
    return _tree(what, kernels, 0, len(kernels))


def check_kernel(what: str, function: object, arguments: int) -> None:
    """Refuse what cannot be called from our kernels: a fault would show in all of them.

    Args:
        what: What it is, for messages.
        function: What a package registers as a kernel.
        arguments: How many it must take.

    Raises:
        PluginError: Saying what is wrong.
    """
    if not numba.config.DISABLE_JIT and not isinstance(function, Dispatcher):  # type: ignore[attr-defined]
        raise PluginError(f"{what} is not compiled; write @kernel (longshore.cluster.kernels.compiled) above it")
    plain = getattr(function, "py_func", function)
    taken = len(inspect.signature(plain).parameters) if callable(plain) else 0
    if taken != arguments:
        raise PluginError(f"{what} takes {taken} arguments, expected {arguments}")


def _tree(what: str, kernels: Sequence[Callable[..., float]], first: int, end: int) -> Callable[..., float]:
    name = f"{what}_{first}_{end}"
    if end - first == 1:
        return _named(_leaf, name, CALLED=kernels[first])
    middle = (first + end) // 2
    lower, upper = _tree(what, kernels, first, middle), _tree(what, kernels, middle, end)
    return _named(_branch, name, MIDDLE=middle, LOWER=lower, UPPER=upper)


def _named(function: Any, name: str, **constants: object) -> Callable[..., float]:
    """Return a function as a kernel of its own, with other constants."""
    copy = FunctionType(function.__code__, {"__name__": __name__, "__builtins__": __builtins__, **constants}, name)
    copy.__qualname__ = name
    compiled: Callable[..., float] = kernel(copy)
    return compiled
