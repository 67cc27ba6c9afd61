"""Models of Stable-Baselines3 and sb3-contrib under the policy protocol, their spaces checked.

From a model of Stable-Baselines3 to a schema and a network of ours, with its spaces checked.

Its own classes are never made from a file: what it says of them is compared with what is known.
"""

import itertools
import os
import re
from collections.abc import Mapping, Sequence
from copy import copy, deepcopy
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import torch
from gymnasium import spaces
from pydantic import BaseModel, ConfigDict, ValidationError
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import Tensor, nn

from ..cluster.files.errors import CheckpointError
from ..cluster.files.output_file import in_one_line
from ..envs.layout import action_count, bounds, observation_size
from ..envs.spaces import MARK, mark_of
from .learned.checkpoint import layout_of, network_of, schema_of
from .learned.network import Layout, Network
from .learned.schema import MOST_LAYERS, MOST_UNITS, Layers, NodeGpus, Schema
from .learned.step_policy import LearnedPolicy
from .networks.sb3_policy import MaskedPolicy
from .networks.torch_networks import ACTIVATIONS
from .sb3_files import Saved, Weights, read_saved

TAKEN = "PPO, A2C, TRPO and MaskablePPO with MlpPolicy"
POLICIES = {  # modules of the policies whose networks are known, and what trains them
    "stable_baselines3.common.policies": "a2c",  # or one of OWN
    "sb3_contrib.common.maskable.policies": "maskable-ppo",
}
OWN = {"clip_range": "ppo", "cg_max_steps": "trpo"}  # what tells those apart whose policies are of one module
LIVE = "in Python, `SB3Policy(model)` takes it as it is (docs/environments.md, From a model to a policy)"
ACTOR_CRITICS = (
    "in Python, `SB3Policy(model)` takes other actor-critics without memory, but nothing that learns values of actions"
)
EXTRACTOR = "FlattenExtractor"
LAYER = re.compile(r"mlp_extractor\.(policy|value)_net\.(\d{1,3})\.(weight|bias)")
NUMBER = re.compile(r"-?\d+\.?\d*(?:e[+-]\d+)?")
PRINTED = 1e-4  # relative error of numbers as NumPy prints them
HEADS = {"policy": "action_net", "value": "value_net"}
HETERO64 = (8,) * 8  # GPUs of each node of the preset, the usual cluster
SEEN: tuple[tuple[str, str], ...] = (
    ("node", "full"), ("gpu", "full"), ("candidate", "full"), ("gpu", "patent"), ("gpu", "patent-literal"),
)  # fmt: skip


class Seen(BaseModel):
    """How the environment was made that a model was trained in; spaces of ours say so."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    action: Literal["gpu", "node", "candidate"]
    observation: Literal["patent", "patent-literal", "full"]
    waiting: bool
    node_gpus: NodeGpus


class Asked(NamedTuple):
    """What a user says of the environment, where the file does not."""

    observation: str | None = None
    node_gpus: tuple[int, ...] | None = None
    waiting: bool | None = None


class Bounds(NamedTuple):
    """Lowest and highest numbers of an observation, as far as they are known, in their order."""

    low: Sequence[float]
    high: Sequence[float]


class Spaces(NamedTuple):
    """What a model takes and does."""

    size: int  # of an observation
    actions: int
    bounds: Bounds

    @property
    def text(self) -> str:
        """In words."""
        return f"it takes observations of {self.size} numbers and {self.actions} actions"

    def are_of(self, seen: Seen) -> bool:
        """Say whether an environment has them."""
        gpus, nodes = sum(seen.node_gpus), len(seen.node_gpus)
        size = observation_size(seen.observation, seen.action, gpus, nodes)
        if (size, action_count(seen.action, gpus, nodes, waiting=seen.waiting)) != (self.size, self.actions):
            return False
        expected = bounds(seen.observation, size, gpus)
        return all(
            min(abs(number / limit - 1.0) if limit else abs(number) for limit in np.unique(limits)) < PRINTED
            for numbers, limits in zip(self.bounds, expected, strict=True)
            for number in numbers
        )


class Model(NamedTuple):
    """A network, and what it was made for."""

    schema: Schema
    network: Network


def read_model(path: Path, asked: Asked) -> Model:
    """Return the network of a saved model of PPO, A2C, TRPO or MaskablePPO, which it is safe to do with any file.

    Args:
        path: What `model.save` wrote.
        asked: What the file may not say.

    Raises:
        CheckpointError: If it is no such model, its network is none of `MlpPolicy`, or its spaces are not those of an
            environment of ours; in one line.
    """
    saved = read_saved(path)
    layers = _layers(path, saved)
    space = saved.data.get("observation_space")
    bounds = Bounds(*(_numbers(saved.text("observation_space", name)) for name in ("low", "high")))
    mark = space.get(MARK) if isinstance(space, Mapping) else None
    seen = seen_by(str(path), mark, Spaces(*_sizes(saved.weights), bounds), asked)
    return model_of(seen, saved.weights, layers, _algorithm(path, saved))


def model_of(seen: Seen, weights: Weights, layers: Layers, algorithm: str) -> Model:
    """Return the network of an `MlpPolicy` as one of ours."""
    schema = schema_of(
        algorithm=algorithm, network="layers", action=seen.action, observation=seen.observation, waiting=seen.waiting,
        node_gpus=seen.node_gpus,
    ).model_copy(update={"layers": layers})  # fmt: skip
    network = network_of(schema)
    named = {ours: torch.from_numpy(weights[theirs].copy()) for theirs, ours in _names(layers)}
    network.load_state_dict(named)
    return Model(schema, network)


def _names(layers: Layers) -> list[tuple[str, str]]:
    """Return the names of all weights, theirs and ours."""
    found = []
    for kind, sizes in (("policy", layers.policy), ("value", layers.value)):
        for part in ("weight", "bias"):
            found += [(f"mlp_extractor.{kind}_net.{at}.{part}", f"{kind}.{at}.{part}") for at in _places(sizes)]
            found.append((f"{HEADS[kind]}.{part}", f"{kind}.{2 * len(sizes)}.{part}"))
    return found


def _places(sizes: tuple[int, ...]) -> range:
    """Return the places of layers among the modules of a network, where an activation follows each."""
    return range(0, 2 * len(sizes), 2)


def _algorithm(path: Path, saved: Saved) -> str:
    module = saved.text("policy_class", "__module__")
    if module not in POLICIES:
        shown = f"{module:.100}" if module else "no class that it names"
        raise CheckpointError(f"{path}: its policy is of {shown}, and files of {TAKEN} are taken; {ACTOR_CRITICS}")
    name = POLICIES[module]
    return "sb3-" + next((it for key, it in OWN.items() if name == "a2c" and key in saved.data), name)


def _layers(path: Path, saved: Saved) -> Layers:
    """Return the layers of a saved policy.

    Raises:
        CheckpointError: If it is none of MlpPolicy.
    """
    _algorithm(path, saved)
    extractor = saved.text("policy_kwargs", "features_extractor_class")
    if extractor and EXTRACTOR not in extractor:
        raise CheckpointError(f"{path}: its features extractor is its own ({extractor:.100}); {LIVE}")
    words = saved.text("policy_kwargs", "activation_fn")
    name = words.rstrip("'>").rpartition(".")[2]
    known = {kind.__name__: word for word, kind in ACTIVATIONS.items()}
    if words and name not in known:
        raise CheckpointError(f"{path}: its activation is {words:.100}, expected one of {', '.join(known)}; {LIVE}")
    return layers_of(str(path), saved.weights, known.get(name, "tanh"))


def layers_of(source: str, weights: Weights, activation: str) -> Layers:
    """Return the layers of the weights of an `MlpPolicy`.

    Raises:
        CheckpointError: If they are others, or do not fit each other.
    """
    sizes: dict[str, dict[int, int]] = {"policy": {}, "value": {}}
    for name, array in weights.items():
        found = LAYER.fullmatch(name)
        if found is not None and found[3] == "weight" and array.ndim == 2:
            sizes[found[1]][int(found[2])] = array.shape[0]
    units = {kind: tuple(each[place] for place in sorted(each)) for kind, each in sizes.items()}
    if any(len(each) > MOST_LAYERS or max(each, default=0) > MOST_UNITS for each in units.values()):
        raise CheckpointError(f"{source}: its network is larger than {MOST_LAYERS} layers of {MOST_UNITS} units")
    layers = Layers.model_validate({**units, "activation": activation})
    expected = {theirs for theirs, _ in _names(layers)}
    odd = sorted(expected ^ weights.keys())
    if odd:
        raise CheckpointError(f"{source}: its network is none of MlpPolicy ({odd[0]:.100}); {LIVE}")
    inputs = weights[_names(layers)[0][0]].shape[-1]
    for kind, outputs in (("policy", weights["action_net.bias"].size), ("value", 1)):
        shape = (inputs, *units[kind], outputs)
        parts = [*(f"mlp_extractor.{kind}_net.{at}" for at in _places(units[kind])), HEADS[kind]]
        for part, (before, after) in zip(parts, itertools.pairwise(shape), strict=True):
            if weights[f"{part}.weight"].shape != (after, before) or weights[f"{part}.bias"].shape != (after,):
                raise CheckpointError(f"{source}: weight {part} has shape {weights[f'{part}.weight'].shape}")
    return layers


def _sizes(weights: Weights) -> tuple[int, int]:
    """Return the length of an observation and the number of actions."""
    first = weights.get("mlp_extractor.policy_net.0.weight", weights["action_net.weight"])
    return int(first.shape[-1]), int(weights["action_net.weight"].shape[0])


def _numbers(text: str) -> list[float]:
    """Return the numbers of a printed array, of which NumPy leaves out most."""
    return [float(number) for number in NUMBER.findall(text)]


def seen_by(source: str, mark: object, spaces: Spaces, asked: Asked) -> Seen:
    """Return how the environment was made that a model was trained in, whose spaces are checked.

    Args:
        source: To call the model.
        mark: What the observation space says of it, if anything.
        spaces: What it takes and does.
        asked: What a user says.

    Raises:
        CheckpointError: If no environment of ours has such spaces, or several have.
    """
    if mark is None:
        return _guessed(source, spaces, asked)
    try:
        seen = Seen.model_validate(mark)
    except ValidationError as error:
        raise CheckpointError(f"{source}: its observation space says nothing that is understood of it") from error
    if not spaces.are_of(seen):
        raise CheckpointError(f"{source}: {spaces.text}, and its environment has others")
    for what, said, is_other in (
        ("observation", seen.observation, asked.observation not in (None, seen.observation)),
        ("cluster", f"{len(seen.node_gpus)} nodes", asked.node_gpus not in (None, seen.node_gpus)),
    ):
        if is_other:
            raise CheckpointError(f"{source} was trained with another {what} ({said}); leave --{what} out")
    return seen


def _guessed(source: str, spaces: Spaces, asked: Asked) -> Seen:
    """Return the one environment that has such spaces."""
    clusters = {asked.node_gpus} if asked.node_gpus else {HETERO64, *_pools(spaces.actions)}
    able = [
        Seen(action=action, observation=observation, waiting=waiting, node_gpus=cluster)  # type: ignore[arg-type]
        for cluster in sorted(clusters) for action, observation in SEEN for waiting in (False, True)
        if asked.observation in (None, observation) and asked.waiting in (None, waiting)
    ]  # fmt: skip
    known = asked.node_gpus or HETERO64
    found = [it for it in able if spaces.are_of(it) and (it.observation != "full" or it.node_gpus == known)]
    # Of the patent's, only the number of GPUs counts.
    alike = {(it.action, it.observation, it.waiting, () if it.observation != "full" else it.node_gpus) for it in found}
    if len(alike) == 1:
        return found[0]
    if not found:
        raise CheckpointError(
            f"{source}: {spaces.text}, as no environment of Longshore has on a known cluster; give --cluster"
        )
    names = " or ".join(dict.fromkeys(it.observation for it in found))
    fix = f"give --observation {names}" if " or " in names else "several clusters have such; give --cluster"
    if len({(it.action, it.observation, it.node_gpus) for it in found}) == 1:
        fix = "so it is with waiting and without; give --waiting or --no-waiting"
    raise CheckpointError(f"{source}: {spaces.text}; {fix}")


def _pools(actions: int) -> list[tuple[int, ...]]:
    """Return pools of single GPUs that may have this number of actions, with waiting or without."""
    return [(1,) * gpus for gpus in (actions, actions - 1) if 0 < gpus <= MOST_UNITS]


ActorCritic: TypeAlias = ActorCriticPolicy | MaskableActorCriticPolicy


class SB3Policy(LearnedPolicy):
    """Takes the most probable open action of a model's policy at every pick, as every learned policy does.

    Observations are those of the environment that the model was trained in, as they are: a model that was trained
    behind wrappers that change them, such as `VecNormalize`, decides otherwise than it did there. Later training of the
    model does not reach the policy.

    Args:
        model: A model of PPO, A2C, MaskablePPO or another algorithm with an actor-critic policy and any network; or the
            path of a file that `save` wrote of one with `MlpPolicy`, in which nothing is executed.
        observation: `full`, `patent` or `patent-literal`, where the model's observation space does not say it.
        node_gpus: GPUs of each node of the cluster that it was trained on, where the space does not say it.
        waiting: Whether waiting was among its actions, where the space does not say it and both would have as many.
        name: Its name in tables; the file's name, or the name of the algorithm if it is empty.

    Raises:
        CheckpointError: If the file is damaged or no such model, or the model's spaces are not those of an environment
            of ours; in one line.
    """

    def __init__(
        self, model: BaseAlgorithm | str | os.PathLike[str], *, observation: str | None = None,
        node_gpus: tuple[int, ...] | None = None, waiting: bool | None = None, name: str = "",
    ) -> None:  # fmt: skip
        asked = Asked(observation, node_gpus, waiting)
        if isinstance(model, BaseAlgorithm):
            usual, (schema, network) = type(model).__name__, _live(model, asked)
        else:
            path = Path(model)
            usual, (schema, network) = in_one_line(path.stem), read_model(path, asked)
        super().__init__(name or usual, schema, network)


class _ModelNetwork(Network):
    """The policy of a model, whatever its network is.

    Args:
        layout: How it reads an observation.
        policy: Of the model, whose later training does not reach the network.
    """

    any_size = False

    def __init__(self, layout: Layout, policy: ActorCritic) -> None:
        super().__init__(layout)
        self.policy = _copied(policy).to(torch.device("cpu"))

    def forward(self, observation: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of shape (batch, actions) and values of shape (batch,)."""
        logits: Tensor = self.policy.get_distribution(observation).distribution.logits  # type: ignore[union-attr]
        return logits, self.values(observation)

    def values(self, observation: Tensor) -> Tensor:
        """Return values of shape (batch,)."""
        values: Tensor = self.policy.predict_values(observation).squeeze(-1)
        return values


def _copied(policy: ActorCritic) -> ActorCritic:
    """Return a copy of a policy without what it drew last, which PyTorch does not copy.

    Raises:
        CheckpointError: If its network keeps such numbers of its own.
    """
    drawn = copy(policy.action_dist)
    vars(drawn)["distribution"] = None
    try:
        return deepcopy(policy, {id(policy.action_dist): drawn})
    except (RuntimeError, TypeError) as error:
        message = " ".join(str(error).split())[:200]
        raise CheckpointError(f"the policy {type(policy).__name__} cannot be copied: {message}") from error


def _live(model: BaseAlgorithm, asked: Asked) -> Model:
    """Return the network of a model in memory."""
    name, policy = type(model).__name__, model.policy
    seen = _spaces(name, model)
    if not isinstance(policy, ActorCriticPolicy | MaskableActorCriticPolicy) or hasattr(policy, "lstm_actor"):
        raise CheckpointError(f"{name}: its policy {type(policy).__name__} has no probabilities of actions of its own")
    normalised = model.get_vec_normalize_env()
    if normalised is not None and normalised.norm_obs:
        raise CheckpointError(f"{name}: it was trained on observations that VecNormalize changes; give norm_obs=False")
    made = seen_by(name, mark_of(model.observation_space), seen, asked)
    algorithm = f"sb3-{'maskable-ppo' if name == 'MaskablePPO' else name.lower()}"
    if (activation := _plain(policy)) is not None:
        weights = {name: tensor.detach().cpu().numpy() for name, tensor in policy.state_dict().items()}
        return model_of(made, weights, layers_of(name, weights, activation), algorithm)
    if isinstance(policy, MaskedPolicy):
        ours = schema_of(algorithm=algorithm, network=policy.network_name, **made.model_dump())
        return Model(ours, deepcopy(policy.network).to(torch.device("cpu")))
    schema = schema_of(algorithm=algorithm, network="sb3", **made.model_dump())
    return Model(schema, _ModelNetwork(layout_of(schema), policy))


def _spaces(name: str, model: BaseAlgorithm) -> Spaces:
    """Return what a model takes and does.

    Raises:
        CheckpointError: If the spaces are of other kinds than ours.
    """
    seen, acts = model.observation_space, model.action_space
    if not isinstance(seen, spaces.Box) or len(seen.shape) != 1:
        raise CheckpointError(f"{name}: its observations are {seen}, expected a flat Box".replace("\n", " "))
    if not isinstance(acts, spaces.Discrete) or acts.start != 0:
        raise CheckpointError(f"{name}: its actions are {acts}, expected Discrete from 0")
    return Spaces(int(seen.shape[0]), int(acts.n), Bounds(seen.low.tolist(), seen.high.tolist()))


def _plain(policy: ActorCritic) -> str | None:
    """Return the activation of a policy of fully connected layers; None if its network is another."""
    known: dict[type[nn.Module], str] = {kind: word for word, kind in ACTIVATIONS.items()}
    parts = type(policy).__module__, type(policy).__name__
    is_known = parts in (
        ("stable_baselines3.common.policies", "ActorCriticPolicy"),
        ("sb3_contrib.common.maskable.policies", "MaskableActorCriticPolicy"),
    )
    is_flat = is_known and type(policy.features_extractor) is FlattenExtractor
    return known.get(policy.activation_fn) if is_flat else None
