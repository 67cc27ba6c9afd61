"""The rule that follows a round of checks, over reports of every kind."""

from hypothesis import given
from hypothesis import strategies as st

from longshore.preflight.check import Outcome, Report, Result
from longshore.preflight.round import MOST_S, MOST_TRIES, Start, Tried, TryOthers, Wait, next_step, without

NODES = st.lists(st.sampled_from("abcdefgh"), min_size=1, unique=True)


@st.composite
def reports(draw: st.DrawFn) -> Report:
    nodes = draw(NODES)
    results = st.builds(
        Result, st.just("gemm.ref"), st.sampled_from(nodes), st.sampled_from(Outcome), got=st.just("2.0")
    )
    return Report(tuple(nodes), tuple(draw(st.lists(results))))


TRIED = st.builds(Tried, st.just(100.0), st.integers(0, 2), st.frozensets(st.sampled_from("abcdefgh")))
NOW_S = st.floats(100.0, 300.0)


@given(TRIED, reports(), NOW_S)
def test_a_job_starts_if_and_only_if_every_node_has_passed(tried: Tried, report: Report, now_s: float) -> None:
    assert (next_step(tried, report, now_s) == Start()) == report.passed


@given(reports())
def test_what_nobody_knows_is_no_pass(report: Report) -> None:
    unknown = {it.node for it in report.results if it.outcome is Outcome.INCOMPLETE}
    assert unknown <= report.bad_nodes
    assert not (report.passed and unknown)


@given(st.lists(reports(), min_size=MOST_TRIES, max_size=MOST_TRIES))
def test_three_failures_end_in_waiting_with_the_evidence_of_all_three(rounds: list[Report]) -> None:
    rounds = [it for it in rounds if not it.passed]
    tried, told = Tried(0.0), list[str]()
    for number, report in enumerate(rounds, start=1):
        told += report.diagnostics()
        step = next_step(tried, report, 1.0)
        assert isinstance(step, Wait if number == MOST_TRIES else TryOthers)
        assert step.bad_nodes == report.bad_nodes
        if isinstance(step, Wait):
            assert list(step.diagnostics) == told
        elif isinstance(step, TryOthers):
            assert step.tried.struck_off >= tried.struck_off | report.bad_nodes
            assert not set(without("abcdefgh", step.tried)) & step.tried.struck_off
            tried = step.tried


@given(TRIED, reports().filter(lambda it: not it.passed), NOW_S)
def test_nobody_tries_on_after_a_minute(tried: Tried, report: Report, now_s: float) -> None:
    step = next_step(tried, report, now_s)
    if now_s - tried.since_s >= MOST_S:
        assert isinstance(step, Wait)


@given(reports())
def test_each_thing_that_is_wrong_has_a_line_that_names_node_check_and_evidence(report: Report) -> None:
    lines = report.diagnostics()
    assert len(lines) == len(report.bad)
    for line, result in zip(lines, report.bad, strict=True):
        assert line.startswith(f"{result.node}: gemm.ref: {result.outcome}: got 2.0")
