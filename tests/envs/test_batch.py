"""The compiled core that all environments stand on."""

import numpy as np
import pytest

from longshore.envs.batch import AgentView, Batch
from tests.envs.random_run import open_actions, small_problem


def steps(batch: Batch, count: int, draws: int) -> list[bytes]:
    """Return what a batch shows in random steps from where it stands, with the returns of episodes that end."""
    rng, seen = np.random.default_rng(draws), []
    for _ in range(count):
        batch.step(open_actions(batch.masks, rng))
        over = np.flatnonzero(batch.ended)
        seen += [
            array.tobytes() for array in (batch.rewards, batch.observations, batch.episode_returns(over), batch.steps)
        ]
        batch.reset_rows(over)
    return seen


@pytest.mark.parametrize("reward", ["dt", "potential", "jct"])
@pytest.mark.parametrize("action", ["node", "gpu", "candidate"])
def test_a_batch_whose_arrays_are_kept_goes_on_where_it_was(action: str, reward: str) -> None:
    problem, view = small_problem(jobs=6, waiting=True), AgentView(action=action, reward=reward)
    batch, fresh = Batch(problem, view, 4), Batch(problem, view, 4)
    batch.reset()
    steps(batch, 20, 1)
    kept = {**batch.sim.state._asdict(), **batch.snapshot_arrays()}
    for name, array in {**fresh.sim.state._asdict(), **fresh.snapshot_arrays()}.items():
        array[...] = kept[name]
    fresh.observe_again()
    assert steps(batch, 40, 2) == steps(fresh, 40, 2)


def test_a_refused_step_changes_nothing() -> None:
    batch = Batch(small_problem(waiting=True), AgentView(), 2)
    batch.reset()
    shown = {"observations": batch.observations, "masks": batch.masks}
    arrays = {**batch.sim.state._asdict(), **batch.snapshot_arrays(), **shown}
    before = {name: array.copy() for name, array in arrays.items()}
    with pytest.raises(ValueError, match=r"action 4 of row 1 is masked; open: \[0 1 2 3\]"):
        batch.step(np.array([0, 4]))
    assert all(np.array_equal(array, before[name]) for name, array in arrays.items())


def test_the_next_open_action_above_a_closed_one_is_taken_in_circular_order() -> None:
    batch = Batch(small_problem(), AgentView(), 4)
    batch.masks[:] = [0, 1, 0, 1]
    assert batch.nearest_open_actions(np.array([0, 1, 2, 3])).tolist() == [1, 1, 3, 3]
    batch.masks[:] = [0, 1, 0, 0]
    assert batch.nearest_open_actions(np.array([0, 1, 2, 3])).tolist() == [1, 1, 1, 1]
