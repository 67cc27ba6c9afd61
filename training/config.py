"""The configuration of a training run, and the bounds of its hyper-parameters by algorithm."""

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self, get_args

from pydantic import (
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    field_validator,
)
from pydantic_core import PydanticKnownError, core_schema

from ..agents.learned.checkpoint import load_policy
from ..agents.learned.network import find_network
from ..agents.networks.candidates import CandidateNetwork
from ..cluster.files.errors import InputError
from ..cluster.files.input_problems import name_advice
from ..cluster.files.output_file import in_one_line
from ..cluster.files.plugins import is_registered, registered
from ..cluster.files.yaml_file import read_yaml
from ..cluster.model.orders import ORDER_REGIMES, OrderName
from ..cluster.model.outcome import Weighting, weighting_of
from ..cluster.presets.problems import Regime
from ..envs.rewards import MAX_RANDOM_RUNS, RANDOM_RUNS
from .problems import (
    HISTORY,
    LOADS,
    PRESETS,
    TAUGHT,
    TRACES,
    DistilParameters,
    GroupParameters,
    Hyperparameters,
    KnownEstimates,
    ProblemRequest,
    Sizes,
)

TRAINING_PAGE = "docs/training.md"


class ParameterRange(NamedTuple):
    """Range of a hyper-parameter."""

    low: float
    high: float
    by_factors: bool = False  # it is searched on its logarithm
    is_whole: bool = False

    def holds(self, value: object) -> bool:
        """Return whether it may have a value."""
        if isinstance(value, bool) or not isinstance(value, int | float):
            return False
        return self.low <= value <= self.high and (not self.is_whole or value == int(value))

    @property
    def text(self) -> str:
        """In words."""
        return f"a {'whole ' if self.is_whole else ''}number from {self.low:g} to {self.high:g}"


_ACTOR_CRITIC = {
    "gae_lambda": ParameterRange(0.9, 1.0),
    "entropy": ParameterRange(1e-4, 0.1, by_factors=True),
    "value": ParameterRange(0.1, 1.0),
}
PARAMETER_RANGES: dict[str, dict[str, ParameterRange]] = {
    "ppo": {
        "learning_rate": ParameterRange(1e-5, 1e-2, by_factors=True),
        "clip": ParameterRange(0.05, 0.5),
        "epochs": ParameterRange(1, 10, is_whole=True),
        **_ACTOR_CRITIC,
    },
    "a2c": {"learning_rate": ParameterRange(1e-5, 1e-2, by_factors=True), **_ACTOR_CRITIC},
    "group": {
        "group_learning_rate": ParameterRange(1e-4, 3e-2, by_factors=True),
        "group_clip": ParameterRange(0.05, 0.5),
        "group_entropy": ParameterRange(1e-4, 0.1, by_factors=True),
        "group_average": ParameterRange(0.005, 1.0, by_factors=True),
        "group_minibatch": ParameterRange(256, 32768, by_factors=True, is_whole=True),
        "group_horizon": ParameterRange(0.5, 32.0, by_factors=True),
    },
    "distil": {
        "distil_learning_rate": ParameterRange(1e-4, 2e-2, by_factors=True),
        "distil_prior": ParameterRange(0.01, 0.5, by_factors=True),
        "distil_temperature": ParameterRange(0.002, 0.2, by_factors=True),
        "distil_cost": ParameterRange(0.1, 10.0, by_factors=True),
        "distil_epochs": ParameterRange(2, 40, is_whole=True),
    },
}
PARAMETER_FIELDS = {
    "ppo": "hyperparameters",
    "a2c": "hyperparameters",
    "group": "group",
    "distil": "distil",
}  # of a configuration


def read_parameters(path: Path, algorithm: str) -> dict[str, float]:
    """Return the hyper-parameters in a file of YAML or JSON.

    Raises:
        InputError: If it cannot be read, or has a name or a value that the algorithm does not take, with the line.
    """
    file, known = read_yaml(path, TRAINING_PAGE), PARAMETER_RANGES[algorithm]
    assert isinstance(file.data, Mapping)
    for name, value in file.data.items():
        if name not in known:
            problem = f"{algorithm} has no hyper-parameter {name!r} that can be given"
            raise file.error((name,), problem, name_advice(str(name), known))
        if not known[name].holds(value):
            raise file.error((name,), f"{file.text_at((name,), value)} is not {known[name].text}")
    return {name: to_parameter_type(known[name], value) for name, value in file.data.items()}


def to_parameter_type(bounds: ParameterRange, value: float) -> float:
    """Return a value in the type of its hyper-parameter: 3.0 may be a whole number."""
    return int(value) if bounds.is_whole else float(value)


ACTOR_CRITICS = {
    "ppo": ("off", "dynamic", "literal", "literal-all", "geppo"),
    "a2c": ("off", "dynamic", "literal", "literal-all", "vtrace"),
}  # the kinds of replay that each takes
LITERAL = ("literal", "literal-all")  # of these, samples are dropped from the buffer; of the others, whole rollouts
BY_CANDIDATES = ("group", "distil")
USUAL_STEPS = {"distil": 175_000.0}  # a decision that is labelled takes as long as some thousand steps
MAX_TRAINING_STEPS = 1e15  # decades at any speed
MAX_ENVIRONMENTS, MAX_BUFFER = 16_384, 10**9
MAX_RUN_NAME_BYTES = 200  # of a run's folder: with prefixes and suffixes, a file system takes 255


@dataclass(frozen=True)
class RegisteredName:
    """Annotates a field of a configuration: one of the names that are registered when it is read.

    Its JSON schema lists them, as that of a Literal does.

    Args:
        seam: A key of `plugins.SEAMS`.
    """

    seam: str

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> core_schema.CoreSchema:
        """Check the name that was given."""
        return core_schema.no_info_after_validator_function(self._check_name, handler(source))

    def __get_pydantic_json_schema__(
        self, schema: core_schema.CoreSchema, handler: GetJsonSchemaHandler
    ) -> dict[str, Any]:
        """List the names."""
        return {**handler(schema), "enum": self.names()}

    def names(self) -> list[str]:
        """Return all names that the field may have."""
        return list(registered(self.seam))

    def _check_name(self, given: str) -> str:
        if not is_registered(self.seam, given):
            raise PydanticKnownError("literal_error", {"expected": ", ".join(self.names())})
        return given


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
    random_runs: int = Field(default=RANDOM_RUNS, ge=1, le=MAX_RANDOM_RUNS)  # of a scenario, for best_of_random
    replay: Literal["off", "dynamic", "literal", "literal-all", "geppo", "vtrace"] = "off"
    buffer: int | None = Field(default=None, ge=1, le=MAX_BUFFER)  # samples of replay; None: of `kept` rollouts
    environments: int | None = Field(default=None, ge=1, le=MAX_ENVIRONMENTS)  # None: the preset's
    waiting: bool = False
    oracle: bool = True  # policies know the true fault rates
    turns: bool = False  # users of traces take turns
    orders: tuple[OrderName, ...] = ("fifo",)
    ageing_h: float | None = Field(default=None, ge=0, allow_inf_nan=False)  # None: no bound
    traces: tuple[str, ...] = ()
    history: str | None = None
    cluster: str | None = None
    faults: str | None = None
    loads: tuple[Annotated[float, Field(gt=0)], ...] = LOADS
    estimates: KnownEstimates = "mixed"
    objective: str | None = None  # as cluster/model/outcome.py reads it; None: the usual one of the problem
    init: str | None = None  # checkpoint to begin with
    parameters: str | None = None  # file of hyper-parameters that replace the preset's
    hyperparameters: Hyperparameters = Hyperparameters()  # of PPO and A2C
    group: GroupParameters = GroupParameters()  # of the group-relative policy gradient
    distil: DistilParameters = DistilParameters()
    threads: int = Field(default=2, ge=1)

    @field_validator("objective")
    @classmethod
    def _check_objective(cls, text: str | None) -> str | None:
        try:
            return None if text is None else weighting_of(text).text
        except InputError as error:
            raise ValueError(str(error)) from error

    @classmethod
    def of_text(cls, text: str) -> Self:
        """Return the configuration that `as_text` wrote.

        Raises:
            ValueError: If it is none.
        """
        try:
            return cls.model_validate(json.loads(text))
        except RecursionError as error:
            raise ValueError("it is nested too deeply") from error

    def as_text(self) -> str:
        """Return it as JSON of ASCII, for any names of files in it."""
        return json.dumps(self.model_dump(mode="json"), indent=1) + "\n"

    @property
    def weighting(self) -> Weighting | None:
        """What is minimised; None: the usual objective of the problem."""
        return None if self.objective is None else weighting_of(self.objective)

    @property
    def name(self) -> str:
        """Name of the run's folder."""
        defaults = default_options(self.preset, self.algorithm, self.action)
        reward = defaults.reward if self.algorithm in BY_CANDIDATES else self.reward  # these have none
        own = (self.action, self.network, self.observation, reward)
        differs = [option for option, default in zip(own, defaults, strict=True) if option != default]
        order = [order for order in self.orders if order != "fifo" or len(self.orders) > 1]
        traces = [Path(trace).stem.split(".")[0] for trace in self.traces] if self.preset == "traces" else []
        traces += [Path(self.history).stem] if self.history else []
        brought = [*traces[:3], *([f"and-{len(traces) - 3}"] if len(traces) > 3 else [])]
        brought += [Path(self.cluster).stem] if self.cluster else []
        ageing = [f"age{self.ageing_h:g}h"] if self.ageing_h is not None else []
        waiting = ["wait"] if self.waiting else []
        usual_replay = PRESETS[self.preset].replay if self.algorithm in ACTOR_CRITICS else "off"
        replay = [f"replay-{self.replay}"] if self.replay != usual_replay else []
        sizes = [f"buffer{self.buffer}"] if self.buffer else []
        sizes += [f"env{self.environments}"] if self.environments else []
        random_runs = [f"best-of-{self.random_runs}"] if self.random_runs != RANDOM_RUNS else []
        init = ["init"] if self.init else []
        objective = [self.objective.replace(":", "").replace(",", "-")] if self.objective else []
        parameters = [Path(self.parameters).stem] if self.parameters else []
        parts = (
            self.preset,
            *brought,
            self.algorithm,
            *init,
            *differs,
            *random_runs,
            *replay,
            *sizes,
            *waiting,
            *order,
            *ageing,
            *objective,
            *parameters,
            str(self.seed),
        )
        name = in_one_line("-".join(parts))  # libraries that write below it take UTF-8 alone
        if len(name.encode()) <= MAX_RUN_NAME_BYTES:
            return name
        rest = "-" + hashlib.sha256(name.encode()).hexdigest()[:8]
        return name.encode()[: MAX_RUN_NAME_BYTES - len(rest)].decode(errors="ignore") + rest

    @property
    def regimes(self) -> tuple[Regime, ...]:
        """What may be chosen, in training and in validation, one for each order regime."""
        ageing_s = math.inf if self.ageing_h is None else self.ageing_h * 3600.0
        return tuple(Regime(order, ageing_s, self.waiting, self.oracle, self.turns) for order in self.orders)


def problem_request(config: TrainingConfig, sizes: Sizes) -> ProblemRequest:
    """Return what a run's problems are built from."""
    return ProblemRequest(
        config.seed, config.regimes, sizes, tuple(map(Path, config.traces)),
        None if config.cluster is None else Path(config.cluster),
        None if config.faults is None else Path(config.faults), config.loads, config.estimates,
        None if config.history is None else Path(config.history),
    )  # fmt: skip


class RunOptions(NamedTuple):
    """Action, network, observation and reward of a run."""

    action: str
    network: str
    observation: str
    reward: str


def default_options(preset: str, algorithm: str, action: str | None) -> RunOptions:
    """Return the default options, for an action if one is named."""
    own = PRESETS[preset]
    usual = "candidate" if algorithm in BY_CANDIDATES else own.action
    network = "candidates" if (action or usual) == "candidate" else own.network
    return RunOptions(usual, network, own.observation if (action or usual) == own.action else "full", own.reward)


def config_of(
    *, preset: str | None = None, algorithm: str | None = None, steps: float | None, seed: int,
    network: str | None, action: str | None, observation: str | None, reward: str | None, waiting: bool | None,
    threads: int, traces: Sequence[Path] = (), cluster: Path | None = None, faults: Path | None = None,
    loads: Sequence[float] = (), estimates: str | None = None, orders: Sequence[str] = (), ageing_h: float = math.inf,
    replay: str | None = None, init: Path | None = None, oracle: bool = False, history: Path | None = None,
    turns: bool = True,
) -> TrainingConfig:  # fmt: skip
    """Return the configuration of a command; what is None or empty has the default of the preset and the algorithm.

    Raises:
        InputError: If a value is not known or values do not go together, naming the option.
    """
    preset = preset or (HISTORY if history else TRACES if traces else "hetero64")
    _check_option_value("preset", preset, PRESETS)
    own = PRESETS[preset]
    loaded = load_policy(init).schema if init is not None and algorithm not in BY_CANDIDATES else None
    may_wait = own.waiting
    algorithm = algorithm or (own.algorithm if loaded is None or loaded.network == "candidates" else "ppo")
    if loaded is not None and algorithm in ACTOR_CRITICS:  # the run has the checkpoint's own options
        action, network, observation = (
            action or loaded.action,
            network or loaded.network,
            observation or loaded.observation,
        )
        waiting = loaded.waiting if waiting is None and preset != HISTORY else waiting
        may_wait &= loaded.waiting  # on a history, whose rules decide whether waiting is allowed
    steps = USUAL_STEPS.get(algorithm, 2e6) if steps is None else steps
    usual = default_options(preset, algorithm, action)
    action, network = action or usual.action, network or usual.network
    observation = observation or usual.observation
    replay = replay or (own.replay if algorithm in ACTOR_CRITICS else "off")
    for field, value in {"algorithm": algorithm, "network": network, "action": action, "observation": observation,
                         "reward": reward or "dt", "replay": replay,
                         "estimates": estimates or "mixed"}.items():  # fmt: skip
        _check_option_value(field, value, _allowed_words(field))
    _check_network(algorithm, network, action)
    if reward is not None and algorithm not in ACTOR_CRITICS:
        raise InputError(f"{algorithm} has no reward", "omit it, or take --algo ppo or a2c", field="--reward")
    if replay not in (able := ACTOR_CRITICS.get(algorithm, ("off",))):
        raise InputError(f"{algorithm} has no replay {replay!r}", f"take {' or '.join(able)}", field="--replay")
    if observation != "full" and action != "gpu":
        raise InputError("the patent's state has one entry per GPU", "add --action gpu", field="--observation")
    if not 1 <= steps <= MAX_TRAINING_STEPS:
        raise InputError(f"{steps:g} is no number of steps", "write one such as 2e6", field="--steps")
    brought = {"--cluster": cluster, "--faults": faults, "--load": loads or None, "--estimates": estimates}
    _check_preset_input(preset, traces, brought)
    others = {"--ageing": ageing_h < math.inf, "--oracle": oracle, "--no-turns": not turns}
    others["--no-waiting" if waiting is False else "--waiting"] = waiting is not None
    _check_history(preset, history, {"--order": orders, **others}, algorithm)
    if not turns and not traces:
        raise InputError(f"the jobs of {preset} have no users", "omit it", field="--no-turns")
    _check_orders(algorithm, orders)
    group = own.group
    if init:  # the hyper-parameters of a trained network, with what the preset minimises
        group = replace(TAUGHT, group_tail=group.group_tail, group_horizon=group.group_horizon)
    return TrainingConfig.model_validate(
        {
            "preset": preset, "algorithm": algorithm, "steps": int(steps), "seed": seed, "network": network,
            "action": action, "observation": observation, "reward": reward or own.reward, "replay": replay,
            "waiting": may_wait if waiting is None else waiting, "oracle": oracle, "turns": turns and bool(traces),
            "threads": threads,
            "init": str(init) if init else None, "history": str(history) if history else None,
            "orders": tuple(orders) or own.orders, "ageing_h": None if math.isinf(ageing_h) else ageing_h,
            "traces": [str(path) for path in traces], "cluster": str(cluster) if cluster else None,
            "faults": str(faults) if faults else None, "loads": tuple(loads) or LOADS,
            "estimates": estimates or "mixed", "group": asdict(group),
            "hyperparameters": asdict(own.hyperparameters(algorithm, replay)),
        }
    )  # fmt: skip


def with_objective(config: TrainingConfig, text: str) -> TrainingConfig:
    """Return a configuration that minimises the objective of a user.

    Raises:
        InputError: If the text is not an objective, or the algorithm cannot minimise it.
    """
    weighting = weighting_of(text)
    if config.algorithm != "group":
        by_reward = config.algorithm in ACTOR_CRITICS
        what = "what its reward pays" if by_reward else "the makespan of a batch, else the mean JCT"
        raise InputError(f"{config.algorithm} minimises {what}", "omit it, or take --algo group", field="--objective")
    return config.model_copy(update={"objective": weighting.text})


def with_numbers(
    config: TrainingConfig, *, random_runs: int | None, buffer: int | None, environments: int | None
) -> TrainingConfig:
    """Return a configuration with other numbers of random runs, samples that replay keeps, and environments.

    Raises:
        InputError: If the algorithm, its reward or its replay has no use for one, with the option.
    """
    algorithm, size, update = config.algorithm, config.hyperparameters, dict[str, object]()
    if random_runs is not None:
        if algorithm not in ACTOR_CRITICS or config.reward != "best_of_random":
            paid = f"the reward {config.reward!r}" if algorithm in ACTOR_CRITICS else algorithm
            fix = "omit it, or take --reward best_of_random with --algo ppo or a2c"
            raise InputError(f"{paid} compares with no random runs", fix, field="--random-runs")
        update["random_runs"] = random_runs
    if environments is not None:
        if algorithm not in ACTOR_CRITICS:
            problem, fix = f"{algorithm} runs groups of scenarios", "omit it, or take --algo ppo or a2c"
            raise InputError(problem, fix, field="--environments")
        # A2C learns from a whole rollout at once.
        minibatch = environments * size.steps if algorithm == "a2c" else size.minibatch
        size, update["environments"] = replace(size, rows=environments, minibatch=minibatch), environments
    if buffer is not None:
        size, update["buffer"] = replace(size, kept=_rollouts_in_buffer(config.replay, buffer, size)), buffer
    return config.model_copy(update=update | {"hyperparameters": size})


def _rollouts_in_buffer(replay: str, buffer: int, size: Hyperparameters) -> int:
    """Return the number of rollouts in a buffer of a number of samples."""
    if replay == "off":
        raise InputError("without replay no sample is kept", "give --replay, too", field="--buffer")
    if replay in LITERAL:
        return size.kept  # which counts for the others alone
    kept, over = divmod(buffer, rollout := size.rows * size.steps)
    if over or not kept:
        fix = f"give {max(kept, 1) * rollout} or {(max(kept, 1) + 1) * rollout}, or take --replay literal"
        raise InputError(f"{replay} keeps whole rollouts of {rollout:,} samples, not {buffer:,}", fix, field="--buffer")
    return kept


def with_parameters(config: TrainingConfig, values: Mapping[str, float]) -> TrainingConfig:
    """Return a configuration with other hyper-parameters of its algorithm."""
    field = PARAMETER_FIELDS[config.algorithm]
    return config.model_copy(update={field: replace(getattr(config, field), **values)})


def with_parameter_file(config: TrainingConfig, path: Path) -> TrainingConfig:
    """Return a configuration with the hyper-parameters of a file.

    Raises:
        InputError: If the file cannot be used, with the line.
    """
    values = read_parameters(path, config.algorithm)
    return with_parameters(config, values).model_copy(update={"parameters": str(path)})


def _check_preset_input(preset: str, traces: Sequence[Path], brought: Mapping[str, object]) -> None:
    """Refuse files and options that the preset has no use for, or that it lacks."""
    if not PRESETS[preset].needs_trace and traces:
        raise InputError(f"{preset} draws its own jobs", "omit the trace, or take another preset", field="--trace")
    if PRESETS[preset].needs_trace and not traces:
        raise InputError(f"{preset} trains on windows of a trace", "give its file", field="--trace")
    if preset != TRACES:
        for field in (field for field, value in brought.items() if value is not None):
            raise InputError(f"{preset} has its own", "give --trace without --preset", field=field)
        for path in traces[1:]:
            raise InputError(f"{preset} takes one trace, not also {path}", "omit --preset", field="--trace")
    if brought["--faults"] and not brought["--cluster"]:
        raise InputError("recorded faults need a cluster", "give --cluster", field="--faults")
    for field, paths in (
        ("--trace", traces),
        ("--cluster", [brought["--cluster"]]),
        ("--faults", [brought["--faults"]]),
    ):
        for file in paths:
            if isinstance(file, Path) and not file.is_file():
                raise InputError(f"{file} is no file", "check the path", field=field)


def _check_history(preset: str, history: Path | None, given: Mapping[str, object], algorithm: str) -> None:
    """Refuse a history that the preset does not take, or lacks, and options that the history decides."""
    if (preset == HISTORY) != (history is not None):
        fix = "give the file of `longshore store decisions`" if preset == HISTORY else "omit --preset and --trace"
        raise InputError(f"the preset is {preset}, and history is what `history` trains on", fix, field="--history")
    if history is None:
        return
    if not history.is_file():
        raise InputError(f"{history} is no file", "check the path", field="--history")
    for field in (field for field, is_given in given.items() if is_given):
        raise InputError("a history is learned under its scheduler's own rules", "omit it", field=field)
    if algorithm == "distil":
        raise InputError("distil learns from workloads that are drawn", "take group, ppo or a2c", field="--algo")


def _check_orders(algorithm: str, orders: Sequence[str]) -> None:
    for order in orders:
        if order not in ORDER_REGIMES:
            raise InputError(f"there is no order {order!r}", name_advice(order, ORDER_REGIMES), field="--order")
    if len(orders) > 1 and algorithm != "group":
        raise InputError(
            f"{algorithm} learns under one order regime, not under {len(orders)}",
            "give --order once, or take --algo group", field="--order",
        )  # fmt: skip


def _check_network(algorithm: str, network: str, action: str) -> None:
    """Refuse a network that does not choose by these actions, or that the algorithm cannot teach."""
    kind = find_network(network)
    if algorithm in BY_CANDIDATES and action != "candidate":
        raise InputError(f"{algorithm} learns to choose among candidates", "omit --action", field="--action")
    if action not in kind.actions:
        raise InputError(
            f"the network {network!r} has no {action} actions", f"add --action {' or '.join(kind.actions)}",
            field="--network",
        )  # fmt: skip
    if algorithm in BY_CANDIDATES and kind is not CandidateNetwork:
        raise InputError(f"{algorithm} teaches the network `candidates`", "omit --network", field="--network")


def _allowed_words(field: str) -> Collection[str]:
    """Return the words that a field of a configuration takes."""
    known = TrainingConfig.model_fields[field]
    name = next((entry for entry in known.metadata if isinstance(entry, RegisteredName)), None)
    return get_args(known.annotation) if name is None else name.names()


def _check_option_value(field: str, value: str, known: Iterable[str]) -> None:
    if value not in known:
        option = {"algorithm": "algo"}.get(field, field)
        raise InputError(f"there is no {option} {value!r}", name_advice(value, known), field=f"--{option}")
