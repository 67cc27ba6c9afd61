"""Learning from groups of runs that are measured against each other."""

import itertools
import math
import signal
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays

from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.networks.candidates import CandidateNetwork, CandidatePolicy
from longshore.agents.networks.sampled_runs import SampledRuns
from longshore.cluster.files.errors import CheckpointError
from longshore.cluster.model.outcome import Objective, objective_of
from longshore.cluster.model.problem import ORDERS, Problem
from longshore.cluster.presets.drawn import hetero64
from longshore.envs.features import CANDIDATE_FEATURE_COUNT, CANDIDATE_GLOBAL_COUNT
from longshore.training import run
from longshore.training.group import CollectedRuns, Decisions, GroupLearner, decisions_of, group_advantages
from longshore.training.problems import GroupParameters, Sizes
from longshore.training.run import TrainingResult
from longshore.training.run_folder import Progress, RunFolder
from longshore.training.snapshot import SNAPSHOT
from longshore.training.validation import Validation
from tests.envs.random_run import small_problem
from tests.support.budgets import examples
from tests.training import known_optimum
from tests.training.groups import SCHEMA, config, learner_of
from tests.training.known_optimum import makespans_s

train = partial(run.train, sizes=Sizes(64, 16))


@pytest.fixture(autouse=True)
def single_threaded() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


def test_an_advantage_is_what_a_run_does_better_than_the_mean_of_the_others() -> None:
    # In the first group the others take 12, 10 and 8 s on average: 4, 0 and -4 s better; in the second all are alike.
    got = group_advantages(np.array([[8.0, 10.0, 12.0], [5.0, 5.0, 5.0]]))
    spread = np.sqrt((9.0 + 9.0) / 6.0)
    assert got == pytest.approx(np.array([[3.0, 0.0, -3.0], [0.0, 0.0, 0.0]]) / spread)
    alike = np.repeat([[0.1], [0.7], [1.0]], 3, axis=1)  # by rounding, the means are others
    assert (group_advantages(alike) == 0.0).all()


COSTS = arrays.arrays(
    np.float64, st.tuples(st.integers(1, 6), st.integers(2, 8)), elements=st.integers(1, 10**6).map(float)
)


@given(COSTS, st.floats(0.1, 10.0), st.floats(-1e3, 1e3))
def test_advantages_have_mean_nothing_and_depend_on_no_unit(costs: np.ndarray, scale: float, shift: float) -> None:
    got = group_advantages(costs)
    assert np.abs(got.mean(axis=1)).max() < 1e-6
    if np.ptp(costs, axis=1).max() > 0.0:
        assert got.std() == pytest.approx(1.0)
        assert group_advantages(costs * scale + shift) == pytest.approx(got, abs=1e-4)


def log_probabilities(network: CandidateNetwork, record: SampledRuns, at: int) -> torch.Tensor:
    """Return those of the candidates of one decision, without any room for others."""
    candidates = int(record.candidates[at])
    observations = torch.from_numpy(
        record.observations[at : at + 1, : CANDIDATE_GLOBAL_COUNT + candidates * CANDIDATE_FEATURE_COUNT]
    )
    logits: torch.Tensor = network(observations)[0][0]
    return logits.log_softmax(0)


def collected(learner: GroupLearner) -> SampledRuns:
    runs = learner.parameters.groups * learner.parameters.runs
    return learner.collector.collect(learner.network, np.arange(runs) // learner.parameters.runs, 11).record


def first(record: SampledRuns) -> Decisions:
    """Return the first 16 decisions, without advantages."""
    decisions = decisions_of(record, np.zeros(record.row.size))
    return Decisions(*(tensor[:16] for tensor in decisions))


@pytest.mark.full
def test_sampled_candidates_follow_the_networks_probabilities(tmp_path: Path) -> None:
    learner = learner_of(tmp_path, small_problem(8, waiting=True), config(1, group=GroupParameters(groups=8, runs=32)))
    with torch.no_grad():
        learner.network.score.weight *= 100.0  # far from uniform
    record = collected(learner)
    surplus, variance = 0.0, 0.0
    for at in range(record.size[0]):
        with torch.no_grad():
            predicted_gains = log_probabilities(learner.network, record, at).numpy()
        assert record.log_probability[at] == pytest.approx(predicted_gains[record.chosen[at]], rel=1e-4, abs=1e-4)
        first = float(np.exp(predicted_gains[0]))
        surplus += (record.chosen[at] == 0) - first
        variance += first * (1.0 - first)
    assert record.size[0] > 2000
    assert abs(surplus) < 4.0 * np.sqrt(variance)


def test_the_gradient_is_that_of_reinforce_where_the_network_is_the_one_that_run(tmp_path: Path) -> None:
    parameters = GroupParameters(groups=2, runs=2, group_entropy=0.0)
    learner = learner_of(tmp_path, small_problem(waiting=True), config(1, group=parameters))
    record = collected(learner)
    rows = list(range(16))
    gains = torch.linspace(-2.0, 1.0, 16)
    policy = [tensor for name, tensor in learner.network.named_parameters() if not name.startswith("value")]
    loss = learner._loss(first(record)._replace(gain=gains))
    got = torch.autograd.grad(loss, policy)
    chosen = [log_probabilities(learner.network, record, at)[record.chosen[at]] for at in rows]
    expected = torch.autograd.grad(-(torch.stack(chosen) * gains).sum(), policy)
    for one, other in zip(got, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-5)


def test_entropy_is_paid_for_each_decision(tmp_path: Path) -> None:
    learner = learner_of(tmp_path, small_problem(), config(1, group=GroupParameters(groups=2, runs=2)))
    record = collected(learner)
    decisions = first(record)
    loss = learner._policy_loss(learner.network(decisions.observations)[0], decisions).item()
    predicted_gains = [log_probabilities(learner.network, record, at).detach() for at in range(16)]
    entropy = -sum(float((one.exp() * one).sum()) for one in predicted_gains)
    assert loss == pytest.approx(-learner.parameters.group_entropy * entropy, rel=1e-4)


def weights(path: Path) -> dict[str, np.ndarray]:
    return {name: tensor.numpy() for name, tensor in load_policy(path).network.state_dict().items()}


def same(one: dict[str, np.ndarray], other: dict[str, np.ndarray]) -> bool:
    return all((one[name] == other[name]).all() for name in one)


def gains_of(folder: Path, problem: Problem, horizon: float) -> tuple[np.ndarray, CollectedRuns]:
    parameters = GroupParameters(groups=2, runs=4, group_horizon=horizon)
    learner = learner_of(folder, problem, config(1, group=parameters))
    found = learner.collector.collect(learner.network, np.repeat(np.arange(2), 4), 11)
    return learner._advantages(found), found


def test_with_all_later_time_the_first_decision_of_a_run_is_credited_with_all_of_it(tmp_path: Path) -> None:
    problem = hetero64(8, 5, jobs=16, load=0.85)
    gains, found = gains_of(tmp_path, problem, math.inf)
    firsts = np.unique(found.record.row, return_index=True)[1]
    jct = found.figures.mean_jct_s.reshape(2, 4)
    better = ((jct.mean(axis=1, keepdims=True) - jct) / jct.mean(axis=1, keepdims=True)).reshape(-1)
    assert np.ptp(better) > 0.0
    assert np.corrcoef(gains[firsts], better)[0, 1] == pytest.approx(1.0)


def test_all_decisions_of_a_batch_share_in_its_makespan(tmp_path: Path) -> None:
    gains, found = gains_of(tmp_path / "horizon", small_problem(), 4.0)
    whole, _ = gains_of(tmp_path / "whole", small_problem(), 0.0)
    assert (gains == whole).all()
    assert all(np.ptp(gains[found.record.row == run]) == 0.0 for run in range(8))


@pytest.mark.full
def test_the_same_seed_gives_the_same_weights_whatever_the_number_of_threads(tmp_path: Path) -> None:
    runs = {name: train(config(2500, **changes), tmp_path / name) for name, changes in {
        "one": {}, "two": {"threads": 2}, "other": {"seed": 1}}.items()}  # fmt: skip
    kept = {name: weights(run.folder / "policy.zip") for name, run in runs.items()}
    assert same(kept["one"], kept["two"])
    assert runs["one"].score == runs["two"].score
    assert not same(kept["one"], kept["other"])


HALVES = Sizes(64, 16, validations=2)


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> TrainingResult:
    return run.train(config(4500), tmp_path_factory.mktemp("whole"), sizes=HALVES)


@pytest.mark.few(1)
@pytest.mark.parametrize("least", [1, 2500])  # before and after the first validation
def test_a_run_that_was_interrupted_ends_as_if_it_had_not_been(
    least: int, whole: TrainingResult, tmp_path: Path
) -> None:
    train = partial(run.train, sizes=HALVES)
    pressed: list[int] = []

    def interrupt(progress: Progress) -> None:
        if progress.steps >= least and not pressed:
            pressed.append(progress.steps)
            signal.raise_signal(signal.SIGINT)

    stopped = train(config(4500), tmp_path / "parts", interrupt)
    assert not stopped.finished
    with np.load(stopped.folder / SNAPSHOT) as kept:
        assert kept["steps"].tolist() == pressed, "the update before the stop is lost"
    resumed = train(config(4500), tmp_path / "parts")
    assert resumed.finished
    assert same(weights(whole.folder / "policy.zip"), weights(resumed.folder / "policy.zip"))
    assert (whole.folder / "best.zip").read_bytes() == (resumed.folder / "best.zip").read_bytes()


@pytest.mark.parametrize(("word", "value"), [(2, 2), (2, 0), (4, 2), (5, 2**32)])
def test_random_numbers_that_no_generator_has_are_refused(word: int, value: int, tmp_path: Path) -> None:
    learner = learner_of(tmp_path, small_problem(waiting=True), config(1000))
    learner.save()
    path = tmp_path / SNAPSHOT
    with np.load(path) as file:
        kept = dict(file)
    learner.load()
    kept["rng"][word] = value
    np.savez(path, allow_pickle=False, **kept)
    with pytest.raises(CheckpointError, match="damaged or of another run: rng has increment"):
        learner.load()


@settings(max_examples=examples(20))
@given(st.integers(0, 2**64), st.integers(0, 50))
def test_random_numbers_of_any_generator_go_on_the_same(seed: int, drawn: int) -> None:
    with TemporaryDirectory() as folder:
        learner = learner_of(Path(folder), small_problem(waiting=True), config(1000))
        learner.rng = np.random.default_rng(seed)
        learner.rng.integers(0, 2**32, drawn, dtype=np.uint32)  # leaves half a word where they are odd
        learner.save()
        expected = learner.rng.permutation(1000)
        learner.rng = np.random.default_rng(0)
        learner.load()
    assert np.array_equal(learner.rng.permutation(1000), expected)


@pytest.mark.parametrize("steps", [1, 400])
def test_its_rate_falls_from_its_start_and_never_below_0(steps: int, tmp_path: Path) -> None:
    learner, rates = learner_of(tmp_path, small_problem(waiting=True), config(steps)), list[float]()
    while learner.steps < steps:  # as a run does
        learner.update()
        rates.append(float(learner.optimizer.param_groups[0]["lr"]))
    assert rates[0] == learner.parameters.group_learning_rate
    assert all(0.0 < after < before for before, after in itertools.pairwise(rates))


def test_it_learns_within_twenty_updates_what_no_greedy_rule_finds(tmp_path: Path) -> None:
    problem = known_optimum.problem()  # the optimum is 8 s everywhere, and heuristics are over 20 % above it
    parameters = GroupParameters(groups=32, runs=16, group_minibatch=256, group_learning_rate=3e-3)
    learner = learner_of(tmp_path, problem, config(35_000, group=parameters))
    for _ in range(20):
        learner.update()
    assert makespans_s(problem, CandidatePolicy("learned", SCHEMA, learner.network)).mean() < 8.0 * 1.01


def stream_problem() -> Problem:
    cluster, scenarios, process, rules = hetero64(4, 7, nodes=4, jobs=16, load=0.9)
    return Problem(cluster, scenarios, process, rules._replace(waiting=True, order=ORDERS["easy"]))


@pytest.mark.parametrize("objective", get_args(Objective))
def test_the_value_is_taught_what_was_still_to_come_in_mean_estimates(objective: Objective, tmp_path: Path) -> None:
    problem = stream_problem() if objective == "jct" else small_problem(4, waiting=True)
    assert objective_of(problem.scenarios.submit_s) == objective
    learner = learner_of(tmp_path, problem, config(1, group=GroupParameters(groups=4, runs=2)))
    record = collected(learner)
    finish_s = np.concatenate([sim.state.finish_s for _, sim, _, _ in learner.collector.shards])  # by run
    for at in range(0, record.size[0], 7):
        run, now_s = record.row[at], record.now_s[at]
        known = problem.scenarios.submit_s[run // 2] <= now_s
        unit_s = problem.scenarios.estimate_s[run // 2, known].mean()
        left_s = finish_s[run] - now_s
        expected_s = left_s.max() if objective == "makespan" else left_s[known & (left_s > 0.0)].mean()
        assert record.to_go[at] == pytest.approx(expected_s / unit_s)


def learned_sides(folder: Path) -> tuple[list[torch.Tensor], list[torch.Tensor]]:
    """Return the weights of a policy and those of its value after two updates."""
    learner = learner_of(folder, small_problem(waiting=True), config(10_000))
    for _ in range(2):
        learner.update()
    sides: tuple[list[torch.Tensor], list[torch.Tensor]] = ([], [])
    for network in (learner.network, learner.average):
        for name, tensor in network.named_parameters():
            sides[name.startswith("value")].append(tensor)
    return sides


def test_what_the_value_learns_changes_no_bit_of_the_policy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    policy, value = learned_sides(tmp_path / "on")
    monkeypatch.setattr("longshore.training.group.value_loss", lambda values, to_go: 0.0 * values.sum())
    alone, idle = learned_sides(tmp_path / "off")
    assert all(torch.equal(one, other) for one, other in zip(policy, alone, strict=True))
    assert not any(torch.equal(one, other) for one, other in zip(value, idle, strict=True))


@pytest.mark.full
def test_the_value_learns_what_is_still_to_come(tmp_path: Path) -> None:
    parameters = GroupParameters(groups=8, runs=4, group_minibatch=32)
    learner = learner_of(tmp_path, small_problem(waiting=True, faults=0.0), config(12_000, group=parameters))
    for _ in range(12):
        learner.update()
    decisions = decisions_of(record := collected(learner), np.zeros(record.row.size))
    off = (learner.average.values(decisions.observations) - decisions.to_go).detach().numpy()
    assert np.sqrt((off**2).mean()) < 0.3 * record.to_go.std()


def test_a_checkpoint_has_the_objective_of_its_value(tmp_path: Path) -> None:
    best = train(config(10), tmp_path).best
    assert load_policy(best).schema.time_to_go == "makespan"


def test_runs_of_several_problems_are_learned_from_alike_whatever_the_threads(tmp_path: Path) -> None:
    problems = [small_problem(8, waiting=True), stream_problem(), stream_problem()]
    learned = []
    for threads in (1, 3):
        own = config(10**6, threads=threads, group=GroupParameters(groups=7, runs=4, group_tail=0.2))
        folder = RunFolder(tmp_path / str(threads), SCHEMA, Validation(*problems), own, lambda progress: None)
        learner = GroupLearner(problems, folder)
        assert sorted(learner.groups) == [2, 2, 3]
        learner.update()
        learner.update()
        learned.append([tensor.detach().clone() for tensor in learner.network.parameters()])
    assert all(torch.equal(one, other) for one, other in zip(*learned, strict=True))
