"""What a training run was asked to do, kept in its folder as config.json."""

import difflib
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..cluster.errors import InputError
from .presets import PRESETS, Hyperparameters


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
    if preset not in PRESETS:
        close = difflib.get_close_matches(preset, PRESETS, n=1)
        fix = f"did you mean {close[0]!r}?" if close else f"known: {', '.join(PRESETS)}"
        raise InputError(f"there is no preset {preset!r}", fix, field="--preset")
    if observation == "source" and action != "gpu":
        raise InputError("the source's state has one entry per GPU", "add --action gpu", field="--observation")
    if PRESETS[preset].needs_trace and trace is None:
        raise InputError(f"{preset} trains on windows of a trace", "give its file", field="--trace")
    try:
        return TrainingConfig.model_validate(
            {
                "preset": preset, "algorithm": algorithm, "steps": int(steps), "seed": seed, "network": network,
                "action": action, "observation": observation, "reward": reward or PRESETS[preset].reward,
                "waiting": waiting, "trace": str(trace) if trace else None, "threads": threads,
            }
        )  # fmt: skip
    except (ValidationError, OverflowError, ValueError) as error:
        if not isinstance(error, ValidationError):
            raise InputError(f"{steps} is no number of steps", "write one such as 2e6", field="--steps") from error
        first = error.errors()[0]
        option = {"algorithm": "algo"}.get(str(first["loc"][0]), str(first["loc"][0]))
        raise InputError(f"{first['input']!r}: {first['msg']}", field=f"--{option}") from error
