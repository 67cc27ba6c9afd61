"""The compiled engine against the plain reference simulator, event for event."""

from itertools import pairwise

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from longshore.cluster.model.outcome import Event, Outcome
from longshore.cluster.state.state import INDEX_FROM
from tests.compiled_runs import run_heuristic, run_script
from tests.reference import simulate
from tests.reference_policies import POLICIES, scripted
from tests.strategies import Case, cases, needy_cases, planned_cases

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


@settings(deadline=None, max_examples=300)
@given(
    cases() | needy_cases() | planned_cases(),
    st.integers(0, 2**32 - 1),
    st.sampled_from((0.0, 0.3, 0.7)),
    st.sampled_from((1, 4, INDEX_FROM)),
)
def test_any_decisions_lead_to_the_events_of_the_reference(
    case: Case, seed: int, wait_share: float, index_from: int
) -> None:
    agree(run_script(case, seed, wait_share, index_from), simulate(*case, scripted(seed, wait_share)))


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(deadline=None, max_examples=40)
@given(case=cases() | needy_cases() | planned_cases())
def test_a_heuristic_leads_to_the_events_of_its_plain_version(case: Case, name: str) -> None:
    agree(run_heuristic(case, name), simulate(*case, POLICIES[name]))


@pytest.mark.parametrize("name", ["eft", "eft-hazard", "eft-wait", "patient"])
@settings(deadline=None, max_examples=30)
@given(case=cases(nodes=(9, 12)) | needy_cases(nodes=(9, 12)) | planned_cases(nodes=(9, 12)))
def test_sets_of_many_nodes_are_those_of_the_plain_version(case: Case, name: str) -> None:
    agree(run_heuristic(case, name), simulate(*case, POLICIES[name]))
