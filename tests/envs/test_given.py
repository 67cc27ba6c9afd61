"""What users give an environment is taken as it is or refused: nothing is cut to a whole number or passed over."""

import math
from collections.abc import Callable
from fractions import Fraction
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.model.problem import Problem
from longshore.envs.batch import AgentView, Batch
from longshore.envs.gymnasium_envs import PlacementEnv, PlacementVectorEnv
from longshore.envs.sb3 import PlacementVecEnv
from tests.envs.random_run import small_problem

SCENARIOS, ROWS = 8, 2
PROBLEM: Problem = small_problem(SCENARIOS, jobs=4)
SINGLE, BATCHED = PlacementEnv(PROBLEM), PlacementVectorEnv(ROWS, PROBLEM)
SB3, BATCH = PlacementVecEnv(PROBLEM, AgentView(), ROWS), Batch(PROBLEM, AgentView(), ROWS)

fractions = st.floats(width=32).filter(lambda number: not number.is_integer())  # nan and infinity among them
no_numbers = (
    fractions | fractions.map(np.float32) | st.booleans() | st.booleans().map(np.bool_) | st.text(max_size=3)
    | st.binary(max_size=3) | st.just(1j) | st.just(Fraction(1, 2)) | st.just(object()) | st.just({}) | st.just([])
    | st.just(np.zeros((2, 2))) | st.just([[1]])
)  # fmt: skip

Entry = Callable[[Any], object]
ACTIONS: dict[str, Entry] = {
    "step": SINGLE.step,
    "step of all": lambda value: BATCHED.step([0, value]),  # type: ignore[arg-type]
    "step of Stable-Baselines3": lambda value: SB3.step([0, value]),  # type: ignore[arg-type]
    "step of the batch": lambda value: BATCH.step([0, value]),
    "nearest open": lambda value: BATCH.nearest_open_actions([0, value]),
}
SEEDS: dict[str, Entry] = {
    "seed": lambda value: SINGLE.reset(seed=value),
    "seed of all": lambda value: BATCHED.reset(seed=[0, value]),
    "seed of Stable-Baselines3": SB3.seed,
}
NUMBERS: dict[str, Entry] = {
    "scenario": lambda value: SINGLE.reset(options={"scenario": value}),
    "scenario of all": lambda value: BATCHED.reset(options={"scenario": value}),
    "scenario of Stable-Baselines3": lambda value: SB3.set_options({"scenario": value}),
    "scenario of a row": lambda value: SB3.set_options([{}, {"scenario": value}]),
    "scenario of the batch": BATCH.reset,
    "first": lambda value: PlacementVecEnv(PROBLEM, AgentView(), ROWS, first=value),
    "row": lambda value: SB3.get_attr("first", [value]),
    "rows": lambda value: Batch(PROBLEM, AgentView(), value),
    "environments": lambda value: PlacementVectorEnv(value, PROBLEM),
}
OPTIONS: dict[str, Entry] = {
    "options": lambda value: SINGLE.reset(options=value),
    "options of all": lambda value: BATCHED.reset(options=value),
    "options of Stable-Baselines3": SB3.set_options,
}


@pytest.fixture(autouse=True)
def begun() -> None:
    SINGLE.reset(options={"scenario": 1})
    BATCHED.reset(options={"scenario": 1})
    SB3.set_options({"scenario": 1})
    SB3.reset()
    BATCH.reset(1)


def standing() -> list[bytes]:
    """Return all that environments hold which a step or a reset changes."""
    batches = [SINGLE.batch, BATCHED.batch, SB3.batch, BATCH]
    state = [
        np.asarray(values).tobytes()
        for batch in batches
        for values in (*batch.sim.state, *batch.snapshot_arrays().values())
    ]
    return [*state, repr((SB3._seeds, SB3._options)).encode()]


def all_refuse(entries: dict[str, Entry], value: object) -> None:
    before = standing()
    for name, entry in entries.items():
        try:
            entry(value)
        except ValueError as error:
            assert "\n" not in str(error)  # noqa: PT017
        else:
            pytest.fail(f"{name} takes {value!r}")
    assert standing() == before


@given(value=no_numbers)
def test_what_is_no_whole_number_is_refused_and_changes_nothing(value: object) -> None:
    all_refuse(ACTIONS | SEEDS | NUMBERS, value)


@given(value=st.integers().filter(lambda value: not 0 <= value < BATCH.actions))
def test_a_number_that_is_no_action_is_refused_however_large(value: int) -> None:
    all_refuse(ACTIONS, value)


@given(value=st.none() | st.integers().filter(lambda value: not 0 <= value < SCENARIOS))
def test_a_scenario_that_is_not_there_is_refused(value: int | None) -> None:
    named = ("scenario", "scenario of all", "scenario of Stable-Baselines3", "scenario of a row")
    all_refuse({name: NUMBERS[name] for name in named}, value)


@given(value=st.integers(max_value=-1))
def test_a_seed_below_0_is_refused(value: int) -> None:
    all_refuse(SEEDS, value)


@pytest.mark.parametrize(
    "value", [{"speed": 1}, {"scenario": 1, "speed": 1}, {"reset_mask": np.ones(ROWS, bool)}, {1: 2}, "scenario", 3]
)
def test_options_that_are_not_known_are_refused(value: object) -> None:
    all_refuse(OPTIONS, value)


@pytest.mark.parametrize("value", [[], [{}], [{}, {}, {}], [{}, {"speed": 1}], [{}, 3]])
def test_options_of_rows_are_for_each_of_them(value: list[Any]) -> None:
    all_refuse({"options of rows": SB3.set_options}, value)


@pytest.mark.parametrize("value", [[], [1], [1, 2, 3], (4, 5, 6)])
def test_seeds_are_one_or_one_for_each_environment(value: list[int]) -> None:
    all_refuse({"seeds": lambda value: BATCHED.reset(seed=value)}, value)


@pytest.mark.parametrize("two", [2, 2.0, np.int8(2), np.uint64(2), np.float32(2.0), np.array(2), torch.tensor(2)])
def test_a_whole_number_of_any_type_is_taken(two: Any) -> None:
    SINGLE.reset(options={"scenario": two})
    SB3.set_options({"scenario": two})
    SB3.reset()
    assert SINGLE.batch.sim.state.scenario.tolist() == SB3.batch.sim.state.scenario[:1].tolist() == [2]
    PlacementEnv(PROBLEM).reset(seed=two)
    SINGLE.step(two)
    SB3.step(np.asarray([two, two]))


def test_arguments_of_a_method_that_has_none_are_refused() -> None:
    with pytest.raises(TypeError):
        SB3.env_method("action_masks", 1)
    for row in (ROWS, 10**30, math.nan):
        with pytest.raises(ValueError, match="row"):
            SB3.env_method("action_masks", indices=[row])  # type: ignore[list-item]
