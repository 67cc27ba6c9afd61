"""Every registered reward does what a reward must."""

import pytest

from longshore.envs.batch import REWARDS
from longshore.testing import check_reward


@pytest.mark.parametrize("name", REWARDS)
def test_a_reward_does_its_part(name: str) -> None:
    check_reward(name)
