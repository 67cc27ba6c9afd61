"""Learning from the past of a live scheduler: what is rebuilt of it, and what is learned from what was done."""

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from longshore.agents.learned.checkpoint import load_policy, save_policy, untrained_network
from longshore.agents.networks.candidates import CandidateNetwork
from longshore.cluster.files.errors import InputError
from longshore.cluster.model.problem import ORDERS, fault_sources, stack
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.model.workload import workload_of
from longshore.cluster.presets.problems import Regime
from longshore.cluster.simulator.simulation import simulation_of
from longshore.cluster.state.border import checked_scenarios
from longshore.envs.features import time_unit_s
from longshore.scheduler.mirror.cluster_mirror import ROW, ClusterMirror
from longshore.scheduler.mirror.journal import decode_record
from longshore.scheduler.placement.replay import read_decisions
from longshore.testing.twin import id_of
from longshore.training.config import TrainingConfig, config_of
from longshore.training.group import (
    LiveDecisions,
    draw_live_decisions,
    effective_sample_share,
    observed_time_to_go,
    read_live_decisions,
)
from longshore.training.history import ClusterPast, read_history
from longshore.training.problems import (
    GroupParameters,
    Hyperparameters,
    ProblemRequest,
    Sizes,
    fault_rates_per_s,
    history_problems,
    later_problem,
    with_ranks,
)
from longshore.training.run import read_initial, train
from tests.command_line import Command
from tests.scheduler.twin_run import learning, learning_case
from tests.training.recorded_history import RecordedHistory, record_history
from tests.training.smaller import with_few_draws
from tests.training.tensorboard_names import documented, shown

JOBS = 150


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedHistory:
    """A cluster with faults, whose scheduler draws what a network of random weights holds probable."""
    return record_history(learning_case(jobs=JOBS), tmp_path_factory.mktemp("recorded"))


def test_jobs_are_rebuilt_with_the_work_that_they_had(recorded: RecordedHistory) -> None:
    workload = read_history(recorded.file).workload
    truth = recorded.twin.backend.sim.scenarios
    jobs = [int(job) for job in workload.ids]
    assert workload.jobs >= JOBS - 5  # the last end after the last decision
    assert workload.submit_s == pytest.approx(truth.submit_s[0, jobs] - truth.submit_s[0, jobs].min(), abs=1e-6)
    assert (workload.gpus == truth.gpus[0, jobs]).all()
    assert workload.estimate_s == pytest.approx(truth.estimate_s[0, jobs])
    assert recorded.twin.backend.sim.state.stops[0].sum() > 0  # also that of jobs which faults have stopped
    assert workload.work_s == pytest.approx(truth.work_s[0, jobs], rel=1e-6)


def test_jobs_are_rebuilt_also_where_schedulers_took_over_from_each_other(tmp_path: Path) -> None:
    history, truth = read_history(learning(tmp_path)), learning_case(jobs=60).scenarios
    jobs = [int(job) for job in history.workload.ids]
    assert len(jobs) > 50
    assert history.workload.work_s == pytest.approx(truth.work_s[0, jobs], rel=1e-6)
    assert not np.isinf(history.stays.leave_s[:50]).any()


def test_faults_come_as_often_as_they_were_met(recorded: RecordedHistory) -> None:
    past, sim = ClusterPast(recorded.file), recorded.twin.backend.sim
    assert sum(past.gpu_faults.values()) + sum(past.node_faults.values()) > 5
    rates = fault_rates_per_s(past)
    gpus = sim.cluster.gpu_node.size
    counted = np.array([past.gpu_faults[gpu] for gpu in range(gpus)])
    assert past.observed_s > 0.0
    assert rates[:gpus].sum() * past.observed_s == pytest.approx(counted.sum(), rel=0.2)
    assert (np.argsort(counted, kind="stable") == np.argsort(rates[:gpus], kind="stable")).all()
    assert past.repairs_s
    assert min(past.repairs_s) >= 0.0


def test_what_a_network_saw_has_its_unit_and_what_was_still_to_come(recorded: RecordedHistory) -> None:
    """Oracle: the scheduler's own arrays, and the ends of jobs in the simulation."""
    history = read_history(recorded.file)
    mirror, units = None, []
    for line in read_decisions(recorded.file):
        past = decode_record(line["past"])
        if past.opening is not None:
            mirror = ClusterMirror(*past.opening)
        assert mirror is not None
        *happened, decision = past.calls
        mirror.apply_calls(happened)
        mirror.find_due_job()
        units.append(float(time_unit_s(mirror.sim, ROW)))
        mirror.apply_calls([decision])
    assert [seen.unit_s for seen in history.past.observed] == pytest.approx(units)
    finish_s, submit_s = recorded.twin.backend.sim.state.finish_s[0], recorded.twin.backend.sim.scenarios.submit_s[0]
    known = 0
    for seen in history.past.observed:
        left_s = (finish_s - seen.now_s)[(submit_s <= seen.now_s) & (finish_s > seen.now_s)]
        to_go = observed_time_to_go(history.stays, seen)
        assert math.isnan(to_go) or to_go * seen.unit_s == pytest.approx(left_s.mean())
        known += math.isfinite(to_go)
    assert known > 0.7 * len(units)


def test_windows_are_run_under_the_schedulers_own_rules_and_parts_share_no_job(recorded: RecordedHistory) -> None:
    request = ProblemRequest(0, (Regime(),), history=recorded.file)
    trained, validated = (problems[0] for problems in history_problems(request))
    later = later_problem(read_history(recorded.file))
    works = [set(np.unique(it.scenarios.work_s)) - {0.0} for it in (trained, validated, later)]
    assert not works[0] & works[1]
    assert not works[0] & works[2]
    assert not works[1] & works[2]
    for problem in (trained, validated, later):
        assert problem.rules.order == ORDERS["easy-shortest"]
        assert problem.rules.waiting
        simulation_of(problem)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(-1, 1)), min_size=2, max_size=8))
def test_users_of_a_past_take_turns_at_each_priority_by_itself(jobs: list[tuple[str, int]]) -> None:
    cluster, gpus, work_s = grid_cluster(1, 2), np.ones(len(jobs), np.int32), np.ones(len(jobs))
    users, ranks = zip(*jobs, strict=True)
    submit_s = np.arange(float(len(jobs)))
    workload = workload_of(tuple(map(str, range(len(jobs)))), gpus, work_s, submit_s, users=users)
    rates = np.zeros(fault_sources(cluster))
    scenarios = stack(cluster, [workload], fault_seed=np.zeros(1, np.int64), source_rate_per_s=rates)
    rank = np.array([ranks]) + 1
    found = checked_scenarios(with_ranks(scenarios, rank), cluster)
    assert np.array_equal(found.rank, rank)
    if len(set(users)) < 2:
        assert not found.line.size
        return
    line = found.line[0].tolist()
    assert all((line[i] == line[j]) == (jobs[i] == jobs[j]) for i in range(len(jobs)) for j in range(len(jobs)))


def test_what_was_drawn_is_weighed_by_its_probability(recorded: RecordedHistory) -> None:
    logged = read_live_decisions(recorded.file)
    network = load_policy(recorded.checkpoint).network
    assert isinstance(network, CandidateNetwork)
    assert logged.chosen.size > 20
    drawn, size = draw_live_decisions(logged, network, np.random.default_rng(0), 1000)
    assert size == pytest.approx(1.0, abs=1e-3)  # it is the network that drew
    assert drawn.chosen.numel() == logged.chosen.size
    with torch.no_grad():
        values = network.values(drawn.observations)
    assert torch.equal(drawn.gain > 0.0, values > drawn.to_go)
    assert float(drawn.gain.square().mean()) == pytest.approx(1.0, rel=1e-2)
    several = np.flatnonzero(logged.candidates > 1)
    assert (logged.log_probability[several] < 0.0).all()


def test_what_no_policy_drew_teaches_the_value_alone(recorded: RecordedHistory) -> None:
    logged = read_live_decisions(recorded.file)
    network = load_policy(recorded.checkpoint).network
    assert isinstance(network, CandidateNetwork)
    greedy = LiveDecisions(*logged)._replace(log_probability=np.full_like(logged.log_probability, np.nan))
    drawn, size = draw_live_decisions(greedy, network, np.random.default_rng(0), 8)
    assert drawn.chosen.numel() == 8
    assert size == 0.0
    assert not drawn.gain.any()
    assert torch.isfinite(drawn.to_go).all()


def test_a_network_far_from_the_one_that_drew_learns_nothing_from_its_weights(recorded: RecordedHistory) -> None:
    logged = read_live_decisions(recorded.file)
    network = load_policy(recorded.checkpoint).network
    assert isinstance(network, CandidateNetwork)
    with torch.no_grad():
        network.score.weight.mul_(1e4)
    drawn, size = draw_live_decisions(logged, network, np.random.default_rng(0), 1000)
    assert size < 0.3
    assert not drawn.gain.any()


def test_the_effective_sample_size_is_the_share_of_samples_that_count() -> None:
    assert effective_sample_share(torch.tensor([2.0, 2.0, 0.0, 0.0])) == pytest.approx(0.5)
    assert effective_sample_share(torch.zeros(3)) == 0.0


@pytest.mark.full
def test_what_follows_a_gap_is_ignored_until_a_line_has_the_state_of_the_cluster(
    recorded: RecordedHistory, tmp_path: Path
) -> None:
    lines = recorded.file.read_text().splitlines()
    (tmp_path / "gap.jsonl").write_text("\n".join(lines[:60] + lines[70:]) + "\n")
    past = ClusterPast(tmp_path / "gap.jsonl")
    assert len(past.observed) == 60
    whole = ClusterPast(recorded.file)
    assert all(past.work_s[job] == whole.work_s[job] for job in past.work_s)


@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "no decision has the state of the cluster"),
        ("{}", "not a decision"),
        (
            '{"job_id": "a", "explanation": {}, "past": {"number": 0, "calls": [["begin", "soon"]]}}',
            "cannot have happened",
        ),
        (None, "too few"),
    ],
)
def test_a_file_that_holds_too_little_is_refused(
    text: str | None, problem: str, recorded: RecordedHistory, tmp_path: Path
) -> None:
    file = tmp_path / "d.jsonl"
    first = recorded.file.read_text().splitlines()[0]
    file.write_text(first + "\n" if text is None else text)
    with pytest.raises(InputError, match=problem):
        read_history(file)


@pytest.mark.full
def test_a_run_on_a_history_begins_with_the_serving_policy_and_learns_from_what_it_did(
    recorded: RecordedHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_few_draws(monkeypatch)
    config = config_of(
        preset=None, algorithm=None, steps=3000, seed=0, network=None, action=None, observation=None, reward=None,
        waiting=None, threads=1, history=recorded.file, init=recorded.checkpoint,
    )  # fmt: skip
    config = config.model_copy(update={"group": GroupParameters(groups=4, runs=4, group_horizon=4.0)})
    result = train(config, tmp_path)
    assert result.folder == tmp_path / "history-decisions-group-init-wait-0"
    assert isinstance(load_policy(result.best).network, CandidateNetwork)
    assert result.later[0].windows >= 1
    assert json.loads((result.folder / "later.json").read_text())[0]["where"] == "decisions.jsonl"
    assert shown(result.folder, "history/") == documented("history")
    assert shown(result.folder, "group/") == documented("group") | documented("traces")


SMALL = Hyperparameters(rows=4, steps=16, minibatch=64, epochs=1)


def learning_of(history: Path, **changes: Any) -> TrainingConfig:
    asked: dict[str, Any] = {
        "preset": None, "algorithm": None, "steps": 128, "seed": 0, "network": None, "action": None,
        "observation": None, "reward": None, "waiting": None, "threads": 1, "history": history,
    }  # fmt: skip
    return config_of(**(asked | changes)).model_copy(update={"hyperparameters": SMALL})


@pytest.mark.few(1)
@pytest.mark.parametrize("algorithm", ["ppo", "a2c"])
def test_ppo_and_a2c_learn_on_what_is_rebuilt_and_go_on_with_a_checkpoint_of_any_kind(
    algorithm: str, recorded: RecordedHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with_few_draws(monkeypatch)
    patents = {"action": "gpu", "observation": "patent-literal", "network": "mlp"}
    first = train(
        learning_of(recorded.file, algorithm=algorithm, **patents), tmp_path, sizes=Sizes(validations=1), compares=False
    )
    policy = load_policy(first.best)
    assert (policy.schema.action, policy.schema.network, policy.schema.gpus) == ("gpu", "mlp", 64)
    assert policy.schema.waiting  # as the scheduler's rules allow

    config = learning_of(recorded.file, init=first.best, seed=1)
    assert (config.algorithm, config.action, config.observation, config.network) == ("ppo", *patents.values())
    _, begun = read_initial(config, policy.schema)
    assert begun is not None
    expected = policy.network.state_dict()
    assert all(torch.equal(weight, expected[name]) for name, weight in begun.state_dict().items())
    again = train(config, tmp_path, sizes=Sizes(validations=1), compares=False)
    shorter = policy.schema.model_copy(update={"waiting": False})  # as policies of the patent's presets are
    save_policy(tmp_path / "patent.zip", shorter, untrained_network(shorter))
    never_waits = learning_of(recorded.file, init=tmp_path / "patent.zip")
    stays = train(never_waits, tmp_path, sizes=Sizes(validations=1), compares=False)
    assert not load_policy(stays.best).schema.waiting
    learned = load_policy(again.folder / "policy.zip").network.state_dict()
    moved = max(float((learned[name] - weight).abs().max()) for name, weight in expected.items())
    assert 0.0 < moved < 0.1  # two small updates away from where it began


@pytest.mark.parametrize(
    ("option", "words"), [("--order", ("--order", "easy")), ("--algo", ("--algo", "distil")), ("--trace", ())]
)
def test_what_a_history_decides_is_no_option(
    option: str, words: tuple[str, ...], recorded: RecordedHistory, tmp_path: Path, longshore: Command
) -> None:
    more = words or ("--trace", recorded.file)
    done = longshore("train", "--history", recorded.file, *more, "--logdir", tmp_path)
    assert done.status == 2
    assert done.err.splitlines()[-1].startswith(f"longshore: {option}: ")


def test_ids_of_jobs_are_those_of_the_scheduler(recorded: RecordedHistory) -> None:
    assert set(read_history(recorded.file).workload.ids) <= {id_of(job) for job in range(JOBS)}
