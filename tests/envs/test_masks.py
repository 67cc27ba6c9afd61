"""What masks promise, over a million random steps."""

import numpy as np
import pytest
from numpy.typing import NDArray

from longshore.cluster.queue.keeping import has_reservation
from longshore.cluster.state.state import Simulation
from longshore.envs.batch import AgentView, Batch
from tests.envs.random_run import open_actions, small_problem

ROWS, STEPS = 500, 105  # times twenty combinations: a million steps


@pytest.mark.few(10)
@pytest.mark.parametrize(
    ("order", "ageing_s"),
    [("fifo", np.inf), ("easy", np.inf), ("easy-shortest", np.inf), ("shortest", np.inf), ("shortest", 7200.0)],
)
@pytest.mark.parametrize("waiting", [False, True])
@pytest.mark.parametrize("action", ["node", "gpu"])
def test_exactly_what_can_be_taken_is_open_and_no_gpu_serves_two_jobs(
    action: str,
    waiting: bool,  # noqa: FBT001
    order: str,
    ageing_s: float,
) -> None:
    problem = small_problem(64, order=order, waiting=waiting, faults=2)
    problem = problem._replace(rules=problem.rules._replace(ageing_s=ageing_s))
    batch = Batch(problem, AgentView(action=action, observation="patent"), ROWS)
    rng, waits, stops, aged = np.random.default_rng(6), 0, 0, 0
    batch.reset()
    for _ in range(STEPS):
        chosen = open_actions(batch.masks, rng)
        batch.step(chosen)
        waits += int(waiting and (chosen == batch.actions - 1).sum())
        check_masks(batch)
        check_counts(batch.sim)
        aged += int(batch.sim.state.aged[~batch.ended].sum())
        stops += int(batch.sim.state.stops[batch.ended].sum())
        batch.reset_rows(np.flatnonzero(batch.ended))
    assert stops > 0
    assert (waits > 0) == waiting
    assert (aged > 0) == np.isfinite(ageing_s)


def usable_gpus(sim: Simulation) -> NDArray[np.bool_]:
    """Return which GPUs are up and hold no job, shape (rows, gpus)."""
    usable: NDArray[np.bool_] = (sim.state.gpu_job < 0) & (sim.state.gpu_down == 0)
    return usable


def check_masks(batch: Batch) -> None:
    state, going = batch.sim.state, ~batch.ended
    usable = usable_gpus(batch.sim)
    of_node = np.logical_or.reduceat(usable, batch.problem.cluster.first_gpu[:-1], axis=1)
    items = of_node if batch.view.action == "node" else usable
    # Under a reservation some are closed; tests/cluster/test_keeping.py tests which.
    bound = np.array([is_going and has_reservation(batch.sim, row) for row, is_going in enumerate(going)])
    seen = batch.masks[:, : items.shape[1]]
    assert (seen[going & ~bound] == items[going & ~bound]).all()
    assert (seen[bound] <= items[bound]).all()
    assert batch.masks[going].any(axis=1).all()
    assert not batch.masks[batch.ended].any()
    if batch.problem.rules.waiting:
        first_pick = (state.gpu_job != state.current[:, None]).all(axis=1)
        may_wait = state.now_s < state.queued_s[np.arange(going.size), state.current] + batch.problem.rules.ageing_s
        assert (batch.masks[going, -1] == ((state.running > 0) & first_pick & may_wait)[going]).all()


def check_counts(sim: Simulation) -> None:
    """Compare counts with the GPUs themselves: every job holds what it needs, and nothing is counted twice."""
    state, rows = sim.state, np.arange(sim.state.scenario.size)
    usable, first_gpu = usable_gpus(sim), sim.cluster.first_gpu[:-1]
    assert (state.free == np.add.reduceat(usable, first_gpu, axis=1, dtype=np.int64)).all()
    assert (state.usable == usable.sum(axis=1)).all()
    assert not ((state.gpu_job >= 0) & (state.gpu_down > 0)).any()
    jobs = state.run_place.shape[1]
    row, gpu = np.nonzero(state.gpu_job >= 0)
    held = np.bincount(row * jobs + state.gpu_job[row, gpu], minlength=rows.size * jobs).reshape(-1, jobs)
    gpus = sim.scenarios.gpus[state.scenario]
    expected = np.where(state.run_place >= 0, gpus, 0)
    due = state.current >= 0
    expected[rows[due], state.current[due]] = (gpus[rows, state.current] - state.need)[due]
    assert (held == expected).all()
