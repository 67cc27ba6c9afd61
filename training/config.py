"""What a training run was asked to do, kept in its folder as config.json."""

import math
from collections.abc import Collection, Iterable
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Literal, NamedTuple, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from ..agents.learned.network import find_network
from ..agents.learned.old_names import todays_name, with_todays_names
from ..agents.networks.candidates import CandidateNetwork
from ..cluster.files.errors import InputError
from ..cluster.files.input_problems import nearest
from ..cluster.files.registered_name import RegisteredName
from ..cluster.presets.problems import Regime
from .presets import PRESETS, TAUGHT, DistilParameters, GroupParameters, Hyperparameters

REPLAYS = {
    "ppo": ("off", "dynamic", "literal", "literal-all", "geppo"),
    "a2c": ("off", "dynamic", "literal", "literal-all", "vtrace"),
}  # by algorithm
BY_CANDIDATES = ("group", "distil")
USUAL_STEPS = {"distil": 175_000.0}  # a decision that is labelled takes as long as some thousand steps
MOST_STEPS = 1e15  # decades at any speed


class TrainingConfig(BaseModel):
    """One run: the same configuration on the same machine gives the same policy."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    preset: str
    algorithm: Literal["ppo", "a2c", "group", "distil"] = "ppo"
    steps: int = Field(gt=0)  # of all environments together; decisions that are labelled
    seed: int = Field(ge=0, lt=1_000_000)
    network: Annotated[str, RegisteredName("networks")] = "set"
    action: Literal["node", "gpu", "candidate"] = "node"
    observation: Literal["full", "patent", "patent-literal"] = "full"
    reward: Annotated[str, RegisteredName("rewards")]
    replay: Literal["off", "dynamic", "literal", "literal-all", "geppo", "vtrace"] = "off"
    waiting: bool = False
    oracle: bool = True  # of fault rates; runs that do not say were made when all policies were
    order: Annotated[str, RegisteredName("orders")] = "fifo"
    ageing_h: float | None = Field(default=None, ge=0, allow_inf_nan=False)  # None: a job may be overtaken for ever
    trace: str | None = None
    init: str | None = None  # checkpoint whose weights it begins with
    hyperparameters: Hyperparameters = Hyperparameters()  # of PPO and A2C
    group: GroupParameters = GroupParameters()  # of the group-relative policy gradient
    distil: DistilParameters = DistilParameters()
    threads: int = Field(default=2, ge=1)

    @model_validator(mode="before")
    @classmethod
    def _todays_names(cls, content: object) -> object:
        return with_todays_names(content)

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        usual = usual_options(self.preset, self.algorithm, self.action)
        reward = usual.reward if self.algorithm in BY_CANDIDATES else self.reward  # these have none
        asked = (self.action, self.network, self.observation, reward)
        differs = [option for option, default in zip(asked, usual, strict=True) if option != default]
        order = [self.order] if self.order != "fifo" else []
        ageing = [f"age{self.ageing_h:g}h"] if self.ageing_h is not None else []
        waiting = ["wait"] if self.waiting else []
        usual_replay = PRESETS[self.preset].replay if self.algorithm in REPLAYS else "off"
        replay = [f"replay-{self.replay}"] if self.replay != usual_replay else []
        init = ["init"] if self.init else []
        parts = (self.preset, self.algorithm, *init, *differs, *replay, *waiting, *order, *ageing, str(self.seed))
        return "-".join(parts)

    @property
    def regime(self) -> Regime:
        """What may be chosen, in training and in validation."""
        return Regime(
            self.order, math.inf if self.ageing_h is None else self.ageing_h * 3600.0, self.waiting, self.oracle
        )


class Options(NamedTuple):
    """What is chosen, by which network, from what is seen, and what is paid for it."""

    action: str
    network: str
    observation: str
    reward: str


def usual_options(preset: str, algorithm: str, action: str | None) -> Options:
    """Return the options that nobody need name, for an action if one is named."""
    own = PRESETS[preset]
    usual = "candidate" if algorithm in BY_CANDIDATES else own.action
    network = "candidates" if (action or usual) == "candidate" else own.network
    return Options(usual, network, own.observation if (action or usual) == own.action else "full", own.reward)


def config_of(
    *, preset: str, algorithm: str, steps: float | None, seed: int, network: str | None, action: str | None,
    observation: str | None, reward: str | None, waiting: bool, trace: Path | None, threads: int, order: str = "fifo",
    ageing_h: float = math.inf, replay: str | None = None, init: Path | None = None, oracle: bool = False,
) -> TrainingConfig:  # fmt: skip
    """Return the configuration that a user asked for; what is None is as the preset and the algorithm have it.

    Raises:
        InputError: If a value is not known or values do not go together, naming the option.
    """
    preset = todays_name("preset", preset)
    _check_known("preset", preset, PRESETS)
    own = PRESETS[preset]
    steps = USUAL_STEPS.get(algorithm, 2e6) if steps is None else steps
    usual = usual_options(preset, algorithm, action)
    action, network = action or usual.action, todays_name("network", network or usual.network)
    observation = todays_name("observation", observation or usual.observation)
    replay = replay or (own.replay if algorithm in REPLAYS else "off")
    for field, value in {"algorithm": algorithm, "network": network, "action": action, "observation": observation,
                         "reward": reward or "dt", "order": order, "replay": replay}.items():  # fmt: skip
        _check_known(field, value, _words_of(field))
    _check_network(algorithm, network, action)
    if init is not None and algorithm not in BY_CANDIDATES:
        raise InputError(f"{algorithm} begins at random", "leave --init out, or take --algo group", field="--init")
    if observation != "full" and action != "gpu":
        raise InputError("the patent's state has one entry per GPU", "add --action gpu", field="--observation")
    if replay not in (able := REPLAYS.get(algorithm, ("off",))):
        raise InputError(f"{algorithm} has no replay {replay!r}", f"take {' or '.join(able)}", field="--replay")
    if own.needs_trace and trace is None:
        raise InputError(f"{preset} trains on windows of a trace", "give its file", field="--trace")
    if not own.needs_trace and trace is not None:
        raise InputError(f"{preset} draws its own jobs", "leave the trace out, or take another preset", field="--trace")
    if trace is not None and not trace.is_file():
        raise InputError(f"{trace} is no file", "check the path", field="--trace")
    if not 1 <= steps <= MOST_STEPS:
        raise InputError(f"{steps:g} is no number of steps", "write one such as 2e6", field="--steps")
    return TrainingConfig.model_validate(
        {
            "preset": preset, "algorithm": algorithm, "steps": int(steps), "seed": seed, "network": network,
            "action": action, "observation": observation, "reward": reward or own.reward, "replay": replay,
            "waiting": waiting, "oracle": oracle, "trace": str(trace) if trace else None, "threads": threads,
            "init": str(init) if init else None, "order": order, "ageing_h": None if math.isinf(ageing_h) else ageing_h,
            "group": asdict(TAUGHT if init else GroupParameters()),
            "hyperparameters": asdict(own.hyperparameters(algorithm, replay)),
        }
    )  # fmt: skip


def _check_network(algorithm: str, network: str, action: str) -> None:
    """Refuse a network that does not choose by these actions, or that the algorithm cannot teach."""
    kind = find_network(network)
    if algorithm in BY_CANDIDATES and action != "candidate":
        raise InputError(f"{algorithm} learns to choose among candidates", "leave --action out", field="--action")
    if action not in kind.actions:
        raise InputError(
            f"the network {network!r} has no {action} actions", f"add --action {' or '.join(kind.actions)}",
            field="--network",
        )  # fmt: skip
    if algorithm in BY_CANDIDATES and kind is not CandidateNetwork:
        raise InputError(f"{algorithm} teaches the network `candidates`", "leave --network out", field="--network")


def _words_of(field: str) -> Collection[str]:
    """Return the words that a field of a configuration takes."""
    known = TrainingConfig.model_fields[field]
    name = next((it for it in known.metadata if isinstance(it, RegisteredName)), None)
    return get_args(known.annotation) if name is None else name.names()


def _check_known(field: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        option = {"algorithm": "algo"}.get(field, field)
        raise InputError(f"there is no {option} {value!r}", nearest(value, known), field=f"--{option}")
