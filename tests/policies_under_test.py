"""Every registered policy, networks of random weights, one that is shipped, and rollouts."""

from pathlib import Path
from typing import get_args

import torch

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.learned.checkpoint import load_policy, policy_of, schema_of, untrained_network
from longshore.agents.learned.network import LearnedPolicy
from longshore.agents.networks.candidates import CandidatePolicy
from longshore.agents.protocol import Policy
from longshore.agents.registry import find_policy, policy_names
from longshore.agents.rollouts import Rollout, Search
from longshore.cluster.model.outcome import Objective

OBJECTIVES: tuple[Objective, ...] = get_args(Objective)


def untrained(*, action: str, waiting: bool, time_to_go: Objective | None = None) -> LearnedPolicy:
    """Return a policy of random weights, for clusters of any size."""
    torch.manual_seed(3)
    network = "candidates" if action == "candidate" else "set"
    schema = schema_of(
        algorithm="ppo", network=network, action=action, observation="full", waiting=waiting, node_gpus=(8,) * 8,
        time_to_go=time_to_go,
    )  # fmt: skip
    foresees = f"-{time_to_go}" if time_to_go else ""
    return policy_of(f"untrained-{action}{'-waiting' * waiting}{foresees}", schema, untrained_network(schema))


def untrained_candidates(*, waiting: bool, time_to_go: Objective | None = None) -> CandidatePolicy:
    """Return a policy that chooses among candidates, of random weights."""
    policy = untrained(action="candidate", waiting=waiting, time_to_go=time_to_go)
    assert isinstance(policy, CandidatePolicy)
    return policy


CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
LEARNED: list[Policy] = [
    *(
        untrained(action=action, waiting=waiting)
        for action in ("node", "gpu", "candidate")
        for waiting in (False, True)
    ),
    load_policy(CHECKPOINTS / "hetero64.zip"),
]
ROLLOUTS: list[Policy] = [
    Rollout(HEURISTICS["patient"], Search(futures=2, width=3)),
    Rollout(HEURISTICS["pack"], Search(futures=2, width=2)),
    Rollout(untrained_candidates(waiting=False), Search(futures=2, width=3)),
    *(
        Rollout(untrained_candidates(waiting=True, time_to_go=objective), Search(futures=2, width=3, horizon=2))
        for objective in OBJECTIVES
    ),
]
POLICIES = {policy.name: policy for policy in [*map(find_policy, policy_names()), *LEARNED, *ROLLOUTS]}


def log_probabilities(network: torch.nn.Module, observations: torch.Tensor, masks: torch.Tensor) -> torch.Tensor:
    logits = network(observations)[0]
    return torch.where(masks, logits[:, : masks.shape[1]], -torch.inf).log_softmax(dim=1)
