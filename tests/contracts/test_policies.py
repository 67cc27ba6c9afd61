"""What every policy must do, whoever wrote it: heuristics, networks of random weights, a shipped one, and rollouts."""

from copy import deepcopy

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.agents.heuristics.heuristics import HEURISTICS
from longshore.agents.protocol import Policy
from longshore.cluster.dispatch.order import may_wait, turn_to
from longshore.cluster.dispatch.placing import undo_picks
from longshore.cluster.simulator.engine import advance, reset, start, wait
from longshore.cluster.state.state import Simulation
from tests.compiled_runs import compiled, picks, read_out, run_policy, usable
from tests.policies_under_test import POLICIES
from tests.strategies import Case, cases

# Scratch; links between picks, which mean nothing once these are undone; and estimates, which double when somebody
# looks at one that was outlived, and so are the same whoever looks.
FREE_TO_CHANGE = {
    "best_set", "ends_s", "ends_job", "gpu_next", "guess_s", "node_class", "base_waits", "base_refused", "candidates",
    "other_job", "ends_kept",
}  # fmt: skip
SCRATCH = ("trial_", "candidate_", "offer_", "ahead_", "reserved_", "index_")

DRAW_FROM_THE_SEED = {"random", "best-of-random"}


def remember(sim: Simulation) -> dict[str, bytes]:
    """Return all that a policy must leave as it is."""
    parts = [*sim.scenarios._asdict().items(), *sim.traits._asdict().items(), *sim.state._asdict().items()]
    return {
        name: np.asarray(values).tobytes()
        for name, values in parts
        if name not in FREE_TO_CHANGE and not name.startswith(SCRATCH)
    }


def place_checked(policy: Policy, sim: Simulation) -> bool:
    """Let a policy decide, and check its decision."""
    before, could_be_used, waiting = remember(sim), set(usable(sim).tolist()), may_wait(sim, 0)
    due, rested, gpus = int(sim.state.current[0]), int(sim.state.rested[0]), sim.scenarios.gpus[sim.state.scenario[0]]
    places = policy.place(sim, 0)
    chosen, job = picks(sim), int(sim.state.current[0])
    turns = job != due
    need = int(gpus[job])
    assert len(chosen) == (need if places else 0)
    assert sim.state.need[0] == need - len(chosen)
    assert set(chosen) <= could_be_used
    assert (places and not turns) or (waiting and policy.waits)
    undo_picks(sim, 0)
    if turns:
        assert turn_to(sim, 0, due), "the first job can be due again"
        assert turn_to(sim, 0, job), "the regime does not allow this job"
        assert turn_to(sim, 0, due)
    sim.state.rested[0] = rested if not places else sim.state.rested[0]
    after = remember(sim)
    assert [name for name, was in before.items() if after[name] != was] == []
    assert policy.place(sim, 0) == places, "it decides otherwise when asked again"
    assert picks(sim) == chosen
    return places


def disturb(sim: Simulation, rng: np.random.Generator, *, seed: bool) -> None:
    """Change what nobody can know at a decision: true run times, faults to come, and jobs that are not submitted.

    Recorded outages come at other times and last as long, as their mean length is known.
    A simulation that was disturbed is good for `place` only: its engine's bookkeeping no longer fits.
    """
    scenarios, state, scenario = sim.scenarios, sim.state, sim.state.scenario[0]
    scenarios.work_s[:] *= rng.uniform(0.1, 10.0, scenarios.work_s.shape)
    running = state.run_place[0] >= 0
    state.end_s[0, running] = state.now_s[0] + rng.uniform(1e-3, 1e6, int(running.sum()))
    state.source_s[:] = state.now_s[0] + rng.uniform(1e-3, 1e6, state.source_s.shape)
    state.source_k[:] += rng.integers(0, 9, state.source_k.shape, dtype=np.int32)
    scenarios.source_rate_per_s[:] *= rng.uniform(0.0, 10.0, scenarios.source_rate_per_s.shape)
    sim.process.outage_start_s[:] += 1e6
    sim.process.outage_end_s[:] += 1e6
    later = slice(int(state.submitted[0]), int(scenarios.jobs[scenario]))
    for known in (scenarios.gpus, scenarios.estimate_s, scenarios.compute_s, scenarios.parameter_bytes):
        known[scenario, later] = rng.permutation(known[scenario, later])
    state.guess_s[0, later] = scenarios.estimate_s[scenario, later]
    scenarios.submit_s[scenario, later] += rng.uniform(0.0, 1e6)
    if seed:
        scenarios.fault_seed[:] = rng.integers(0, 2**32, scenarios.fault_seed.shape)


def test_every_heuristic_is_registered() -> None:
    assert {name: policy for name, policy in POLICIES.items() if policy in HEURISTICS.values()} == HEURISTICS


@pytest.mark.parametrize("name", POLICIES)
def test_a_policy_says_what_it_is(name: str) -> None:
    policy = POLICIES[name]
    assert isinstance(policy, Policy)
    assert policy.name == name
    assert policy.about
    assert "\n" not in policy.about
    assert policy.waits in (True, False)


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=20)
@given(case=cases())
def test_a_policy_picks_what_the_job_needs_changes_nothing_else_and_runs_as_it_places(case: Case, name: str) -> None:
    sim, policy = compiled(case), POLICIES[name]
    reset(sim, 0, case.row)
    while advance(sim, 0):
        if place_checked(policy, sim):
            start(sim, 0)
        else:
            wait(sim, 0)
    assert sim.state.finished[0] == case.scenarios.jobs[case.row]
    assert read_out(sim)[0] == run_policy(case, policy)[0]


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=10)
@given(case=cases())
def test_a_policy_does_not_wait_where_waiting_is_off(case: Case, name: str) -> None:
    sim = compiled(case._replace(rules=case.rules._replace(waiting=False)))
    reset(sim, 0, case.row)
    while advance(sim, 0):
        assert POLICIES[name].place(sim, 0)
        start(sim, 0)


@pytest.mark.parametrize("name", POLICIES)
@settings(deadline=None, max_examples=20)
@given(case=cases(), decisions=st.integers(0, 15), seed=st.integers(0, 2**32 - 1))
def test_a_policy_does_not_see_what_nobody_can_know(case: Case, decisions: int, seed: int, name: str) -> None:
    policy = POLICIES[name]
    plain, disturbed = (compiled(deepcopy(case)) for _ in range(2))
    for sim in (plain, disturbed):
        reset(sim, 0, case.row)
        due = advance(sim, 0)
        for _ in range(decisions):
            if not due:
                break
            if policy.place(sim, 0):
                start(sim, 0)
            else:
                wait(sim, 0)
            due = advance(sim, 0)
    if due:
        disturb(disturbed, np.random.default_rng(seed), seed=name not in DRAW_FROM_THE_SEED)
        assert policy.place(disturbed, 0) == policy.place(plain, 0)
        assert disturbed.state.current[0] == plain.state.current[0]
        assert picks(disturbed) == picks(plain)
