"""Distillation: the network learns the labels of rollouts."""

import signal
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from longshore.agents.heuristics import HEURISTICS, Heuristic
from longshore.agents.learned.checkpoint import load_policy, save_policy, schema_of, untrained_network
from longshore.agents.learned.schema import Schema
from longshore.agents.networks.candidates import (
    TEMPERATURE,
    CandidateNetwork,
    CandidatePolicy,
    cost_so_far_s,
    objective_unit_s,
)
from longshore.agents.rollouts import NO_HORIZON, Rollout, Search
from longshore.cluster.candidates.candidates import list_candidates
from longshore.cluster.candidates.futures import FUTURE, PRESENT, copy_row, draw_future, imagination_of, set_present
from longshore.cluster.files.errors import CheckpointError, InputError
from longshore.cluster.model.outcome import Objective
from longshore.cluster.model.problem import Problem
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.simulator.engine import reset
from longshore.cluster.simulator.simulation import simulation_of
from longshore.cluster.state.state import Simulation
from longshore.training import run
from longshore.training.config import TrainingConfig, config_of
from longshore.training.distil import (
    DistilLearner,
    Labels,
    LabelTask,
    _held_out_quality,
    _LabelTensors,
    distil_loss,
    label_decision,
    label_run,
    label_runs,
    label_workers,
    noise_weight,
)
from longshore.training.problems import DistilParameters, GroupParameters, Sizes
from longshore.training.run import TrainingResult, initial_candidate_network
from longshore.training.run_folder import Progress, RunFolder
from longshore.training.validation import Validation
from tests.cases_by_hand import hand_case
from tests.compiled_runs import at_first_decision
from tests.envs.random_run import small_problem
from tests.plain_run import busy_case
from tests.policies_under_test import untrained_candidates
from tests.training import known_optimum
from tests.training.known_optimum import makespans_s
from tests.training.tensorboard_names import documented, shown

TINY = DistilParameters(rounds=2, distil_first=0.5, futures=2, distil_block=2, distil_epochs=3, distil_minibatch=32)
train = partial(run.train, sizes=Sizes(32, 8))
PATIENT = HEURISTICS["patient"]


def schema(algorithm: str = "distil", *, waiting: bool = True) -> Schema:
    return schema_of(
        algorithm=algorithm, network="candidates", action="candidate", observation="full", waiting=waiting,
        node_gpus=(8,) * 8, time_to_go="makespan",
    )  # fmt: skip


def config(steps: int, **changes: object) -> TrainingConfig:
    asked = TrainingConfig(
        preset="hetero64", algorithm="distil", steps=steps, seed=0, network="candidates", action="candidate",
        reward="dt",
        waiting=True, distil=TINY, threads=1,
    )  # fmt: skip
    return asked.model_copy(update=changes)


@pytest.fixture(autouse=True)
def single_threaded() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def learner_of(folder: Path, problem: Problem, asked: TrainingConfig) -> DistilLearner:
    run_folder = RunFolder(
        folder, schema(waiting=problem.rules.waiting), Validation(problem), asked, lambda progress: None
    )
    return DistilLearner(problem, run_folder)


class Noted:
    """A base that counts the decisions that it takes outside of imagined futures."""

    waits, about, name = True, "", "noted"

    def __init__(self, base: Heuristic) -> None:
        self.base, self.placed = base, 0

    def place(self, sim: Simulation, row: int) -> bool:
        self.placed += 1
        return self.base.place(sim, row)

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        self.base.run(sim, scenarios)

    def run_on(self, sim: Simulation, row: int) -> None:
        self.base.run_on(sim, row)


@pytest.mark.parametrize(
    ("objective", "gain", "to_go"),
    [("makespan", 12.0 / 12.0, 20.0 / 12.0), ("jct", 9.6 / 12.0 / 2.0, (1.6 + 20.0) / 12.0 / 2.0)],
)
def test_a_label_is_what_the_better_candidate_gains_in_mean_estimates(
    objective: Objective, gain: float, to_go: float
) -> None:
    # On the fast node the first job takes 1.6 s and drives the second to the slow one for 20 s; on the slow one it
    # takes 4 s, and the second 8 s on the fast one. The mean estimate is 12 s, and two jobs are in the system.
    case = hand_case(grid_cluster(2, 2, speed=np.array([1.0, 2.5])), [(1, 4.0, 0.0), (2, 20.0, 0.0)])
    sim = at_first_decision(case)
    predicted_gains = label_decision(Rollout(HEURISTICS["eft-hazard"], Search(futures=2), objective), sim, 0)
    assert predicted_gains.gain == pytest.approx([0.0, gain])
    assert predicted_gains.variance == 0.0
    assert predicted_gains.to_go == pytest.approx(to_go)


def test_a_label_is_the_mean_of_paired_gains_with_one_variance_for_all_candidates() -> None:
    sim = at_first_decision(busy_case(ring=True))
    rollout = Rollout(PATIENT, Search(futures=6), "makespan", seed=5)
    gains, variance, _ = label_decision(rollout, sim, 0)
    paired = rollout.gains(sim, 0)
    unit_s = sim.state.estimates_s[0] / sim.state.submitted[0]
    paired = (paired - paired[:, :1]) / unit_s
    each = ((paired - paired.mean(axis=0)) ** 2).sum(axis=0) / 5.0
    assert gains == pytest.approx(paired.mean(axis=0))
    assert variance == pytest.approx(each[1:].mean() / 6.0)
    assert variance > 0.0


@pytest.mark.parametrize("objective", get_args(Objective))
def test_what_is_still_to_come_is_that_of_the_bases_own_choice_from_the_decision_on(objective: Objective) -> None:
    problem, base = small_problem(waiting=True, faults=4.0), untrained_candidates(waiting=True)
    sim = simulation_of(problem)
    reset(sim, 0, 2)
    assert base.run_for(sim, 0, 5, NO_HORIZON)[0]
    while list_candidates(sim, 0) == 1:
        assert base.run_for(sim, 0, 1, NO_HORIZON)[0]
    rollout = Rollout(base, Search(futures=3), objective)
    imagined = imagination_of(sim)
    set_present(imagined, sim, 0)
    left_s = []
    for future in range(3):
        copy_row(imagined, PRESENT, FUTURE)
        draw_future(imagined, rollout._future_seed(sim, 0, future))
        base.run_on(imagined, FUTURE)
        left_s.append(cost_so_far_s(imagined, FUTURE, objective) - cost_so_far_s(sim, 0, objective))
    assert label_decision(rollout, sim, 0).to_go == pytest.approx(np.mean(left_s) / objective_unit_s(sim, 0, objective))


def test_a_label_weighs_as_much_as_noise_and_prior_leave_of_it() -> None:
    parameters = DistilParameters(distil_prior=0.5)
    got = noise_weight(torch.tensor([0.0, 0.5, 1.0]), parameters)
    assert got.tolist() == pytest.approx([1.0, 0.5, 0.2])  # 0.25 / (error^2 + 0.25)


def test_the_loss_is_the_weighed_regression_and_the_expected_cost_of_candidates_that_were_tried() -> None:
    parameters = DistilParameters(distil_prior=0.5, distil_temperature=2.0)
    logits = torch.tensor([[3.0, 1.0, 4.0, 99.0]])  # so -2 and 1 are predicted, and the last has no label
    gain, error = torch.tensor([[0.0, -1.0, 2.0, 0.0]]), torch.tensor([[0.0, 0.5, 0.0, 0.0]])
    regression, cost = distil_loss(logits, torch.tensor([3]), gain, error, parameters)
    assert regression.item() == pytest.approx(0.5 * (0.5 * (1.0 / 0.5) ** 2 + 1.0 * (1.0 / 0.5) ** 2))
    shares = np.exp(np.array([0.0, -2.0, 1.0]) / 2.0)
    shares /= shares.sum()
    assert cost.item() == pytest.approx(-(shares[1] * -1.0 + shares[2] * 2.0) / 2.0)


def test_what_is_judged_is_relative_to_the_chosen_candidate() -> None:
    # The second candidate is chosen; the others are predicted to gain 0.2 and 0.1 less, and gain 0.3 and 0.2 less.
    predicted_gains = torch.tensor([[0.1, 0.3, 0.2]])
    tasks = _LabelTensors(
        observations=torch.zeros(1, 1), listed=torch.tensor([3]), tried=torch.tensor([3]),
        gain=torch.tensor([[0.0, 0.3, 0.1]]), error=torch.tensor([[0.0, 0.05, 0.05]]), to_go=torch.tensor([2.0]),
    )  # fmt: skip
    regret, value_error, spread = _held_out_quality(lambda observations: (predicted_gains, torch.tensor([1.5])), tasks)  # type: ignore[arg-type]
    assert regret == pytest.approx(0.0)
    assert value_error == pytest.approx(0.5)
    assert spread == pytest.approx((2 * 0.1**2 - 2 * 0.05**2) / (0.2 + 0.1))
    worse = tasks._replace(gain=torch.tensor([[0.0, 0.3, 0.4]]))
    regret, *_ = _held_out_quality(lambda observations: (predicted_gains, torch.tensor([1.5])), worse)  # type: ignore[arg-type]
    assert regret == pytest.approx(0.1)


def test_the_share_of_tasks_that_the_teachers_base_runs_itself_is_as_requested() -> None:
    problem, tasks = small_problem(waiting=True), [LabelTask(number % 8, number, 0.0) for number in range(64)]
    for own in (0.0, 0.75, 1.0):
        teacher, other = Noted(PATIENT), Noted(PATIENT)
        with ThreadPoolExecutor(1) as pool:
            label_runs(tasks, label_workers(problem, "makespan", Search(), [teacher], other), own, pool)
        assert teacher.placed / (teacher.placed + other.placed) == pytest.approx(own, abs=0.1)


def test_states_of_later_rounds_are_those_that_the_network_leads_to(tmp_path: Path) -> None:
    problem = small_problem(waiting=True)
    everything = DistilParameters(
        rounds=2, futures=2, distil_share=1.0, distil_own=1.0, distil_block=4, distil_epochs=1
    )
    learner = learner_of(tmp_path, problem, config(10_000, distil=everything))
    learner.collect_labels()
    assert isinstance(learner._workers[0].teacher.base, Heuristic)
    assert learner._workers[0].teacher.search == Search(2, 15)
    learner.fit()
    with torch.no_grad():
        learner.network.score.weight *= -1.0  # now it certainly leads elsewhere
    learner.collect_labels()
    assert learner._workers[0].teacher.search == Search(2, 15, horizon=everything.distil_horizon)
    sim = learner._workers[0].sim
    policy = CandidatePolicy("own", schema(), learner.network)
    rollout = Rollout(policy, Search(2, 15), "makespan")
    tasks = [learner._label_task(number) for number in range(4, 8)]
    visited = np.concatenate([label_run(rollout, policy, sim, task).observations for task in tasks])
    by_heuristic = np.concatenate([label_run(rollout, PATIENT, sim, task).observations for task in tasks])
    assert (learner._labels[-1].observations == visited).all()
    assert visited.shape != by_heuristic.shape or (visited != by_heuristic).any()


def same_labels(one: Labels, other: Labels) -> bool:
    return all((mine == theirs).all() for mine, theirs in zip(one, other, strict=True))


def test_labels_depend_on_the_seed_of_a_task_and_not_on_those_before() -> None:
    worker = label_workers(small_problem(waiting=True, faults=20.0), "makespan", Search(2), [PATIENT], PATIENT)[0]
    tasks = [LabelTask(3, 7, 0.5), LabelTask(1, 2, 0.5), LabelTask(3, 8, 0.5), LabelTask(3, 7, 0.5)]
    first, _, other, again = (label_run(worker.teacher, worker.others, worker.sim, task) for task in tasks)
    assert first.tried.size > 2
    assert same_labels(first, again)
    assert first.gain.shape != other.gain.shape or (first.gain != other.gain).any()


def weights(path: Path) -> dict[str, NDArray[np.float32]]:
    return {name: tensor.numpy() for name, tensor in load_policy(path).network.state_dict().items()}


def same(one: dict[str, NDArray[np.float32]], other: dict[str, NDArray[np.float32]]) -> bool:
    return all((one[name] == other[name]).all() for name in one)


@pytest.mark.full
def test_the_same_seed_gives_the_same_weights_whatever_the_number_of_threads(
    whole: TrainingResult, tmp_path: Path
) -> None:
    runs = {"one": whole, "two": train(config(80, threads=2), tmp_path / "two"),
            "other": train(config(80, seed=1), tmp_path / "other")}  # fmt: skip
    kept = {name: weights(run.folder / "policy.zip") for name, run in runs.items()}
    assert same(kept["one"], kept["two"])
    assert runs["one"].score == runs["two"].score
    assert not same(kept["one"], kept["other"])


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    return train(config(80), tmp_path_factory.mktemp("whole"))


@pytest.mark.few(1)
@pytest.mark.parametrize("least", [1, 40])  # within the first round and within the second
def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(
    least: int, whole: TrainingResult, tmp_path: Path
) -> None:
    pressed: list[int] = []

    def interrupt(progress: Progress) -> None:
        if progress.steps >= least and not pressed:
            pressed.append(progress.steps)
            signal.raise_signal(signal.SIGINT)

    stopped = train(config(80), tmp_path / "parts", interrupt)
    assert not stopped.finished
    resumed = train(config(80), tmp_path / "parts")
    assert resumed.finished
    for name in ("policy.zip", "best.zip"):
        assert same(weights(whole.folder / name), weights(resumed.folder / name))


@pytest.mark.parametrize("algorithm", ["distil", "group"])
def test_tensorboard_shows_every_name_that_is_documented_for_the_algorithm(algorithm: str, tmp_path: Path) -> None:
    asked = config(40, algorithm=algorithm, group=GroupParameters(groups=4, runs=4, group_minibatch=256))
    folder = train(asked, tmp_path).folder
    assert shown(folder, f"{algorithm}/") == documented(algorithm) != set()
    assert shown(folder, "train/") == set()


def test_a_run_that_lost_labels_is_refused(tmp_path: Path) -> None:
    folder = train(config(40), tmp_path).folder
    (folder / "labels" / "00000.npz").unlink()
    with pytest.raises(CheckpointError, match=r"00000\.npz is damaged or of another run"):
        train(config(80), tmp_path)


@pytest.mark.full
def test_labels_that_are_not_as_tasks_leave_them_are_refused_by_their_names(tmp_path: Path) -> None:
    folder = train(config(30), tmp_path).folder
    path = folder / "labels" / "00000.npz"
    with np.load(path) as file:
        sound = dict(file)
    assert sound.keys() == set(Labels._fields)
    for name, array in sound.items():
        spoiled = [array[:-1], array.astype(np.complex64), np.zeros((), dtype=array.dtype), array[..., None]]
        if array.dtype.kind == "f":
            spoiled += [array * np.float32(np.nan), array + np.float32(np.inf)]
        else:
            spoiled += [array * 0 - 1, array * 0 + np.int32(2**30)]
        for wrong in spoiled:
            np.savez(path, allow_pickle=False, **sound | {name: wrong})
            with pytest.raises(CheckpointError, match=r"00000\.npz is damaged or of another run: "):
                train(config(200), tmp_path)
        np.savez(path, allow_pickle=False, **{other: sound[other] for other in sound if other != name})
        with pytest.raises(CheckpointError, match=r"00000\.npz is damaged or of another run: "):
            train(config(200), tmp_path)
    np.savez(path, allow_pickle=False, **{name: array[1:] for name, array in sound.items()})
    with pytest.raises(CheckpointError, match="decisions, the snapshot"):
        train(config(200), tmp_path)


@pytest.mark.full
def test_it_learns_from_rollouts_what_its_teacher_misses(tmp_path: Path) -> None:
    problem = known_optimum.problem()  # the optimum is 8 s everywhere, and the teacher takes 20 s
    parameters = DistilParameters(
        rounds=2, distil_first=0.5, futures=2, distil_share=1.0, distil_epochs=12, distil_minibatch=32
    )
    asked = config(200, waiting=False, distil=parameters)
    learner = learner_of(tmp_path, problem, asked)
    while learner.steps < asked.steps:
        learner.collect_labels()
        if learner.steps >= learner.steps_at_round_end:
            network = learner.fit()
    assert learner.fits == 2
    learned = makespans_s(problem, CandidatePolicy("learned", schema(waiting=False), network)).mean()
    assert learned < 0.7 * makespans_s(problem, HEURISTICS["eft-hazard"]).mean()


def test_what_the_value_learns_changes_no_bit_of_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    learned = []
    for folder in ("on", "off"):
        learner = learner_of(tmp_path / folder, small_problem(waiting=True), config(10_000))
        learner.collect_labels()
        learner.fit()
        learned.append(learner.network.state_dict())
        monkeypatch.setattr("longshore.training.distil.value_loss", lambda values, to_go: 0.0 * values.sum())
    for name, tensor in learned[0].items():
        assert torch.equal(tensor, learned[1][name]) == (not name.startswith("value")), name


@pytest.mark.full
def test_a_group_begins_with_the_weights_of_a_checkpoint(tmp_path: Path) -> None:
    network = CandidateNetwork(learner_of(tmp_path, small_problem(waiting=True), config(1)).network.layout)
    path = tmp_path / "taught.zip"
    for algorithm, factor in (("group", 1.0), ("distil", 1.0 / TEMPERATURE)):
        save_policy(path, schema(algorithm), network)
        begun = initial_candidate_network(config(1, algorithm="group", init=str(path)), load_policy(path))
        observation = torch.rand(3, network.layout.globals + 16 * network.layout.features)
        torch.testing.assert_close(begun(observation)[0], network(observation)[0] * factor)
        assert torch.equal(begun(observation)[1], network(observation)[1]), "the value is another"
    tiny = GroupParameters(groups=4, runs=4, group_minibatch=256)
    folder = train(config(10, algorithm="group", init=str(path), group=tiny), tmp_path).folder
    assert folder.name == "hetero64-group-init-wait-0"


def test_a_checkpoint_that_does_not_fit_is_refused_before_anything_is_written(tmp_path: Path) -> None:
    other = schema_of(
        algorithm="ppo", network="set", action="node", observation="full", waiting=False, node_gpus=(8,) * 8
    )
    path = tmp_path / "nodes.zip"
    save_policy(path, other, untrained_network(other))
    with pytest.raises(InputError, match=r"--init: .*network set for node actions"):
        train(config(10, init=str(path)), tmp_path / "runs")
    with pytest.raises(CheckpointError, match="there is no such checkpoint"):
        train(config(10, init=str(tmp_path / "none.zip")), tmp_path / "runs")
    assert not (tmp_path / "runs").exists()


def test_learners_of_candidates_take_a_beginning() -> None:
    asked = {"preset": "hetero64", "steps": None, "seed": 0, "network": None, "action": None, "observation": None,
             "reward": None, "waiting": False, "threads": 1, "init": Path("x.zip")}  # fmt: skip
    for algorithm, steps in (("group", 2_000_000), ("distil", 175_000)):
        got = config_of(algorithm=algorithm, **asked)  # type: ignore[arg-type]
        assert (got.steps, got.action, got.network, got.init) == (steps, "candidate", "candidates", "x.zip")
