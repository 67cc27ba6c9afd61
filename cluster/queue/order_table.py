"""The registered order regimes as compiled code sees them: by their numbers in ORDERS."""

from ..files.errors import PluginError
from ..files.plugins import load_as
from ..kernels.compiled import check_kernel, kernel, one_of
from ..model.problem import ORDERS
from .orders import Order


@kernel
def _no_key(gpus: int, work_s: float) -> float:
    return 0.0


def _loaded() -> tuple[list[Order], dict[int, PluginError]]:
    """Return the regimes, and why those cannot be used that a stranger's package breaks."""
    orders, problems = [], {}
    for name, number in ORDERS.items():
        try:
            order = load_as("orders", name, Order)
            if order.key is not None:
                check_kernel(f"the key of order regime {name!r}", order.key, 2)
        except PluginError as error:
            order, problems[number] = Order("", passes=False), error
        orders.append(order)
    return orders, problems


_orders, _problems = _loaded()
# Bit n says so of order regime n: to look into a tuple is slow in a kernel.
_PASSES = sum(bool(order.passes) << number for number, order in enumerate(_orders))
_BY_KEY = sum((order.key is not None) << number for number, order in enumerate(_orders))
_SMALLEST_FIRST = sum(bool(order.goes_first) << number for number, order in enumerate(_orders))
key_of = one_of("order_key", [order.key or _no_key for order in _orders])


@kernel
def passes(order: int) -> bool:
    """Say whether jobs may start before the one that goes first."""
    return bool((_PASSES >> order) & 1)


@kernel
def is_by_key(order: int) -> bool:
    """Say whether jobs go by a key, and not as the queue stands."""
    return bool((_BY_KEY >> order) & 1)


@kernel
def is_smallest_first(order: int) -> bool:
    """Say whether the job of smallest key goes first, and not the head of the queue."""
    return bool((_SMALLEST_FIRST >> order) & 1)


def order_of(number: int) -> Order:
    """Return an order regime by its number.

    Raises:
        PluginError: If it cannot be used.
    """
    if number in _problems:
        raise _problems[number]
    return _orders[number]
