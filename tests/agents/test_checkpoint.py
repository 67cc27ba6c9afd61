import io
import json
import pickle
import zipfile
from pathlib import Path

import numpy as np
import pytest
import torch

from longshore.agents.learned.checkpoint import layout_of, load_policy, save_policy
from longshore.agents.learned.network import LearnedPolicy
from longshore.agents.networks.candidates import CandidateNetwork
from longshore.cluster.files.errors import CheckpointError
from longshore.cluster.model.problem import Problem
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from longshore.cluster.state.state import Simulation
from tests.agents.untrained import untrained


def simulation(rows: int = 4, *, nodes: int = 8, waiting: bool = False) -> Simulation:
    cluster, scenarios, process, rules = hetero64(rows, 5, nodes=nodes, jobs=16)
    return simulation_of(Problem(cluster, scenarios, process, rules._replace(waiting=waiting)), rows=rows)


def finishes(policy: LearnedPolicy, sim: Simulation) -> np.ndarray:
    policy.run(sim, np.arange(sim.scenarios.jobs.size))
    return outcome_of(sim).finish_s


@pytest.mark.parametrize("width", [64, 96])
def test_a_network_over_candidates_has_the_width_that_it_was_saved_with(width: int, tmp_path: Path) -> None:
    schema = untrained("candidates", action="candidate", waiting=True).schema
    network = CandidateNetwork(layout_of(schema), width)
    save_policy(tmp_path / "p.zip", schema, network)
    again = load_policy(tmp_path / "p.zip").network.state_dict()
    assert all((again[name] == tensor).all() for name, tensor in network.state_dict().items())


def rewritten(path: Path, **changes: object) -> Path:
    with zipfile.ZipFile(path) as archive:
        content = {name: archive.read(name) for name in archive.namelist()}
    schema = json.loads(content["schema.json"]) | changes
    content["schema.json"] = json.dumps(schema).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in content.items():
            archive.writestr(name, data)
    return path


@pytest.mark.parametrize("network", ["set", "mlp"])
def test_a_policy_that_was_saved_decides_as_before(network: str, tmp_path: Path) -> None:
    policy = untrained(network)
    save_policy(tmp_path / "p.zip", policy.schema, policy.network)
    again = load_policy(tmp_path / "p.zip")
    assert again.schema == policy.schema
    assert (finishes(again, simulation()) == finishes(policy, simulation())).all()


def test_the_same_policy_gives_the_same_bytes(tmp_path: Path) -> None:
    policy = untrained()
    for name in ("a.zip", "b.zip"):
        save_policy(tmp_path / name, policy.schema, policy.network)
    assert (tmp_path / "a.zip").read_bytes() == (tmp_path / "b.zip").read_bytes()


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"format": 2}, "format"),
        ({"network": "transformer"}, "network"),
        ({"features": ["free", "colour"]}, "colour"),
        ({"longshore": None}, "longshore"),
        ({"extra": 1}, "extra"),
        ({"waiting": True}, "wait"),
    ],
)
def test_a_schema_that_does_not_fit_is_refused_by_name(change: dict[str, object], message: str, tmp_path: Path) -> None:
    policy = untrained("mlp")
    save_policy(tmp_path / "p.zip", policy.schema, policy.network)
    with pytest.raises(CheckpointError, match=message if message != "wait" else "weight policy"):
        load_policy(rewritten(tmp_path / "p.zip", **change))


@pytest.mark.parametrize("damage", ["empty", "text", "truncated", "missing", "no weights"])
def test_a_damaged_file_is_refused_in_one_line(damage: str, tmp_path: Path) -> None:
    path, policy = tmp_path / "p.zip", untrained()
    save_policy(path, policy.schema, policy.network)
    content = path.read_bytes()
    if damage == "missing":
        path.unlink()
    elif damage == "no weights":
        with zipfile.ZipFile(path, "w") as archive:
            archive.writestr("schema.json", "{}")
    else:
        path.write_bytes({"empty": b"", "text": b"hello", "truncated": content[: len(content) // 2]}[damage])
    with pytest.raises(CheckpointError) as caught:
        load_policy(path)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


class Bomb:
    def __reduce__(self) -> tuple[object, tuple[str]]:
        return (exec, ("raise SystemExit('executed')",))


def test_nothing_in_a_file_is_executed(tmp_path: Path) -> None:
    path, policy = tmp_path / "p.zip", untrained()
    save_policy(path, policy.schema, policy.network)
    content = io.BytesIO()
    np.savez(content, allow_pickle=True, bomb=np.array([Bomb()], dtype=object))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("schema.json", policy.schema.model_dump_json())
        archive.writestr("weights.npz", content.getvalue())
    with pytest.raises(CheckpointError):
        load_policy(path)
    path.write_bytes(pickle.dumps(Bomb()))
    with pytest.raises(CheckpointError):
        load_policy(path)


def test_weights_that_are_not_finite_are_refused(tmp_path: Path) -> None:
    policy = untrained()
    with torch.no_grad():
        next(policy.network.parameters())[0] = torch.nan
    save_policy(tmp_path / "p.zip", policy.schema, policy.network)
    with pytest.raises(CheckpointError, match="finite"):
        load_policy(tmp_path / "p.zip")


def test_the_set_network_serves_clusters_of_any_size() -> None:
    assert (finishes(untrained("set"), simulation(nodes=12)) > 0).all()


@pytest.mark.parametrize("observation", ["full", "patent", "patent-literal"])
def test_the_patents_network_refuses_another_cluster(observation: str) -> None:
    policy = untrained("mlp", action="gpu", observation=observation)
    with pytest.raises(CheckpointError, match="64 GPUs on 8 nodes, this cluster has 96 on 12"):
        policy.run(simulation(nodes=12), np.arange(4))


@pytest.mark.few(8)
@pytest.mark.parametrize("waits", [False, True])
@pytest.mark.parametrize("allowed", [False, True])
@pytest.mark.parametrize(
    ("network", "action", "observation"),
    [("set", "node", "full"), ("set", "gpu", "full"), ("mlp", "gpu", "patent"), ("mlp", "gpu", "patent-literal")],
)
def test_placing_one_by_one_comes_to_what_running_comes_to(
    network: str, action: str, observation: str, *, allowed: bool, waits: bool
) -> None:
    from longshore.cluster.simulator.engine import advance, reset, start, wait

    policy = untrained(network, action=action, observation=observation, waiting=waits)
    run = finishes(policy, simulation(waiting=allowed))
    sim = simulation(waiting=allowed)
    reset(sim, 0, 2)
    while advance(sim, 0):
        start(sim, 0) if policy.place(sim, 0) else wait(sim, 0)
    assert np.allclose(sim.state.finish_s[0], run[2])


def test_the_patent_network_has_the_patents_size() -> None:
    policy = untrained("mlp", action="gpu", observation="patent")
    assert isinstance(policy.network.policy, torch.nn.Module)
    weights = sum(parameter.numel() for parameter in policy.network.policy.parameters())
    assert weights == 139_608  # SPEC R3 at N = 64, input N + 2
