"""Old history is deleted, with files, and nothing that anybody still needs."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray
from sqlalchemy import insert, text

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.files.disk_space import DiskSpace
from longshore.cluster.files.errors import InputError
from longshore.cluster.queue.order import may_wait
from longshore.cluster.state.state import Simulation
from longshore.scheduler.backends.local.folders import AttemptFolders
from longshore.scheduler.control.job_errors import JobErrors
from longshore.scheduler.control.reconciler import Reconciler
from longshore.scheduler.control.state_cache import StateCache
from longshore.scheduler.mirror.cluster_mirror import MirrorOrigin
from longshore.scheduler.model.states import Desired
from longshore.scheduler.placement.placer import PAST_S, PastLimits, Placer
from longshore.scheduler.placement.replay import export_decisions, replay
from longshore.scheduler.serve.app import create_app
from longshore.scheduler.service.retention import (
    Horizon,
    Pruned,
    _delete_batch,
    count_prunable,
    old_jobs,
    prune,
    remove_files,
)
from longshore.scheduler.service.service import Service
from longshore.scheduler.settings import SchedulerSettings, ServeOptions, read_settings
from longshore.scheduler.store.database import open_store
from longshore.scheduler.store.jobs import retry_job
from longshore.scheduler.store.schema import reservation
from tests.command_line import Command
from tests.scheduler.backends.attempts import until
from tests.scheduler.served import LONGSHORE
from tests.scheduler.trials import Trial, local_trial, processes_of
from tests.support import processes

NODES = {"a": 4, "b": 4}
ALL = Horizon(1e12, 1e12, 1e12)


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Trial]:
    with local_trial(tmp_path, NODES) as it:
        yield it


def known_at_start(trial: Trial) -> MirrorOrigin:
    """Return what a scheduler begins with that starts now."""
    fence = trial.scheduler._fence
    assert fence is not None
    parts = trial.parts(trial.way, "another")
    parts.monitor.load(trial.store, fence, trial.now_s())
    known = StateCache(parts, fence, JobErrors()).mirror.origin_now()
    return known._replace(now_s=0.0, beliefs=None)  # both change with time


def test_a_prune_takes_ended_jobs_with_their_files_and_nothing_of_open_ones_and_a_restart_decides_as_before(
    trial: Trial, tmp_path: Path
) -> None:
    over = [trial.submit("echo done", gpus=2) for _ in range(3)]
    for job in over:
        trial.ends(job)
    runs, waits = trial.submit("exec sleep 1000", gpus=5), trial.submit("true", gpus=8)
    trial.runs(runs)
    trial.tick()
    before, events = known_at_start(trial), [trial.events(job) for job in (runs, waits)]
    attempts = tmp_path / "attempts"
    assert len(list(attempts.iterdir())) == 4

    pruned = prune(trial.store, tmp_path, ALL)

    assert pruned.jobs == 3
    assert [path.name for path in attempts.iterdir()] == [f"ls-{runs}-1"]
    assert [trial.events(job) for job in (runs, waits)] == events
    assert processes_of(runs)
    assert known_at_start(trial) == before
    trial.crash()
    trial.tick(3)
    assert [row.number for row in trial.attempts(runs)] == [1]


def test_a_job_whose_files_cannot_be_deleted_is_kept_and_the_others_go(trial: Trial, tmp_path: Path) -> None:
    first, second = trial.submit("true"), trial.submit("true")
    for job in (first, second):
        trial.ends(job)
    folder = tmp_path / "attempts" / f"ls-{first}-1"
    elsewhere = tmp_path / "elsewhere"
    folder.rename(elsewhere)
    folder.symlink_to(elsewhere)  # what is behind a link is nobody's to delete

    assert prune(trial.store, tmp_path, ALL).jobs == 1

    assert trial.job(first).state == "succeeded"
    assert (elsewhere / "rank-0.log").exists()


def test_a_job_whose_rows_cannot_be_deleted_is_kept_and_the_others_go(trial: Trial, tmp_path: Path) -> None:
    jobs = [trial.submit("true") for _ in range(3)]
    for job in jobs:
        trial.ends(job)
    stray = {"node": "a", "gpu": 0, "job_id": jobs[0], "number": 1, "since_s": 0.0}  # refers to its attempt
    trial.store.write(lambda tx: tx.execute(insert(reservation).values(stray)))

    assert prune(trial.store, tmp_path, ALL).jobs == 2

    assert trial.job(jobs[0]).state == "succeeded"
    assert prune(trial.store, tmp_path, ALL).jobs == 0


def test_the_files_of_a_job_that_is_just_tried_again_stay(trial: Trial, tmp_path: Path) -> None:
    job = trial.submit("exit 3", retry={"user": 0})
    trial.ends(job)
    log = tmp_path / "attempts" / f"ls-{job}-1" / "rank-0.log"
    assert (trial.job(job).state, log.exists()) == ("failed", True)
    with trial.store.read() as tx:
        assert [it.id for it in old_jobs(tx, 1e12)] == [job]
    trial.store.write(lambda tx: retry_job(tx, job, at_s=trial.now_s(), writer="api"))

    assert _delete_batch(trial.store, tmp_path, {job: [1]}, 1e12, lambda: True) == 0

    assert (trial.job(job).state, log.exists()) == ("queued", True)


def test_history_is_deleted_also_where_the_disk_cannot_be_looked_at(tmp_path: Path) -> None:
    trial = Trial(tmp_path, NODES)
    job = trial.submit("true")
    trial.ends(job)
    trial.close()
    url = f"sqlite:///{tmp_path / 'store.db'}"
    store = open_store(url)
    store.write(lambda tx: tx.execute(text("UPDATE job SET ended_s = ended_s - 91 * 86400")))
    store.close()
    service = Service(ServeOptions(SchedulerSettings(folder=tmp_path, cluster=tmp_path / "cluster.yaml", store=url)))
    service.room = DiskSpace([tmp_path / "gone"], 0)
    service.start()
    until(lambda: not (tmp_path / "attempts" / f"ls-{job}-1").exists())
    service.close()


def test_files_of_an_attempt_are_found_in_the_folder_of_each_backend_and_no_others(tmp_path: Path) -> None:
    for name in ("attempts/ls-one-1", "kubernetes/ls-one-1", "attempts/ls-one-12", "deeper/still/ls-one-1"):
        (tmp_path / name / "work").mkdir(parents=True)
    remove_files(tmp_path, "ls-one-1")
    left = sorted(path.relative_to(tmp_path).as_posix() for path in tmp_path.rglob("ls-*"))
    assert left == ["attempts/ls-one-12", "deeper/still/ls-one-1"]


def test_a_dry_run_counts_what_a_prune_takes(trial: Trial, tmp_path: Path) -> None:
    for job in [trial.submit("true") for _ in range(2)]:
        trial.ends(job)
    horizon = Horizon(None, 1e12, 1e12)
    counted = count_prunable(trial.store, horizon)
    assert counted.events > 0
    assert counted.decisions == 2
    assert prune(trial.store, tmp_path, horizon) == counted
    assert count_prunable(trial.store, horizon) == Pruned(0, 0, 0)


def test_pruning_stops_on_request_and_continues_where_it_was(trial: Trial, tmp_path: Path) -> None:
    trial.ends(trial.submit("true"))
    assert prune(trial.store, tmp_path, ALL, lambda: False) == Pruned(0, 0, 0)
    assert prune(trial.store, tmp_path, ALL).jobs == 1


def test_a_scheduler_deletes_by_itself_what_is_older_than_its_configuration_says(tmp_path: Path) -> None:
    trial = Trial(tmp_path, NODES)
    old, young = trial.submit("true"), trial.submit("true")
    for job in (old, young):
        trial.ends(job)
    trial.close()
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    store.write(
        lambda tx: tx.execute(text("UPDATE job SET ended_s = ended_s - 91 * 86400 WHERE id = :id"), {"id": old})
    )
    store.close()
    settings = SchedulerSettings(
        folder=tmp_path, cluster=tmp_path / "cluster.yaml", store=f"sqlite:///{tmp_path / 'store.db'}"
    )
    service = Service(ServeOptions(settings))
    create_app(service)
    service.start()
    until(lambda: not (tmp_path / "attempts" / f"ls-{old}-1").exists())
    service.close()
    assert (tmp_path / "attempts" / f"ls-{young}-1").exists()


@pytest.mark.parametrize("wrong", ["jobs_days: 0.5", "jobs: 3", "events_days: .nan"])
def test_a_retention_that_cannot_be_is_refused_with_its_line(tmp_path: Path, wrong: str) -> None:
    path = tmp_path / "c.yaml"
    path.write_text(f"port: 1\nretention: {{{wrong}}}\n")
    with pytest.raises(InputError, match=r"c\.yaml:2:retention"):
        read_settings(path)


@pytest.mark.full
def test_pruning_by_hand_says_what_it_would_do_does_it_and_makes_nothing(tmp_path: Path, longshore: Command) -> None:
    def call(*arguments: str) -> processes.CompletedProcess[str]:
        line = [*LONGSHORE, "store", "prune", *arguments]
        return processes.run(line, cwd=tmp_path, capture_output=True, check=False)

    assert "is no folder" in call("--folder", "typo").stderr
    (tmp_path / ".longshore").mkdir()
    assert "there is no store at" in call().stderr
    assert list((tmp_path / ".longshore").iterdir()) == []
    trial = Trial(tmp_path, NODES)
    job = trial.submit("true")
    trial.ends(job)
    trial.store.write(lambda tx: tx.execute(text("UPDATE job SET ended_s = ended_s - 3 * 86400")))
    here = ("--folder", str(tmp_path), "--store", f"sqlite:///{tmp_path / 'store.db'}")

    assert longshore("store", "prune", *here, "--older-than", "2d", "--dry-run").out.startswith("1 jobs, ")
    assert trial.job(job).state == "succeeded"
    assert longshore("store", "prune", *here, "--older-than", "4d").out.startswith("0 jobs, ")
    assert call(*here, "--older-than", "2d").stdout == "1 jobs, 0 events and 0 decisions deleted\n"
    assert not (tmp_path / "attempts" / f"ls-{job}-1").exists()
    assert longshore("store", "prune", *here, "--older-than", "2h").status == 2
    trial.close()


class Waits:
    """A heuristic that lets every job wait that may."""

    name, waits, about = "waits", True, "lets every job wait that may"

    def place(self, sim: Simulation, row: int) -> bool:
        return not may_wait(sim, row) and HEURISTICS["pack"].place(sim, row)

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        raise NotImplementedError


@pytest.fixture
def one_gpu(tmp_path: Path) -> Iterator[Trial]:
    """A trial in which one job runs and all others wait."""
    with local_trial(tmp_path, {"a": 1}) as it:
        yield it


def decided_by(trial: Trial, placer: Placer) -> Placer:
    """Let another scheduler go on with a placer, and return that."""
    trial.scheduler = Reconciler(replace(trial.scheduler.parts, placer=placer))
    return placer


def test_decisions_to_wait_are_kept_now_and_then_so_that_what_happened_does_not_pile_up(
    trial: Trial, tmp_path: Path
) -> None:
    placer, most = decided_by(trial, Placer(Waits(), limits=PastLimits(max_unstored=20))), 0
    trial.runs(trial.submit("exec sleep 1000"))  # without whose end nobody may wait
    for _ in range(40):
        trial.submit("true")
        trial.tick()
        most = max(most, len(placer._unstored))

    assert 15 <= most <= 21
    assert _replayed(trial, tmp_path) > 3


@pytest.mark.full
def test_what_happened_does_not_pile_up_while_nothing_is_decided(one_gpu: Trial, tmp_path: Path) -> None:
    trial = one_gpu
    placer, most = decided_by(trial, Placer(HEURISTICS["pack"], limits=PastLimits(max_undecided=20))), 0
    first = trial.submit("exec sleep 1000")
    trial.runs(first)
    for _ in range(40):
        last = trial.submit("true")
        trial.tick()
        most = max(most, len(placer._unstored))

    assert 20 <= most < 30
    trial.wish(first, Desired.CANCEL)
    trial.ends(last)
    assert _replayed(trial, tmp_path) == 41


def test_a_past_that_has_become_long_begins_anew_and_both_can_be_replayed(trial: Trial, tmp_path: Path) -> None:
    passed_s = [0.0]
    placer = decided_by(trial, Placer(HEURISTICS["pack"], limits=PastLimits(passed_s=lambda: passed_s[0])))
    trial.ends(trial.submit("true", gpus=3))
    passed_s[0] += PAST_S + 1.0
    for _ in range(2):
        trial.ends(trial.submit("true", gpus=3))
    prune(trial.store, tmp_path, Horizon(None, None, trial.now_s() - 1e9))
    assert not placer.is_journal_full

    assert _replayed(trial, tmp_path) == 3
    with trial.store.engine.begin() as tx:
        tx.execute(text("DELETE FROM decision WHERE seq = (SELECT min(seq) FROM decision)"))
    assert _replayed(trial, tmp_path) == 2


def _replayed(trial: Trial, folder: Path) -> int:
    """Return how many stored decisions can be met again, each of which is as it was."""
    path = folder / "decisions.jsonl"
    path.write_text("".join(f"{line}\n" for line in export_decisions(trial.store)))
    assert isinstance(trial.scheduler.parts.placer, Placer)
    compared = list(replay(path, trial.scheduler.parts.placer.fallback))
    assert all(it.agrees and not it.error for it in compared)
    return len(compared)


def test_no_backend_keeps_an_attempt_elsewhere_than_where_it_is_looked_for(tmp_path: Path) -> None:
    path = AttemptFolders(tmp_path).path("ls-one-1")
    assert path.parent.parent == tmp_path
