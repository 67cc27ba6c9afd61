import json
import math
import os
import shutil
import signal
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from longshore.agents.learned.checkpoint import load_policy
from longshore.cluster.files.errors import CheckpointError, InputError
from longshore.cluster.model.problem import ORDERS, Problem
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.presets.problems import VALIDATION_SEED, Regime, training_key
from longshore.training import run
from longshore.training.config import TrainingConfig, config_of
from longshore.training.problems import PRESETS, Hyperparameters, ProblemRequest, Problems, Sizes
from longshore.training.run import TrainingResult
from longshore.training.run_folder import BEST, EVENTS, SPENT, Progress, TimeSpent
from longshore.training.snapshot import SNAPSHOT
from longshore.training.validation import Score
from tests.training.tensorboard_names import documented, events_of, shown

SMALL = Hyperparameters(rows=16, steps=16, minibatch=128, epochs=1)
train = partial(run.train, sizes=Sizes(64, 16))


def small(steps: int = 1024, **changes: object) -> TrainingConfig:
    config = TrainingConfig(
        preset="hetero64", steps=steps, seed=0, reward="potential", hyperparameters=SMALL, threads=1
    )
    return config.model_copy(update=changes)


def weights(path: Path) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in load_policy(path).network.state_dict().items()}


def same(a: dict[str, np.ndarray], b: dict[str, np.ndarray]) -> bool:
    return all((a[name] == b[name]).all() for name in a)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    return train(small(), tmp_path_factory.mktemp("whole"))


def stopped_at_half(logdir: Path) -> TrainingResult:
    """Return a run that was interrupted once."""
    pressed: list[int] = []

    def interrupt(progress: Progress) -> None:
        if progress.steps == 512 and not pressed:
            pressed.append(progress.steps)
            signal.raise_signal(signal.SIGTERM)

    return train(small(), logdir, interrupt)


@pytest.fixture(scope="module")
def half(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    return stopped_at_half(tmp_path_factory.mktemp("half"))


def copied(result: TrainingResult, logdir: Path) -> Path:
    """Return the folder of a copy of a run, which may be changed."""
    return Path(shutil.copytree(result.folder, logdir / result.folder.name))


@pytest.fixture(scope="module")
def longer(whole: TrainingResult, tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    """The whole run once more, made longer in a second session: now episodes have ended."""
    logdir = tmp_path_factory.mktemp("longer")
    copied(whole, logdir)
    return train(small(2048), logdir)


def test_the_same_run_gives_the_same_policy(whole: TrainingResult, tmp_path: Path) -> None:
    again = train(small(), tmp_path)
    assert whole.score == again.score
    assert same(weights(whole.folder / "policy.zip"), weights(again.folder / "policy.zip"))


def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(
    whole: TrainingResult, half: TrainingResult, tmp_path: Path
) -> None:
    assert not half.finished
    copied(half, tmp_path)
    resumed = train(small(), tmp_path)
    assert resumed.finished
    assert same(weights(whole.folder / "policy.zip"), weights(resumed.folder / "policy.zip"))


@pytest.mark.full
def test_the_curves_of_a_run_that_was_cut_off_do_not_go_back(
    whole: TrainingResult, half: TrainingResult, tmp_path: Path
) -> None:
    folder = copied(half, tmp_path)
    (before,) = folder.glob("*tfevents*")
    (beyond,) = whole.folder.glob("*tfevents*")
    # As if a session had gone on from the snapshot, and been cut off before the next one.
    shutil.copy(beyond, before.with_name(f"{before.name}.later"))
    resumed = train(small(), tmp_path)
    for name in shown(resumed.folder):
        steps = [event.step for event in events_of(resumed.folder).Scalars(name)]
        assert steps == sorted(steps)
        assert steps.count(steps[-1]) == 1
    assert events_of(resumed.folder).Scalars("time/steps_per_s")[-1].step == 1024


@pytest.mark.parametrize("ahead_s", [0, 1, 3600, 10**9])
def test_the_curves_of_a_run_that_goes_on_where_the_clock_is_behind_are_whole(
    ahead_s: int, whole: TrainingResult, half: TrainingResult, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = copied(half, tmp_path)
    (before,) = folder.glob("*tfevents*")
    before.rename(folder / f"{EVENTS}{2 * 10**9 + ahead_s}.{socket.gethostname()}.{os.getpid()}.99999")
    monkeypatch.setattr("time.time", lambda: 2e9)
    resumed = train(small(), tmp_path)
    once, again = (
        [(event.step, event.value) for event in events_of(result.folder).Scalars("train/learning_rate")]
        for result in (whole, resumed)
    )
    assert once == again
    assert events_of(resumed.folder).Scalars("validation/percent")[-1].step == 1024


def test_stable_baselines3s_own_figures_are_those_of_the_last_100_episodes(longer: TrainingResult) -> None:
    events = events_of(longer.folder)
    length, mean = (events.Scalars(f"rollout/{name}")[-1].value for name in ("ep_len_mean", "ep_rew_mean"))
    assert 64.0 <= length <= 64.0 * 8.0  # a step for each job and node
    assert mean <= -1.0  # minus the makespan over the ideal time


def test_a_run_that_is_over_is_not_trained_again(whole: TrainingResult, tmp_path: Path) -> None:
    before = (copied(whole, tmp_path) / BEST).read_bytes()
    again = train(small(), tmp_path)
    assert again.score == whole.score
    assert (again.folder / BEST).read_bytes() == before


def test_what_a_run_has_taken_adds_up_over_its_sessions(whole: TrainingResult, longer: TrainingResult) -> None:
    spent = [TimeSpent(**json.loads((result.folder / SPENT).read_text())) for result in (whole, longer)]
    assert 0.0 < spent[0].wall_s < spent[1].wall_s
    assert 0.0 < spent[0].core_s < spent[1].core_s


def test_one_workload_gives_no_interval() -> None:
    assert Score(1.0, -3.0, math.inf).text == "-3.00 % (one workload, so no interval)"
    assert Score(1.0, -3.0, 0.5).text == "-3.00 % (+- 0.50)"


def test_a_folder_of_another_run_is_refused(whole: TrainingResult, tmp_path: Path) -> None:
    copied(whole, tmp_path)
    with pytest.raises(InputError, match="hyperparameters"):
        train(small(hyperparameters=replace(SMALL, epochs=2)), tmp_path)


def test_a_run_goes_on_with_another_number_of_threads_and_off_the_main_thread(
    whole: TrainingResult, half: TrainingResult, tmp_path: Path
) -> None:
    copied(half, tmp_path)
    with ThreadPoolExecutor(1) as pool:
        resumed = pool.submit(train, small(threads=2), tmp_path).result()
    assert resumed.finished
    assert same(weights(whole.folder / "policy.zip"), weights(resumed.folder / "policy.zip"))
    assert json.loads((resumed.folder / "config.json").read_text())["threads"] == 2


def test_a_damaged_snapshot_is_refused(whole: TrainingResult, tmp_path: Path) -> None:
    (copied(whole, tmp_path) / SNAPSHOT).write_bytes(b"PK\x03\x04 rubbish")
    with pytest.raises(CheckpointError, match="damaged"):
        train(small(2048), tmp_path)


def with_counts(state: NDArray[Any], left: int, following: int) -> NDArray[Any]:
    """Return a state of torch's random numbers with a count left and a next one."""
    state = state.copy()
    state[8:12] = np.array([left], dtype=np.int32).view(np.uint8)
    state[16:24] = np.array([following], dtype=np.uint64).view(np.uint8)
    return state


TAMPERED: list[tuple[str, Callable[[NDArray[Any]], NDArray[Any]]]] = [
    ("state/head", lambda it: it[:1]),  # one number would be given to all rows
    ("state/free", lambda it: it[:, :1]),
    ("state/guess_s", lambda it: it.astype(np.float32)),
    ("state/stops", lambda it: it + 0.5),
    ("state/now_s", lambda it: it * np.nan),
    ("batch/paid_s", lambda it: it - np.inf),
    ("batch/next", lambda it: it.astype(np.float64)),
    ("episode_starts", lambda it: it[:1]),
    ("counters", lambda it: it.astype(np.float64)),
    ("counters", lambda it: np.array([-(2**62), -5])),
    ("numpy/rest", lambda it: it * np.nan),
    ("numpy/rest", lambda it: np.array([2.0**31 - 5.0, 0.0, 0.0])),
    ("numpy/rest", lambda it: np.array([1e300, 0.0, 0.0])),
    ("numpy/rest", lambda it: np.array([-1.0, 0.0, 0.0])),
    ("numpy/rest", lambda it: np.array([625.0, 0.0, 0.0])),
    ("numpy/rest", lambda it: np.array([1.5, 0.0, 0.0])),
    ("numpy/rest", lambda it: np.array([1.0, 2.0, 0.0])),
    ("numpy/keys", lambda it: it.astype(np.float64)),
    ("numpy/keys", lambda it: it[:623]),
    ("torch", lambda it: with_counts(it, 624, 624)),
    ("torch", lambda it: with_counts(it, 2, 624)),
    ("torch", lambda it: with_counts(it, 0, 625)),
    ("torch", lambda it: with_counts(it, 1, 2**63)),
    ("torch", lambda it: with_counts(it, -(2**31), 2**31 + 625)),
    ("torch", lambda it: it[:-8]),
    ("adam/0/step", lambda it: it * np.nan),
    ("adam/0/step", lambda it: it * 0 - 1),
    ("adam/0/step", lambda it: it * 0),
    ("adam/0/exp_avg_sq", lambda it: it * 0 - 1),
    ("adam/0/exp_avg_sq", lambda it: it * 0 + np.float32(3e38)),
    ("adam/0/exp_avg", lambda it: it * 0 + np.float32(3e38)),
    ("batch/paid_s", lambda it: it + 1e60),
    ("adam/0/exp_avg", lambda it: it[:1]),
    ("adam/0/exp_avg_sq", lambda it: it * np.inf),
    ("network/", lambda it: it * np.float32(np.inf)),
]
FAR = np.int32(2**30)
NOT_PLAYED: list[tuple[str, Callable[[NDArray[Any]], NDArray[Any]]]] = [
    ("head", lambda it: it * 0 + FAR),
    ("source_heap", lambda it: it * 0 + FAR),
    ("scenario", lambda it: it * 0 + FAR),
    ("run_place", lambda it: it * 0 + FAR),
    ("guess_s", lambda it: it * 0.0),
    ("guess_s", lambda it: -it),
    ("now_s", lambda it: it + 1e60),
]


def test_a_snapshot_whose_state_could_not_be_run_is_refused_by_its_field(whole: TrainingResult, tmp_path: Path) -> None:
    path = copied(whole, tmp_path) / SNAPSHOT
    with np.load(path) as file:
        sound = dict(file)
    for name, spoil in NOT_PLAYED:
        np.savez(path, allow_pickle=False, **sound | {f"state/{name}": spoil(sound[f"state/{name}"])})
        with pytest.raises(CheckpointError, match=rf"damaged or of another run: state\.{name}\[") as caught:
            train(small(2048), tmp_path)
        assert "\n" not in str(caught.value)


@pytest.mark.full
def test_a_snapshot_whose_arrays_are_not_those_of_the_run_is_refused_by_their_names(
    whole: TrainingResult, tmp_path: Path
) -> None:
    path = copied(whole, tmp_path) / SNAPSHOT
    with np.load(path) as file:
        sound = dict(file)
    for begin, spoil in TAMPERED:
        name = next(it for it in sound if it.startswith(begin))
        with np.errstate(invalid="ignore"):
            spoilt = spoil(sound[name])
        np.savez(path, allow_pickle=False, **sound | {name: spoilt})
        with pytest.raises(CheckpointError, match=f"damaged or of another run: {name} "):
            train(small(2048), tmp_path)


def test_tensorboard_shows_every_documented_name(longer: TrainingResult) -> None:
    assert shown(longer.folder) == documented()


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"preset": "hetero46"}, "did you mean 'hetero64'"),
        ({"preset": "philly"}, "--trace"),
        ({"observation": "patent"}, "--action gpu"),
        ({"algorithm": "dqn"}, "--algo"),
        ({"network": "gnn"}, "--network"),
        ({"reward": "money"}, "--reward"),
        ({"orders": ("lifo",)}, "--order"),
        ({"orders": ("fifo", "easy")}, "--algo group"),
        ({"estimates": "none"}, "--estimates"),
        ({"estimates": "exact"}, "--estimates"),  # of a preset that draws its own jobs
        ({"loads": (0.5,)}, "--load"),
        ({"cluster": Path("c.yaml")}, "--cluster"),
        ({"preset": None, "algorithm": None, "network": None, "action": None, "traces": (Path("no.csv"),)}, "no file"),
        ({"steps": float("inf")}, "--steps"),
        ({"steps": float("nan")}, "--steps"),
    ],
)
def test_what_cannot_be_trained_is_refused_by_its_option(changes: dict[str, object], expected: str) -> None:
    asked: dict[str, object] = {
        "preset": "hetero64", "algorithm": "ppo", "steps": 1e6, "seed": 0, "network": "set", "action": "node",
        "observation": "full", "reward": None, "waiting": False, "threads": 1,
    }  # fmt: skip
    with pytest.raises(InputError, match=expected):
        config_of(**(asked | changes))  # type: ignore[arg-type]


def test_the_order_regime_is_kept_named_and_left_out_where_it_is_the_default() -> None:
    plain, ordered = small(), small(waiting=True, orders=("shortest",), ageing_h=24.0)
    assert (plain.name, plain.regimes) == ("hetero64-ppo-0", (Regime(oracle=True),))
    assert (ordered.name, ordered.regimes) == (
        "hetero64-ppo-wait-shortest-age24h-0",
        (Regime("shortest", 86400.0, waiting=True, oracle=True),),
    )
    assert small(action="candidate", network="candidates", reward="dt").name == "hetero64-ppo-candidate-dt-0"
    assert small(network="mlp").name == "hetero64-ppo-mlp-0"
    assert TrainingConfig.model_validate_json(ordered.model_dump_json()) == ordered


def test_fault_rates_are_estimated_by_default_and_older_runs_know_the_true_ones() -> None:
    asked: dict[str, object] = {
        "preset": "hetero64", "algorithm": "ppo", "steps": 1e6, "seed": 0, "network": "set", "action": "node",
        "observation": "full", "reward": None, "waiting": False, "threads": 1,
    }  # fmt: skip
    plain, known = config_of(**asked), config_of(**asked, oracle=True)  # type: ignore[arg-type]
    assert (plain.regimes, known.regimes) == ((Regime(),), (Regime(oracle=True),))

    kept = plain.model_dump(mode="json")
    assert TrainingConfig.model_validate(kept) == plain
    del kept["oracle"]
    assert TrainingConfig.model_validate(kept) == known


def test_training_and_validation_run_by_the_order_regime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    built: list[Problem] = []
    preset = PRESETS["hetero64"]

    def build(asked: ProblemRequest) -> Problems:
        found = preset.build(asked)
        built.extend((*found.trained, *found.validated))
        return found

    monkeypatch.setitem(PRESETS, "hetero64", replace(preset, build=build))
    train(small(256, orders=("shortest",), ageing_h=24.0), tmp_path)
    assert [(problem.rules.order, problem.rules.ageing_s) for problem in built] == [(ORDERS["shortest"], 86400.0)] * 2


def test_training_draws_share_no_scenario_with_validation() -> None:
    trained = hetero64(64, training_key(0))[1].work_s
    validated = hetero64(64, VALIDATION_SEED)[1].work_s
    assert not np.isin(trained, validated).any()


def test_a_validation_takes_the_best_rival_of_the_same_actions() -> None:
    from longshore.cluster.presets.problems import hetero64_problem
    from longshore.training.validation import Validation

    assert Validation(hetero64_problem(64, 3, Regime())).best in {"eft", "eft-hazard"}
    assert Validation(hetero64_problem(64, 3, Regime(waiting=True))).best == "patient"
