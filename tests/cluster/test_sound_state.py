"""The border of the kernels for a state that was kept: what no row could have come to is refused by name."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from longshore.cluster.files.errors import EndlessError
from longshore.cluster.simulator.event_log import MAX_QUIET, MAX_STOPS
from longshore.cluster.simulator.state_border import BOUNDED, LINES, checked_state
from longshore.cluster.state.state import MAX_INT64, RANGES, State, declared_fields
from longshore.envs.batch import AgentView, Batch
from tests.cluster.agreement import check_every_state, put
from tests.envs.copied_run import problem
from tests.envs.random_run import open_actions
from tests.strategies import Case, cases, needy_cases
from tests.support.budgets import examples

FIELDS = State.__annotations__
WHOLE = [field.name for field in declared_fields(State) if field.dtype is not None and field.dtype.kind == "i"]
VIEWS = (AgentView("node", "full", "dt"), AgentView("gpu", "patent", "dt"), AgentView("candidate", "full", "dt"))


def run(
    view: AgentView = VIEWS[0], order: str = "easy", steps: int = 9, *, learns: bool = False, late_s: float = 0.0
) -> Batch:
    """Return three environments in which jobs wait, run and have picks, and faults are detected after some seconds."""
    what = problem(order=order)
    rules = what.rules._replace(estimated_hazards=learns, detection_s=late_s, turns=True)
    users = np.arange(what.scenarios.gpus.size, dtype=np.int32).reshape(what.scenarios.gpus.shape) % 3
    batch = Batch(what._replace(rules=rules, scenarios=what.scenarios._replace(line=users)), view, 3)
    rng = np.random.default_rng(0)
    batch.reset()
    for _ in range(steps):
        batch.step(open_actions(batch.masks, rng))
        batch.reset_rows(np.flatnonzero(batch.ended))
    return batch


def spoiled(state: State, name: str, value: float, at: int = 0) -> State:
    """Return a copy with a value at a flat place of a field."""
    values: NDArray[Any] = getattr(state, name).copy()
    values.reshape(-1)[at % values.size] = value
    return state._replace(**{name: values})


def test_every_whole_number_of_the_state_has_one_range() -> None:
    assert sorted(name for names in RANGES.values() for name in names) == sorted(WHOLE)


@pytest.mark.parametrize("name", WHOLE)
def test_whole_numbers_beyond_what_there_is_are_refused_by_their_field(name: str) -> None:
    batch = run()
    least, most = next(bounds for bounds, names in RANGES.items() if name in names)
    field = getattr(batch.sim.state, name)
    beyond = [least - 1, -(2**31)] if least > -MAX_INT64 else []
    beyond += [2**30, 2**31 - 1] if most != "any" else []
    for value in beyond if field.size else ():  # the index has no room where no queue is long
        with pytest.raises(ValueError, match=rf"state\.{name}\[.* is .*, expected {least} to "):
            checked_state(batch.sim, spoiled(batch.sim.state, name, value))


@pytest.mark.parametrize("name", ["guess_s", "slowdown", *BOUNDED])
def test_numbers_that_kernels_would_reckon_with_for_ever_are_refused_by_their_field(name: str) -> None:
    batch = run(late_s=5.0)  # else nothing of faults that are not seen yet is in the state
    beyond = (1e61, -1.0) if name == "slowdown" else (1e29, -1.0, 0.0) if name == "guess_s" else (1e29, -1e29)
    for value in (math.inf, -math.inf, *beyond):
        with pytest.raises(ValueError, match=rf"state\.{name}\["):
            checked_state(batch.sim, spoiled(batch.sim.state, name, value))


@pytest.mark.parametrize(("name", "most"), [("quiet", MAX_QUIET), ("stops", MAX_STOPS)])
def test_counts_that_end_what_goes_on_for_ever_are_within_their_ends(name: str, most: int) -> None:
    batch = run()
    checked_state(batch.sim, spoiled(batch.sim.state, name, most))
    for value in (most + 1, 2**31 - 1):
        with pytest.raises(ValueError, match=rf"state\.{name}\[.* is .*, expected at most {most}"):
            checked_state(batch.sim, spoiled(batch.sim.state, name, value))


BELIEFS = (
    "gpu_hazard_per_s", "node_hazard_per_s", "observed_s", "observed_faults", "observed_gpu_s", "failed_s",
)  # fmt: skip


@pytest.mark.parametrize("name", BELIEFS)
@pytest.mark.parametrize("learns", [False, True])
def test_fault_rates_that_nobody_can_have_learned_are_refused_by_their_field(name: str, *, learns: bool) -> None:
    batch = run(learns=learns)
    checked_state(batch.sim, batch.sim.state)
    beyond = [math.inf, -2.0, *([1e9] if name in ("observed_s", "failed_s") else [])]
    for value in beyond if learns else [*beyond, 0.5]:
        with pytest.raises(ValueError, match=rf"state\.{name}\[.* is .*, expected "):
            checked_state(batch.sim, spoiled(batch.sim.state, name, value))


def test_turns_that_nobody_can_have_had_are_refused_and_lines_are_laid_anew() -> None:
    sim = run(steps=30).sim
    state = sim.state
    assert state.turns.max() > 0
    for name, value in (("turn_number", int(state.turns.max()) + 1), ("turn_s", float(state.now_s.max()) + 1.0)):
        with pytest.raises(ValueError, match=rf"state\.{name}\["):
            checked_state(sim, spoiled(state, name, value))
    zeroed = {name: np.zeros_like(getattr(state, name)) for name in LINES}
    laid = checked_state(sim, state._replace(**zeroed))
    for row in range(state.head.size):
        lines = np.flatnonzero(state.line_head[row] >= 0)
        for name in ("line_head", "line_tail", "line_oldest"):
            assert (getattr(laid, name)[row, lines] == getattr(state, name)[row, lines]).all(), name
        for name in ("first_line", "last_line"):
            assert (getattr(laid, name)[row] == getattr(state, name)[row]).all(), name


def test_signals_are_looked_for_anew() -> None:
    batch = run()
    assert not checked_state(batch.sim, spoiled(batch.sim.state, "unpolled", 2**31 - 1)).unpolled.any()


COUNTED = (
    "finished", "submitted", "estimated", "head", "tail", "queued", "usable", "busy", "down", "need", "picked_nodes",
    "free", "taken", "gpu_job", "gpu_down", "source_place", "source_count", "source_failed", "run_place", "running",
    "first_gpu", "index_from",
)  # fmt: skip


@settings(max_examples=examples(60))
@given(st.sampled_from(COUNTED), st.integers(0, 2**20), st.sampled_from((-1, 1, 2)))
def test_what_other_fields_tell_otherwise_is_refused(name: str, at: int, more: int) -> None:
    sim = run().sim
    was = getattr(sim.state, name).reshape(-1)
    with pytest.raises(ValueError, match=r"state\.\w+(\[|: a list of row)"):
        checked_state(sim, spoiled(sim.state, name, was[at % was.size] + more, at))


@pytest.mark.parametrize(
    ("name", "change"),
    [
        ("run_place", lambda it: np.full_like(it, -1)),
        ("source_heap", np.zeros_like),
        ("source_heap", lambda it: it[:, ::-1].copy()),
        ("next_job", lambda it: np.zeros_like(it) + np.arange(it.shape[1])),  # each is followed by itself
        ("gpu_next", lambda it: np.zeros_like(it) + np.arange(it.shape[1])),
        ("gpu_job", lambda it: np.full_like(it, -1)),
        ("source_s", lambda it: it - 1e9),
        ("source_s", lambda it: it + np.inf),
        ("slowdown", np.zeros_like),
        ("estimates_s", np.negative),
        ("current", lambda it: it * 0 + 5),  # not submitted yet
    ],
)
def test_heaps_lists_and_times_that_do_not_hold_together_are_refused(name: str, change: Any) -> None:
    sim = run().sim
    with pytest.raises(ValueError, match=r"state\."):
        checked_state(sim, sim.state._replace(**{name: change(getattr(sim.state, name))}))


@pytest.mark.parametrize("kind", ["picked", "running"])
def test_a_gpu_that_a_job_holds_is_not_out_of_service(kind: str) -> None:
    sim = run().sim
    state = sim.state
    is_picked = state.gpu_job == state.current[:, None]
    row, gpu = np.argwhere(is_picked if kind == "picked" else (state.gpu_job >= 0) & ~is_picked)[0]
    assert state.source_failed[row, gpu] == state.gpu_down[row, gpu] == 0
    down = state._replace(**{name: getattr(state, name).copy() for name in ("source_failed", "gpu_down", "down")})
    down.source_failed[row, gpu] = down.gpu_down[row, gpu] = 1
    down.down[row] += 1
    with pytest.raises(ValueError, match=rf"state\.gpu_down\[{row}, {gpu}\] is 1, expected 0 for a GPU"):
        checked_state(sim, down)


@pytest.mark.parametrize("name", ["speed", "intra", "nic", "uplink", "rack", "hazard"])
def test_what_is_told_of_the_picks_follows_from_them(name: str) -> None:
    batch = run()
    field = f"picked_{name}"
    for row in range(3):
        other = -2 if name == "rack" and getattr(batch.sim.state, field)[row] != -2 else 0.5
        with pytest.raises(ValueError, match=rf"state\.{field}\[{row}\]"):
            checked_state(batch.sim, spoiled(batch.sim.state, field, other, row))


@settings(max_examples=examples(150))
@given(st.data())
def test_what_is_not_refused_can_be_run(data: st.DataObject) -> None:
    view, order = data.draw(st.sampled_from(VIEWS)), data.draw(st.sampled_from(("fifo", "easy", "shortest")))
    batch = run(view, order, data.draw(st.integers(0, 20)))
    state = batch.sim.state
    for _ in range(data.draw(st.integers(1, 3))):
        name = data.draw(st.sampled_from([name for name in FIELDS if getattr(state, name).size]))
        values = (0.0, -1.0, 1e25, 1e150, math.inf) if name not in WHOLE else (-2, -1, 0, 1, 2, 3, 5, 8)
        state = spoiled(state, name, data.draw(st.sampled_from(values)), data.draw(st.integers(0, 2**20)))
    try:
        found = checked_state(batch.sim, state)
    except ValueError:
        return
    put(batch.sim, found)
    batch.observe_again()
    rng = np.random.default_rng(0)
    try:
        for _ in range(60):
            batch.step(open_actions(batch.masks, rng))
            assert np.isfinite(batch.rewards).all()
            assert np.isfinite(batch.observations).all()
            batch.reset_rows(np.flatnonzero(batch.ended))
    except EndlessError:
        return
    checked_state(batch.sim, batch.sim.state)


@settings(max_examples=examples(60))
@given(cases() | needy_cases(), st.sampled_from(("pack", "patient", "random")), st.integers(0, 30), st.integers(1, 4))
def test_every_state_at_a_decision_passes_and_is_run_on_the_same(
    case: Case, policy: str, stop_at: int, index_from: int
) -> None:
    check_every_state(case, policy, stop_at, index_from)
