"""Masked A2C without masks is Stable-Baselines3's."""

from typing import Any

import gymnasium
import torch
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3 import A2C
from stable_baselines3.common.vec_env import DummyVecEnv

from longshore.training.ppo import RMSPROP, MaskableA2C

OPTIONS: dict[str, Any] = {
    "n_steps": 5, "learning_rate": 1e-3, "ent_coef": 0.01, "gae_lambda": 0.9, "seed": 3, "device": "cpu",
}  # fmt: skip


class OpenPolicy(MaskableActorCriticPolicy):
    """Takes no masks at updates, where all are open."""

    def evaluate_actions(self, obs: Any, actions: Any, action_masks: Any = None) -> Any:
        assert action_masks.all()
        return super().evaluate_actions(obs, actions)


def carts() -> DummyVecEnv:
    return DummyVecEnv([lambda: gymnasium.make("CartPole-v1")] * 3)


def test_without_masks_it_comes_to_the_weights_of_stable_baselines3() -> None:
    theirs = A2C("MlpPolicy", carts(), **OPTIONS).learn(600)
    ours = MaskableA2C(OpenPolicy, carts(), policy_kwargs=dict(RMSPROP), **OPTIONS)
    policy: Any = ours.policy
    policy.action_dist = theirs.policy.action_dist  # sb3-contrib's takes two softmaxes, which rounds
    ours.learn(600, use_masking=False)
    expected = theirs.policy.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in ours.policy.state_dict().items())
    untrained = A2C("MlpPolicy", carts(), **OPTIONS).policy.state_dict()
    assert not torch.equal(untrained["action_net.weight"], expected["action_net.weight"])
