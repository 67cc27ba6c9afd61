"""What a member of a ring reports of its steps."""

import time
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.ring import member
from longshore.ring.member import Ring

SHARD_S, EXCHANGE_S = 2.0, 0.5

rings = st.lists(
    st.tuples(st.integers(1, 8), st.integers(1, 4), st.booleans()),  # shards, steps, whether the last is aborted
    min_size=1,
    max_size=8,
)


@given(rings)
def test_a_member_reports_the_time_of_one_shard_however_many_it_computes(
    generations: list[tuple[int, int, bool]],
) -> None:
    now_s, step, next_shards, is_aborted = 1000.0, 0, 1, False
    reported: list[float | None] = []
    ring: Any = object.__new__(Ring)
    ring._formation = SimpleNamespace(begin_step=lambda: None, end_step=lambda: None, shards=[])
    ring._client = SimpleNamespace(pulse=SimpleNamespace(), step=0)
    ring._steps = SimpleNamespace(begin=lambda _, computed_s, loss: reported.append(computed_s))
    ring._optimizer = SimpleNamespace(step=lambda: None, zero_grad=lambda **_: None)
    ring._began_s = ring._computed_s = ring._shard_s = 0.0
    ring._loss, ring._is_first, ring._is_relieved = None, False, False
    ring._is_over = False

    def recover(error: object) -> None:
        ring._formation.shards = list(range(next_shards))

    def average(_: object) -> None:
        nonlocal now_s, is_aborted
        now_s += EXCHANGE_S
        if is_aborted:
            is_aborted = False
            raise ConnectionError

    gradients = SimpleNamespace(assign_means=lambda: None)
    ring._formation.take_gradients, ring._formation.average = lambda: gradients, average
    ring._recover_or_exit = recover
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(time, "monotonic", lambda: now_s)
        patched.setattr(member, "EXCHANGE_ERRORS", (ConnectionError,))
        ring._formation.shards = list(range(generations[0][0]))
        for number, (_, steps, ends_early) in enumerate(generations):
            next_shards = 9 if number + 1 == len(generations) else generations[number + 1][0]
            for left in reversed(range(steps)):
                ring._client.step = step
                ring._begin_step()
                now_s += SHARD_S * len(ring.shards)
                is_aborted = ends_early and left == 0
                step += ring.step()
            recover(None)  # the layout may change between two steps, too
    assert reported[0] is None
    assert reported[1:] == [pytest.approx(SHARD_S)] * (len(reported) - 1)
