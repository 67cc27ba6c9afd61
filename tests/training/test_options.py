"""Options of a run: each changes what is trained, or is refused by its name."""

from pathlib import Path
from typing import Any

import pytest

from longshore.cluster.files.errors import InputError
from longshore.training.config import TrainingConfig, config_of, with_numbers, with_objective
from longshore.training.problems import PRESETS

RUNS = [
    (preset, algorithm)
    for preset in ("hetero64", "hetero64-stream", "patent4", "philly", "traces", "history")
    for algorithm in ("ppo", "a2c", "group", "distil")
    if (preset, algorithm) != ("history", "distil")
]
NUMBERS = ("random_runs", "buffer", "environments")


def built(preset: str, algorithm: str, folder: Path, **changes: Any) -> TrainingConfig:
    given: dict[str, Any] = {
        "preset": preset, "algorithm": algorithm, "steps": None, "seed": 0, "network": None, "action": None,
        "observation": None, "reward": None, "waiting": None, "threads": 1,
    }  # fmt: skip
    if PRESETS[preset].needs_trace:
        given["traces"] = [folder / "file"]
    if preset == "history":
        given["history"] = folder / "file"
    if algorithm in ("ppo", "a2c") and PRESETS[preset].algorithm == "group":
        given |= {"network": "set", "action": "node"}
    given |= changes
    numbers: Any = {name: given.pop(name, None) for name in NUMBERS}
    objective = given.pop("objective", None)
    config = with_numbers(config_of(**given), **numbers)
    return config if objective is None else with_objective(config, objective)


@pytest.mark.parametrize(("preset", "algorithm"), RUNS)
def test_an_option_changes_the_run_or_is_refused_by_its_name(preset: str, algorithm: str, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    plain = built(preset, algorithm, tmp_path)
    options: dict[str, tuple[str, object]] = {
        "--steps": ("steps", 12345.0),
        "--seed": ("seed", 7),
        "--reward": ("reward", "dt" if plain.reward != "dt" else "jct"),
        "--replay": ("replay", "dynamic" if plain.replay != "dynamic" else "literal"),
        "--waiting" if not plain.waiting else "--no-waiting": ("waiting", not plain.waiting),
        "--order": ("orders", ["easy"] if plain.orders != ("easy",) else ["fifo"]),
        "--ageing": ("ageing_h", 24.0),
        "--load": ("loads", [0.4]),
        "--estimates": ("estimates", "exact"),
        "--cluster": ("cluster", tmp_path / "file"),
        "--oracle": ("oracle", not plain.oracle),
        "--no-turns": ("turns", False),
        "--random-runs": ("random_runs", 7),
        "--buffer": ("buffer", plain.hyperparameters.rows * plain.hyperparameters.steps * 2),
        "--environments": ("environments", plain.hyperparameters.rows * 2),
        "--objective": ("objective", "p99-jct"),
    }
    for option, (name, value) in options.items():
        refused_by, config = "", plain
        try:
            config = built(preset, algorithm, tmp_path, **{name: value})
        except InputError as error:
            refused_by = error.field
        assert refused_by == option or config != plain, option
