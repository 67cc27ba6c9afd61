"""A network that begins with the weights of a checkpoint."""

from pathlib import Path

from ..agents.learned.checkpoint import load_policy
from ..agents.networks.candidates import TEMPERATURE, CandidateNetwork
from ..cluster.files.errors import InputError
from .config import TrainingConfig


def initial_network(config: TrainingConfig) -> CandidateNetwork | None:
    """Return a network with the weights of the run's `init`, None if it begins at random.

    What `distil` learned are gains; over the temperature they are the logits that `group` samples by, and the other way
    round. The value is that of the checkpoint.

    Raises:
        CheckpointError: If the file is missing or damaged, or does not fit this version.
        InputError: If it holds a network of another shape.
    """
    if config.init is None:
        return None
    policy = load_policy(Path(config.init))
    schema, network = policy.schema, policy.network
    if not isinstance(network, CandidateNetwork):
        raise InputError(
            f"{config.init} has a network {schema.network} for {schema.action} actions, this run one for candidates",
            "give a checkpoint of the network `candidates`", field="--init",
        )  # fmt: skip
    tells_gains, learns_gains = schema.algorithm == "distil", config.algorithm == "distil"
    if tells_gains != learns_gains:
        network.score.weight.data *= TEMPERATURE if learns_gains else 1.0 / TEMPERATURE
    return network.train()
