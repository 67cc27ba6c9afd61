"""Every registered policy, networks of random weights, and one that is shipped."""

from pathlib import Path

import torch

from longshore.agents.checkpoint import load_policy, network_of, policy_of, schema_of
from longshore.agents.learned import LearnedPolicy
from longshore.agents.protocol import Policy
from longshore.agents.registry import find_policy, policy_names


def untrained(*, action: str, waiting: bool) -> LearnedPolicy:
    """Return a policy of random weights, for clusters of any size."""
    torch.manual_seed(3)
    network = "moves" if action == "candidate" else "set"
    schema = schema_of(
        algorithm="ppo", network=network, action=action, observation="full", waiting=waiting, node_gpus=(8,) * 8
    )
    return policy_of(f"untrained-{action}{'-waiting' * waiting}", schema, network_of(schema))


CHECKPOINTS = Path(__file__).parents[1] / "checkpoints"
LEARNED: list[Policy] = [
    *(
        untrained(action=action, waiting=waiting)
        for action in ("node", "gpu", "candidate")
        for waiting in (False, True)
    ),
    load_policy(CHECKPOINTS / "hetero64.zip"),
]
POLICIES = {policy.name: policy for policy in [*map(find_policy, policy_names()), *LEARNED]}
