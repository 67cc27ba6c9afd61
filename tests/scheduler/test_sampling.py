"""A policy that draws what it does: with which probabilities, what is stored of that, and that it can be met again."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.learned.checkpoint import load_policy, save_policy, schema_of, untrained_network
from longshore.agents.networks.candidates import CandidatePolicy
from longshore.cluster.model.problem import Problem
from longshore.cluster.placing import undo_picks
from longshore.cluster.simulator.engine import advance, reset, start
from longshore.cluster.simulator.simulation import simulation_of
from longshore.scheduler.placement.placer import Mode, Placer
from longshore.scheduler.placement.replay import export_decisions, read_decisions, replay, stored_record_in
from longshore.scheduler.policy_host.messages import decision_record_of
from longshore.scheduler.store.database import open_store
from tests.command_line import Command
from tests.envs.random_run import small_problem
from tests.plain_run import busy_case
from tests.policies_under_test import log_probabilities, untrained_candidates
from tests.scheduler.twin_run import twin_of

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "hetero64-wait-1.zip"
PATIENCE_S = 120.0  # far more than anything here takes


def decided(folder: Path, placer: Placer) -> Path:
    """Let a real scheduler place the jobs of a busy case, and return the file of its decisions."""
    store = open_store(f"sqlite:///{folder / 'store.db'}")
    twin = twin_of(busy_case(ring=True), store, placer)
    assert twin.scheduler.tick()
    placer.wait_until_ready(PATIENCE_S)
    twin.run()
    twin.scheduler.close()
    file = folder / "decisions.jsonl"
    file.write_text("".join(line + "\n" for line in export_decisions(store)), encoding="utf-8")
    store.close()
    return file


def patents(folder: Path) -> Path:
    """Return a checkpoint of the patent's kind for ten GPUs, whatever the nodes: it picks one GPU after the other."""
    torch.manual_seed(2)
    schema = schema_of(
        algorithm="ppo", network="mlp", action="gpu", observation="patent-literal", waiting=True, node_gpus=(1,) * 10
    )
    save_policy(folder / "patent.zip", schema, untrained_network(schema))
    return folder / "patent.zip"


@pytest.mark.full
@pytest.mark.parametrize("kind", ["candidates", "patent"])
def test_what_is_drawn_is_stored_with_its_probability_and_a_replay_draws_the_same(kind: str, tmp_path: Path) -> None:
    temperature, checkpoint = 3.0, CHECKPOINT if kind == "candidates" else patents(tmp_path)
    placer = Placer(HEURISTICS["pack"], str(checkpoint), PATIENCE_S, sample_temperature=temperature)
    file = decided(tmp_path, placer)

    policy = load_policy(checkpoint)
    lines = list(read_decisions(file))
    likeliest = 0
    for line in lines:
        stored = stored_record_in(line)
        assert stored is not None
        seen = decision_record_of(stored)
        observations, masks = torch.from_numpy(seen.observations.copy()), torch.from_numpy(seen.masks)
        greedy = log_probabilities(policy.network, observations, masks)
        expected = (greedy / (temperature * policy.temperature)).log_softmax(dim=1).detach().numpy()
        assert seen.log_probabilities == pytest.approx(expected, rel=1e-3, abs=1e-3)
        reported, drawn = (
            line["explanation"],
            float(seen.log_probabilities[np.arange(seen.actions.size), seen.actions].sum()),
        )
        assert reported["behaviour_probability"] == pytest.approx(math.exp(drawn))
        assert reported["sample_temperature"] == temperature
        likeliest += seen.actions[0] == expected[0].argmax()
    assert len(lines) >= 10
    assert likeliest < len(lines)
    assert all(it.agrees for it in replay(file, load_policy(checkpoint)))


@pytest.mark.full
@pytest.mark.parametrize("temperature", [None, 1.0])
def test_what_a_policy_in_the_shadow_would_do_is_reported_as_no_draw(temperature: float | None, tmp_path: Path) -> None:
    placer = Placer(HEURISTICS["pack"], str(CHECKPOINT), PATIENCE_S, Mode.SHADOW, sample_temperature=temperature)
    reported = [json.loads(line)["explanation"] for line in decided(tmp_path, placer).read_text().splitlines()]
    assert {it["behaviour_probability"] for it in reported} == {None}


@pytest.mark.parametrize("temperature", [0.3, 1.0, 4.0])
def test_over_many_seeds_candidates_are_drawn_as_often_as_they_are_probable(temperature: float) -> None:
    policy = untrained_candidates(waiting=True)
    with torch.no_grad():
        policy.network.get_parameter("score.weight").mul_(20.0)  # far from uniform
    policy = CandidatePolicy(policy.name, policy.schema, policy.network)  # type: ignore[arg-type]
    sim = simulation_of(small_problem(waiting=True))
    reset(sim, 0, 0)
    assert advance(sim, 0)
    draws, counts = 4000, np.zeros(16)
    for seed in range(draws):
        drawing = policy.with_drawn_actions(temperature, seed)
        drawing.place(sim, 0)
        seen = drawing.last_decision()
        counts[seen.actions[0]] += 1
        undo_picks(sim, 0)
        assert advance(sim, 0)
    likely = np.exp(seen.log_probabilities[0])
    policy.place(sim, 0)
    greedy = policy.last_decision().log_probabilities[0] / temperature
    assert likely == pytest.approx(np.exp(greedy) / np.exp(greedy).sum(), abs=1e-5)
    assert (likely > 0.01).sum() > 1
    assert (np.abs(counts - draws * likely) <= 4.5 * np.sqrt(draws * likely * (1.0 - likely)) + 1e-9).all()


@pytest.mark.full
@pytest.mark.parametrize("temperature", [3.0])
def test_over_many_seeds_each_pick_is_drawn_as_often_as_it_is_probable(temperature: float, tmp_path: Path) -> None:
    policy = load_policy(patents(tmp_path))
    with torch.no_grad():
        policy.network.get_parameter("policy.1.weight").mul_(20.0)  # far from uniform
    case = busy_case(ring=False)
    sim = simulation_of(Problem(case.cluster, case.scenarios, case.process, case.rules))
    draws, met, likely = 600, dict[tuple[int, ...], int](), dict[tuple[int, ...], float]()
    reset(sim, 0, 0)
    while advance(sim, 0) and sim.state.need[0] != 2:
        assert HEURISTICS["pack"].place(sim, 0)
        start(sim, 0)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # networks this small lose by sharing their work
    for seed in range(draws):
        drawing = policy.with_drawn_actions(temperature, seed)
        drawing.place(sim, 0)
        seen = drawing.last_decision()
        picked = tuple(seen.actions.tolist())
        met[picked] = met.get(picked, 0) + 1
        likely[picked] = float(np.exp(seen.log_probabilities[np.arange(len(picked)), seen.actions].sum()))
        undo_picks(sim, 0)
        assert advance(sim, 0)
    torch.set_num_threads(threads)
    again = policy.with_drawn_actions(temperature, 7)
    assert (again.place(sim, 0), drawing.temperature) == (policy.with_drawn_actions(temperature, 7).place(sim, 0), 1.0)
    assert len({len(picked) for picked in met if len(picked) > 1}) == 1
    assert len(met) > 20
    assert sum(likely.values()) <= 1.0 + 1e-5
    for picked, count in met.items():
        expected = draws * likely[picked]
        assert abs(count - expected) <= 6.0 * np.sqrt(expected + 1.0), picked


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("{name: patient, sample_temperature: 1.0}", "cannot be sampled"),
        ("{sample_temperature: 1.0}", "name one"),
        ("{name: patient, sample_temperature: 0}", "above 0"),
    ],
)
def test_a_temperature_that_no_one_can_act_at_is_refused(
    text: str, problem: str, tmp_path: Path, longshore: Command
) -> None:
    (tmp_path / "longshore.yaml").write_text(f"policy: {text}\n")
    done = longshore("config", "check", tmp_path / "longshore.yaml")
    assert done.status != 0
    assert problem in done.out + done.err
