"""Runs that must agree: a compiled one with a plain one, and one from a copied state with one left alone."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import assume

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.model.outcome import Event, Outcome
from longshore.cluster.simulator.engine import advance, reset, start, wait
from longshore.cluster.simulator.simulation import outcome_of
from longshore.cluster.simulator.state_border import checked_state
from longshore.cluster.state.state import INDEX_FROM, Simulation, State
from tests.compiled_runs import compiled
from tests.strategies import Case

SAME = 1e-9  # relative; sums are added up in another order
Run = tuple[list[Event], Outcome]


def agree(got: Run, expected: Run) -> None:
    (events, outcome), (plain_events, plain_outcome) = got, expected
    assert [event[1:] for event in events] == [event[1:] for event in plain_events]
    assert [event.time_s for event in events] == pytest.approx([event.time_s for event in plain_events], rel=SAME)
    for name, values in outcome._asdict().items():
        assert values == pytest.approx(getattr(plain_outcome, name), rel=SAME, abs=1e-6), name


def agree_but_for_ties(got: Run, expected: Run) -> None:
    """As `agree`, for runs of pieces of many lengths, where two finishes may be apart by rounding, in either order."""
    for events, _ in (got, expected):
        ends_s = sorted(event.time_s for event in events if event.kind == "finish")
        assume(not any(0.0 < late - early <= SAME * late for early, late in pairwise(ends_s)))
    agree(got, expected)


def put(sim: Simulation, state: State) -> None:
    for mine, theirs in zip(sim.state, state, strict=True):
        mine[...] = theirs  # type: ignore[index]


def check_every_state(case: Case, policy: str, stop_at: int, index_from: int = INDEX_FROM) -> None:
    """Check the state at each decision; a run that goes on from a copy of one ends as one that was left alone."""
    sim, twin = (compiled(case, index_from=index_from) for _ in range(2))
    for each in (sim, twin):
        reset(each, 0, case.row)
        for decision in range(300):
            if not advance(each, 0):
                break
            if each is sim:
                found = checked_state(sim, sim.state)
                if decision == stop_at:
                    put(sim, found)
            (start if HEURISTICS[policy].place(each, 0) else wait)(each, 0)
    ends: list[Outcome] = [outcome_of(each) for each in (sim, twin)]
    assert all(np.array_equal(*both) for both in zip(*ends, strict=True))
