"""The orders of checks that wait for agents."""

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from longshore.cluster.files.errors import InputError
from longshore.scheduler.health.quarantining import CheckOrder, CheckOrders
from tests.scheduler.served import until

NODE = "rack0-node2"


def fetched(board: CheckOrders, node: str = NODE) -> tuple[CheckOrder, ...]:
    until(lambda: bool(board.fetch_orders(node, able=True)))
    return board.fetch_orders(node, able=True)


def test_an_order_is_fetched_until_the_agent_reports_its_outcome() -> None:
    board = CheckOrders()
    board.fetch_orders(NODE, able=True)
    with ThreadPoolExecutor() as pool:
        running = pool.submit(board.run_checks, NODE, (0, 1), {1: 5.0})
        (order,) = fetched(board)
        assert fetched(board) == (order,)
        assert (order.gpus, order.level, order.cleared_s) == ((0, 1), 1, {1: 5.0})
        assert board.fetch_orders("another", able=True) == ()
        assert not board.record_outcome("another", order.id, "", passed=True)
        assert board.record_outcome(NODE, order.id, "smoke", passed=False)
        assert running.result(10.0) == (False, "smoke")
    assert board.fetch_orders(NODE, able=True) == ()
    assert not board.record_outcome(NODE, order.id, "too late", passed=True)


def test_each_caller_gets_the_outcome_of_its_own_order() -> None:
    board = CheckOrders()
    board.fetch_orders(NODE, able=True)
    with ThreadPoolExecutor(8) as pool:
        running = {gpu: pool.submit(board.run_checks, NODE, (gpu,), {}) for gpu in range(8)}
        until(lambda: len(board.fetch_orders(NODE, able=True)) == 8)
        for order in board.fetch_orders(NODE, able=True):
            board.record_outcome(NODE, order.id, str(order.gpus[0]), passed=True)
        assert [it.result(10.0)[1] for it in running.values()] == [str(gpu) for gpu in running]


@pytest.mark.parametrize("able", [None, False])
def test_without_an_agent_that_checks_the_caller_does_not_wait(*, able: bool | None) -> None:
    board = CheckOrders()
    if able is not None:
        board.fetch_orders(NODE, able=able)
    assert not board.can_check(NODE)
    with pytest.raises(InputError, match="no agent on rack0-node2 runs checks; start it by"):
        board.run_checks(NODE, (0,), {})


def test_a_caller_waits_for_a_silent_agent_no_longer_than_the_limit() -> None:
    board = CheckOrders(limit_s=0.1)
    board.fetch_orders(NODE, able=True)
    with pytest.raises(InputError, match=r"within \d"):
        board.run_checks(NODE, (0,), {})
    assert board.fetch_orders(NODE, able=True) == ()


def test_a_scheduler_that_stops_wakes_all_callers() -> None:
    board = CheckOrders()
    board.fetch_orders(NODE, able=True)
    threading.Timer(0.2, board.wake_waiters).start()
    with pytest.raises(InputError):
        board.run_checks(NODE, (0,), {})
