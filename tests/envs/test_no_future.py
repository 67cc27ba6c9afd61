"""Nothing that has not happened yet is seen."""

import numpy as np
import pytest
from numpy.typing import NDArray

from longshore.cluster.model.problem import ORDERS, Problem
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.state.state import Simulation
from longshore.envs.batch import AgentView, Batch
from tests.envs.random_run import SEEN, open_actions, small_problem

LAST_SUBMIT_S = 200_000.0


def batch(action: str, observation: str, *, last_job: float, fault_seed: int) -> Batch:
    """Return a problem whose last job arrives late, with a given size and length."""
    cluster, scenarios, process, rules = hetero64(1, 3, jobs=24)
    submit = np.append(np.linspace(0, 90_000, 23), LAST_SUBMIT_S)[None]
    scale = np.append(np.ones(23), last_job)
    gpus = scenarios.gpus.copy()
    gpus[0, -1] = 1 if last_job == 1 else 32
    changed = scenarios._replace(
        submit_s=submit, work_s=scenarios.work_s * scale, estimate_s=scenarios.work_s * scale, gpus=gpus,
        fault_seed=np.array([fault_seed]),
    )  # fmt: skip
    made = Batch(Problem(cluster, changed, process, rules), AgentView(action, observation), 1)
    made.reset()
    return made


@pytest.mark.parametrize(("action", "observation"), SEEN)
def test_a_job_that_is_not_submitted_changes_no_observation(action: str, observation: str) -> None:
    one = batch(action, observation, last_job=1.0, fault_seed=5)
    other = batch(action, observation, last_job=50.0, fault_seed=5)
    seen = 0
    while one.sim.state.now_s[0] < LAST_SUBMIT_S and not one.ended[0]:
        assert one.sim.state.now_s[0] == other.sim.state.now_s[0]
        assert (one.observations == other.observations).all()
        chosen = one.masks.argmax(axis=1)
        one.step(chosen)
        other.step(chosen)
        seen += 1
    assert seen > 20


def test_a_fault_that_has_not_happened_changes_no_observation() -> None:
    one, other = (batch("node", "full", last_job=1.0, fault_seed=seed) for seed in (5, 6))
    first_fault_s = min(float(made.sim.state.source_s.min()) for made in (one, other))
    seen = 0
    while one.sim.state.now_s[0] < first_fault_s:
        assert (one.observations == other.observations).all()
        chosen = one.masks.argmax(axis=1)
        one.step(chosen)
        other.step(chosen)
        seen += 1
    assert seen > 0


def longer_and_shorter(order: str) -> tuple[Problem, Problem]:
    """Return two problems that differ only in the work of some jobs: both have it, and both ends, far in the future.

    Estimates are the same, and too short for some jobs and too long for others.
    """
    problem = small_problem(4, jobs=16, order=order, waiting=True, faults=2)
    scenarios = problem.scenarios
    rng = np.random.default_rng(9)
    submit_s = np.sort(rng.uniform(0.0, 30_000.0, scenarios.work_s.shape), axis=1)
    estimate_s = scenarios.work_s * np.exp(rng.normal(0.0, 1.0, scenarios.work_s.shape))
    one = scenarios._replace(submit_s=submit_s - submit_s[:, :1], estimate_s=estimate_s)
    other = one._replace(work_s=scenarios.work_s * np.exp(rng.uniform(-0.7, 0.7, scenarios.work_s.shape)))
    return problem._replace(scenarios=one), problem._replace(scenarios=other)


def first_difference_s(one: Simulation, other: Simulation) -> NDArray[np.float64]:
    """Return the first moment at which a job that runs in both will have ended in one only, shape (rows,).

    inf if there is none, and -inf where a job has already ended in one only: where one runs in one only, or the clocks
    differ, as the next event was the end of a job.
    """
    runs = [sim.state.run_place >= 0 for sim in (one, other)]
    ends_s = np.minimum(one.state.end_s, other.state.end_s)
    differ = runs[0] & runs[1] & (one.state.end_s != other.state.end_s)
    earliest_s: NDArray[np.float64] = np.where(differ, ends_s, np.inf).min(axis=1)
    earliest_s[(runs[0] != runs[1]).any(axis=1) | (one.state.now_s != other.state.now_s)] = -np.inf
    return earliest_s


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize(("action", "observation"), SEEN)
def test_how_long_jobs_will_truly_run_changes_no_observation(action: str, observation: str, order: str) -> None:
    one, other = (Batch(problem, AgentView(action, observation), 4) for problem in longer_and_shorter(order))
    rng, seen = np.random.default_rng(1), 0
    one.reset()
    other.reset()
    same, differ_s = np.ones(4, dtype=np.bool_), np.full(4, np.inf)
    while same.any():
        assert (one.observations[same] == other.observations[same]).all()
        assert (one.masks[same] == other.masks[same]).all()
        seen += int(same.sum())
        chosen = open_actions(one.masks, rng)
        for batch in (one, other):
            batch.step(np.where(batch.masks[np.arange(4), chosen], chosen, batch.masks.argmax(axis=1)))
        differ_s = np.minimum(differ_s, first_difference_s(one.sim, other.sim))
        for batch in (one, other):
            same &= ~batch.ended & (batch.sim.state.now_s < differ_s)
            batch.reset_rows(np.flatnonzero(batch.ended))
    assert seen > 20
