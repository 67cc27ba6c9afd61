"""Models of Stable-Baselines3 and sb3-contrib as policies: what they decide, and what is refused."""

from pathlib import Path
from typing import Any, NamedTuple

import gymnasium
import numpy as np
import pytest
import torch
from gymnasium import spaces
from sb3_contrib import QRDQN, TRPO, MaskablePPO
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.vec_env import DummyVecEnv, VecNormalize
from torch import Tensor, nn

from longshore.agents.learned.checkpoint import layout_of, load_policy, save_policy, schema_of
from longshore.agents.learned.network import LearnedPolicy
from longshore.agents.networks.sb3_policy import MaskedPolicy
from longshore.agents.registry import find_policy
from longshore.agents.sb3 import EnvironmentHints, SB3Policy, import_model
from longshore.cluster.files.errors import CheckpointError
from longshore.cluster.model.problem import Problem, fault_sources, stack
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.model.workload import workload_of
from longshore.cluster.presets.named import preset_problem
from longshore.cluster.simulator.simulation import simulation_of
from longshore.envs.batch import OPTIONS_ATTRIBUTE, AgentView, Batch
from longshore.envs.gymnasium_envs import PlacementEnv
from longshore.envs.sb3 import PlacementVecEnv
from longshore.testing import check_policy
from tests.command_line import Command
from tests.envs.random_run import open_actions, small_problem

pytestmark = pytest.mark.usefixtures("one_thread")


ROWS = 4
SMALL: Problem = small_problem(ROWS, waiting=True)
POOL: Problem = preset_problem("patent4", ROWS)
RELU: dict[str, Any] = {"net_arch": {"pi": [32], "vf": [16, 8]}, "activation_fn": nn.ReLU}


def environment(problem: Problem, view: AgentView) -> PlacementEnv:
    return PlacementEnv(problem, action=view.action, observation=view.observation, reward=view.reward)


def model_of(kind: Any, problem: Problem, view: AgentView, **policy: Any) -> Any:
    """Return a model with weights that are far from those that it begins with, and from uniform."""
    made = kind("MlpPolicy", environment(problem, view), policy_kwargs=policy or None, seed=1, device="cpu")
    with torch.no_grad():
        for weight in made.policy.parameters():
            weight.add_(0.3 * torch.randn_like(weight))
    return made


class Case(NamedTuple):
    kind: Any
    problem: Problem
    view: AgentView
    policy: dict[str, Any]


CASES = {
    "ppo": Case(PPO, SMALL, AgentView(), {}),
    "a2c": Case(A2C, POOL, AgentView("gpu", "patent-literal", "best_of_random"), {}),
    "trpo": Case(TRPO, SMALL, AgentView(), RELU),
    "maskable": Case(MaskablePPO, SMALL, AgentView("candidate"), RELU),
    "maskable without layers": Case(MaskablePPO, POOL, AgentView("gpu", "patent"), {"net_arch": []}),
    "ppo of two kinds of layers": Case(PPO, SMALL, AgentView("gpu"), {"net_arch": [24, 12], "activation_fn": nn.SiLU}),
}


ALGORITHMS = {PPO: "ppo", A2C: "a2c", TRPO: "trpo", MaskablePPO: "maskable-ppo"}


def decisions(policy: LearnedPolicy, case: Case) -> list[list[int]]:
    """Return what a policy does at a hundred decisions that are met at random."""
    batch, rng, done = Batch(case.problem, case.view, ROWS), np.random.default_rng(0), []
    batch.reset()
    for _ in range(25):
        done.append(policy.predict(batch.observations, action_masks=batch.masks)[0].tolist())
        batch.step(open_actions(batch.masks, rng))
        batch.reset_rows(np.flatnonzero(batch.ended))
    return done


@pytest.mark.parametrize("name", CASES)
def test_a_saved_model_becomes_a_checkpoint_that_decides_as_it_did(name: str, tmp_path: Path) -> None:
    case = CASES[name]
    model = model_of(case.kind, case.problem, case.view, **case.policy)
    model.save(tmp_path / "model.zip")
    schema, network = import_model(tmp_path / "model.zip", EnvironmentHints())
    save_policy(tmp_path / "policy.zip", schema, network)
    policy, live = load_policy(tmp_path / "policy.zip"), SB3Policy(model)
    assert schema.algorithm == live.schema.algorithm == f"sb3-{ALGORITHMS[case.kind]}"
    assert (schema.action, schema.observation) == (case.view.action, case.view.observation)
    assert schema.waiting == bool(case.problem.rules.waiting)
    assert schema.node_gpus == tuple(np.diff(case.problem.cluster.first_gpu).tolist())
    assert decisions(policy, case) == decisions(live, case) == decisions(SB3Policy(tmp_path / "model.zip"), case)

    batch = Batch(case.problem, case.view, ROWS)
    batch.reset()
    with torch.inference_mode():
        logits, values = network(torch.from_numpy(batch.observations))
        distribution = model.policy.get_distribution(torch.from_numpy(batch.observations)).distribution
        theirs = model.policy.predict_values(torch.from_numpy(batch.observations))
    torch.testing.assert_close(logits.log_softmax(1), distribution.logits, rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(values, theirs.squeeze(1), rtol=1e-5, atol=1e-5)
    if case.kind is MaskablePPO:
        expected = model.predict(batch.observations, action_masks=batch.masks, deterministic=True)[0]
        assert (policy.predict(batch.observations, action_masks=batch.masks)[0] == expected).all()
    check_policy(policy, case.problem)


class Nodes(BaseFeaturesExtractor):
    """Sees every node by one small network, and the mean of them."""

    def __init__(self, observation_space: spaces.Box) -> None:
        super().__init__(observation_space, 8)
        self.of_all = 36
        self.each = nn.Linear(20, 8)

    def forward(self, observations: Tensor) -> Tensor:
        nodes = observations[:, self.of_all :].reshape(observations.shape[0], -1, 20)
        found: Tensor = self.each(nodes).relu().mean(1)
        return found


def test_a_model_of_any_network_is_a_policy_in_python_and_is_refused_as_a_file(tmp_path: Path) -> None:
    case = Case(MaskablePPO, SMALL, AgentView(), {"features_extractor_class": Nodes})
    model = model_of(case.kind, case.problem, case.view, **case.policy)
    model.policy(torch.zeros(1, 116))  # it remembers what it drew last
    policy = SB3Policy(model, name="nodes")
    check_policy(policy, case.problem)
    batch = Batch(case.problem, case.view, ROWS)
    batch.reset()
    expected = model.predict(batch.observations, action_masks=batch.masks, deterministic=True)[0]
    assert (policy.predict(batch.observations, action_masks=batch.masks)[0] == expected).all()
    before = decisions(policy, case)
    with torch.no_grad():
        for weight in model.policy.parameters():
            weight.mul_(-1.0)
    assert decisions(policy, case) == before
    model.save(tmp_path / "model.zip")
    refused(tmp_path / "model.zip", "SB3Policy")


def test_a_model_of_our_own_networks_is_a_policy_that_is_saved_as_others_are(tmp_path: Path) -> None:
    view = AgentView("node")
    env = PlacementVecEnv(SMALL, view, ROWS)
    schema = schema_of(
        algorithm="ppo", network="set", action="node", observation="full", waiting=True, node_gpus=(8,) * 4
    )
    options = {"network": "set", "layout": layout_of(schema)}
    model = MaskablePPO(MaskedPolicy, env, n_steps=4, batch_size=16, n_epochs=1, policy_kwargs=options, device="cpu")
    model.learn(16)
    policy = SB3Policy(model)
    save_policy(tmp_path / "policy.zip", policy.schema, policy.network)
    case = Case(MaskablePPO, SMALL, view, {})
    assert decisions(load_policy(tmp_path / "policy.zip"), case) == decisions(policy, case)


def refused(model: BaseAlgorithm | Path, words: str, **hints: Any) -> None:
    with pytest.raises(CheckpointError, match=words) as raised:
        SB3Policy(model, **hints)
    assert "\n" not in str(raised.value)


def test_models_that_are_no_policies_of_ours_are_refused_in_one_line(tmp_path: Path) -> None:
    env = environment(SMALL, AgentView())
    for kind in (DQN, QRDQN):
        kind("MlpPolicy", env, buffer_size=10, device="cpu").save(tmp_path / "values.zip")
        refused(tmp_path / "values.zip", "values.zip.* nothing that learns values of actions")
        refused(kind("MlpPolicy", env, buffer_size=10, device="cpu"), "no probabilities")
    pole = PPO("MlpPolicy", gymnasium.make("CartPole-v1"), device="cpu")
    pole.save(tmp_path / "pole.zip")
    refused(tmp_path / "pole.zip", "no environment of Longshore")
    refused(pole, "no environment of Longshore")
    refused(A2C("MlpPolicy", gymnasium.make("Pendulum-v1"), device="cpu"), "expected Discrete")
    normalised = VecNormalize(DummyVecEnv([lambda: environment(SMALL, AgentView())]))
    refused(PPO("MlpPolicy", normalised, device="cpu"), "VecNormalize")
    refused(tmp_path / "nothing.zip", "no such file")


def unmarked(folder: Path, problem: Problem, view: AgentView) -> Path:
    """Return the file of a model whose spaces have no options."""
    model = model_of(PPO, problem, view)
    model.observation_space.__dict__.pop(OPTIONS_ATTRIBUTE)
    model.save(folder / "model.zip")
    return folder / "model.zip"


def test_what_the_spaces_do_not_hold_is_found_by_their_sizes_or_requested(tmp_path: Path) -> None:
    hetero64 = preset_problem("hetero64", 1, waiting=True)
    found = SB3Policy(unmarked(tmp_path, hetero64, AgentView())).schema
    assert (found.action, found.observation, found.waiting, found.node_gpus) == ("node", "full", True, (8,) * 8)
    path = unmarked(tmp_path, POOL, AgentView("gpu", "patent"))
    refused(path, "give --observation patent or patent-literal")
    schema = SB3Policy(path, observation="patent-literal").schema
    assert (schema.observation, schema.gpus, schema.waiting) == ("patent-literal", 4, False)
    path = unmarked(tmp_path, SMALL, AgentView())
    refused(path, "give --cluster")
    assert SB3Policy(path, node_gpus=(8,) * 4).schema.node_gpus == (8,) * 4
    refused(path, "no environment", node_gpus=(8,) * 5)


def test_what_the_spaces_say_is_not_to_be_said_otherwise(tmp_path: Path) -> None:
    model = model_of(PPO, POOL, AgentView("gpu", "patent"))
    refused(model, "--observation", observation="patent-literal")
    refused(model, "--cluster", node_gpus=(2, 2))
    refused(model, "omit --waiting", waiting=True)
    marks: list[Any] = [{"action": "rack"}, {"action": "gpu"}, [], {"node_gpus": [1] * 5}]
    for mark in marks:
        spoiled = getattr(model.observation_space, OPTIONS_ATTRIBUTE) | mark if mark else mark
        model.observation_space.__dict__[OPTIONS_ATTRIBUTE] = spoiled
        model.save(tmp_path / "model.zip")
        if mark == {"action": "gpu"}:
            assert SB3Policy(tmp_path / "model.zip").schema.action == "gpu"
        else:
            refused(tmp_path / "model.zip", "model")
        model.observation_space.__dict__[OPTIONS_ATTRIBUTE] = PlacementEnv(
            POOL, action="gpu", observation="patent"
        ).observation_space.__dict__[OPTIONS_ATTRIBUTE]


def test_the_command_makes_a_checkpoint_that_is_evaluated_and_says_what_it_is(
    longshore: Command, tmp_path: Path
) -> None:
    model = model_of(PPO, preset_problem("hetero64", 1), AgentView())
    model.save(tmp_path / "model.zip")
    with pytest.raises(CheckpointError, match="longshore policy import"):
        find_policy(str(tmp_path / "model.zip"))
    done = longshore("policy", "import", tmp_path / "model.zip")
    assert done.status == 0, done.err
    policy = tmp_path / "model-policy.zip"
    assert done.out.startswith(f"{policy}: sb3-ppo, node actions, no waiting, full, 64 GPUs on 8 nodes")
    kept = policy.read_bytes()
    again = longshore("policy", "import", tmp_path / "model.zip")
    assert (again.status, policy.read_bytes()) == (2, kept)
    assert again.err.splitlines()[-1].startswith("longshore: --out: ")
    for wrong in (("--out", tmp_path / "policy.txt"), ("--observation", "all"), ("--cluster", tmp_path / "none.yaml")):
        done = longshore("policy", "import", tmp_path / "model.zip", "--out", tmp_path / "other.zip", *wrong)
        assert done.status == 2
        assert [line.startswith("longshore: ") for line in done.err.splitlines()] == [False, True]
    done = longshore(
        "evaluate", "--policy", policy, "--workloads", "2", "--order", "fifo", "--no-heuristics", "--oracle"
    )
    assert done.status == 0, done.err
    assert "model-policy" in done.out


@pytest.mark.parametrize("sizes", [(4,), (2, 2), (1, 3), (1, 1, 1, 1)])
@pytest.mark.parametrize("observation", ["patent", "patent-literal"])
def test_a_policy_of_the_patents_kind_hangs_on_the_number_of_gpus_alone(
    sizes: tuple[int, ...], observation: str
) -> None:
    policy = SB3Policy(model_of(PPO, POOL, AgentView("gpu", observation)))
    problem = clustered(sizes)
    sim = simulation_of(problem, rows=1)
    policy.run(sim, np.arange(1))
    assert int(sim.state.finished[0]) == int(problem.scenarios.jobs[0])
    with pytest.raises(CheckpointError, match=r"4 GPUs .* this cluster has 5"):
        policy.check_cluster(simulation_of(clustered((*sizes, 1)), rows=1))


def clustered(sizes: tuple[int, ...]) -> Problem:
    """Return six jobs of up to two GPUs on nodes with these numbers of GPUs, without faults."""
    cluster = grid_cluster(len(sizes), 1)._replace(
        gpu_node=np.repeat(np.arange(len(sizes)), sizes).astype(np.int32),
        first_gpu=np.cumsum([0, *sizes]).astype(np.int32),
    )
    jobs = np.arange(6)
    work = workload_of(tuple(map(str, jobs)), (1 + jobs % 2).astype(np.int32), np.full(6, 60.0), np.zeros(6))
    sources = np.zeros(fault_sources(cluster))
    scenarios = stack(cluster, [work], fault_seed=np.array([1]), source_rate_per_s=sources)
    outages = POOL.process._replace(outage_first=np.zeros(sources.size + 1, dtype=np.int32))
    return Problem(cluster, scenarios, outages, POOL.rules)
