"""Which nodes and GPUs are open under a reservation, against all completions of the picks."""

import itertools
import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.model.problem import ORDERS, Problem
from longshore.cluster.placing import picked_slowdown, take_gpu, take_node, undo_picks
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.queue.keeping import has_reservation
from longshore.cluster.queue.order import keeps_reservation
from longshore.cluster.simulator.engine import advance, reset, start
from longshore.cluster.state.state import Simulation
from longshore.envs.batch import GPU_ACTION, NODE_ACTION, AgentView, Batch, write_mask
from tests.compiled_runs import compiled
from tests.strategies import Case, cases, needy_cases, planned_cases
from tests.support.budgets import examples

ROWS = 8
BACKFILLING = ("easy", "easy-shortest", "shortest")
MOST_COMPLETIONS = 3000


def under(case: Case, order: str) -> Case:
    return case._replace(rules=case.rules._replace(order=ORDERS[order], ageing_s=math.inf))


def mask_of(sim: Simulation, action: int) -> list[int]:
    items = sim.state.free.shape[1] if action == NODE_ACTION else sim.state.gpu_job.shape[1]
    mask = np.zeros((1, items + int(sim.rules.waiting)), dtype=np.bool_)
    write_mask(sim, 0, action, mask, 0)
    return np.flatnonzero(mask[0, :items]).tolist()


def usable(sim: Simulation, action: int) -> list[int]:
    if action == NODE_ACTION:
        return np.flatnonzero(sim.state.free[0] > 0).tolist()
    is_open = sim.state.free[0][sim.cluster.gpu_node] > 0  # those of nodes that suit the job
    return np.flatnonzero((sim.state.gpu_job[0] < 0) & (sim.state.gpu_down[0] == 0) & is_open).tolist()


def pick(sim: Simulation, action: int, items: tuple[int, ...]) -> None:
    """Pick the given GPUs, from the beginning, until nothing is needed."""
    undo_picks(sim, 0)
    for item in items:
        if sim.state.need[0] > 0:
            (take_node if action == NODE_ACTION else take_gpu)(sim, 0, item)


def keeping(sim: Simulation, action: int, picked: tuple[int, ...]) -> list[int] | None:
    """Return what may follow the picks, by trying all completions; None if there are too many."""
    left = [item for item in usable(sim, action) if item not in picked]
    need = int(sim.state.need[0])
    longest = min(need, len(left))
    if sum(math.perm(len(left), count) for count in range(1, longest + 1)) > MOST_COMPLETIONS:
        return None
    found = set()
    for count in range(1, longest + 1):
        for more in itertools.permutations(left, count):
            if more[0] not in found:
                pick(sim, action, (*picked, *more))
                if sim.state.need[0] == 0 and keeps_reservation(sim, 0, picked_slowdown(sim, 0)):
                    found.add(more[0])
    pick(sim, action, picked)
    return sorted(found)


@settings(max_examples=examples(150))
@given(
    cases(nodes=(2, 4)) | needy_cases(nodes=(2, 4)),
    st.sampled_from(BACKFILLING),
    st.sampled_from((NODE_ACTION, GPU_ACTION)),
    st.randoms(),
)
def test_open_is_what_some_placement_that_keeps_the_reservation_has(case: Case, order: str, action: int, rng) -> None:  # type: ignore[no-untyped-def]
    sim = compiled(under(case, order))
    reset(sim, 0, case.row)
    while advance(sim, 0):
        picked: tuple[int, ...] = ()
        is_hopeful = False  # whether some placement is known to keep the reservation
        while sim.state.need[0] > 0:
            is_open = mask_of(sim, action)
            assert is_open
            if has_reservation(sim, 0):
                expected = keeping(sim, action, picked)
                if expected:
                    assert is_open == expected
                elif expected is not None:
                    assert not is_hopeful, "an open pick led to where nothing keeps the reservation"
                    assert is_open == usable(sim, action)
                is_hopeful = is_hopeful or bool(expected) or is_open != usable(sim, action)
            else:
                assert is_open == usable(sim, action)
            picked = (*picked, rng.choice(is_open))
            pick(sim, action, picked)
        start(sim, 0)


@settings(max_examples=examples(60))
@given(
    planned_cases(nodes=(2, 4)),
    st.sampled_from(BACKFILLING),
    st.sampled_from((NODE_ACTION, GPU_ACTION)),
    st.randoms(),
)
def test_to_a_job_with_a_plan_no_placement_is_closed_that_would_do(case: Case, order: str, action: int, rng) -> None:  # type: ignore[no-untyped-def]
    sim = compiled(under(case, order))
    reset(sim, 0, case.row)
    while advance(sim, 0):
        picked: tuple[int, ...] = ()
        while sim.state.need[0] > 0:
            is_open = mask_of(sim, action)
            assert is_open
            if has_reservation(sim, 0):
                assert set(keeping(sim, action, picked) or ()) <= set(is_open)
            picked = (*picked, rng.choice(is_open))
            pick(sim, action, picked)
        start(sim, 0)


@pytest.mark.parametrize("order", BACKFILLING)
@pytest.mark.parametrize("action", ["node", "gpu"])
def test_no_decision_of_a_random_agent_is_refused(action: str, order: str) -> None:
    cluster, scenarios, process, rules = hetero64(ROWS, 3, load=1.2)
    batch = Batch(
        Problem(cluster, scenarios, process, rules._replace(order=ORDERS[order])), AgentView(action=action), ROWS
    )
    rng, rows, state = np.random.default_rng(0), np.arange(ROWS), batch.sim.state
    batch.reset()
    decided = refused = 0
    while not batch.ended.any():
        jobs, decisions, moment = state.current.copy(), state.decisions.copy(), state.moment.copy()
        batch.step((rng.random(batch.masks.shape) * batch.masks).argmax(axis=1))
        decided += int((state.decisions - decisions).sum())
        refused += int((state.passed[rows, jobs] == moment).sum())
    assert decided > 300
    assert refused == 0
