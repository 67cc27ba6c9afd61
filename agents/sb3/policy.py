"""`SB3Policy`: a model of Stable-Baselines3 or sb3-contrib under the policy protocol."""

import os
from copy import copy, deepcopy
from pathlib import Path
from typing import TypeAlias

import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import FlattenExtractor
from torch import Tensor, nn

from ...cluster.files.errors import CheckpointError
from ...cluster.files.output_file import in_one_line
from ...envs.border.spaces import mark_of
from ..learned.checkpoint import layout_of, schema_of
from ..learned.network import Layout, Network
from ..learned.step_policy import LearnedPolicy
from ..networks.layers import ACTIVATIONS
from ..networks.sb3_policy import MaskedPolicy
from .models import Asked, Bounds, Model, Spaces, layers_of, model_of, read_model, seen_by

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
