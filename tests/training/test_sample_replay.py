"""The patent's replay to the letter: which samples are kept, how many an update gets, and what it learns from them."""

import gc
import tracemalloc
from typing import Any

import numpy as np
import pytest
from gymnasium import spaces
from hypothesis import given
from hypothesis import strategies as st
from sb3_contrib import MaskablePPO
from stable_baselines3.common.callbacks import BaseCallback, CallbackList

from longshore.training.ppo import NO_SB3_LOG, MaskableA2C, SampleA2C, SamplePPO
from longshore.training.replay import SampleReplay, Samples, count_ended_samples, filled_buffer, learning_bytes
from tests.training.replayed import ROWS, SAMPLES, learned, model_of, spoilings


def samples(first: int, count: int) -> Samples:
    """Return samples whose fields are their number, from `first` on."""
    numbers = np.arange(first, first + count)
    wide = numbers[:, None].astype(np.float32)
    flat = numbers.astype(np.float32)
    return Samples(wide, wide.astype(np.uint8), numbers.astype(np.int32), flat, flat, flat, numbers)


@given(st.lists(st.integers(1, 20), min_size=1, max_size=8), st.integers(1, 40))
def test_the_oldest_samples_fall_out_and_no_others(sizes: list[int], most: int) -> None:
    held, count = samples(0, 0), 0
    for size in sizes:
        held = held.followed_by(samples(count, size), most)
        count += size
    expected = list(range(count))[-most:]
    assert all(part.ravel().tolist() == expected for part in (held.actions, held.values, held.update))


@pytest.mark.parametrize("at_once", [False, True])
def test_the_memory_of_learning_from_a_whole_buffer_is_computed_beforehand(*, at_once: bool) -> None:
    size, actions, count, new = 50, 400, 20_000, 200
    model, _ = model_of(MaskablePPO, 1)
    own: Any = model.rollout_buffer
    own.observation_space, own.action_space = spaces.Box(-1.0, 1.0, (size,)), spaces.Discrete(actions)
    held = blank(count, size, actions)
    gc.collect()
    tracemalloc.start()
    try:
        held = held.followed_by(blank(new, size, actions), count)
        drawn = held.select(np.arange(count))
        batch = next(filled_buffer(own, drawn).get(None if at_once else 64))
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    peak += sum(tensor.nbytes for tensor in batch)  # which is not Python's memory
    assert 0.7 < peak / (count * learning_bytes(size, actions, at_once=at_once)) < 1.05
    assert all(part.base is None for part in held)  # a view would keep what fell out


def blank(count: int, size: int, actions: int) -> Samples:
    flat = np.zeros(count, dtype=np.float32)
    return Samples(
        observations=np.zeros((count, size), dtype=np.float32), masks=np.zeros((count, actions // 8), dtype=np.uint8),
        actions=np.zeros(count, dtype=np.int32), log_probability=flat, values=flat, advantages=flat,
        update=np.zeros(count, dtype=np.int64),
    )  # fmt: skip


@given(st.integers(1, 12), st.integers(1, 4), st.data())
def test_periods_are_counted_with_all_their_samples_when_they_end(steps: int, rows: int, data: st.DataObject) -> None:
    rollouts = data.draw(st.lists(st.lists(st.booleans(), min_size=steps * rows, max_size=steps * rows), max_size=5))
    open_steps, length, total = np.zeros(rows, dtype=np.int64), [0] * rows, 0
    for rollout in rollouts:
        ends = np.array(rollout).reshape(steps, rows)
        for step, row in np.ndindex(steps, rows):  # by hand: a period counts in the rollout in which it ends
            length[row] += 1
            if ends[step, row]:
                total, length[row] = total + length[row], 0
        period, open_steps = count_ended_samples(ends, open_steps)
        total -= period
        assert total == 0
        assert open_steps.tolist() == length


class Sizes(BaseCallback):
    """Notes how many samples each update got, and each period had."""

    def __init__(self, replay: SampleReplay) -> None:
        super().__init__()
        self.replay, self.batches = replay, list[tuple[int, int, int]]()

    def _on_step(self) -> bool:
        return True

    def _on_rollout_end(self) -> None:
        assert self.replay.samples is not None
        drawn = self.replay.draw_batch(10**9)
        held = len(self.replay.samples.actions)
        self.batches.append((0 if drawn is None else len(drawn.actions), self.replay.period, held))


def literal_model(kind: type[MaskablePPO], most: int, *, takes_all: bool, **changes: Any) -> tuple[Any, SampleReplay]:
    model: Any = model_of(kind, 1, **changes)[0]
    model.replay = SampleReplay(most, takes_all=takes_all)
    return model, model.replay


@pytest.mark.few(1)
@pytest.mark.parametrize("takes_all", [False, True])
def test_an_update_gets_the_samples_of_the_period_or_all(*, takes_all: bool) -> None:
    most = 2 * SAMPLES + ROWS + 1  # no multiple of a rollout
    model, replay = literal_model(SamplePPO, most, takes_all=takes_all)
    noted = Sizes(replay)
    model.learn(8 * SAMPLES, callback=CallbackList([replay, noted]), log_interval=NO_SB3_LOG)
    assert [held for _, _, held in noted.batches] == [SAMPLES, 2 * SAMPLES, *[most] * 6]
    assert len({period for _, period, _ in noted.batches}) > 2  # the batch is dynamic
    for got, period, held in noted.batches:
        assert got == (0 if period == 0 else held if takes_all else min(period, held))


def test_drawn_samples_are_different_ones_of_the_buffer() -> None:
    model, replay = literal_model(SampleA2C, 3 * SAMPLES, takes_all=False)
    learned(model, replay, 5)  # type: ignore[arg-type]
    drawn, held = replay.draw_batch(10**9), replay.samples
    assert drawn is not None
    assert held is not None
    known = {row.tobytes() for row in np.column_stack((held.observations, held.values, held.advantages))}
    found = [row.tobytes() for row in np.column_stack((drawn.observations, drawn.values, drawn.advantages))]
    assert set(found) <= known
    assert set(drawn.update.tolist()) > {4}  # and not of the newest rollout alone


@pytest.mark.few(1)
@pytest.mark.parametrize(("kind", "plain"), [(SamplePPO, MaskablePPO), (SampleA2C, MaskableA2C)])
def test_all_of_a_buffer_of_one_rollout_is_plain_learning_in_another_order(
    kind: type[MaskablePPO], plain: type[MaskablePPO]
) -> None:
    # One step of the optimiser on the whole rollout does not depend on the order of its samples.
    options: dict[str, Any] = {"n_epochs": 1, "batch_size": SAMPLES}
    expected = learned(model_of(plain, 1, **options)[0], None, 1)
    model, replay = literal_model(kind, SAMPLES, takes_all=True, **options)
    replay.draw_batch = _whole(replay)  # type: ignore[method-assign]  # a first rollout may end no period
    for name, tensor in learned(model, replay, 1).items():  # type: ignore[arg-type]
        assert tensor.numpy() == pytest.approx(expected[name].numpy(), abs=1e-5), name


def _whole(replay: SampleReplay) -> Any:
    return lambda minibatch: replay.samples


@given(st.integers(0, 200), st.integers(2, 50))
def test_no_minibatch_has_a_single_sample(period: int, minibatch: int) -> None:
    replay = SampleReplay(100, takes_all=False)
    replay.samples, replay.period = samples(0, 100), period
    replay.model = type("Seeded", (), {"seed": 0})()
    drawn = replay.draw_batch(minibatch)
    size = 0 if drawn is None else len(drawn.actions)
    assert size % minibatch != 1
    assert min(period, 100) - 1 <= size <= min(period, 100) or size == 0


def test_kept_samples_that_are_not_as_the_model_leaves_them_are_refused() -> None:
    model, replay = literal_model(SampleA2C, 3 * SAMPLES, takes_all=False)
    learned(model, replay, 2)  # type: ignore[arg-type]
    sound, buffer = replay.snapshot_arrays(), model_of(SampleA2C, 1)[0].rollout_buffer
    fresh = SampleReplay(3 * SAMPLES, takes_all=False)
    fresh.restore(sound, buffer)
    assert all(np.array_equal(array, sound[name]) for name, array in fresh.snapshot_arrays().items())
    for name, array in sound.items():
        for wrong in spoilings(array):
            with pytest.raises(ValueError, match="replay/"):
                fresh.restore(sound | {name: wrong}, buffer)
        if array.ndim and name != "replay/open_steps":
            with pytest.raises(ValueError, match="replay/"):
                fresh.restore(sound | {name: array[1:]}, buffer)
    with pytest.raises(ValueError, match="closed"):
        fresh.restore(sound | {"replay/masks": sound["replay/masks"] * 0}, buffer)
    with pytest.raises(ValueError, match="replay/samples"):
        SampleReplay(SAMPLES, takes_all=False).restore(sound, buffer)
