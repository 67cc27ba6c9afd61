"""Models of Stable-Baselines3 and sb3-contrib under the policy protocol, their spaces checked.

A model becomes a schema and a network of ours. Files may be hostile: they are read without unpickling, and names of
classes in them are only compared with known ones.
"""

import io
import itertools
import json
import math
import os
import pickletools
import re
import warnings
import zipfile
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from pathlib import Path
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict, ValidationError
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import Tensor, nn

from ..cluster.files.errors import CheckpointError
from ..cluster.files.output_file import in_one_line
from ..envs.batch import OPTIONS_ATTRIBUTE, env_options
from ..envs.layout import action_count, observation_bounds, observation_size
from .learned.archive import read_file, stored_entries
from .learned.checkpoint import layout_of, schema_of, untrained_network
from .learned.network import LearnedPolicy, Network, ObservationLayout
from .learned.schema import MAX_HIDDEN_LAYERS, MAX_UNITS, HiddenLayers, NodeGpus, Schema
from .networks.sb3_policy import MaskedPolicy
from .networks.torch_networks import ACTIVATIONS

Weights: TypeAlias = Mapping[str, NDArray[np.float32]]
SUPPORTED_MODELS = "PPO, A2C, TRPO and MaskablePPO with MlpPolicy"
SB3_POLICY_MODULES = {  # modules of policies whose networks we read, and the algorithms that train them
    "stable_baselines3.common.policies": "a2c",  # or one of SB3_ALGORITHMS
    "sb3_contrib.common.maskable.policies": "maskable-ppo",
}
SB3_ALGORITHMS = {
    "clip_range": "ppo",
    "cg_max_steps": "trpo",
}  # by a field that only they save, as their policies share a module
LIVE_MODEL_HINT = "in Python, `SB3Policy(model)` takes it as it is (docs/environments.md, From a model to a policy)"
ACTOR_CRITIC_HINT = (
    "in Python, `SB3Policy(model)` takes other actor-critics without memory, but nothing that learns values of actions"
)
EXTRACTOR = "FlattenExtractor"
SB3_LAYER = re.compile(r"mlp_extractor\.(policy|value)_net\.(\d{1,3})\.(weight|bias)")
PRINTED_NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]\d+)?")
PRINTED_ERROR = 1e-4  # relative error of numbers as NumPy prints them
SB3_HEADS = {"policy": "action_net", "value": "value_net"}
HETERO64_NODE_GPUS = (8,) * 8  # GPUs of each node of the preset, the usual cluster
OBSERVATION_KINDS: tuple[tuple[str, str], ...] = (
    ("node", "full"), ("gpu", "full"), ("candidate", "full"), ("gpu", "patent"), ("gpu", "patent-literal"),
)  # fmt: skip


class EnvironmentOptions(BaseModel):
    """Options of the environment that a model was trained in, which spaces of ours hold."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Literal["gpu", "node", "candidate"]
    observation: Literal["patent", "patent-literal", "full"]
    waiting: bool
    node_gpus: NodeGpus


class SavedModel(NamedTuple):
    """The plain text and numbers of a saved model."""

    data: Mapping[str, Any]
    weights: Weights

    def text_under(self, *names: str) -> str:
        """Return the data under nested names as text in one line; "" if there is none."""
        found: Any = self.data
        for name in names:
            found = found.get(name) if isinstance(found, Mapping) else None
        return "" if found is None else " ".join(str(found)[:MAX_COMPARED_CHARS].split())


class EnvironmentHints(NamedTuple):
    """Options of the environment as the user gives them, for files that do not hold them."""

    observation: str | None = None
    node_gpus: tuple[int, ...] | None = None
    waiting: bool | None = None


class ModelSpaces(NamedTuple):
    """Observation and action space of a model."""

    size: int  # of an observation
    actions: int
    low: Sequence[float]  # lowest numbers of an observation as far as the file has them, in their order
    high: Sequence[float]

    @property
    def text(self) -> str:
        """Both sizes in words."""
        return f"it takes observations of {self.size} numbers and {self.actions} actions"

    def matches(self, environment: EnvironmentOptions) -> bool:
        """Whether an environment has these spaces."""
        gpus, nodes = sum(environment.node_gpus), len(environment.node_gpus)
        size = observation_size(environment.observation, environment.action, gpus, nodes)
        actions = action_count(environment.action, gpus, nodes, waiting=environment.waiting)
        if (size, actions) != (self.size, self.actions):
            return False
        expected = observation_bounds(environment.observation, size, gpus)
        return all(
            min(abs(number / limit - 1.0) if limit else abs(number) for limit in np.unique(limits)) < PRINTED_ERROR
            for numbers, limits in zip((self.low, self.high), expected, strict=True)
            for number in numbers
        )


def import_model(path: Path, hints: EnvironmentHints) -> tuple[Schema, Network]:
    """Return schema and network of a saved model of PPO, A2C, TRPO or MaskablePPO. Any file is safe to read.

    Args:
        path: A file that `model.save` wrote.
        hints: Options of the environment that the file may lack.

    Raises:
        CheckpointError: If it is no such model, its network is none of `MlpPolicy`, or its spaces are not those of an
            environment of ours; in one line.
    """
    saved = read_saved_model(path)
    layers = _saved_layers(path, saved)
    space = saved.data.get("observation_space")
    low, high = (_printed_numbers(saved.text_under("observation_space", name)) for name in ("low", "high"))
    options = space.get(OPTIONS_ATTRIBUTE) if isinstance(space, Mapping) else None
    environment = environment_options(str(path), options, ModelSpaces(*_space_sizes(saved.weights), low, high), hints)
    return convert_mlp_policy(environment, saved.weights, layers, _algorithm_name(path, saved))


def convert_mlp_policy(
    environment: EnvironmentOptions, weights: Weights, layers: HiddenLayers, algorithm: str
) -> tuple[Schema, Network]:
    """Return schema and network of an `MlpPolicy` as one of ours."""
    schema = schema_of(algorithm=algorithm, network="layers", **environment.model_dump()).model_copy(
        update={"layers": layers}
    )
    network = untrained_network(schema)
    named = {ours: torch.from_numpy(weights[theirs].copy()) for theirs, ours in _weight_names(layers)}
    network.load_state_dict(named)
    return schema, network


def _weight_names(layers: HiddenLayers) -> list[tuple[str, str]]:
    """Return the names of all weights, theirs and ours."""
    found = []
    for kind, sizes in (("policy", layers.policy), ("value", layers.value)):
        for part in ("weight", "bias"):
            found += [(f"mlp_extractor.{kind}_net.{at}.{part}", f"{kind}.{at}.{part}") for at in _layer_indices(sizes)]
            found.append((f"{SB3_HEADS[kind]}.{part}", f"{kind}.{2 * len(sizes)}.{part}"))
    return found


def _layer_indices(sizes: tuple[int, ...]) -> range:
    """Return the places of layers among the modules of a network, where an activation follows each."""
    return range(0, 2 * len(sizes), 2)


def _algorithm_name(path: Path, saved: SavedModel) -> str:
    module = saved.text_under("policy_class", "__module__")
    if module not in SB3_POLICY_MODULES:
        shown = f"{module:.100}" if module else "no class that it names"
        raise CheckpointError(
            f"{path}: its policy is of {shown}, expected a file of {SUPPORTED_MODELS}; {ACTOR_CRITIC_HINT}"
        )
    name = SB3_POLICY_MODULES[module]
    known = [algorithm for key, algorithm in SB3_ALGORITHMS.items() if name == "a2c" and key in saved.data]
    return "sb3-" + (known[0] if known else name)


def _saved_layers(path: Path, saved: SavedModel) -> HiddenLayers:
    """Return the layers of a saved policy.

    Raises:
        CheckpointError: If it is none of MlpPolicy.
    """
    _algorithm_name(path, saved)
    extractor = saved.text_under("policy_kwargs", "features_extractor_class")
    if extractor and EXTRACTOR not in extractor:
        raise CheckpointError(f"{path}: it has a features extractor of its own ({extractor:.100}); {LIVE_MODEL_HINT}")
    text = saved.text_under("policy_kwargs", "activation_fn")
    name = text.rstrip("'>").rpartition(".")[2]
    activations = {kind.__name__: activation for activation, kind in ACTIVATIONS.items()}
    if text and name not in activations:
        raise CheckpointError(
            f"{path}: its activation is {text:.100}, expected one of {', '.join(activations)}; {LIVE_MODEL_HINT}"
        )
    return layers_of(str(path), saved.weights, activations.get(name, "tanh"))


def layers_of(source: str, weights: Weights, activation: str) -> HiddenLayers:
    """Return the layers of the weights of an `MlpPolicy`.

    Raises:
        CheckpointError: If they are others, or do not fit each other.
    """
    sizes: dict[str, dict[int, int]] = {"policy": {}, "value": {}}
    for name, array in weights.items():
        found = SB3_LAYER.fullmatch(name)
        if found is not None and found[3] == "weight" and array.ndim == 2:
            sizes[found[1]][int(found[2])] = array.shape[0]
    units = {kind: tuple(each[place] for place in sorted(each)) for kind, each in sizes.items()}
    if any(len(each) > MAX_HIDDEN_LAYERS or max(each, default=0) > MAX_UNITS for each in units.values()):
        raise CheckpointError(f"{source}: its network is larger than {MAX_HIDDEN_LAYERS} layers of {MAX_UNITS} units")
    layers = HiddenLayers.model_validate({**units, "activation": activation})
    expected = {theirs for theirs, _ in _weight_names(layers)}
    odd = sorted(expected ^ weights.keys())
    if odd:
        raise CheckpointError(f"{source}: its network is none of MlpPolicy ({odd[0]:.100}); {LIVE_MODEL_HINT}")
    inputs = weights[_weight_names(layers)[0][0]].shape[-1]
    for kind, outputs in (("policy", weights["action_net.bias"].size), ("value", 1)):
        shape = (inputs, *units[kind], outputs)
        parts = [*(f"mlp_extractor.{kind}_net.{at}" for at in _layer_indices(units[kind])), SB3_HEADS[kind]]
        for part, (before, after) in zip(parts, itertools.pairwise(shape), strict=True):
            if weights[f"{part}.weight"].shape != (after, before) or weights[f"{part}.bias"].shape != (after,):
                raise CheckpointError(f"{source}: weight {part} has shape {weights[f'{part}.weight'].shape}")
    return layers


def _space_sizes(weights: Weights) -> tuple[int, int]:
    """Return the length of an observation and the number of actions."""
    first = weights.get("mlp_extractor.policy_net.0.weight", weights["action_net.weight"])
    return int(first.shape[-1]), int(weights["action_net.weight"].shape[0])


def _printed_numbers(text: str) -> list[float]:
    """Return the numbers of a printed array, of which NumPy prints only the first and last."""
    return [float(number) for number in PRINTED_NUMBER.findall(text)]


def environment_options(
    source: str, options: object, spaces: ModelSpaces, hints: EnvironmentHints
) -> EnvironmentOptions:
    """Return the options of the environment that a model was trained in, whose spaces are checked.

    Args:
        source: Name of the model in errors.
        options: What the observation space holds of them, None if nothing.
        spaces: Of the model.
        hints: As the user gives them.

    Raises:
        CheckpointError: If no environment of ours has such spaces, or several have.
    """
    if options is None:
        return _infer_environment(source, spaces, hints)
    try:
        environment = EnvironmentOptions.model_validate(options)
    except ValidationError as error:
        raise CheckpointError(f"{source}: the options in its observation space are not those of Longshore") from error
    if not spaces.matches(environment):
        raise CheckpointError(f"{source}: {spaces.text}, and its environment has others")
    own, waiting = environment, "waiting" if environment.waiting else "no waiting"
    for option, given, has, text in (
        ("observation", hints.observation, own.observation, f"the observation {own.observation}"),
        ("cluster", hints.node_gpus, own.node_gpus, f"a cluster of {len(own.node_gpus)} nodes"),
        ("waiting" if hints.waiting else "no-waiting", hints.waiting, own.waiting, waiting),
    ):
        if given not in (None, has):
            raise CheckpointError(f"{source} was trained with {text}; omit --{option}")
    return environment


def _infer_environment(source: str, spaces: ModelSpaces, hints: EnvironmentHints) -> EnvironmentOptions:
    """Return the one environment that has such spaces."""
    clusters = {hints.node_gpus} if hints.node_gpus else {HETERO64_NODE_GPUS, *_gpu_pools(spaces.actions)}
    possible = [
        EnvironmentOptions(action=action, observation=observation, waiting=waiting, node_gpus=cluster)  # type: ignore[arg-type]
        for cluster in sorted(clusters) for action, observation in OBSERVATION_KINDS for waiting in (False, True)
        if hints.observation in (None, observation) and hints.waiting in (None, waiting)
    ]  # fmt: skip
    known = hints.node_gpus or HETERO64_NODE_GPUS
    found = [one for one in possible if spaces.matches(one) and (one.observation != "full" or one.node_gpus == known)]
    # Of the patent's observations only the number of GPUs counts.
    alike = {
        (one.action, one.observation, one.waiting, () if one.observation != "full" else one.node_gpus) for one in found
    }
    if len(alike) == 1:
        return found[0]
    if not found:
        raise CheckpointError(
            f"{source}: {spaces.text}, as no environment of Longshore has on a known cluster; give --cluster"
        )
    names = " or ".join(dict.fromkeys(one.observation for one in found))
    fix = f"give --observation {names}" if " or " in names else "several clusters have such; give --cluster"
    if len({(one.action, one.observation, one.node_gpus) for one in found}) == 1:
        fix = "so it is with waiting and without; give --waiting or --no-waiting"
    raise CheckpointError(f"{source}: {spaces.text}; {fix}")


def _gpu_pools(actions: int) -> list[tuple[int, ...]]:
    """Return pools of single GPUs that may have this number of actions, with waiting or without."""
    return [(1,) * gpus for gpus in (actions, actions - 1) if 0 < gpus <= MAX_UNITS]


ActorCritic: TypeAlias = ActorCriticPolicy | MaskableActorCriticPolicy


class SB3Policy(LearnedPolicy):
    """Takes the most probable open action of a model's policy at every pick, as every learned policy does.

    It reads the observations of our environment unchanged. A model that was trained behind wrappers that change them,
    such as `VecNormalize`, decides otherwise than it did there. Later training of the model does not reach the policy.

    Args:
        model: A model of PPO, A2C, MaskablePPO or another algorithm with an actor-critic policy and any network; or the
            path of a file that `save` wrote of one with `MlpPolicy`, in which nothing is executed.
        observation: `full`, `patent` or `patent-literal`, if the model's observation space does not hold it.
        node_gpus: GPUs of each node of the cluster that it was trained on, if the space does not hold them.
        waiting: Whether waiting was among its actions, if the space does not hold it and its size fits both.
        name: Its name in tables; the file's name, or the name of the algorithm if it is empty.

    Raises:
        CheckpointError: If the file is damaged or no such model, or the model's spaces are not those of an environment
            of ours; in one line.
    """

    def __init__(
        self, model: BaseAlgorithm | str | os.PathLike[str], *, observation: str | None = None,
        node_gpus: tuple[int, ...] | None = None, waiting: bool | None = None, name: str = "",
    ) -> None:  # fmt: skip
        hints = EnvironmentHints(observation, node_gpus, waiting)
        if isinstance(model, BaseAlgorithm):
            default, (schema, network) = type(model).__name__, _read_live_model(model, hints)
        else:
            path = Path(model)
            default, (schema, network) = in_one_line(path.stem), import_model(path, hints)
        super().__init__(name or default, schema, network)


class _ModelNetwork(Network):
    """The policy of a model, whatever its network is.

    Args:
        layout: How it reads an observation.
        policy: Of the model, whose later training does not reach the network.
    """

    any_size = False

    def __init__(self, layout: ObservationLayout, policy: ActorCritic) -> None:
        super().__init__(layout)
        self.policy = _copy_policy(policy).to(torch.device("cpu"))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of shape (batch, actions) and values of shape (batch,)."""
        logits: Tensor = self.policy.get_distribution(observation).distribution.logits  # type: ignore[union-attr]
        return logits, self.values(observation)

    def values(self, observation: Tensor) -> Tensor:
        """Return values of shape (batch,)."""
        values: Tensor = self.policy.predict_values(observation).squeeze(-1)
        return values


def _copy_policy(policy: ActorCritic) -> ActorCritic:
    """Return a copy of a policy without its last action distribution, which PyTorch cannot copy.

    Raises:
        CheckpointError: If its network keeps such tensors itself.
    """
    drawn = copy(policy.action_dist)
    vars(drawn)["distribution"] = None
    try:
        return deepcopy(policy, {id(policy.action_dist): drawn})
    except (RuntimeError, TypeError) as error:
        message = " ".join(str(error).split())[:200]
        raise CheckpointError(f"the policy {type(policy).__name__} cannot be copied: {message}") from error


def _read_live_model(model: BaseAlgorithm, hints: EnvironmentHints) -> tuple[Schema, Network]:
    """Return schema and network of a model in memory."""
    name, policy = type(model).__name__, model.policy
    found = _model_spaces(name, model)
    if not isinstance(policy, ActorCriticPolicy | MaskableActorCriticPolicy) or hasattr(policy, "lstm_actor"):
        raise CheckpointError(f"{name}: its policy {type(policy).__name__} has no probabilities of actions of its own")
    normalised = model.get_vec_normalize_env()
    if normalised is not None and normalised.norm_obs:
        raise CheckpointError(f"{name}: it was trained on observations that VecNormalize changes; give norm_obs=False")
    environment = environment_options(name, env_options(model.observation_space), found, hints)
    algorithm = f"sb3-{'maskable-ppo' if name == 'MaskablePPO' else name.lower()}"
    if (activation := _plain_activation(policy)) is not None:
        weights = {name: tensor.detach().cpu().numpy() for name, tensor in policy.state_dict().items()}
        return convert_mlp_policy(environment, weights, layers_of(name, weights, activation), algorithm)
    if isinstance(policy, MaskedPolicy):
        ours = schema_of(algorithm=algorithm, network=policy.network_name, **environment.model_dump())
        return ours, deepcopy(policy.network).to(torch.device("cpu"))
    schema = schema_of(algorithm=algorithm, network="sb3", **environment.model_dump())
    return schema, _ModelNetwork(layout_of(schema), policy)


def _model_spaces(name: str, model: BaseAlgorithm) -> ModelSpaces:
    """Return the spaces of a model in memory.

    Raises:
        CheckpointError: If they are of other kinds than ours.
    """
    box, discrete = model.observation_space, model.action_space
    if not isinstance(box, spaces.Box) or len(box.shape) != 1:
        raise CheckpointError(f"{name}: its observations are {box}, expected a flat Box".replace("\n", " "))
    if not isinstance(discrete, spaces.Discrete) or discrete.start != 0:
        raise CheckpointError(f"{name}: its actions are {discrete}, expected Discrete from 0")
    return ModelSpaces(int(box.shape[0]), int(discrete.n), box.low.tolist(), box.high.tolist())


def _plain_activation(policy: ActorCritic) -> str | None:
    """Return the activation of a policy of fully connected layers; None if its network is another."""
    known: dict[type[nn.Module], str] = {kind: name for name, kind in ACTIVATIONS.items()}
    parts = type(policy).__module__, type(policy).__name__
    is_known = parts in (
        ("stable_baselines3.common.policies", "ActorCriticPolicy"),
        ("sb3_contrib.common.maskable.policies", "MaskableActorCriticPolicy"),
    )
    is_flat = is_known and type(policy.features_extractor) is FlattenExtractor
    return known.get(policy.activation_fn) if is_flat else None


# Files are read without unpickling: only the pickle opcodes of a dict of tensors are interpreted.
MAX_PICKLE_BYTES = 1 << 18  # of names and shapes; a tensor takes 160
MAX_TENSOR_ENTRIES = 5000
MAX_AXES = 4
STORAGES = {"FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2"}
DICT, TENSOR = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
LITERALS = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "NEWTRUE", "NEWFALSE", "NONE",
}  # fmt: skip
CONSTANTS = {"NEWTRUE": True, "NEWFALSE": False, "NONE": None}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _GlobalName(NamedTuple):
    """A module and a name in it."""

    text: str


class _Storage(NamedTuple):
    """Numbers in an entry of their own."""

    dtype: str
    key: str


def read_weights(content: bytes) -> dict[str, NDArray[np.float32]]:
    """Return the tensors of a file that `torch.save` wrote of a state dict, by name.

    Raises:
        ValueError: If it is anything else. Together they take no more memory than twice the file.
        zipfile.BadZipFile: If it is damaged.
    """
    entries = stored_entries(content, MAX_TENSOR_ENTRIES)
    roots = [name.removesuffix("/data.pkl") for name in entries if name.endswith("/data.pkl")]
    if len(roots) != 1 or entries.get(f"{roots[0]}/byteorder", b"little") != b"little":
        raise ValueError("it holds no weights as PyTorch saves them")
    return _TensorPickleReader(entries, roots[0], len(content)).read()


class _TensorPickleReader:
    """Follows the opcodes of one pickle.

    Args:
        entries: Of the archive, by name.
        root: Folder of all of them.
        most_bytes: Of all tensors together.
    """

    def __init__(self, entries: dict[str, bytes], root: str, most_bytes: int) -> None:
        self.entries, self.root, self.left_bytes = entries, root, most_bytes
        self.stack: list[Any] = []
        self.marks: list[int] = []  # where on the stack the items of a tuple or a dict begin
        self.memo: dict[int, Any] = {}

    def read(self) -> dict[str, NDArray[np.float32]]:
        """Return the pickled tensors by name."""
        pickled = self.entries[f"{self.root}/data.pkl"]
        if len(pickled) > MAX_PICKLE_BYTES:
            raise ValueError(f"its names and shapes take {len(pickled)} bytes, expected at most {MAX_PICKLE_BYTES}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes in texts that are refused
                for opcode, argument, _ in pickletools.genops(io.BytesIO(pickled)):
                    self._interpret(opcode.name, argument)
            (found,) = self.stack
        except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError("it is no pickle of a dict of tensors") from error
        if not isinstance(found, dict) or not all(isinstance(tensor, np.ndarray) for tensor in found.values()):
            raise ValueError("it is no dict of tensors")
        return found

    def _interpret(self, name: str, argument: Any) -> None:
        if name in LITERALS:
            self.stack.append(CONSTANTS.get(name, argument))
        elif name in TUPLES:
            count = TUPLES[name]
            values = tuple(self.stack[len(self.stack) - count :]) if count else ()
            del self.stack[len(self.stack) - count :]
            self.stack.append(values)
        elif name in ("PROTO", "FRAME", "STOP"):
            pass
        else:
            step = getattr(self, f"_on_{name.lower()}", None)
            if step is None:
                raise ValueError(f"it is pickled with {name}, which no dict of tensors is")
            step(argument)

    def _on_mark(self, _: object) -> None:
        self.marks.append(len(self.stack))

    def _on_empty_dict(self, _: object) -> None:
        self.stack.append({})

    def _on_tuple(self, _: object) -> None:
        self.stack.append(tuple(self._pop_since_mark()))

    def _on_binput(self, key: int) -> None:
        self.memo[key] = self.stack[-1]

    _on_long_binput = _on_binput

    def _on_memoize(self, _: object) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _on_binget(self, key: int) -> None:
        self.stack.append(self.memo[key])

    _on_long_binget = _on_binget

    def _on_global(self, text: str) -> None:
        self.stack.append(_GlobalName(text))

    def _on_stack_global(self, _: object) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(_GlobalName(f"{module!s:.100} {name!s:.100}"))

    def _on_setitem(self, _: object) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set_item(key, value)

    def _on_setitems(self, _: object) -> None:
        items = self._pop_since_mark()
        for key, value in zip(items[::2], items[1::2], strict=True):
            self._set_item(key, value)

    def _on_build(self, _: object) -> None:
        self.stack.pop()  # PyTorch's versions of modules

    def _on_binpersid(self, _: object) -> None:
        kind, storage, key, *_others = self.stack.pop()
        dtype = STORAGES.get(storage.text.removeprefix("torch "))
        if kind != "storage" or dtype is None or not isinstance(key, str):
            raise ValueError(f"its numbers are of {storage.text:.100}, expected floating numbers")
        self.stack.append(_Storage(dtype, key))

    def _on_reduce(self, _: object) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if function == _GlobalName(DICT) and arguments == ():
            self.stack.append({})
        elif function == _GlobalName(TENSOR):
            self.stack.append(self._read_tensor(*arguments[:4]))
        else:
            raise ValueError(f"it calls {function.text:.100}, which no dict of tensors does")

    def _pop_since_mark(self) -> list[Any]:
        at = self.marks.pop()
        values = self.stack[at:]
        del self.stack[at:]
        return values

    def _set_item(self, key: object, value: object) -> None:
        found = self.stack[-1]
        if not isinstance(key, str) or not isinstance(found, dict):
            raise ValueError("it has a name that is no text")
        found[key] = value

    def _read_tensor(self, storage: object, offset: object, size: object, stride: object) -> NDArray[np.float32]:
        """Return a tensor, which must be contiguous, as those of a module are."""
        shape = _checked_extents(size)
        contiguous = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        if not isinstance(storage, _Storage) or type(offset) is not int or offset < 0:
            raise ValueError("a tensor is without numbers")
        if _checked_extents(stride) != contiguous:
            raise ValueError("a tensor is not contiguous")
        width, count = np.dtype(storage.dtype).itemsize, math.prod(shape)
        self.left_bytes -= width * count
        numbers = self.entries[f"{self.root}/data/{storage.key}"]
        if self.left_bytes < 0 or width * (offset + count) > len(numbers):
            raise ValueError(f"a tensor of shape {shape} has more numbers than the file")
        found = np.frombuffer(numbers, storage.dtype, count, width * offset).reshape(shape)
        return np.array(found, dtype=np.float32)


def _checked_extents(values: object) -> tuple[int, ...]:
    if (
        not isinstance(values, tuple)
        or len(values) > MAX_AXES
        or not all(type(extent) is int and extent >= 0 for extent in values)
    ):
        raise ValueError("a tensor is without a shape")
    return values


SB3_DATA, SB3_WEIGHTS = "data", "policy.pth"
MAX_SAVED_ENTRIES = 16
MAX_COMPARED_CHARS = 1000  # of a text that is compared
MAX_DATA_BYTES = 1 << 26  # it holds the last observations of all environments, in base64


def read_saved_model(path: Path) -> SavedModel:
    """Read a file that `save` of a model of Stable-Baselines3 wrote.

    Raises:
        CheckpointError: If it is missing, damaged or no such file, in one line.
    """
    try:
        entries = stored_entries(read_file(path), MAX_SAVED_ENTRIES)
        if not {SB3_DATA, SB3_WEIGHTS} <= entries.keys():
            raise CheckpointError(f"{path} is no model of Stable-Baselines3: it has no {SB3_DATA} and {SB3_WEIGHTS}")
        if len(entries[SB3_DATA]) > MAX_DATA_BYTES:
            raise ValueError(f"{SB3_DATA} has {len(entries[SB3_DATA])} bytes, expected at most {MAX_DATA_BYTES}")
        data = json.loads(entries[SB3_DATA])
        if not isinstance(data, dict):
            raise ValueError(f"{SB3_DATA} is no object of JSON")
        weights = read_weights(entries[SB3_WEIGHTS])
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such file") from error
    except (OSError, ValueError, RecursionError, zipfile.BadZipFile, EOFError, RuntimeError) as error:
        message = " ".join(str(error).split())[:500]
        raise CheckpointError(f"{path} is no model of Stable-Baselines3 or is damaged: {message}") from error
    if not all(np.isfinite(array).all() for array in weights.values()):
        raise CheckpointError(f"{path}: some weights are not finite; train it again")
    return SavedModel(data, weights)
