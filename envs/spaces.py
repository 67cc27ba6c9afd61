"""Spaces of environments, and checks of what users pass in: actions, seeds, scenarios and options."""

import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np
from gymnasium import spaces
from numpy.typing import ArrayLike, NDArray

if TYPE_CHECKING:
    from .batch import Batch

MAX_WHOLE_NUMBER = 2**62  # of an action or a scenario; seeds may be larger


def whole_numbers(values: ArrayLike, what: str) -> NDArray[np.int64]:
    """Return numbers as integers, in their shape.

    Args:
        values: Integers, or floating numbers that are whole.
        what: Their name in the error, in the singular.

    Raises:
        ValueError: If one is no whole number, naming the first.
    """
    try:
        given = np.asarray(values)
    except (ValueError, TypeError) as error:  # lists of several lengths, arrays of another machine
        raise ValueError(f"{what} {_shown(values)} is no whole number") from error
    # NumPy takes a bool among integers for one of them.
    odd = [value for value in values if isinstance(value, bool | np.bool_)] if isinstance(values, list | tuple) else []
    if odd or given.dtype.kind not in "iuf":
        raise ValueError(f"{what} {_shown(odd[0] if odd else values)} is no whole number")
    if given.dtype == np.int64:
        return given
    with np.errstate(invalid="ignore"):
        wrong = given[~((given % 1 == 0) & (abs(given.astype(np.float64)) <= MAX_WHOLE_NUMBER))]
    if wrong.size:
        raise ValueError(f"{what} {wrong.flat[0]} is no whole number")
    return given.astype(np.int64)


def whole_number(value: object, what: str, *, least: int | None = None) -> int:
    """Return a number of any size as an integer of Python.

    Args:
        value: An integer, or a floating number that is whole.
        what: Its name in the error.
        least: The smallest that it may be, if there is one.

    Raises:
        ValueError: If it is no whole number, or too small.
    """
    try:
        number = None if isinstance(value, bool | np.bool_) else operator.index(value)  # type: ignore[arg-type]
    except TypeError:
        number = int(value) if isinstance(value, float | np.floating) and float(value).is_integer() else None
    if number is None or (least is not None and number < least):
        bound = "" if least is None else f" of at least {least}"
        raise ValueError(f"{what} {_shown(value)} is no whole number{bound}")
    return number


def scenario_option(options: object, scenarios: int) -> int | None:
    """Return the scenario that the options of a reset name; None if they name none.

    Args:
        options: None, or a dict with `scenario` or nothing.
        scenarios: Number of scenarios.

    Raises:
        ValueError: If an option is unknown, or there is no such scenario.
    """
    if options is None:
        return None
    if not isinstance(options, Mapping):
        raise ValueError(f"options {_shown(options)} are no dict; write {{'scenario': 3}}")
    for name in options:
        if name != "scenario":
            raise ValueError(f"{name!r} is no option of reset; the only one is 'scenario'")
    if "scenario" not in options:
        return None
    scenario = options["scenario"]
    number = whole_number(scenario, "scenario")
    if not 0 <= number < scenarios:
        raise ValueError(f"there is no scenario {number}, only 0 to {scenarios - 1}")
    return number


def seed_given(seed: object) -> int | None:
    """Return a seed as an integer, None if there is none.

    Raises:
        ValueError: If it is no whole number of at least 0.
    """
    return None if seed is None else whole_number(seed, "seed", least=0)


def drawn_scenario(rng: np.random.Generator, scenarios: int) -> int:
    """Return the scenario that the generator of a seed draws; neighbouring seeds draw distant ones."""
    return int(rng.integers(scenarios))


def _shown(value: Any) -> str:
    text = " ".join(repr(value).split())
    return text if len(text) <= 60 else f"{text[:57]}..."


# Attribute of the observation space with the options of its environment. Stable-Baselines3 saves it as plain JSON.
OPTIONS_ATTRIBUTE = "longshore"


def spaces_of(batch: "Batch") -> tuple[spaces.Space[NDArray[np.float32]], spaces.Discrete]:
    """Return observation and action space of one environment of a batch.

    The observation space has an attribute `longshore`: a dict of the action, the observation, whether waiting is one of
    the actions, and the GPUs of each node.
    """
    observations: spaces.Space[Any] = spaces.Box(batch.low, batch.high, dtype=np.float32)
    options: dict[str, Any] = {
        "action": batch.view.action, "observation": batch.view.observation,
        "waiting": bool(batch.problem.rules.waiting),
        "node_gpus": [int(gpus) for gpus in np.diff(batch.problem.cluster.first_gpu)],
    }  # fmt: skip
    setattr(observations, OPTIONS_ATTRIBUTE, options)
    return observations, spaces.Discrete(batch.actions)


def env_options(space: object) -> Mapping[str, Any] | None:
    """Return the options of the environment that a space belongs to, None if the space has none."""
    options = getattr(space, OPTIONS_ATTRIBUTE, None)
    return options if isinstance(options, Mapping) else None
