"""The orders of checks that wait for agents."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from longshore.cluster.files.errors import InputError
from longshore.scheduler.health.quarantining import CheckOrders, Order, Outcome
from tests.scheduler.served import until

NODE = "rack0-node2"


def fetched(board: CheckOrders, node: str = NODE) -> tuple[Order, ...]:
    until(lambda: bool(board.fetch(node, able=True)))
    return board.fetch(node, able=True)


def test_who_asks_is_told_what_the_agent_found_and_the_order_comes_until_then() -> None:
    board = CheckOrders()
    board.fetch(NODE, able=True)
    with ThreadPoolExecutor() as pool:
        asked = pool.submit(board.ask, NODE, (0, 1))
        (order,) = fetched(board)
        assert fetched(board) == (order,)
        assert order[1:] == ((0, 1), 1)
        assert board.fetch("another", able=True) == ()
        assert not board.settle("another", order.id, Outcome(passed=True, evidence=""))
        assert board.settle(NODE, order.id, Outcome(passed=False, evidence="smoke"))
        assert asked.result(10.0) == (False, "smoke")
    assert board.fetch(NODE, able=True) == ()
    assert not board.settle(NODE, order.id, Outcome(passed=True, evidence="too late"))


def test_each_who_asks_is_told_of_their_own_order() -> None:
    board = CheckOrders()
    board.fetch(NODE, able=True)
    with ThreadPoolExecutor(8) as pool:
        asked = {gpu: pool.submit(board.ask, NODE, (gpu,)) for gpu in range(8)}
        until(lambda: len(board.fetch(NODE, able=True)) == 8)
        for order in board.fetch(NODE, able=True):
            board.settle(NODE, order.id, Outcome(passed=True, evidence=str(order.gpus[0])))
        assert [it.result(10.0).evidence for it in asked.values()] == [str(gpu) for gpu in asked]


@pytest.mark.parametrize("able", [None, False])
def test_without_an_agent_that_checks_nobody_waits(*, able: bool | None) -> None:
    board = CheckOrders()
    if able is not None:
        board.fetch(NODE, able=able)
    assert not board.can(NODE)
    with pytest.raises(InputError, match="no agent on rack0-node2 runs checks; start it by"):
        board.ask(NODE, (0,))


def test_an_agent_that_never_tells_is_waited_for_no_longer_than_the_limit() -> None:
    board = CheckOrders(limit_s=0.1)
    board.fetch(NODE, able=True)
    with pytest.raises(InputError, match="did not tell within"):
        board.ask(NODE, (0,))
    assert board.fetch(NODE, able=True) == ()


def test_a_scheduler_that_stops_lets_nobody_wait() -> None:
    board = CheckOrders()
    board.fetch(NODE, able=True)
    threading.Timer(0.2, board.stop).start()
    with pytest.raises(InputError):
        board.ask(NODE, (0,))
