"""What a training run was asked to do, kept in its folder as config.json."""

from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from ..cluster.errors import InputError
from ..cluster.yaml_file import nearest
from .presets import PRESETS, Hyperparameters

MOST_STEPS = 1e15  # decades at any speed


class TrainingConfig(BaseModel):
    """One run: the same configuration on the same machine gives the same policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: str
    algorithm: Literal["ppo"] = "ppo"
    steps: int = Field(gt=0)  # of all environments together
    seed: int = Field(ge=0, lt=1_000_000)
    network: Literal["set", "mlp"] = "set"
    action: Literal["node", "gpu"] = "node"
    observation: Literal["full", "source"] = "full"
    reward: Literal["potential", "dt", "jct"]
    waiting: bool = False
    trace: str | None = None
    hyperparameters: Hyperparameters = Hyperparameters()
    threads: int = Field(default=2, ge=1)

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        return "-".join((self.preset, self.algorithm, *(["wait"] if self.waiting else []), str(self.seed)))


def config_of(
    *, preset: str, algorithm: str, steps: float, seed: int, network: str, action: str, observation: str,
    reward: str | None, waiting: bool, trace: Path | None, threads: int,
) -> TrainingConfig:  # fmt: skip
    """Return the configuration that a user asked for.

    Raises:
        InputError: If a value is not known or values do not go together, naming the option.
    """
    for field, value in {"algorithm": algorithm, "network": network, "action": action, "observation": observation,
                         "reward": reward or "dt"}.items():  # fmt: skip
        _check_known(field, value, get_args(TrainingConfig.model_fields[field].annotation))
    _check_known("preset", preset, PRESETS)
    if observation == "source" and action != "gpu":
        raise InputError("the source's state has one entry per GPU", "add --action gpu", field="--observation")
    if PRESETS[preset].needs_trace and trace is None:
        raise InputError(f"{preset} trains on windows of a trace", "give its file", field="--trace")
    if not PRESETS[preset].needs_trace and trace is not None:
        raise InputError(f"{preset} draws its own jobs", "leave the trace out, or take another preset", field="--trace")
    if trace is not None and not trace.is_file():
        raise InputError(f"{trace} is no file", "check the path", field="--trace")
    if not 1 <= steps <= MOST_STEPS:
        raise InputError(f"{steps:g} is no number of steps", "write one such as 2e6", field="--steps")
    return TrainingConfig.model_validate(
        {
            "preset": preset, "algorithm": algorithm, "steps": int(steps), "seed": seed, "network": network,
            "action": action, "observation": observation, "reward": reward or PRESETS[preset].reward,
            "waiting": waiting, "trace": str(trace) if trace else None, "threads": threads,
        }
    )  # fmt: skip


def _check_known(field: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        option = {"algorithm": "algo"}.get(field, field)
        raise InputError(f"there is no {option} {value!r}", nearest(value, known), field=f"--{option}")
