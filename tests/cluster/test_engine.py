"""The compiled engine against the plain reference simulator, event for event."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.state.state import INDEX_FROM
from tests.cluster.agreement import agree
from tests.compiled_runs import run_heuristic, run_script
from tests.reference import simulate
from tests.reference_policies import POLICIES, scripted
from tests.strategies import Case, cases, needy_cases, planned_cases
from tests.support.budgets import examples


@settings(max_examples=examples(300))
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
@settings(max_examples=examples(40))
@given(case=cases() | needy_cases() | planned_cases())
def test_a_heuristic_leads_to_the_events_of_its_plain_version(case: Case, name: str) -> None:
    agree(run_heuristic(case, name), simulate(*case, POLICIES[name]))


@pytest.mark.parametrize("name", ["eft", "eft-hazard", "eft-wait", "patient"])
@settings(max_examples=examples(30))
@given(case=cases(nodes=(9, 12)) | needy_cases(nodes=(9, 12)) | planned_cases(nodes=(9, 12)))
def test_sets_of_many_nodes_are_those_of_the_plain_version(case: Case, name: str) -> None:
    agree(run_heuristic(case, name), simulate(*case, POLICIES[name]))
