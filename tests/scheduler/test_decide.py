"""The next step of an attempt, by what is wanted and what is seen."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.scheduler.model.states import AfterStop, AttemptState, Contact, Desired, Run, Status
from longshore.scheduler.rules.attempts import LAUNCH_AGAIN_S, START_LIMIT_S, AttemptView, Do, next_attempt_step
from tests.scheduler.histories import mirror
from tests.support.budgets import examples

ANY = st.builds(
    AttemptView, st.sampled_from(Desired), st.sampled_from(sorted(set(AttemptState) - {AttemptState.CLOSED})),
    st.floats(0.0, 1e3), st.builds(Status, st.sampled_from(Run)), st.booleans(), st.booleans(), st.booleans(),
)  # fmt: skip


def view(state: AttemptState, run: Run, desired: Desired = Desired.RUN, *, gone: bool = False) -> AttemptView:
    return AttemptView(desired, state, 0.0, Status(run), gone, is_cancelled=gone, has_fault=False)


@given(ANY, st.floats(0.0, 1e6))
def test_a_node_that_is_down_stops_only_attempts_whose_ranks_do_not_all_run_yet(it: AttemptView, now_s: float) -> None:
    reached, cut_off = (next_attempt_step(it._replace(is_cut_off=down), now_s) for down in (False, True))
    if it.state is not AttemptState.RELEASED:
        assert cut_off.contact is Contact.UNKNOWN
    waits = it.state in (AttemptState.RESERVED, AttemptState.LAUNCHED) and it.status.run in (Run.ABSENT, Run.PENDING)
    assert cut_off.do is (Do.STOP if waits else reached.do)


@given(ANY, st.floats(0.0, 1e6))
def test_gpus_are_freed_only_when_all_processes_are_proven_gone(it: AttemptView, now_s: float) -> None:
    if next_attempt_step(it, now_s).do is Do.RELEASE:
        assert it.is_gone
        assert it.state is AttemptState.DRAINING
        assert it.status.run is not Run.ABSENT or it.is_cancelled


@given(ANY, st.floats(0.0, 1e6))
def test_what_cannot_be_reached_is_left_alone(it: AttemptView, now_s: float) -> None:
    step = next_attempt_step(it._replace(status=Status(Run.UNREACHABLE)), now_s)

    assert step.do in (Do.NOTHING, Do.CLOSE)
    assert (step.contact is Contact.UNKNOWN) == (it.state is not AttemptState.RELEASED)


@given(ANY, st.floats(0.0, 1e6))
def test_nothing_is_started_that_is_to_stop(it: AttemptView, now_s: float) -> None:
    step = next_attempt_step(it._replace(desired=Desired.CANCEL), now_s)

    assert step.do not in (Do.LAUNCH, Do.RUN)


@given(ANY, st.floats(0.0, 1e6))
def test_an_attempt_that_has_run_is_never_launched_again(it: AttemptView, now_s: float) -> None:
    if it.state not in (AttemptState.RESERVED, AttemptState.LAUNCHED):
        assert next_attempt_step(it, now_s).do is not Do.LAUNCH


@pytest.mark.parametrize(
    ("it", "now_s", "do"),
    [
        (view(AttemptState.RESERVED, Run.ABSENT), 0.0, Do.LAUNCH),
        (view(AttemptState.LAUNCHED, Run.ABSENT), 0.0, Do.LAUNCH),
        (view(AttemptState.LAUNCHED, Run.PENDING), 0.0, Do.NOTHING),
        (view(AttemptState.LAUNCHED, Run.PENDING), 2 * LAUNCH_AGAIN_S, Do.LAUNCH),
        (view(AttemptState.LAUNCHED, Run.PENDING), 2 * START_LIMIT_S, Do.STOP),
        (view(AttemptState.LAUNCHED, Run.PENDING)._replace(opened_s=START_LIMIT_S), 0.0, Do.NOTHING),
        (view(AttemptState.LAUNCHED, Run.RUNNING), 0.0, Do.RUN),
        (view(AttemptState.RUNNING, Run.RUNNING), 1e6, Do.NOTHING),
        (view(AttemptState.RUNNING, Run.EXITED), 0.0, Do.STOP),
        (view(AttemptState.RUNNING, Run.RUNNING, Desired.HOLD), 0.0, Do.STOP),
        (view(AttemptState.DRAINING, Run.RUNNING), 0.0, Do.CANCEL),
        (view(AttemptState.DRAINING, Run.EXITED), 0.0, Do.CANCEL),
        (view(AttemptState.DRAINING, Run.EXITED, gone=True), 0.0, Do.RELEASE),
        (view(AttemptState.RELEASED, Run.EXITED), 0.0, Do.CLOSE),
    ],
)
def test_the_next_step_of_an_attempt(it: AttemptView, now_s: float, do: Do) -> None:
    assert next_attempt_step(it, now_s).do is do


@given(opened_s=st.floats(0.0, 1e12), set_s=st.floats(-1e9, 1e9))
def test_what_does_not_start_holds_its_gpus_for_twice_the_limit_at_most_whatever_the_clock_is_set_to(
    opened_s: float, set_s: float
) -> None:
    it, now_s = view(AttemptState.LAUNCHED, Run.PENDING)._replace(opened_s=opened_s), opened_s + set_s
    first, last = (next_attempt_step(it, at_s) for at_s in (now_s, now_s + 2.0 * START_LIMIT_S + 1.0))
    assert Do.STOP in (first.do, last.do)
    if now_s < opened_s and first.do is Do.STOP:
        assert first.after is AfterStop.RELOCATE  # it uses no retry


def test_a_job_on_a_faulty_gpu_is_stopped_and_tried_again() -> None:
    step = next_attempt_step(view(AttemptState.RUNNING, Run.RUNNING)._replace(has_fault=True), 0.0)

    assert (step.do, step.after) == (Do.STOP, AfterStop.RETRY)


def test_an_attempt_that_was_to_start_on_a_node_that_is_down_starts_elsewhere() -> None:
    step = next_attempt_step(view(AttemptState.LAUNCHED, Run.PENDING)._replace(is_cut_off=True), 0.0)

    assert (step.do, step.after) == (Do.STOP, AfterStop.RELOCATE)


def test_twelve_thousand_random_histories_with_crashes_break_no_rule() -> None:
    for seed in range(examples(12_000)):
        mirror(seed, turns=12)
