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
from longshore.envs.batch import Batch, View
from longshore.envs.gymnasium_envs import PlacementEnv, PlacementVectorEnv
from longshore.envs.sb3 import PlacementVecEnv
from tests.envs.random_run import small_problem

SCENARIOS, ROWS = 8, 2
PROBLEM: Problem = small_problem(SCENARIOS, jobs=4)
SINGLE, BATCHED = PlacementEnv(PROBLEM), PlacementVectorEnv(ROWS, PROBLEM)
SB3, BATCH = PlacementVecEnv(PROBLEM, View(), ROWS), Batch(PROBLEM, View(), ROWS)

fractions = st.floats(width=32).filter(lambda it: not it.is_integer())  # nan and infinity among them
no_numbers = (
    fractions | fractions.map(np.float32) | st.booleans() | st.booleans().map(np.bool_) | st.text(max_size=3)
    | st.binary(max_size=3) | st.just(1j) | st.just(Fraction(1, 2)) | st.just(object()) | st.just({}) | st.just([])
    | st.just(np.zeros((2, 2))) | st.just([[1]])
)  # fmt: skip

Entry = Callable[[Any], object]
ACTIONS: dict[str, Entry] = {
    "step": SINGLE.step,
    "step of all": lambda it: BATCHED.step([0, it]),  # type: ignore[arg-type]
    "step of Stable-Baselines3": lambda it: SB3.step([0, it]),  # type: ignore[arg-type]
    "step of the batch": lambda it: BATCH.step([0, it]),
    "nearest open": lambda it: BATCH.nearest_open([0, it]),
}
SEEDS: dict[str, Entry] = {
    "seed": lambda it: SINGLE.reset(seed=it),
    "seed of all": lambda it: BATCHED.reset(seed=[0, it]),
    "seed of Stable-Baselines3": SB3.seed,
}
NUMBERS: dict[str, Entry] = {
    "scenario": lambda it: SINGLE.reset(options={"scenario": it}),
    "scenario of all": lambda it: BATCHED.reset(options={"scenario": it}),
    "scenario of Stable-Baselines3": lambda it: SB3.set_options({"scenario": it}),
    "scenario of a row": lambda it: SB3.set_options([{}, {"scenario": it}]),
    "scenario of the batch": BATCH.reset,
    "first": lambda it: PlacementVecEnv(PROBLEM, View(), ROWS, first=it),
    "row": lambda it: SB3.get_attr("first", [it]),
    "rows": lambda it: Batch(PROBLEM, View(), it),
    "environments": lambda it: PlacementVectorEnv(it, PROBLEM),
}
OPTIONS: dict[str, Entry] = {
    "options": lambda it: SINGLE.reset(options=it),
    "options of all": lambda it: BATCHED.reset(options=it),
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
    state = [np.asarray(values).tobytes() for it in batches for values in (*it.sim.state, *it.arrays().values())]
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


@given(value=st.integers().filter(lambda it: not 0 <= it < BATCH.actions))
def test_a_number_that_is_no_action_is_refused_however_large(value: int) -> None:
    all_refuse(ACTIONS, value)


@given(value=st.none() | st.integers().filter(lambda it: not 0 <= it < SCENARIOS))
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
    all_refuse({"seeds": lambda it: BATCHED.reset(seed=it)}, value)


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
