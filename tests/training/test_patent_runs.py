"""Runs of the patent's method and of replay from end to end."""

import signal
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from sb3_contrib import MaskablePPO

from longshore.agents.learned.checkpoint import layout_of, load_policy, schema_of
from longshore.agents.networks.sb3_policy import MaskedPolicy
from longshore.cluster.files.errors import InputError
from longshore.envs.batch import AgentView
from longshore.envs.sb3 import PlacementVecEnv
from longshore.training import run
from longshore.training.config import TrainingConfig, config_of, with_numbers
from longshore.training.ppo import RMSPROP, MaskableA2C
from longshore.training.problems import PRESETS, Hyperparameters, ProblemRequest, Sizes
from longshore.training.run_folder import Progress
from tests.training.tensorboard_names import documented, events_of, shown

SMALL = Hyperparameters(rows=16, steps=16, minibatch=128, epochs=2, kept=3)
FEW = Sizes(64, 16)
train = partial(run.train, sizes=FEW)
METHODS = [
    ("ppo", "dynamic"), ("ppo", "literal"), ("ppo", "geppo"), ("a2c", "dynamic"), ("a2c", "literal-all"),
    ("a2c", "vtrace"), ("a2c", "off"),
]  # fmt: skip


def configured(**changes: object) -> TrainingConfig:
    defaults: dict[str, object] = {
        "preset": "patent4", "algorithm": "ppo", "steps": 1e5, "seed": 0, "network": None, "action": None,
        "observation": None, "reward": None, "waiting": False, "threads": 1,
    }  # fmt: skip
    numbers: Any = {name: changes.pop(name, None) for name in ("random_runs", "buffer", "environments")}
    return with_numbers(config_of(**(defaults | changes)), **numbers)  # type: ignore[arg-type]


def small(steps: int = 1024, **changes: object) -> TrainingConfig:
    return configured(**changes).model_copy(update={"hyperparameters": SMALL, "steps": steps})


class Whole(NamedTuple):
    """A run from its begin to its end."""

    config: TrainingConfig
    folder: Path


@pytest.fixture(scope="module", params=METHODS, ids="-".join)
def whole(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Whole:
    algorithm, replay = request.param
    config = small(1200, algorithm=algorithm, replay=replay)
    if replay == "literal":
        config = config.model_copy(update={"buffer": 200})  # less than a rollout
    return Whole(config, train(config, tmp_path_factory.mktemp("whole")).folder)


def weights(folder: Path) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in load_policy(folder / "policy.zip").network.state_dict().items()}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all((a[name] == b[name]).all() for name in a)


def rates_of(folder: Path) -> list[float]:
    return [float(event.value) for event in events_of(folder).Scalars("train/learning_rate")]


@pytest.mark.parametrize("gpus", [4, 64])
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
@pytest.mark.parametrize(("variant", "observation", "replay"), [
    ("", "patent-literal", "literal"), ("-ours", "patent", "dynamic"),
])  # fmt: skip
def test_the_presets_of_the_patent_train_its_method_by_default(
    gpus: int, algorithm: str, variant: str, observation: str, replay: str
) -> None:
    preset = f"patent{gpus}{variant}"
    config = configured(preset=preset, algorithm=algorithm)
    assert (config.action, config.observation, config.network) == ("gpu", observation, "mlp")
    assert (config.reward, config.replay, config.name) == ("best_of_random", replay, f"{preset}-{algorithm}-0")
    assert config.hyperparameters == PRESETS[preset].hyperparameters(algorithm)


def test_numbers_of_the_patents_method_can_be_chosen() -> None:
    ours = configured(preset="patent4-ours", random_runs=20, buffer=3 * 8 * 128, environments=8)
    assert (ours.random_runs, ours.hyperparameters.rows, ours.hyperparameters.kept) == (20, 8, 3)
    assert ours.name == "patent4-ours-ppo-best-of-20-buffer3072-env8-0"
    assert configured(algorithm="a2c", environments=8).hyperparameters.minibatch == 8 * 16  # a whole rollout
    literal = configured(buffer=1000)
    assert (literal.buffer, literal.hyperparameters) == (1000, configured().hyperparameters)
    assert configured(preset="hetero64", replay="geppo", buffer=2 * 512 * 64).hyperparameters.kept == 2


@pytest.mark.parametrize(
    ("changes", "field"),
    [
        ({"preset": "hetero64", "random_runs": 8}, "--random-runs"),  # its reward compares with none
        ({"algorithm": "group", "network": "candidates", "random_runs": 8}, "--random-runs"),
        ({"algorithm": "group", "environments": 8}, "--environments"),
        ({"algorithm": "distil", "environments": 8}, "--environments"),
        ({"replay": "off", "buffer": 1000}, "--buffer"),
        ({"preset": "hetero64", "buffer": 1000}, "--buffer"),
        ({"algorithm": "group", "buffer": 1000}, "--buffer"),
        ({"preset": "patent4-ours", "buffer": 64 * 128 + 1}, "--buffer"),  # no whole rollouts
        ({"replay": "geppo", "buffer": 1}, "--buffer"),
    ],
)
def test_numbers_that_nothing_uses_are_refused_by_their_option(changes: dict[str, object], field: str) -> None:
    with pytest.raises(InputError, match=field):
        configured(**changes)


def test_rollouts_that_would_fill_the_memory_are_refused(tmp_path: Path) -> None:
    config = configured(replay="off").model_copy(update={"hyperparameters": Hyperparameters(rows=16, steps=10**7)})
    with pytest.raises(InputError, match=r"--environments.* GiB"):
        train(config, tmp_path)


def test_options_override_the_preset() -> None:
    config = configured(action="node", network="set", reward="dt", replay="off")
    assert (config.action, config.observation, config.network) == ("node", "full", "set")
    assert (config.reward, config.replay, config.name) == (
        "dt", "off", "patent4-ppo-node-set-dt-replay-off-0",
    )  # fmt: skip
    assert configured(preset="hetero64", replay="geppo").name == "hetero64-ppo-replay-geppo-0"
    assert configured(preset="hetero64").replay == configured(preset="hetero64", algorithm="a2c").replay == "off"


@pytest.mark.parametrize(
    ("algorithm", "replay"), [("ppo", "vtrace"), ("a2c", "geppo"), ("group", "dynamic"), ("ppo", "all")]
)
def test_replay_of_another_algorithm_is_refused(algorithm: str, replay: str) -> None:
    with pytest.raises(InputError, match="--replay"):
        configured(preset="hetero64", algorithm=algorithm, replay=replay)


def test_replay_that_would_fill_the_memory_is_refused(tmp_path: Path) -> None:
    config = small().model_copy(update={"hyperparameters": Hyperparameters(rows=16, steps=16, kept=10**7)})
    with pytest.raises(InputError, match=r"--replay.* GiB"):
        train(config, tmp_path)


@pytest.mark.few(1)
def test_a_run_with_replay_that_was_interrupted_ends_as_if_it_had_not_been(whole: Whole, tmp_path: Path) -> None:
    pressed: list[int] = []

    def interrupt(progress: Progress) -> None:
        if progress.steps == 768 and not pressed:  # all rollouts are there that are kept
            pressed.append(progress.steps)
            signal.raise_signal(signal.SIGINT)

    assert not train(whole.config, tmp_path, interrupt).finished
    resumed = train(whole.config, tmp_path)
    assert resumed.finished
    assert same(weights(whole.folder), weights(resumed.folder))
    rates = rates_of(resumed.folder)
    assert rates == rates_of(whole.folder)
    assert [*rates] == sorted(rates, reverse=True)
    assert SMALL.learning_rate > rates[0] > 0.0
    assert rates[-1] == 0.0  # the last rollout ends at 1280, beyond the steps


@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_without_replay_a_run_is_plain_ppo_or_a2c(algorithm: str, tmp_path: Path) -> None:
    config = small(algorithm=algorithm, replay="off")
    (problem,) = PRESETS["patent4"].build(ProblemRequest(0, config.regimes, FEW)).trained
    schema = schema_of(
        algorithm=algorithm,
        network="mlp",
        action="gpu",
        observation="patent-literal",
        waiting=False,
        node_gpus=(1,) * 4,
    )
    policy = {"network": "mlp", "layout": layout_of(schema)} | (RMSPROP if algorithm == "a2c" else {})
    kind = MaskableA2C if algorithm == "a2c" else MaskablePPO
    env = PlacementVecEnv(problem, AgentView("gpu", "patent-literal", "best_of_random"), SMALL.rows)
    plain = kind(
        MaskedPolicy, env,
        learning_rate=lambda left: SMALL.learning_rate * left, n_steps=SMALL.steps, batch_size=SMALL.minibatch,
        n_epochs=SMALL.epochs, gamma=1.0, gae_lambda=SMALL.gae_lambda, clip_range=SMALL.clip, ent_coef=SMALL.entropy,
        vf_coef=SMALL.value, policy_kwargs=policy, seed=0, device="cpu",
    )  # fmt: skip
    env.set_options([{"scenario": row} for row in range(SMALL.rows)])
    plain.learn(config.steps)
    network: Any = plain.policy.network
    expected = {name: tensor.numpy() for name, tensor in network.state_dict().items()}
    assert same(expected, weights(train(config, tmp_path).folder))


@pytest.mark.few(2)
def test_tensorboard_shows_every_name_that_is_documented_for_the_method(whole: Whole) -> None:
    names, replay = shown(whole.folder, "replay/"), whole.config.replay
    assert names == documented(replay)
    if replay != "off":
        events = events_of(whole.folder)
        values = {name: [event.value for event in events.Scalars(name)] for name in names}
        age = 0.0 if whole.config.buffer else 1.0  # of a buffer smaller than a rollout, or of three rollouts
        assert values["replay/age"][-1] == pytest.approx(age, abs=0.2)
        assert all(0.0 < value <= 1.0 + 1e-6 for value in values["replay/effective_sample_size"])
