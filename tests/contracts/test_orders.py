"""Every registered order regime does what an order regime must."""

import pytest

from longshore.cluster.model.problem import ORDERS
from longshore.testing import check_order


@pytest.mark.parametrize("name", ORDERS)
def test_an_order_regime_does_its_part(name: str) -> None:
    check_order(name)
