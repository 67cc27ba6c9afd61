"""What every policy must do (longshore.agents.protocol)."""

from collections.abc import Iterator
from copy import deepcopy

import numpy as np
from numpy.typing import NDArray

from ..agents.protocol import Policy
from ..cluster.model.problem import ORDERS, Problem
from ..cluster.placing import undo_picks
from ..cluster.presets.drawn import hetero64
from ..cluster.queue.order import may_wait, turn_to
from ..cluster.simulator.engine import advance, reset, start, wait
from ..cluster.simulator.simulation import outcome_of, simulation_of
from ..cluster.state.state import Simulation

# Links between picks, which mean nothing once these are undone; and estimates: one that was outlived doubles when it is
# read, by any reader.
FREE_TO_CHANGE = frozenset(
    ("ends_s", "ends_job", "ends_kept", "gpu_next", "guess_s", "base_waits", "base_refused", "candidates")
)
NOTES = ("candidate_", "reserved_", "index_")
JOBS, NODES, DECISIONS = 12, 5, 8


def check_policy(policy: Policy, problem: Problem | None = None, scenario: int = 0, *, draws: bool = False) -> None:
    """Check a policy on a problem, or on small ones under each order regime, with waiting and without.

    It must describe itself. It must pick what the job needs, of GPUs that can be used, and change nothing else. It must
    decide the same in a second call. It may wait only where that is allowed. `run` must decide what `place`
    decides one by one. Its choices must not depend on what no scheduler can know.

    Args:
        policy: The policy.
        problem: What it is tried on; by default small scenarios of `hetero64`.
        scenario: Number of the scenario in the problem.
        draws: Whether it draws random numbers from the scenario's fault seed, as `random` does.

    Raises:
        AssertionError: With what is broken.
    """
    check_description(policy)
    for each in [problem] if problem is not None else _small_problems():
        check_decisions(policy, each, scenario)
        check_waits_only_if_allowed(policy, each, scenario)
        for decisions in range(DECISIONS):
            check_reads_no_unknowns(policy, each, scenario, decisions, seed=decisions, draws=draws)


def _small_problems() -> Iterator[Problem]:
    for number, order in enumerate(ORDERS.values()):
        for waiting in (False, True):
            drawn = hetero64(1, 2 * number + waiting, nodes=NODES, jobs=JOBS, load=2.0)
            faulty = drawn.scenarios._replace(source_rate_per_s=drawn.scenarios.source_rate_per_s * 20.0)
            rules = drawn.rules._replace(order=order, waiting=waiting, ageing_s=86400.0)
            yield drawn._replace(scenarios=faulty, rules=rules)


def check_description(policy: Policy) -> None:
    """Check the description of a policy.

    Raises:
        AssertionError: With what is missing.
    """
    assert isinstance(policy, Policy), f"{policy!r} lacks part of the policy protocol"
    assert policy.name, "it has no name"
    assert policy.about, "it has no description"
    assert "\n" not in policy.about, "`about` has more than one line"
    assert policy.waits in (True, False), "`waits` is neither True nor False"


def vacant_gpus(sim: Simulation) -> NDArray[np.bool_]:
    """Return which GPUs of row 0 a job that suits their node may have, shape (gpus,)."""
    is_vacant: NDArray[np.bool_] = (sim.state.gpu_job[0] < 0) & (sim.state.gpu_down[0] == 0)
    return is_vacant


def suitable_gpus(sim: Simulation, job: int) -> NDArray[np.bool_]:
    """Return which GPUs of row 0 a job can use by its needs, shape (gpus,)."""
    needs = sim.scenarios.needs[sim.state.scenario[0], job]
    is_suitable: NDArray[np.bool_] = sim.cluster.suits[needs][sim.cluster.gpu_node] > 0
    return is_suitable


def picked_gpus(sim: Simulation) -> list[int]:
    """Return the GPUs picked for the job that is due in row 0, ascending."""
    return np.flatnonzero(sim.state.gpu_job[0] == sim.state.current[0]).tolist()


def protected_parts(sim: Simulation) -> dict[str, bytes]:
    """Return all that a policy must leave as it is."""
    parts = [*sim.scenarios._asdict().items(), *sim.traits._asdict().items(), *sim.state._asdict().items()]
    return {
        name: np.asarray(values).tobytes()
        for name, values in parts
        if name not in FREE_TO_CHANGE and not name.startswith(NOTES)
    }


def _check_placing(policy: Policy, sim: Simulation) -> bool:
    """Let a policy decide, and check its decision."""
    before, were_vacant, waiting = protected_parts(sim), vacant_gpus(sim), may_wait(sim, 0)
    due, rested, gpus = int(sim.state.current[0]), int(sim.state.rested[0]), sim.scenarios.gpus[sim.state.scenario[0]]
    places = policy.place(sim, 0)
    chosen, job = picked_gpus(sim), int(sim.state.current[0])
    turns, need = job != due, int(gpus[job])
    assert len(chosen) == (need if places else 0), f"{len(chosen)} GPUs were picked for a job that needs {need}"
    assert sim.state.need[0] == need - len(chosen), "GPUs were picked beside `take_gpu` and `take_node`"
    could_be_used = np.flatnonzero(were_vacant & suitable_gpus(sim, job)).tolist()
    assert set(chosen) <= set(could_be_used), "a GPU was picked that cannot be used"
    assert places or waiting, "it waits where that is not allowed"
    assert places or policy.waits, "it waits, though `waits` is False"
    assert places or not turns, "it turned to another job and then waited"
    undo_picks(sim, 0)
    if turns:
        assert turn_to(sim, 0, due), "the first job can be due again"
        assert turn_to(sim, 0, job), "it turned to a job that the order regime does not allow"
        assert turn_to(sim, 0, due)
    sim.state.rested[0] = rested if not places else sim.state.rested[0]
    after = protected_parts(sim)
    changed = [name for name, was in before.items() if after[name] != was]
    assert not changed, f"it changed {', '.join(changed)}"
    assert policy.place(sim, 0) == places, "a second call decides otherwise"
    assert picked_gpus(sim) == chosen, "a second call picks other GPUs"
    return places


def check_decisions(policy: Policy, problem: Problem, scenario: int = 0) -> None:
    """Check each decision of a whole scenario, and that `run` decides the same.

    Raises:
        AssertionError: With what is broken.
    """
    sim = simulation_of(problem)
    reset(sim, 0, scenario)
    while advance(sim, 0):
        if _check_placing(policy, sim):
            start(sim, 0)
        else:
            wait(sim, 0)
    assert sim.state.finished[0] == problem.scenarios.jobs[scenario], "some jobs never end"
    other = simulation_of(problem)
    policy.run(other, np.array([scenario], dtype=np.int64))
    mine, theirs = outcome_of(sim), outcome_of(other)
    for name in mine._fields:
        same = np.array_equal(getattr(mine, name), getattr(theirs, name))
        assert same, f"`run` comes to another {name} than `place`"


def check_waits_only_if_allowed(policy: Policy, problem: Problem, scenario: int = 0) -> None:
    """Check that a policy never waits where waiting is off.

    Raises:
        AssertionError: If it does.
    """
    sim = simulation_of(problem._replace(rules=problem.rules._replace(waiting=False)))
    reset(sim, 0, scenario)
    while advance(sim, 0):
        assert policy.place(sim, 0), "it waits where waiting is off"
        start(sim, 0)


def disturb_unknowns(sim: Simulation, rng: np.random.Generator, *, seed: bool) -> None:
    """Change what cannot be known at a decision: true run times, faults to come, and jobs that are not submitted.

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


def check_reads_no_unknowns(
    policy: Policy, problem: Problem, scenario: int = 0, decisions: int = 0, *, seed: int = 0, draws: bool = False
) -> None:
    """Check that a decision is the same whatever becomes of what no scheduler can know.

    Args:
        policy: The policy.
        problem: What it is tried on.
        scenario: Number of the scenario.
        decisions: That come before the one that is checked.
        seed: Of what is changed.
        draws: Whether it draws random numbers from the scenario's fault seed.

    Raises:
        AssertionError: If it is another.
    """
    plain, disturbed = (simulation_of(deepcopy(problem)) for _ in range(2))
    due = False
    for sim in (plain, disturbed):
        reset(sim, 0, scenario)
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
        disturb_unknowns(disturbed, np.random.default_rng(seed), seed=not draws)
        same = policy.place(disturbed, 0) == policy.place(plain, 0) and picked_gpus(disturbed) == picked_gpus(plain)
        same = same and disturbed.state.current[0] == plain.state.current[0]
        assert same, "it reads what no scheduler can know: true run times, faults to come or jobs not yet submitted"
