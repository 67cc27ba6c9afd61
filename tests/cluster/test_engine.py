"""The compiled engine against the plain reference simulator, event for event."""

from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.state.state import INDEX_FROM
from tests.cluster.agreement import Run, agree, agree_but_for_ties
from tests.compiled_runs import run_heuristic, run_script
from tests.reference import simulate
from tests.reference_policies import POLICIES, scripted
from tests.strategies import Case, backed_cases, cases, needy_cases, planned_cases, slow_cases, switching_cases
from tests.support.budgets import examples

# Cases of every kind, each with what "the same events" means for it.
ANY = st.one_of(
    st.tuples(cases() | needy_cases() | planned_cases() | switching_cases(), st.just(agree)),
    st.tuples(slow_cases() | backed_cases(), st.just(agree_but_for_ties)),
)


@settings(max_examples=examples(800))
@given(ANY, st.integers(0, 2**32 - 1), st.sampled_from((0.0, 0.3, 0.7)), st.sampled_from((1, 4, INDEX_FROM)))
def test_any_decisions_lead_to_the_events_of_the_reference(
    case: tuple[Case, Callable[[Run, Run], None]], seed: int, wait_share: float, index_from: int
) -> None:
    run, check = case
    check(run_script(run, seed, wait_share, index_from), simulate(*run, scripted(seed, wait_share)))


@pytest.mark.parametrize("name", sorted(POLICIES))
@settings(max_examples=examples(60))
@given(case=ANY)
def test_a_heuristic_leads_to_the_events_of_its_plain_version(
    case: tuple[Case, Callable[[Run, Run], None]], name: str
) -> None:
    run, check = case
    check(run_heuristic(run, name), simulate(*run, POLICIES[name]))


@pytest.mark.parametrize("name", ["eft", "eft-hazard", "eft-wait", "patient"])
@settings(max_examples=examples(30))
@given(case=cases(nodes=(9, 12)) | needy_cases(nodes=(9, 12)) | planned_cases(nodes=(9, 12)))
def test_sets_of_many_nodes_are_those_of_the_plain_version(case: Case, name: str) -> None:
    agree(run_heuristic(case, name), simulate(*case, POLICIES[name]))
