"""What a training run was asked to do, kept in its folder as config.json."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from .presets import Hyperparameters


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
