"""Two schedulers while clocks are set forward and back by an hour."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.cluster.files.processes import this_process_name
from longshore.scheduler.control.reconciler import LEASE_S, ReconcilerTiming
from longshore.scheduler.model.states import Contact, Desired, JobState
from tests.scheduler.store.store_rows import assert_each_change_has_one_event
from tests.scheduler.trials import Trial, local_trial

HOUR_S = 3600.0


class Clocks:
    """What schedulers go by: time that nobody sets, and that of the store's machine."""

    def __init__(self) -> None:
        self.passed_s, self.store_s = 1e5, 1e9


@pytest.fixture
def clocks(trial: Trial) -> Clocks:
    it = Clocks()
    trial.times = ReconcilerTiming(passed_s=lambda: it.passed_s, store_s=lambda _tx: it.store_s)
    return it


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    with local_trial(tmp_path, {"a": 4}) as it:
        yield it


@pytest.mark.parametrize("set_s", [HOUR_S, -HOUR_S])
def test_a_lease_that_is_renewed_is_not_taken_over_though_the_clock_of_the_store_is_set(
    trial: Trial, clocks: Clocks, set_s: float
) -> None:
    leader, other = trial.another(this_process_name()), trial.another("1@elsewhere")
    for second in range(60):
        clocks.passed_s += 1.0
        clocks.store_s += 1.0 + (set_s if second == 30 else 0.0)
        assert leader.tick()
        assert not other.tick()


@pytest.mark.parametrize("set_s", [HOUR_S, 0.0, -HOUR_S])
def test_a_lease_that_no_one_renews_any_more_is_taken_over_though_the_clock_of_the_store_is_set(
    trial: Trial, clocks: Clocks, set_s: float
) -> None:
    leader, other = trial.another(this_process_name()), trial.another("1@elsewhere")
    assert leader.tick()
    assert not other.tick()
    clocks.store_s += set_s
    clocks.passed_s += LEASE_S - 0.1
    assert not other.tick()
    clocks.passed_s += 0.2
    assert other.tick()
    assert not leader.tick()


@pytest.mark.parametrize("set_s", [HOUR_S, -HOUR_S])
def test_a_wait_before_the_next_attempt_ends_once_for_two_schedulers_whatever_the_clock_does(
    trial: Trial, tmp_path: Path, set_s: float
) -> None:
    trial.scheduler = trial.another(this_process_name())
    late = trial.another("1@elsewhere")
    job = trial.submit(f"echo try >> {tmp_path}/tries; [ $(wc -l < {tmp_path}/tries) = 3 ] || exit 75", grace_s=0.0)
    trial.until(lambda: trial.job(job).state is JobState.QUEUED and trial.job(job).stops_again == 1)
    trial.later_s += set_s
    late.tick()
    trial.tick()
    assert not late.tick()
    trial.until(lambda: trial.job(job).attempt == 2)  # though no time passes
    trial.until(lambda: trial.job(job).stops_again == 2)
    trial.later_s += 600.0 - min(set_s, 0.0)
    row = trial.ends(job)
    assert (row.state, row.attempt, row.stops_again) == (JobState.SUCCEEDED, 3, 2)
    assert_each_change_has_one_event(row, trial.events(job))
    assert not late.tick()


@pytest.mark.parametrize("set_s", [HOUR_S, -HOUR_S])
def test_a_running_job_and_its_node_do_not_suffer_when_the_clock_is_set(trial: Trial, set_s: float) -> None:
    job = trial.submit("exec sleep 1000", gpus=2)
    trial.runs(job)
    before = trial.job(job)
    trial.later_s += set_s
    trial.wait(60.0)
    trial.crash()
    trial.wait(60.0)
    assert trial.job(job) == before
    assert [row.contact for row in trial.attempts(job)] == [Contact.OK]
    (node,) = {share.node for share in trial.attempts(job)[0].placement}
    trial.way.silent_s[node] = trial.now_s()
    trial.wait(40.0)
    assert [event.now for event in trial.events() if event.kind == "node"] == ["suspect", "down"]
    trial.wish(job, Desired.CANCEL)
    trial.way.silent_s.clear()
    assert trial.ends(job).state is JobState.CANCELLED
