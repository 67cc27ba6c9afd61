"""Hyper-parameters that can be given, by algorithm, each with the bounds within which it is searched and accepted."""

from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from ..cluster.files.input_problems import nearest
from ..cluster.files.yaml_file import read_yaml

PAGE = "docs/training.md"


class Bounds(NamedTuple):
    """Of a hyper-parameter."""

    low: float
    high: float
    by_factors: bool = False  # it is searched on its logarithm
    is_whole: bool = False

    def holds(self, value: object) -> bool:
        """Say whether it may have a value."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high and (not self.is_whole or value == int(value))

    @property
    def text(self) -> str:
        """In words."""
        return f"a {'whole ' if self.is_whole else ''}number from {self.low:g} to {self.high:g}"


_ACTOR_CRITIC = {
    "gae_lambda": Bounds(0.9, 1.0),
    "entropy": Bounds(1e-4, 0.1, by_factors=True),
    "value": Bounds(0.1, 1.0),
}
PARAMETERS: dict[str, dict[str, Bounds]] = {
    "ppo": {
        "learning_rate": Bounds(1e-5, 1e-2, by_factors=True),
        "clip": Bounds(0.05, 0.5),
        "epochs": Bounds(1, 10, is_whole=True),
        **_ACTOR_CRITIC,
    },
    "a2c": {"learning_rate": Bounds(1e-5, 1e-2, by_factors=True), **_ACTOR_CRITIC},
    "group": {
        "group_learning_rate": Bounds(1e-4, 3e-2, by_factors=True),
        "group_clip": Bounds(0.05, 0.5),
        "group_entropy": Bounds(1e-4, 0.1, by_factors=True),
        "group_average": Bounds(0.005, 1.0, by_factors=True),
        "group_minibatch": Bounds(256, 32768, by_factors=True, is_whole=True),
        "group_horizon": Bounds(0.5, 32.0, by_factors=True),
    },
    "distil": {
        "distil_learning_rate": Bounds(1e-4, 2e-2, by_factors=True),
        "distil_prior": Bounds(0.01, 0.5, by_factors=True),
        "distil_temperature": Bounds(0.002, 0.2, by_factors=True),
        "distil_cost": Bounds(0.1, 10.0, by_factors=True),
        "distil_epochs": Bounds(2, 40, is_whole=True),
    },
}
FIELDS = {
    "ppo": "hyperparameters",
    "a2c": "hyperparameters",
    "group": "group",
    "distil": "distil",
}  # of a configuration


def read_parameters(path: Path, algorithm: str) -> dict[str, float]:
    """Return the hyper-parameters in a file of YAML or JSON.

    Raises:
        InputError: If it cannot be read, or the algorithm has none of a name, or not of a value, naming the line.
    """
    file, known = read_yaml(path, PAGE), PARAMETERS[algorithm]
    assert isinstance(file.data, Mapping)
    for name, value in file.data.items():
        if name not in known:
            problem = f"{algorithm} has no hyper-parameter {name!r} that can be given"
            raise file.error((name,), problem, nearest(str(name), known))
        if not known[name].holds(value):
            raise file.error((name,), f"{file.seen((name,), value)} is not {known[name].text}")
    return {name: whole_or_not(known[name], value) for name, value in file.data.items()}


def whole_or_not(bounds: Bounds, value: float) -> float:
    """Return a value as its hyper-parameter has it: 3.0 may be a whole number."""
    return int(value) if bounds.is_whole else float(value)
