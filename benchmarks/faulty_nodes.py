"""Nodes with something wrong, as real processes: what a warm process of each does.

They are named by the functions here, so that a process that is forked elsewhere can find them.
"""

import os
import signal
import time
from collections.abc import Callable
from multiprocessing.connection import Connection
from typing import Any

from longshore.preflight import warm_worker
from longshore.preflight.context import Context, NodeSetup, open_context

SLOW_S, HANG_S, RELATIVE = 0.5, 600.0, 1e-3
WRONG_AT = (17, 23)


def _serve(connection: Connection, place: NodeSetup, spoil: Callable[[], None]) -> None:
    """Serve as a node that is well until it is warm."""
    send = connection.send_bytes

    def spoil_once_warm(content: Any, *rest: Any) -> None:
        connection.send_bytes = send  # type: ignore[method-assign]
        spoil()
        send(content, *rest)

    connection.send_bytes = spoil_once_warm  # type: ignore[assignment]
    warm_worker.serve(connection, open_context(place))


def hung(connection: Connection, place: NodeSetup) -> None:
    """Hang in a product, and ignore SIGTERM."""

    def hang(product: Any) -> Any:
        time.sleep(HANG_S)
        return product

    def spoil() -> None:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        _instead_of_products(hang)

    _serve(connection, place, spoil)


def slow(connection: Connection, place: NodeSetup) -> None:
    """Take longer for a sample of training than all others."""

    def spoil() -> None:
        from longshore.preflight import compute_checks

        trained = compute_checks._train_small_network

        def slowly(torch_device: str, dtype: str) -> float:
            time.sleep(SLOW_S)
            return trained(torch_device, dtype)

        compute_checks._train_small_network = slowly

    _serve(connection, place, spoil)


def wrong(connection: Connection, place: NodeSetup) -> None:
    """Make one element of a product wrong by a thousandth."""

    def off(product: Any) -> Any:
        product[WRONG_AT] *= 1.0 + RELATIVE
        return product

    _serve(connection, place, lambda: _instead_of_products(off))


def flipped(connection: Connection, place: NodeSetup) -> None:
    """Flip bit 20 of one element of a product."""
    import torch

    def flip(product: Any) -> Any:
        product.view(torch.int32)[WRONG_AT] ^= 1 << 20
        return product

    _serve(connection, place, lambda: _instead_of_products(flip))


def dead(connection: Connection, place: NodeSetup) -> None:
    """End in the midst of a product."""
    _serve(connection, place, lambda: _instead_of_products(lambda product: os._exit(9)))


def adds_one(connection: Connection, place: NodeSetup) -> None:
    """Send a wrong value in one element of each reduction."""

    def spoil() -> None:
        from longshore.preflight import compute_checks

        own_sum = compute_checks._own_sum

        def one_more(context: Context, group: Any) -> Any:
            total = own_sum(context, group)
            total[1000] += 1
            return total

        compute_checks._own_sum = one_more

    _serve(connection, place, spoil)


def hangs_in_reduction(connection: Connection, place: NodeSetup) -> None:
    """Never come to a reduction."""

    def spoil() -> None:
        from longshore.preflight import compute_checks

        compute_checks._own_sum = lambda context, group: time.sleep(HANG_S)  # type: ignore[assignment,return-value]

    _serve(connection, place, spoil)


def speaks_nonsense(connection: Connection, place: NodeSetup) -> None:
    """Answer what is no answer."""
    send = connection.send_bytes

    def spoil() -> None:
        connection.send_bytes = lambda content, *rest: send(b'{"number": "' + b"x" * 5000)  # type: ignore[method-assign]

    _serve(connection, place, spoil)


def never_warm(connection: Connection, place: NodeSetup) -> None:
    """End before it is warm."""
    os._exit(1)


def _instead_of_products(change: Callable[[Any], Any]) -> None:
    from longshore.preflight.arithmetic import ReferencedProduct

    multiply = ReferencedProduct.multiply

    def changed(self: ReferencedProduct, torch_device: str) -> Any:
        return change(multiply(self, torch_device))

    ReferencedProduct.multiply = changed  # type: ignore[method-assign]
