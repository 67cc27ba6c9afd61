"""Rollouts: never worse than their base where the future is known, within their budget, and the same for a seed."""

from types import SimpleNamespace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from longshore.agents.heuristics import HEURISTICS, Heuristic
from longshore.agents.moves_policy import MovesPolicy
from longshore.agents.rollout import Base, Rollout, Search
from longshore.cluster.scenarios import ORDERS
from longshore.cluster.state import Simulation
from longshore.cluster.topology import grid_cluster
from tests.compiled_runs import at_first_decision, play_heuristic, play_policy
from tests.plain_moves import without_faults
from tests.plain_run import busy_case
from tests.policies_under_test import POLICIES
from tests.strategies import Case, cases
from tests.test_reference import hand_case

BASES = st.sampled_from(("patient", "eft-hazard", "first-fit", "pack"))


class Clock:
    """A base whose every run takes a second of a time that nothing else takes."""

    waits, about, name = True, "", "clock"

    def __init__(self, base: Heuristic) -> None:
        self.base, self.now_s, self.runs = base, 0.0, 0

    def perf_counter(self) -> float:
        return self.now_s

    def place(self, sim: Simulation, row: int) -> bool:
        return self.base.place(sim, row)

    def play(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        self.base.play(sim, scenarios)

    def play_on(self, sim: Simulation, row: int) -> None:
        self.now_s += 1.0
        self.runs += 1
        self.base.play_on(sim, row)


@settings(max_examples=60)
@given(cases(), BASES, st.integers(1, 13))
def test_where_the_future_is_known_a_rollout_never_loses_to_its_base(case: Case, base: str, width: int) -> None:
    case = without_faults(case._replace(rules=case.rules._replace(order=ORDERS["fifo"])))
    outcome = play_heuristic(case, base)[1]
    for goal, figures in (("makespan", outcome.makespan_s), ("jct", outcome.finish_s.sum(axis=1))):
        better = play_policy(case, Rollout(HEURISTICS[base], Search(futures=2, width=width), goal))[1]
        value = better.makespan_s if goal == "makespan" else better.finish_s.sum(axis=1)
        assert value[0] <= figures[0] * (1 + 1e-9)


def test_a_rollout_finds_the_optimum_that_its_base_misses() -> None:
    # The first job takes a part of the fast node, and the second, which needs all of it for 8 s, the slow one for 20 s.
    cluster = grid_cluster(2, 2, speed=np.array([1.0, 2.5]))
    case = hand_case(cluster, [(1, 4.0, 0.0), (2, 20.0, 0.0)])
    base = HEURISTICS["eft-hazard"]
    assert play_policy(case, base)[1].makespan_s[0] == 20.0
    assert play_policy(case, Rollout(base, Search(futures=2), "makespan"))[1].makespan_s[0] == 8.0


@pytest.mark.parametrize("order", ORDERS)
def test_the_same_seed_gives_the_same_decisions_and_another_may_not(order: str) -> None:
    case = busy_case(ring=True)
    case = case._replace(rules=case.rules._replace(order=ORDERS[order]))
    base, search = HEURISTICS["patient"], Search(futures=4, width=8)
    events = [play_policy(case, Rollout(base, search, "jct", seed))[0] for seed in (1, 1, 2, 3, 4)]
    assert events[0] == events[1]
    assert any(other != events[0] for other in events[2:])
    one = Rollout(base, search, "jct", 1)
    assert [play_policy(case, one)[0] for _ in range(2)] == [events[0]] * 2, "it remembers an earlier run"


@settings(max_examples=20)
@given(case=cases(), base=BASES)
def test_a_rollout_without_time_plays_as_its_base(case: Case, base: str) -> None:
    rollout = Rollout(HEURISTICS[base], Search(futures=2, budget_s=0.0), "makespan")
    assert play_policy(case, rollout)[0] == play_heuristic(case, base)[0]


@pytest.mark.parametrize("budget_s", [0.0, 1.5, 5.5, 6.5, 20.5, 1e9])
def test_a_decision_passes_its_budget_by_at_most_one_try(budget_s: float, monkeypatch: pytest.MonkeyPatch) -> None:
    clock = Clock(HEURISTICS["patient"])
    assert isinstance(clock, Base)
    monkeypatch.setattr("longshore.agents.rollout.time", SimpleNamespace(perf_counter=clock.perf_counter))
    sim = at_first_decision(busy_case(ring=True))
    gains = Rollout(clock, Search(futures=8, width=4, budget_s=budget_s), "makespan").gains(sim, 0)
    assert clock.runs <= min(budget_s + 1.0, 8 * 6)
    assert gains.shape == (clock.runs // 6, 5), "futures that were not tried with all moves count"


def test_the_gain_of_the_bases_own_move_is_nothing() -> None:
    gains = Rollout(HEURISTICS["patient"], Search(futures=8), "jct").gains(at_first_decision(busy_case(ring=True)), 0)
    assert (gains[:, 0] == 0.0).all()
    assert (gains[:, 1:] != 0.0).any()


def test_the_best_of_a_base_that_ranks_are_tried_and_no_others() -> None:
    sim = at_first_decision(busy_case(ring=True))
    base = next(policy for policy in POLICIES.values() if isinstance(policy, MovesPolicy) and policy.waits)
    scores = base.scores(sim, 0)
    gains = Rollout(base, Search(futures=2, width=1), "jct").gains(sim, 0)
    tried = np.flatnonzero(~np.isnan(gains[0]))
    assert set(tried) == set(np.argsort(-scores, kind="stable")[:2])
    assert (gains[:, scores.argmax()] == 0.0).all()
