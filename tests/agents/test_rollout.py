"""Rollouts: never worse than their base where the future is known, within their budget, and the same for a seed."""

import math
from collections.abc import Iterable
from contextlib import nullcontext
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from longshore.agents.heuristics import HEURISTIC_CHECK_NODES, HEURISTICS
from longshore.agents.learned.checkpoint import untrained_network
from longshore.agents.networks.candidates import CandidateNetwork, CandidatePolicy, mean_network
from longshore.agents.protocol import decisions_between_checks
from longshore.agents.rollouts import (
    IMAGINING,
    Imagining,
    Posterior,
    RankingBase,
    Rollout,
    RolloutBase,
    Search,
    blend_costs,
    posterior_of,
    rollout_of,
    value_of_information,
)
from longshore.cluster.candidates.futures import PRESENT, TRIAL, draw_future
from longshore.cluster.model.problem import ORDERS, Problem, Scenarios
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.simulator.engine import reset
from longshore.cluster.simulator.simulation import simulation_of
from longshore.cluster.state.state import Simulation, Traits
from tests.cases_by_hand import hand_case
from tests.compiled_runs import at_first_decision, compiled, read_out, run_heuristic, run_policy
from tests.deep_cases import deep_case
from tests.plain_candidates import without_faults
from tests.plain_run import busy_case
from tests.policies_under_test import OBJECTIVES, POLICIES, untrained_candidates
from tests.strategies import Case, cases
from tests.support.budgets import examples

DRAW_S = 0.25
LONG_BATCH = 2  # seed of a deep case: 128 jobs at once on 7 nodes
BASES = st.sampled_from(("patient", "eft-hazard", "first-fit", "pack"))


class Clock:
    """A base with a clock of its own: a run takes a second, a future DRAW_S, and nothing else takes time."""

    waits, about, name = True, "", "clock"

    def __init__(self, base: RolloutBase) -> None:
        self.base, self.now_s, self.runs = base, 0.0, 0

    def passed_s(self) -> float:
        return self.now_s

    def draw_future(self, imagined: Simulation, key: int) -> None:
        self.now_s += DRAW_S
        draw_future(imagined, key)

    def place(self, sim: Simulation, row: int) -> bool:
        return self.base.place(sim, row)

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        self.base.run(sim, scenarios)

    def run_on(self, sim: Simulation, row: int) -> None:
        self.now_s += 1.0
        self.runs += 1
        self.base.run_on(sim, row)


class RankingClock(Clock):
    """The same of a base that ranks."""

    def __init__(self, base: CandidatePolicy) -> None:
        super().__init__(base)
        self.predicted_gains = base.predicted_gains
        self.time_to_go, self.run_for, self.value = base.time_to_go, base.run_for, base.value

    @property
    def rollout_base(self) -> RolloutBase:
        return self


@settings(max_examples=examples(60))
@given(cases(), BASES, st.integers(1, 13))
def test_where_the_future_is_known_a_rollout_never_loses_to_its_base(case: Case, base: str, width: int) -> None:
    case = without_faults(case._replace(rules=case.rules._replace(order=ORDERS["fifo"])))
    outcome = run_heuristic(case, base)[1]
    for objective in OBJECTIVES:
        better = run_policy(case, Rollout(HEURISTICS[base], Search(futures=2, width=width), objective))[1]
        came_to, bound = (
            one.makespan_s if objective == "makespan" else one.finish_s.sum(axis=1) for one in (better, outcome)
        )
        assert came_to[0] <= bound[0] * (1 + 1e-9)


def truth_of(sim: Simulation) -> Simulation:
    one = Scenarios._make(array[:1].copy() for array in sim.scenarios)
    made = simulation_of(Problem(sim.cluster, one, sim.process, sim.rules), rows=3)
    traits = Traits._make(array[:1].copy() for array in sim.traits)  # of the shapes of all scenarios
    return Simulation(sim.cluster, one, traits, sim.process, sim.rules, made.state, made.log)


def recall_truth(imagined: Simulation, sim: Simulation, row: int) -> None:
    scenario = int(sim.state.scenario[row])
    parts: Iterable[tuple[Iterable[NDArray[Any]], int, Iterable[NDArray[Any]]]] = (
        (sim.scenarios, scenario, imagined.scenarios), (sim.traits, scenario, imagined.traits),
        (sim.state, row, imagined.state),
    )  # fmt: skip
    for theirs, at, mine in parts:
        for source, target in zip(theirs, mine, strict=True):
            target[PRESENT] = source[at]
    imagined.state.scenario[:] = 0


@settings(max_examples=examples(60))
@given(cases(), st.sampled_from(["patient", "pack", "untrained"]), st.integers(1, 13))
def test_with_the_true_future_faults_and_all_a_rollout_never_loses_to_its_base(
    case: Case, name: str, width: int
) -> None:
    base = untrained_candidates(waiting=True) if name == "untrained" else HEURISTICS[name]
    outcome = run_policy(case, base)[1]
    truth = Imagining(truth_of, recall_truth, lambda imagined, key: None, lambda imagined: nullcontext())
    for objective in OBJECTIVES:
        rollout = Rollout(base, Search(futures=2, width=width), objective, imagining=truth)
        better = run_policy(case, rollout)[1]
        came_to, bound = (
            one.makespan_s
            if objective == "makespan"
            else (one.finish_s - case.scenarios.submit_s[case.row]).sum(axis=1)
            for one in (better, outcome)
        )
        assert came_to[0] <= bound[0] * (1 + 1e-9)


def test_the_posterior_is_the_mean_weighted_by_variances() -> None:
    # Predicted, and without faults: of variance s = 0.004 + 0.2 x 0.2 = 0.044 each. In one future that and 2.7 s as
    # noise, with the weight of ten futures; after two of sample variance 0.02, (10 x 2.7 x s + 0.02) / 11.
    predicted_gains, spread = np.array([0.0, -0.2]), 0.044
    gains = np.array([[0.0, 0.1], [0.0, 0.3], [0.0, 0.1]])
    noise = (27.0 * spread + 0.02) / 11.0
    for count, weights, values in (
        (0, [1.0], [-0.2]),
        (1, [1.0, 1.0], [-0.2, 0.1]),
        (2, [1.0, 1.0, 1.0 / 3.7], [-0.2, 0.1, 0.3]),
        (3, [1.0, 1.0, 2.0 * spread / (spread + noise)], [-0.2, 0.1, 0.2]),
    ):
        posterior = posterior_of(gains[:count], predicted_gains)
        assert posterior.mean == pytest.approx([0.0, np.average(values, weights=weights)])
        assert posterior.variance == pytest.approx([0.0, spread / sum(weights)])


@given(st.integers(1, 1000))
def test_the_more_futures_the_more_the_ends_count(futures: int) -> None:
    ends_s, foreseen_s = np.full((futures, 2), 3.0), np.full((futures, 2), 1.0)
    costs_s = blend_costs(ends_s, foreseen_s)
    share = (costs_s[0, 0] - 1.0) / 2.0
    assert share == pytest.approx((24 + futures) / (72 + futures))
    np.testing.assert_array_equal(blend_costs(ends_s, ends_s), ends_s)


def test_knowing_a_candidate_is_worth_what_chance_alone_would_make_it_gain() -> None:
    posterior = Posterior(np.array([0.0, -0.1, 0.05, -3.0]), np.array([0.0, 0.04, 0.01, 1e-6]))
    drawn = np.random.default_rng(1).normal(posterior.mean, np.sqrt(posterior.variance), (400_000, 4))
    expected = np.maximum(drawn - drawn[:, 2:3], 0.0).mean(axis=0)
    assert value_of_information(posterior) == pytest.approx(expected, abs=5e-4)


def test_candidates_of_little_value_of_information_are_not_tried_again() -> None:
    sim, base = at_first_decision(busy_case(ring=True)), untrained_candidates(waiting=True)
    predicted_gains = base.predicted_gains(sim, 0)
    every = Rollout(base, Search(futures=6, width=3), "jct").gains(sim, 0)
    candidates = np.argsort(-predicted_gains, kind="stable")[:4]
    assert not np.isnan(every[:, candidates]).any()
    worth = value_of_information(posterior_of(np.zeros((0, 4)), predicted_gains[candidates] - predicted_gains.max()))
    some = Rollout(base, Search(futures=6, width=3, least_value=float(worth.max())), "jct").gains(sim, 0)
    assert set(np.flatnonzero(~np.isnan(some[0]))) == {candidates[0], candidates[worth.argmax()]}
    np.testing.assert_array_equal(some[0, candidates[0]], every[0, candidates[0]])
    none = Rollout(base, Search(futures=6, width=3, least_value=1.01 * float(worth.max())), "jct")
    assert none.gains(sim, 0).shape[0] == 0
    assert none.choose_candidate(sim, 0) == -1


def test_a_rollout_finds_the_optimum_that_its_base_misses() -> None:
    # The first job takes a part of the fast node, and the second, which needs all of it for 8 s, the slow one for 20 s.
    cluster = grid_cluster(2, 2, speed=np.array([1.0, 2.5]))
    case = hand_case(cluster, [(1, 4.0, 0.0), (2, 20.0, 0.0)])
    base = HEURISTICS["eft-hazard"]
    assert run_policy(case, base)[1].makespan_s[0] == 20.0
    assert run_policy(case, Rollout(base, Search(futures=2), "makespan"))[1].makespan_s[0] == 8.0


@pytest.mark.parametrize("order", ORDERS)
def test_the_same_seed_gives_the_same_decisions_and_another_may_not(order: str) -> None:
    case = busy_case(ring=True)
    case = case._replace(rules=case.rules._replace(order=ORDERS[order]))
    base, search = HEURISTICS["patient"], Search(futures=4, width=8)
    events = [run_policy(case, Rollout(base, search, "jct", seed))[0] for seed in (1, 1, 2, 3, 4)]
    assert events[0] == events[1]
    assert any(other != events[0] for other in events[2:])
    one = Rollout(base, search, "jct", 1)
    assert [run_policy(case, one)[0] for _ in range(2)] == [events[0]] * 2, "it remembers an earlier run"


@settings(max_examples=examples(20))
@given(case=cases(), base=BASES)
def test_a_rollout_without_time_runs_as_its_base(case: Case, base: str) -> None:
    rollout = Rollout(HEURISTICS[base], Search(futures=2, budget_s=0.0), "makespan")
    assert run_policy(case, rollout)[0] == run_heuristic(case, base)[0]


@pytest.mark.parametrize("budget_s", [0.0, 1.5, 5.5, 6.5, 20.5, 1e9])
@pytest.mark.parametrize("ranks", [False, True])
def test_a_decision_passes_its_budget_by_at_most_one_try(*, budget_s: float, ranks: bool) -> None:
    clock = RankingClock(untrained_candidates(waiting=True)) if ranks else Clock(HEURISTICS["patient"])
    assert isinstance(clock, RankingBase if ranks else RolloutBase)
    imagining = IMAGINING._replace(draw_future=clock.draw_future)
    search = Search(futures=8, width=4, budget_s=budget_s)
    sim = at_first_decision(busy_case(ring=True))
    gains = Rollout(clock, search, "makespan", imagining=imagining, passed_s=clock.passed_s).gains(sim, 0)
    # A base that ranks has the future without faults beside the others, and its own choice is one of the 5 candidates.
    futures, candidates = (9, 5) if ranks else (8, 6)
    assert clock.now_s <= min(budget_s + 1.0 + DRAW_S, futures * (candidates + DRAW_S))
    assert gains.shape[0] == clock.runs // candidates, "futures that were not tried with all candidates count"


class SlowClock(RankingClock):
    """The same of a base that takes a second to read a decision as well."""

    def __init__(self, base: CandidatePolicy) -> None:
        super().__init__(base)
        self.predicted_gains = self._slow_gains

    def _slow_gains(self, sim: Simulation, row: int) -> NDArray[np.float64]:
        self.now_s += 1.0
        ranking: Any = self.base
        gains: NDArray[np.float64] = ranking.predicted_gains(sim, row)
        return gains

    def place(self, sim: Simulation, row: int) -> bool:
        self.now_s += 1.0
        return super().place(sim, row)


@pytest.mark.parametrize("budget_s", [1.0, 2.0, 3.5, 7.25, 20.5])
def test_a_decision_keeps_its_budget_where_reading_it_takes_time(budget_s: float) -> None:
    clock = SlowClock(untrained_candidates(waiting=True))
    search = Search(futures=8, width=4, budget_s=budget_s)
    sim = at_first_decision(busy_case(ring=True))
    Rollout(clock, search, "makespan", passed_s=clock.passed_s).place(sim, 0)
    assert clock.now_s <= budget_s
    assert clock.runs > 0 or budget_s < 2.0


@pytest.mark.parametrize("name", ["patient", "untrained"])
@pytest.mark.parametrize("order", list(ORDERS))
def test_a_try_is_abandoned_on_its_way_when_the_budget_is_spent(name: str, order: str) -> None:
    case = deep_case(LONG_BATCH, order)
    sim = at_first_decision(case._replace(rules=case.rules._replace(waiting=True, ageing_s=math.inf)))
    part = decisions_between_checks(sim, HEURISTIC_CHECK_NODES)
    base = untrained_candidates(waiting=True) if name == "untrained" else HEURISTICS[name]

    def passed_s() -> float:
        """Return a second for each decision of the current try."""
        return float(max(state.decisions[TRIAL] - state.decisions[PRESENT], 0))

    rollout = Rollout(base, Search(budget_s=20.0), passed_s=passed_s)
    state = rollout._imagination(sim).state
    assert rollout.choose_candidate(sim, 0) == -1
    assert 20.0 < passed_s() <= 20.0 + part
    assert state.finished[TRIAL] < state.submitted[TRIAL], "the try went on to its end"


@pytest.mark.parametrize("name", ["patient", "pack", "untrained"])
@settings(max_examples=examples(10))
@given(seed=st.integers(0, 2**32 - 1), order=st.sampled_from(list(ORDERS)))
def test_an_interruptible_run_is_the_same(name: str, seed: int, order: str) -> None:
    policy: Any = untrained_candidates(waiting=True) if name == "untrained" else HEURISTICS[name]
    case, checks = deep_case(seed, order), [0]
    runs = []
    for each in (policy, policy.interruptible(lambda: checks.__setitem__(0, checks[0] + 1))):
        sim = compiled(case)
        reset(sim, 0, case.row)
        if name == "untrained":
            runs.append([each.run_for(sim, 0, 30, 4), *sim.state.decisions])
        each.run_on(sim, 0)
        runs.append(read_out(sim)[0])
    half = len(runs) // 2
    assert str(runs[:half]) == str(runs[half:])
    assert checks[0] >= sim.state.decisions[0] // decisions_between_checks(sim, HEURISTIC_CHECK_NODES) - 1


def test_a_budget_that_is_not_met_changes_nothing() -> None:
    sim = at_first_decision(busy_case(ring=True))
    for base in (HEURISTICS["patient"], untrained_candidates(waiting=True)):
        plain, bounded = (Rollout(base, Search(futures=3, budget_s=s)).gains(sim, 0) for s in (math.inf, 1e9))
        np.testing.assert_array_equal(plain, bounded)


def test_the_gain_of_the_bases_own_candidate_is_nothing() -> None:
    gains = Rollout(HEURISTICS["patient"], Search(futures=8), "jct").gains(at_first_decision(busy_case(ring=True)), 0)
    assert (gains[:, 0] == 0.0).all()
    assert (gains[:, 1:] != 0.0).any()


def test_a_base_that_ranks_is_first_tried_without_faults() -> None:
    case = busy_case(ring=True)
    base = untrained_candidates(waiting=True)
    gains = Rollout(base, Search(futures=3, width=3), "jct", seed=1).gains(at_first_decision(case), 0)
    other = Rollout(base, Search(futures=3, width=3), "jct", seed=2).gains(at_first_decision(case), 0)
    assert len(gains) == len(other) == 4
    np.testing.assert_array_equal(gains[0], other[0])
    assert any((gains[i] != other[i])[~np.isnan(gains[i])].any() for i in (1, 2, 3))
    calm = at_first_decision(without_faults(case))
    rates = calm.scenarios.source_rate_per_s
    assert (rates == 0.0).all()
    for future in Rollout(base, Search(futures=3, width=3), "jct").gains(calm, 0):
        np.testing.assert_array_equal(future, Rollout(base, Search(0, 3), "jct").gains(calm, 0)[0])


def test_rollouts_of_a_mean_have_its_first_network_as_base() -> None:
    schema = untrained_candidates(waiting=True).schema
    torch.manual_seed(1)
    networks = [untrained_network(schema) for _ in range(3)]
    candidates = [network for network in networks if isinstance(network, CandidateNetwork)]
    mean, first = (CandidatePolicy("any", schema, network) for network in (mean_network(candidates), candidates[0]))
    sim = at_first_decision(busy_case(ring=True))
    rollout = rollout_of(mean)
    assert isinstance(rollout.base, CandidatePolicy)
    assert rollout.name == "rollout:any"
    np.testing.assert_allclose(
        rollout.base.predicted_gains(sim, 0), first.predicted_gains(sim, 0), rtol=1e-5, atol=1e-7
    )
    assert rollout_of(first).base is first


def test_the_best_of_a_base_that_ranks_are_tried_and_no_others() -> None:
    sim = at_first_decision(busy_case(ring=True))
    base = next(policy for policy in POLICIES.values() if isinstance(policy, CandidatePolicy) and policy.waits)
    predicted_gains = base.predicted_gains(sim, 0)
    gains = Rollout(base, Search(futures=2, width=1), "jct").gains(sim, 0)
    tried = np.flatnonzero(~np.isnan(gains[0]))
    assert set(tried) == set(np.argsort(-predicted_gains, kind="stable")[:2])
    assert (gains[:, predicted_gains.argmax()] == 0.0).all()
