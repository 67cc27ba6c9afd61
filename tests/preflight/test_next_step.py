"""What follows a round of checks, over reports of every kind."""

from dataclasses import replace

from hypothesis import given
from hypothesis import strategies as st

from longshore.preflight.check import CheckOutcome, CheckResult, RoundReport
from longshore.preflight.rounds import MAX_TRIES, MAX_TRYING_S, PlacementTries

NODES = st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True)


@st.composite
def reports(draw: st.DrawFn) -> RoundReport:
    nodes = draw(NODES)
    results = st.builds(
        CheckResult, st.just("gemm.ref"), st.sampled_from(nodes), st.sampled_from(CheckOutcome), got=st.just("2.0")
    )
    return RoundReport(tuple(nodes), tuple(draw(st.lists(results))))


TRIES = st.builds(PlacementTries, st.floats(0.0, 100.0), st.integers(0, 2))


@given(reports())
def test_a_node_with_an_incomplete_check_has_not_passed(report: RoundReport) -> None:
    unknown = {it.node for it in report.results if it.outcome is CheckOutcome.INCOMPLETE}
    assert unknown <= report.bad_nodes
    assert not (report.passed and unknown)


@given(st.lists(reports(), min_size=MAX_TRIES, max_size=MAX_TRIES))
def test_three_failures_end_in_waiting_with_the_evidence_of_all_three(rounds: list[RoundReport]) -> None:
    tries, evidence = PlacementTries(), list[str]()
    for number, report in enumerate((it for it in rounds if not it.passed), start=1):
        evidence += report.diagnostics()
        tries = tries.with_failed_round(report)
        assert tries.are_used_up == (number == MAX_TRIES)
        assert list(tries.diagnostics) == evidence


@given(TRIES, reports().filter(lambda it: not it.passed), st.floats(0.0, 100.0))
def test_no_job_tries_other_nodes_after_a_minute_of_checks(
    before: PlacementTries, report: RoundReport, took_s: float
) -> None:
    after = before.with_failed_round(replace(report, seconds=took_s))
    assert after.are_used_up == (after.count == MAX_TRIES or before.took_s + took_s >= MAX_TRYING_S)


@given(reports())
def test_each_thing_that_is_wrong_has_a_line_that_names_node_check_and_evidence(report: RoundReport) -> None:
    lines = report.diagnostics()
    assert len(lines) == len(report.bad_results)
    for line, result in zip(lines, report.bad_results, strict=True):
        assert line.startswith(f"{result.node}: gemm.ref: {result.outcome}: got 2.0")
