"""PPO and A2C that begin with a checkpoint: what fits, and what is refused."""

from pathlib import Path
from typing import Any

import pytest
import torch

from longshore.agents.learned.checkpoint import save_policy, schema_of, untrained_network
from longshore.agents.learned.network import find_network
from longshore.agents.learned.schema import HiddenLayers, Schema
from longshore.agents.networks.candidates import TEMPERATURE, CandidateNetwork
from longshore.cluster.files.errors import CheckpointError, InputError
from longshore.cluster.files.plugins import registered
from longshore.training.config import TrainingConfig, config_of
from longshore.training.run import read_initial

NODES = (8,) * 8


def saved(folder: Path, **changes: Any) -> tuple[Path, Schema]:
    given: dict[str, Any] = {
        "algorithm": "ppo", "network": "mlp", "action": "node", "observation": "full", "waiting": False,
        "node_gpus": NODES,
    }  # fmt: skip
    layers = changes.pop("layers", None)
    schema = schema_of(**(given | changes)).model_copy(update={"layers": layers})
    save_policy(folder / "init.zip", schema, untrained_network(schema))
    return folder / "init.zip", schema


def config(init: Path, **changes: Any) -> TrainingConfig:
    given: dict[str, Any] = {
        "preset": "hetero64", "algorithm": "ppo", "steps": 100, "seed": 0, "network": None, "action": None,
        "observation": None, "reward": None, "waiting": None, "threads": 1, "init": init,
    }  # fmt: skip
    return config_of(**(given | changes))


def test_options_that_are_not_given_are_those_of_the_checkpoint(tmp_path: Path) -> None:
    path, _ = saved(tmp_path, action="gpu", observation="patent", waiting=True, node_gpus=(1,) * 64)
    for algorithm in (None, "ppo", "a2c"):
        got = config(path, algorithm=algorithm)
        assert (got.algorithm, got.action, got.observation) == (algorithm or "ppo", "gpu", "patent")
        assert (got.network, got.waiting) == ("mlp", True)


@pytest.mark.parametrize("network", list(registered("networks")))
def test_a_history_is_learned_by_groups_with_the_network_for_candidates_and_by_ppo_with_any_other(
    network: str, tmp_path: Path
) -> None:
    history = tmp_path / "decisions.jsonl"
    history.write_text("")
    for action in find_network(network).actions:
        layers = HiddenLayers(policy=(8,), value=(8,)) if network == "layers" else None
        path, _ = saved(tmp_path, network=network, action=action, layers=layers)
        got = config(path, preset=None, algorithm=None, history=history)
        assert got.algorithm == ("group" if network == "candidates" else "ppo")
        assert (got.network, got.action) == (network, action)


def test_a_pool_of_gpus_continues_on_the_same_number_of_gpus(tmp_path: Path) -> None:
    path, schema = saved(tmp_path, action="gpu", observation="patent", node_gpus=(1,) * 64)
    here = schema_of(algorithm="ppo", network="mlp", action="gpu", observation="patent", waiting=False, node_gpus=NODES)
    assert read_initial(config(path), here)[1] is not None
    fewer = schema.model_copy(update={"gpus": 32, "items": 32, "node_gpus": (1,) * 32})
    with pytest.raises(InputError, match=r"--init: .* 64 GPUs .* this run has 32"):
        read_initial(config(path), fewer)


@pytest.mark.parametrize(
    ("changes", "words"),
    [({"network": "set"}, "the network mlp"), ({"action": "gpu"}, "the action node"), ({"waiting": True}, "waiting")],
)
def test_a_run_of_another_kind_is_refused_with_what_to_give(
    changes: dict[str, Any], words: str, tmp_path: Path
) -> None:
    path, schema = saved(tmp_path)
    other = schema_of(**{name: getattr(schema, name) for name in (
        "algorithm", "network", "action", "observation", "waiting", "node_gpus",
    )} | changes)  # fmt: skip
    with pytest.raises(InputError, match=f"--init: .*{words}"):
        read_initial(config(path, **changes), other)


def test_a_network_of_layers_goes_on_with_its_own(tmp_path: Path) -> None:
    layers = HiddenLayers(policy=(12,), value=(), activation="relu")
    path, schema = saved(tmp_path, network="layers", layers=layers)
    continued, begun = read_initial(config(path), schema.model_copy(update={"layers": None}))
    assert continued.layers == layers
    assert begun is not None
    assert [tuple(it.shape) for it in begun.parameters()] == [(12, 196), (12,), (8, 12), (8,), (1, 196), (1,)]


def test_gains_become_logits(tmp_path: Path) -> None:
    path, schema = saved(tmp_path, network="candidates", action="candidate")
    for algorithm, factor in (("group", 1.0), ("distil", 1.0 / TEMPERATURE)):
        network = untrained_network(schema)
        assert isinstance(network, CandidateNetwork)
        save_policy(path, schema.model_copy(update={"algorithm": algorithm}), network)
        _, begun = read_initial(config(path), schema)
        assert isinstance(begun, CandidateNetwork)
        torch.testing.assert_close(begun.score.weight, network.score.weight * factor)


def test_what_is_no_checkpoint_is_refused(tmp_path: Path) -> None:
    with pytest.raises(CheckpointError, match="no such checkpoint"):
        config(tmp_path / "none.zip")
