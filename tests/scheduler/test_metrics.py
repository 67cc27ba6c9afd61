"""Metrics of a store in which things happen, and the page that explains them."""

import re
import shutil
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families

from longshore.cluster.files.disk_space import DiskSpace
from longshore.cluster.model.placement import Share
from longshore.scheduler.health.step_monitor import HEALTH, SlowWord, StepFigures
from longshore.scheduler.metrics import SchedulerMetrics
from longshore.scheduler.model.gpu_index import Layout
from longshore.scheduler.model.job import JobRow, NewEvent
from longshore.scheduler.model.states import AttemptState, JobState
from longshore.scheduler.policy_host.process import Miss
from longshore.scheduler.service.service import Service
from longshore.scheduler.settings import SchedulerSettings, ServeOptions
from longshore.scheduler.store.attempts import CheckpointRow, NewAttempt, NewDecision, get_attempt, store_checkpoint
from longshore.scheduler.store.database import Store, open_store
from longshore.scheduler.store.events import SCHEDULER_LEASE, acquire_lease
from longshore.scheduler.store.jobs import NewJob, insert_job
from longshore.scheduler.store.nodes import ALARM, CHANGE, GpuRow, NodeRow, set_out_of_service, write_health
from longshore.scheduler.store.schema import Liveness
from longshore.scheduler.store.transitions import AttemptChange, Changes, JobChange, JobStart, write_changes
from tests.scheduler.metrics_page import documented
from tests.support import processes

SPEC = {"command": ["true"], "grace_s": 30.0}
OF_THE_CLIENT = re.compile(r"process_|.*_created$")  # not ours


class Watched:
    """A store with the metrics of a scheduler of two nodes."""

    def __init__(self, folder: Path) -> None:
        self.store: Store = open_store(f"sqlite:///{folder / 'store.db'}")
        layout = Layout(["a", "b"], [2, 2])
        types = {"a": "slow", "b": "fast"}
        self.figures: dict[str, StepFigures] = {}
        self.metrics = SchedulerMetrics(
            self.store, layout, types, lambda: True, lambda: self.figures, DiskSpace([folder], 1 << 20)
        )
        fence = self.store.write(lambda tx: acquire_lease(tx, SCHEDULER_LEASE, "test", now_s=0.0, ttl_s=60.0))
        assert fence is not None
        self.fence = fence

    def scraped(self) -> dict[str, dict[str, float]]:
        """Return all values by name and labels."""
        found: dict[str, dict[str, float]] = {}
        for family in text_string_to_metric_families(self.metrics.scrape().decode()):
            for sample in family.samples:
                labels = ",".join(f"{name}={value}" for name, value in sorted(sample.labels.items()))
                found.setdefault(sample.name, {})[labels] = sample.value
        return found

    def submit(self, job: str = "x", at_s: float = 100.0) -> JobRow:
        new = NewJob(job, "job", "ada", SPEC, 0, 1, 60.0, at_s)
        return self.store.write(lambda tx: insert_job(tx, new, writer="api"))

    def write(self, changes: Changes, at_s: float = 3.0) -> None:
        self.store.write(lambda tx: write_changes(tx, self.fence, changes, at_s=at_s, writer="scheduler"))

    def see(self, node: NodeRow, *gpus: GpuRow) -> None:
        self.store.write(lambda tx: write_health(tx, self.fence, [node], gpus, []))

    def start(self, job: JobRow, at_s: float) -> None:
        self.write(Changes(opened=[JobStart(job, NewAttempt("local", (Share("b", (0,)),), 1.0, 0.0), "")]), at_s)

    def drain(self, job: str, at_s: float) -> None:
        stops = JobChange(job, JobState.STARTING, JobState.STOPPING, "", {})
        self.write(Changes([stops], [self.moved(job, AttemptState.DRAINING)]), at_s)

    def release(self, job: str, outcome: str, state: JobState) -> None:
        moved = self.moved(job, AttemptState.RELEASED)._replace(columns={"outcome": outcome})
        self.write(Changes([JobChange(job, JobState.STOPPING, state, "", {})], [moved]))

    def moved(self, job: str, now: AttemptState) -> AttemptChange:
        """Return the change of a job's first attempt to a state."""
        with self.store.read() as tx:
            row = get_attempt(tx, job, 1)
        assert row is not None
        return AttemptChange(row, now, row.contact, "", {})

    def decide(self, obeyed: str, kind: str = "", *, agrees: bool | None = None, mode: str = "active") -> None:
        reported = {"decided_by": obeyed, "fallback": "patient", "kind": kind, "agrees": agrees}
        new = NewDecision("x", None, 1.0, "learned", "1", mode, None, None, reported, None, None, None, None, 0.02)
        self.write(Changes(decisions=[new]))


@pytest.fixture
def watched(tmp_path: Path) -> Iterator[Watched]:
    it = Watched(tmp_path)
    yield it
    it.store.close()


def test_gpus_are_counted_by_state_and_type(watched: Watched) -> None:
    watched.start(watched.submit(), 100.0)
    a = NodeRow("a", "local", "slow", True, Liveness.UP, 1.0, 1.0, 0)  # noqa: FBT003
    watched.see(a, GpuRow("a", 1, False, 1.0))  # noqa: FBT003

    gpus = watched.scraped()["longshore_gpus"]

    assert {labels: count for labels, count in gpus.items() if count} == {
        "state=free,type=slow": 1.0, "state=out_of_service,type=slow": 1.0,
        "state=free,type=fast": 1.0, "state=starting,type=fast": 1.0,
    }  # fmt: skip
    assert len(gpus) == 10  # a state that no GPU is in counts 0


def test_nodes_are_counted_by_state_and_alarms_as_they_come(watched: Watched) -> None:
    a = NodeRow("a", "local", "slow", True, Liveness.SUSPECT, 1.0, 1.0, 3)  # noqa: FBT003
    watched.see(a)
    watched.see(a._replace(name="b", liveness=Liveness.UP))
    watched.store.write(lambda tx: set_out_of_service(tx, a._replace(name="b"), "a fan", at_s=2.0, writer="api"))
    alarm = NewEvent(CHANGE, "monitor", 3.0, now=ALARM)
    watched.store.write(lambda tx: write_health(tx, watched.fence, [], [], [alarm]))

    found = watched.scraped()
    assert found["longshore_nodes"] == {
        "state=up": 0.0, "state=suspect": 1.0, "state=down": 0.0, "state=out_of_service": 1.0,
    }  # fmt: skip
    assert found["longshore_node_alarms_total"] == {"": 1.0}


def test_jobs_are_counted_by_state(watched: Watched) -> None:
    watched.submit("x")
    watched.submit("y")

    assert watched.scraped()["longshore_jobs"]["state=queued"] == 2.0


def test_a_wait_in_the_queue_is_observed_once_the_job_starts(watched: Watched) -> None:
    job = watched.submit(at_s=100.0)
    assert watched.scraped()["longshore_queue_wait_seconds_count"][""] == 0.0

    watched.start(job, at_s=112.5)

    for _ in range(2):  # nothing is counted twice
        scraped = watched.scraped()
        assert scraped["longshore_queue_wait_seconds_count"][""] == 1.0
        assert scraped["longshore_queue_wait_seconds_sum"][""] == 12.5


def test_the_end_of_an_attempt_is_counted_by_what_became_of_its_job_and_its_class(watched: Watched) -> None:
    watched.start(watched.submit(), 100.0)
    watched.drain("x", 101.0)
    watched.release("x", "user", JobState.FAILED)

    assert watched.scraped()["longshore_attempts_total"] == {"class=user,outcome=failed": 1.0}


def test_what_happened_before_a_scheduler_started_is_not_counted(watched: Watched, tmp_path: Path) -> None:
    watched.start(watched.submit(), 100.0)

    later = SchedulerMetrics(
        watched.store, Layout(["a"], [1]), {"a": "slow"}, lambda: False, dict, DiskSpace([tmp_path], 1 << 20)
    )

    assert b"longshore_queue_wait_seconds_count 0.0" in later.scrape()


def test_decisions_are_counted_by_who_was_obeyed_and_why_the_policy_was_not(watched: Watched) -> None:
    watched.submit()
    watched.decide("learned", agrees=True)
    watched.decide("patient", "late")
    watched.decide("patient", agrees=False, mode="shadow")

    scraped = watched.scraped()

    assert scraped["longshore_decisions_total"] == {"by=policy": 1.0, "by=heuristic": 2.0}
    misses = scraped["longshore_policy_misses_total"]
    assert set(misses) == {f"reason={miss}" for miss in Miss}
    assert {reason: count for reason, count in misses.items() if count} == {"reason=late": 1.0}
    assert scraped["longshore_policy_agreement_total"] == {
        "agrees=yes,mode=active": 1.0, "agrees=no,mode=shadow": 1.0,
    }  # fmt: skip
    assert scraped["longshore_decision_seconds_sum"][""] == pytest.approx(0.06)


def test_steps_of_jobs_that_run_are_reported_and_verdicts_and_checkpoints_are_counted(watched: Watched) -> None:
    watched.start(watched.submit(), 100.0)
    watched.figures = {"x": StepFigures(7, 0.25), "y": StepFigures(0, None)}
    hung = NewEvent(HEALTH, "scheduler", 3.0, "x", 1, now=SlowWord.HUNG)
    watched.store.write(lambda tx: write_health(tx, watched.fence, [], [], [hung]))
    watched.store.write(lambda tx: store_checkpoint(tx, CheckpointRow("x", 1, 5, "/ckpt/5", "", 3.0), writer="api"))

    scraped = watched.scraped()

    assert scraped["longshore_step_seconds"] == {"job_id=x": 0.25}
    assert scraped["longshore_step_verdicts_total"] == {f"verdict={word}": float(word == "hung") for word in SlowWord}
    assert scraped["longshore_checkpoints_total"] == {"": 1.0}
    watched.figures = {}
    assert "longshore_step_seconds" not in watched.scraped()


def test_gpus_leak_that_an_attempt_holds_long_after_it_was_to_be_gone(watched: Watched) -> None:
    watched.start(watched.submit(), 100.0)
    watched.drain("x", 101.0)  # half a century ago

    assert watched.scraped()["longshore_gpus_leaking"][""] == 1.0


def test_commits_and_passes_of_the_loop_are_timed(watched: Watched) -> None:
    watched.store.watch_commits(watched.metrics.commit_s.observe)
    watched.submit()
    with watched.metrics.timed_tick():
        pass

    scraped = watched.scraped()

    assert scraped["longshore_store_commit_seconds_count"][""] == 1.0
    assert scraped["longshore_reconcile_seconds_count"][""] == 1.0
    assert scraped["longshore_lease_takeovers_total"] == {"name=scheduler": 1.0}


def test_a_store_that_does_not_answer_is_reported_and_the_rest_is_still_there(watched: Watched, tmp_path: Path) -> None:
    watched.store.engine.dispose()
    (tmp_path / "store.db").unlink()

    scraped = watched.scraped()

    assert scraped["longshore_store_up"] == {"": 0.0}
    assert scraped["longshore_leader"] == {"": 1.0}
    assert "longshore_jobs" not in scraped


def test_a_service_times_its_loop_and_its_store(tmp_path: Path) -> None:
    service = Service(ServeOptions(SchedulerSettings(folder=tmp_path, open=True)))
    service.start()
    give_up = time.monotonic() + 120.0
    while b"longshore_reconcile_seconds_count 0.0" in service.metrics.scrape() and time.monotonic() < give_up:
        time.sleep(0.05)
    scraped = service.metrics.scrape()
    service.close()

    assert b"longshore_reconcile_seconds_count 0.0" not in scraped
    assert b"longshore_store_commit_seconds_count 0.0" not in scraped
    assert b"longshore_leader 1.0" in scraped


def test_the_page_lists_every_metric_with_its_labels(watched: Watched) -> None:
    watched.start(watched.submit(), 100.0)
    watched.drain("x", 101.0)
    watched.release("x", "user", JobState.FAILED)
    watched.decide("learned", agrees=True)
    watched.figures = {"x": StepFigures(1, 1.0)}
    found = {}
    for family in text_string_to_metric_families(watched.metrics.scrape().decode()):
        name = family.name + ("_total" if family.type == "counter" else "")
        if not OF_THE_CLIENT.match(name):
            found[name] = {label for sample in family.samples for label in sample.labels} - {"le"}

    assert documented() == found


@pytest.mark.skipif(not shutil.which("promtool"), reason="no promtool here; on Debian: apt-get install prometheus")
def test_promtool_finds_nothing_to_complain_about(watched: Watched) -> None:
    done = processes.run(
        ["promtool", "check", "metrics"], input=watched.metrics.scrape().decode(), capture_output=True, check=False
    )

    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
