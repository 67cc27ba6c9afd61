"""Schedules that are played through, against closed forms."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.planner.schedule import Schedule, StageSeconds, StageWork, pass_order, simulate_schedule

TIMES = st.floats(0.001, 10.0)
SCHEDULES = st.sampled_from(list(Schedule))


def enough(schedule: Schedule, stages: int, micro_batches: int) -> int:
    return max(micro_batches, stages) if schedule is Schedule.one_forward_one_backward else micro_batches


@pytest.mark.full
@given(SCHEDULES, st.integers(1, 6), st.integers(1, 9), TIMES, TIMES, TIMES)
def test_equal_stages_on_machines_of_their_own_take_the_formula(
    schedule: Schedule, stages: int, micro_batches: int, forward_s: float, backward_s: float, after_s: float
) -> None:
    works = [StageWork(StageSeconds(forward_s, backward_s, after_s, after_s), 0.0)] * stages
    step_s, spent = simulate_schedule(works, micro_batches, schedule, 1, [1.0])
    assert step_s == pytest.approx((micro_batches + stages - 1) * (forward_s + backward_s) + 2 * after_s)
    for it in spent:
        assert it == pytest.approx((micro_batches * forward_s, micro_batches * backward_s, after_s, after_s))


@given(SCHEDULES, st.integers(1, 6), st.lists(st.tuples(TIMES, TIMES), min_size=1, max_size=5), st.integers(1, 3))
def test_on_one_core_an_iteration_takes_all_the_work_there_is(
    schedule: Schedule, micro_batches: int, passes: list[tuple[float, float]], replicas: int
) -> None:
    works = [StageWork(StageSeconds(forward_s, backward_s, 0.1, 0.1), 0.0) for forward_s, backward_s in passes]
    ranks = len(works) * replicas
    step_s, _ = simulate_schedule(
        works, micro_batches, schedule, replicas, [1.0 / busy for busy in range(1, ranks + 1)]
    )
    all_s = replicas * sum(micro_batches * (it.seconds.forward_s + it.seconds.backward_s) + 0.2 for it in works)
    assert step_s == pytest.approx(all_s)


@given(SCHEDULES, st.integers(1, 6), st.integers(1, 6), TIMES, st.lists(st.floats(0.1, 1.0), min_size=1, max_size=6))
def test_slower_ranks_never_shorten_an_iteration(
    schedule: Schedule, stages: int, micro_batches: int, arrives_s: float, speeds: list[float]
) -> None:
    works = [StageWork(StageSeconds(1.0, 2.0, 0.5, 0.5), arrives_s)] * stages
    falling = sorted(speeds, reverse=True)
    fast, slow = (simulate_schedule(works, micro_batches, schedule, 1, it)[0] for it in ([1.0], falling))
    assert slow >= fast * (1.0 - 1e-9)
    assert slow <= fast / falling[-1] * (1.0 + 1e-9)


@given(SCHEDULES, st.integers(1, 8), st.integers(1, 12))
def test_a_stage_does_each_pass_once_forward_first_and_keeps_few(
    schedule: Schedule, stages: int, micro_batches: int
) -> None:
    for stage in range(stages):
        passes = pass_order(schedule, stage, stages, enough(schedule, stages, micro_batches))
        assert len(set(passes)) == len(passes) == 2 * enough(schedule, stages, micro_batches)
        held, most = 0, 0
        for kind, micro_batch in passes:
            assert kind == 0 or (0, micro_batch) in passes[: passes.index((1, micro_batch))]
            held += 1 if kind == 0 else -1
            most = max(most, held)
        if schedule is Schedule.one_forward_one_backward:
            assert most == stages - stage
        for kind in (0, 1):
            assert all(a < b for a, b in pairwise(it for k, it in passes if k == kind))
