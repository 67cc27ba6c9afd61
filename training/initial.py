"""A network that begins with the weights of a checkpoint."""

from pathlib import Path

from ..agents.learned.checkpoint import layout_of, load_policy, network_of
from ..agents.learned.network import Network
from ..agents.learned.schema import Schema
from ..agents.networks.candidates import TEMPERATURE, CandidateNetwork
from ..cluster.files.errors import InputError
from .config import REPLAYS, TrainingConfig


def actor_critic_of(config: TrainingConfig, schema: Schema) -> Network | None:
    """Return a network for PPO or A2C with the weights of the run's `init`, None if it begins at random.

    The critic begins with the checkpoint's, whatever that predicts, and learns what the reward pays.

    Args:
        config: The run.
        schema: Of its policies.

    Raises:
        CheckpointError: If the file is missing or damaged, or does not fit this version.
        InputError: If it does not fit the run.
    """
    if config.init is None or config.algorithm not in REPLAYS:
        return None
    policy = load_policy(Path(config.init))
    theirs, network = policy.schema, policy.network
    for what in ("network", "action", "observation"):
        if (has := getattr(theirs, what)) != (wants := getattr(schema, what)):
            raise InputError(
                f"{config.init} has the {what} {has}, this run {wants}", f"give --{what} {has}", field="--init"
            )
    if not network.any_size and not theirs.fits(schema.node_gpus):
        one, other = (f"{each.gpus} GPUs on {len(each.node_gpus)} nodes" for each in (theirs, schema))
        raise InputError(
            f"{config.init} was trained for {one}, this run has {other}",
            "give a checkpoint for this cluster, or one whose network serves any size", field="--init",
        )  # fmt: skip
    expected = {name: weight.shape for name, weight in network_of(schema).state_dict().items()}
    if not network.sized_by and expected != {name: weight.shape for name, weight in network.state_dict().items()}:
        fix = "give one without waiting" if config.history else f"give --{'' if theirs.waiting else 'no-'}waiting"
        raise InputError(
            f"{config.init} has {'waiting' if theirs.waiting else 'no waiting'} among its actions, and this run not so",
            fix, field="--init",
        )  # fmt: skip
    if isinstance(network, CandidateNetwork) and theirs.algorithm == "distil":
        network.score.weight.data /= TEMPERATURE
    network.layout = layout_of(schema)
    return network.train()


def with_layers(config: TrainingConfig, schema: Schema) -> Schema:
    """Return the schema of a run, with the layers of the checkpoint that it begins with, if that has some."""
    if config.init is None or config.network != "layers":
        return schema
    return schema.model_copy(update={"layers": load_policy(Path(config.init)).schema.layers})


def initial_network(config: TrainingConfig) -> CandidateNetwork | None:
    """Return a network with the weights of the run's `init`, None if it begins at random.

    `distil` learns gains. Divided by the temperature, they are the logits that `group` samples by; the other direction
    multiplies. The value is that of the checkpoint.

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
    has_gains, learns_gains = schema.algorithm == "distil", config.algorithm == "distil"
    if has_gains != learns_gains:
        network.score.weight.data *= TEMPERATURE if learns_gains else 1.0 / TEMPERATURE
    return network.train()
