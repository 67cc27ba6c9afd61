"""Policies of random weights, of any kind, for the tests of agents."""

import torch

from longshore.agents.learned.checkpoint import schema_of, untrained_network
from longshore.agents.learned.network import LearnedPolicy

NODES = (8,) * 8


def untrained(
    network: str = "set", *, action: str = "node", observation: str = "full", waiting: bool = False
) -> LearnedPolicy:
    torch.manual_seed(0)
    schema = schema_of(
        algorithm="ppo", network=network, action=action, observation=observation, waiting=waiting, node_gpus=NODES
    )
    return LearnedPolicy("untrained", schema, untrained_network(schema))
