"""What goes wrong around the scheduler, on a simulated cluster: nothing is lost, doubled, or freed too early."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longshore.cluster.files.processes import this_process_name
from longshore.scheduler.control.reconciler import Reconciler
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.model.states import FINAL, AttemptState, Contact, Desired, JobState
from longshore.scheduler.rules.attempts import START_LIMIT_S
from longshore.scheduler.store.attempts import attempts_of, held_gpus
from longshore.scheduler.store.database import open_store
from longshore.scheduler.store.jobs import list_jobs
from longshore.testing.twin import TWIN_RETRY, id_of
from tests.compiled_runs import compiled
from tests.plain_run import busy_case
from tests.scheduler.store.store_rows import assert_each_change_has_one_event
from tests.scheduler.troubled import Case, Trouble
from tests.support.budgets import examples


class UnknownAttempt(Trouble):
    """Another cluster with nodes of the same names, that has never heard of anything."""

    def __init__(self, layout: Layout) -> None:
        super().__init__(compiled(busy_case(ring=False)), layout)


@pytest.fixture
def case(tmp_path: Path) -> Iterator[Case]:
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    yield Case(store)
    store.close()


def test_attempts_that_cannot_be_reached_go_on_at_no_cost(case: Case) -> None:
    case.live_on(2)
    running = case.jobs_in(JobState.RUNNING)
    before = [case.job(number) for number in running]
    case.backend.silent = True
    for _ in range(30):
        case.twin.tick()
    assert {row.contact for number in running for row in case.attempts(number)} == {Contact.UNKNOWN}
    assert [case.job(number) for number in running] == before

    case.backend.silent = False
    case.twin.tick()
    assert {row.contact for number in running for row in case.attempts(number)} == {Contact.OK}
    reported = Counter((event.kind, event.job_id) for event in case.events() if event.kind == "contact")
    assert set(reported.values()) == {2}


def test_what_the_backend_forgot_of_an_ended_job_changes_nothing(case: Case) -> None:
    while not case.twin.is_over:
        case.live_on()
    events = case.events()
    case.backend._number.clear()
    case.crash()
    for _ in range(3):
        case.twin.tick()
    assert case.events() == events


def test_gpus_stay_reserved_while_a_cancelled_attempt_cannot_be_stopped(case: Case) -> None:
    case.live_on(2)
    number = case.jobs_in(JobState.RUNNING)[0]
    case.backend.stuck = 20
    case.wish(number, Desired.CANCEL)
    for _ in range(20):
        case.twin.tick()
        assert case.job(number).state is JobState.STOPPING
        with case.store.read() as tx:
            assert id_of(number) in {row.job_id for row in held_gpus(tx)}
    assert case.backend.stuck == 0
    finish(case)
    assert case.job(number).state in FINAL
    assert len(case.attempts(number)) == 1


def test_a_gang_that_the_backend_does_not_start_holds_no_gpus_and_the_others_run(case: Case) -> None:
    case.backend.refuses = frozenset({id_of(0)})
    case.live_on(1)
    first = case.job(0)
    assert (first.state, first.stops_infra) == (JobState.QUEUED, 1)
    assert first.not_before_s > case.twin.backend.now_s
    with case.store.read() as tx:
        assert id_of(0) not in {row.job_id for row in held_gpus(tx)}
    assert case.jobs_in(JobState.STARTING) or case.jobs_in(JobState.RUNNING)
    assert "somebody else has them" in first.cause


def test_of_two_schedulers_with_other_clocks_one_leads_and_every_change_is_made_once(case: Case) -> None:
    case.twin.parts = replace(case.twin.parts, owner=this_process_name())
    case.crash()
    late = Reconciler(replace(case.twin.parts, now_s=lambda: case.backend.now_s + 60.0, owner="late"))
    led = []
    while not case.twin.is_over:
        case.live_on()
        led.append(late.tick())
    assert not any(led)
    for number in range(10):
        assert_each_change_has_one_event(case.job(number), case.events())
    with case.store.read() as tx:
        assert held_gpus(tx) == []


def test_attempts_of_another_backend_are_left_alone(case: Case) -> None:
    case.live_on(2)
    running = case.jobs_in(JobState.RUNNING)
    case.twin.parts = replace(case.twin.parts, backend_name="another", backend=UnknownAttempt(case.backend.layout))
    before = [case.job(number) for number in running]
    case.crash()
    for _ in range(3):
        case.twin.tick()
    assert [case.job(number) for number in running] == before
    assert {row.contact for number in running for row in case.attempts(number)} == {Contact.UNKNOWN}


def test_a_launch_that_never_comes_to_anything_gives_its_gpus_back_and_holds_up_no_other(case: Case) -> None:
    case.backend.unstarting = frozenset({id_of(0)})
    case.live_on()
    assert case.job(0).state is JobState.STARTING
    assert case.jobs_in(JobState.STARTING) != [0]
    opened_s = case.attempts(0)[0].opened_s
    for _ in range(200):
        if case.backend.now_s > opened_s + START_LIMIT_S:
            break
        case.live_on()
    case.twin.tick()
    assert case.attempts(0)[0].state in (AttemptState.RELEASED, AttemptState.CLOSED)
    assert case.job(0).stops_infra >= 1


def test_an_attempt_that_could_not_be_forgotten_is_closed_later_though_the_next_one_runs(case: Case) -> None:
    case.backend.refuses = frozenset({id_of(0)})
    case.backend.unforgetting = 1
    case.live_on()
    assert case.attempts(0)[0].state is AttemptState.RELEASED
    case.backend.refuses = frozenset()
    for _ in range(200):
        if len(case.attempts(0)) > 1:
            break
        case.live_on()
    case.live_on(20)  # it is not tried again at once
    assert case.attempts(0)[0].state is AttemptState.CLOSED


def test_a_job_that_makes_no_progress_is_held_until_its_owner_releases_it(
    case: Case, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(TWIN_RETRY, "no_progress", 1)
    case.backend.saved_s = 0.0
    for _ in range(200):
        case.live_on()
        if case.jobs_in(JobState.HELD):
            break
    number = case.jobs_in(JobState.HELD)[0]
    held = case.job(number)
    assert (held.desired, held.no_progress) == (Desired.HOLD, 1)
    case.live_on(5)
    case.crash()
    case.live_on(5)
    assert case.job(number).state is JobState.HELD
    case.wish(number, Desired.RUN)
    case.live_on(2)
    assert case.job(number).state is not JobState.HELD
    assert case.job(number).no_progress == 0


def test_what_a_job_claims_to_have_saved_is_believed_only_as_far_as_it_can_be_true(case: Case) -> None:
    case.backend.saved_s = 1e308
    finish(case)
    assert all(case.job(number).saved_s < 1e6 for number in range(10))


ACTIONS = st.lists(
    st.sampled_from(["go", "go", "go", "crash", "silence", "cancel", "hold", "run", "forget"]), max_size=40
)


@settings(max_examples=examples(18), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(actions=ACTIONS, seed=st.integers(0, 9))
def test_whatever_happens_every_job_ends_once_and_nothing_is_left(
    tmp_path_factory: pytest.TempPathFactory, actions: list[str], seed: int
) -> None:
    store = open_store(f"sqlite:///{tmp_path_factory.mktemp('any') / 'store.db'}")
    case = Case(store)
    case.live_on()
    cancelled = set()
    for turn, action in enumerate(actions):
        number = (seed + 3 * turn) % int(case.backend.sim.state.submitted[0])
        if action == "crash":
            case.crash()
        elif action == "silence":
            case.backend.silent = not case.backend.silent
        elif action == "cancel":
            cancelled.add(number)
            case.wish(number, Desired.CANCEL)
        elif action in ("hold", "run"):
            case.wish(number, Desired.HOLD if action == "hold" else Desired.RUN)
        elif action == "forget":
            case.twin.scheduler.cache = None
        else:
            case.twin.process_next_moment()
        case.twin.tick()
        assert_sound(case)
    case.backend.silent = False
    finish(case)
    for number in range(10):
        row = case.job(number)
        assert row.state in (FINAL if number in cancelled else {JobState.SUCCEEDED})
        assert_each_change_has_one_event(row, case.events())
    with store.read() as tx:
        assert held_gpus(tx) == []
    store.close()


def finish(case: Case) -> None:
    """Let all jobs run and end."""
    for _ in range(1000):
        for number in range(int(case.backend.sim.state.submitted[0])):
            case.wish(number, Desired.RUN)
        case.live_on()
        if sum(len(case.jobs_in(state)) for state in FINAL) == 10:
            return
    raise AssertionError("jobs are left")


def assert_sound(case: Case) -> None:
    """The GPUs that are reserved are those of the attempts that are not proven gone, one open attempt a job."""
    with case.store.read() as tx:
        held = Counter(row.job_id for row in held_gpus(tx))
        jobs = list_jobs(tx, limit=100)
        rows = {job.id: attempts_of(tx, job.id) for job in jobs}
    for job in jobs:
        holding = [row for row in rows[job.id] if row.state not in (AttemptState.RELEASED, AttemptState.CLOSED)]
        assert len(holding) <= 1
        assert held[job.id] == job.gpus * len(holding)
