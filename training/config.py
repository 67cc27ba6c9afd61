"""What a training run was asked to do, kept in its folder as config.json."""

import math
from collections.abc import Iterable
from pathlib import Path
from typing import Literal, get_args

from pydantic import BaseModel, ConfigDict, Field

from ..cluster.errors import InputError
from ..cluster.yaml_file import nearest
from ..envs.problems import Regime
from .presets import PRESETS, GroupParameters, Hyperparameters

OrderName = Literal["fifo", "easy", "easy-shortest", "shortest"]  # ORDERS of cluster/scenarios.py
MOST_STEPS = 1e15  # decades at any speed


class TrainingConfig(BaseModel):
    """One run: the same configuration on the same machine gives the same policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: str
    algorithm: Literal["ppo", "group"] = "ppo"
    steps: int = Field(gt=0)  # of all environments together
    seed: int = Field(ge=0, lt=1_000_000)
    network: Literal["set", "mlp", "moves"] = "set"
    action: Literal["node", "gpu", "candidate"] = "node"
    observation: Literal["full", "source"] = "full"
    reward: Literal["potential", "dt", "jct"]
    waiting: bool = False
    order: OrderName = "fifo"
    ageing_h: float | None = Field(default=None, ge=0, allow_inf_nan=False)  # None: a job may be overtaken for ever
    trace: str | None = None
    hyperparameters: Hyperparameters = Hyperparameters()  # of PPO
    group: GroupParameters = GroupParameters()  # of the group-relative policy gradient
    threads: int = Field(default=2, ge=1)

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        order = [self.order] if self.order != "fifo" else []
        ageing = [f"age{self.ageing_h:g}h"] if self.ageing_h is not None else []
        waiting = ["wait"] if self.waiting else []
        return "-".join((self.preset, self.algorithm, *waiting, *order, *ageing, str(self.seed)))

    @property
    def regime(self) -> Regime:
        """What may be chosen, in training and in validation."""
        return Regime(self.order, math.inf if self.ageing_h is None else self.ageing_h * 3600.0, self.waiting)


def config_of(
    *, preset: str, algorithm: str, steps: float, seed: int, network: str | None, action: str | None, observation: str,
    reward: str | None, waiting: bool, trace: Path | None, threads: int, order: str = "fifo",
    ageing_h: float = math.inf,
) -> TrainingConfig:  # fmt: skip
    """Return the configuration that a user asked for; network and action that fit the algorithm if they are None.

    Raises:
        InputError: If a value is not known or values do not go together, naming the option.
    """
    action = action or ("candidate" if algorithm == "group" else "node")
    network = network or ("moves" if action == "candidate" else "set")
    for field, value in {"algorithm": algorithm, "network": network, "action": action, "observation": observation,
                         "reward": reward or "dt", "order": order}.items():  # fmt: skip
        _check_known(field, value, get_args(TrainingConfig.model_fields[field].annotation))
    _check_known("preset", preset, PRESETS)
    if (network == "moves") != (action == "candidate"):
        raise InputError("the network `moves` scores candidates", "give both or none", field="--network")
    if algorithm == "group" and action != "candidate":
        raise InputError("group learns to choose among candidates", "leave --action out", field="--action")
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
            "order": order, "ageing_h": None if math.isinf(ageing_h) else ageing_h,
        }
    )  # fmt: skip


def _check_known(field: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        option = {"algorithm": "algo"}.get(field, field)
        raise InputError(f"there is no {option} {value!r}", nearest(value, known), field=f"--{option}")
