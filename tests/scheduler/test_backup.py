"""A store is copied while it is written to, and put back; what runs and is not in it is found, and keeps its GPUs."""

import errno
import os
import shutil
import sqlite3
import subprocess
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longshore.cluster.files.errors import BackendError
from longshore.scheduler.backends.local.supervisor.spec import Rank, Spec, encode
from longshore.scheduler.backends.protocol import Attempt
from longshore.scheduler.control.unknown_attempts import STRANGER
from longshore.scheduler.model.job import JobRow
from longshore.scheduler.model.placement import Placement
from longshore.scheduler.model.states import Desired, JobState
from longshore.scheduler.store import copying
from longshore.scheduler.store.copying import back_up, put_in_place
from longshore.scheduler.store.database.errors import StoreError
from longshore.scheduler.store.opening import open_store
from longshore.scheduler.store.rows.leases import SCHEDULER, acquire
from tests.scheduler.backends.attempts import end_all
from tests.scheduler.served import LONGSHORE, Served, until
from tests.scheduler.store.store_rows import job_now, submit
from tests.scheduler.trials import Trial, Way, processes_of

NODES = {"a": 4, "b": 4}


class ListingWay(Way):
    """A way on which the backend tells what it remembers."""

    def remembered(self) -> dict[str, tuple[Attempt, Placement]]:
        self.before("remembered")
        return self.backend.remembered()  # type: ignore[attr-defined,no-any-return]


class Restored(Trial):
    """A trial whose store can go back to what it was."""

    def keep(self) -> None:
        back_up(self.folder / "store.db", self.folder / "kept.db")

    def go_back(self) -> None:
        """Put what was kept in the place of the store, and start another scheduler."""
        self.store.close()
        put_in_place(self.folder / "kept.db", self.folder / "store.db", "replaced")
        self.store = open_store(f"sqlite:///{self.folder / 'store.db'}")
        self.crash()

    def crash(self) -> None:
        self.way = ListingWay(self.make())
        self.scheduler = self.another()

    def unknown(self) -> list[str]:
        return [it.name for it in self.scheduler.unknown_attempts.known]

    def told(self) -> list[str]:
        return [event.now for event in self.events() if event.kind == STRANGER]


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Restored]:
    it = Restored(tmp_path, NODES)
    yield it
    it.close()
    end_all(tmp_path)


def call(folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*LONGSHORE, *arguments], cwd=folder, capture_output=True, text=True, check=False)


def test_a_copy_is_whole_and_for_its_owner_alone_while_others_write(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    first, ended = submit(store, 0), threading.Event()

    def write() -> None:
        number = 1
        while not ended.is_set():
            submit(store, number)
            number += 1

    writer = threading.Thread(target=write)
    writer.start()
    for turn in range(5):
        back_up(tmp_path / "store.db", tmp_path / f"copy{turn}.db")
    ended.set()
    writer.join()
    store.close()

    counts = []
    for turn in range(5):
        path = tmp_path / f"copy{turn}.db"
        assert path.stat().st_mode & 0o777 == 0o600
        with sqlite3.connect(path) as copy:
            jobs, events = (copy.execute(f"SELECT count(*) FROM {it}").fetchone()[0] for it in ("job", "event"))
        copy.close()
        assert jobs == events
        counts.append(jobs)
        opened = open_store(f"sqlite:///{path}")
        assert job_now(opened, first.id) == first
        opened.close()
    assert counts == sorted(counts)
    left = {path.name for path in tmp_path.iterdir()} - {f"copy{turn}.db" for turn in range(5)}
    assert {name for name in left if "copy" in name} <= {
        f"copy{turn}.db-{end}" for turn in range(5) for end in ("wal", "shm")
    }


def rubbish(path: Path) -> None:
    path.write_bytes(os.urandom(5000))


def something_else(path: Path) -> None:
    with sqlite3.connect(path) as made:
        made.execute("CREATE TABLE recipe (id INTEGER)")
    made.close()


def newer(path: Path) -> None:
    open_store(f"sqlite:///{path}").close()
    with sqlite3.connect(path) as made:
        made.execute("UPDATE longshore_version SET version_num = '9999'")
    made.close()


def torn(path: Path) -> None:
    store = open_store(f"sqlite:///{path}")
    for number in range(200):
        submit(store, number)
    store.close()
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


@pytest.mark.parametrize("make", [Path.touch, rubbish, something_else, newer, torn])
def test_what_is_no_sound_store_is_neither_copied_nor_put_in_place(
    tmp_path: Path, make: Callable[[Path], None]
) -> None:
    make(tmp_path / "odd.db")
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    job = submit(store, 0)
    store.close()
    before = sorted(tmp_path.iterdir())

    with pytest.raises(StoreError):
        back_up(tmp_path / "odd.db", tmp_path / "copy.db")
    with pytest.raises(StoreError):
        put_in_place(tmp_path / "odd.db", tmp_path / "store.db", "aside")

    assert sorted(path for path in tmp_path.iterdir() if not path.name.startswith("odd")) == [
        path for path in before if not path.name.startswith("odd")
    ]
    again = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    assert job_now(again, job.id) == job
    again.close()


def killed_after_a_copy(folder: Path) -> tuple[JobRow, JobRow]:
    """Leave a copy of a store and what a killed scheduler leaves of it; return the jobs before and after the copy."""
    file = folder / "store.db"
    store = open_store(f"sqlite:///{file}")
    first = submit(store, 0)
    back_up(file, folder / "copy.db")
    last = submit(store, 1)
    for end in ("", "-wal", "-shm"):
        shutil.copy(f"{file}{end}", folder / f"killed.db{end}")
    store.close()
    return first, last


def test_a_store_that_is_replaced_stays_beside_with_what_was_written_last(tmp_path: Path) -> None:
    first, last = killed_after_a_copy(tmp_path)

    aside = put_in_place(tmp_path / "copy.db", tmp_path / "killed.db", "aside")

    assert aside == tmp_path / "killed.db.aside"
    for path, jobs in ((tmp_path / "killed.db", [first.id]), (aside, [first.id, last.id])):
        opened = open_store(f"sqlite:///{path}")
        assert [job_now(opened, job).id for job in jobs] == jobs
        with opened.read() as tx:
            assert tx.exec_driver_sql("SELECT count(*) FROM job").scalar_one() == len(jobs)
        opened.close()


@pytest.mark.parametrize("cut_at", range(4))  # three files go aside, then the new one comes
def test_a_restore_that_is_cut_off_is_told_and_made_whole_by_another(
    tmp_path: Path, cut_at: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = killed_after_a_copy(tmp_path)
    killed, url = tmp_path / "killed.db", f"sqlite:///{tmp_path / 'killed.db'}"
    rename, calls = Path.rename, iter(range(100))

    def cut_off(path: Path, target: Path) -> Path:
        if next(calls) == cut_at:
            raise KeyboardInterrupt
        return rename(path, target)

    monkeypatch.setattr(Path, "rename", cut_off)
    with pytest.raises(KeyboardInterrupt):
        put_in_place(tmp_path / "copy.db", killed, "aside")
    with pytest.raises(StoreError, match="a restore of it was cut off; call `longshore restore` again"):
        open_store(url)

    assert put_in_place(tmp_path / "copy.db", killed, "later") == tmp_path / "killed.db.aside"

    for path, jobs in ((killed, [first.id]), (tmp_path / "killed.db.aside", [first.id, last.id])):
        opened = open_store(f"sqlite:///{path}")
        assert [job_now(opened, job).id for job in jobs] == jobs
        opened.close()


@pytest.mark.parametrize("name", ["killed.db", "new.db"])  # the second is not there yet
@pytest.mark.parametrize("step", ["write_text", "_keep", "rename"])
def test_a_restore_that_fails_before_anything_is_moved_leaves_all_as_it_was(
    tmp_path: Path, step: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, last = killed_after_a_copy(tmp_path)
    old = tmp_path / name
    before = sorted(tmp_path.iterdir())
    write_text = Path.write_text

    def fail(path: Path, *given: str, **options: str) -> None:
        if given and step == "write_text":
            write_text(path, "", **options)  # a full disk has room for a name
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path))

    with monkeypatch.context() as full:
        full.setattr(copying if step == "_keep" else Path, step, fail)
        with pytest.raises(StoreError, match=rf"{name}: cannot be written: .*No space left on device"):
            put_in_place(tmp_path / "copy.db", old, "aside")

    assert sorted(tmp_path.iterdir()) == before
    opened = open_store(f"sqlite:///{old}")
    with opened.read() as tx:
        found = tx.exec_driver_sql("SELECT id FROM job ORDER BY id").scalars().all()
    opened.close()
    assert found == ([first.id, last.id] if name == "killed.db" else [])


def test_a_store_is_not_replaced_while_a_scheduler_leads_or_has_it_open(tmp_path: Path) -> None:
    folder = tmp_path / ".longshore"
    folder.mkdir()
    file = folder / "longshore.db"
    store = open_store(f"sqlite:///{file}")
    assert call(tmp_path, "backup", "copy.db").stdout.startswith(".longshore/longshore.db is copied to copy.db: ")
    assert (
        call(tmp_path, "backup", "copy.db").stderr.strip() == "longshore: copy.db: is there already; give another path"
    )

    refused = call(tmp_path, "restore", "copy.db")
    assert (refused.returncode, f"is open in process {os.getpid()}" in refused.stderr) == (2, True)
    store.write(lambda tx: acquire(tx, SCHEDULER, "1@elsewhere", 4e9, 60.0))
    store.close()
    assert "a scheduler leads with .longshore/longshore.db: 1@elsewhere" in call(tmp_path, "restore", "copy.db").stderr
    file.unlink()
    assert "is in the place of" in call(tmp_path, "restore", "copy.db").stdout
    assert file.stat().st_mode & 0o777 == 0o600
    told = call(tmp_path, "backup", "x.db", "--store", "postgresql://nobody@nowhere/x").stderr.strip()
    assert told == (
        "longshore: the store is in PostgreSQL, which has its own commands for this; use pg_dump -Fc -f FILE DATABASE"
    )


def test_an_attempt_that_a_restored_store_does_not_have_is_named_and_keeps_its_gpus_until_it_is_gone(
    trial: Restored,
) -> None:
    first = trial.submit("exec sleep 1000", gpus=2)
    trial.runs(first)
    trial.keep()
    second = trial.submit("exec sleep 1000", gpus=3)
    trial.runs(second)
    held = {(row.node, row.gpu) for row in trial.held() if row.job_id == second}
    running = processes_of(second)
    trial.go_back()

    small, large = trial.submit("exec sleep 1000", gpus=3), trial.submit("true", gpus=6)
    trial.runs(small)
    trial.tick(20)

    assert trial.unknown() == [f"ls-{second}-1"]
    assert trial.told() == ["found"]
    assert held.isdisjoint((row.node, row.gpu) for row in trial.held())
    assert trial.job(large).state is JobState.QUEUED
    assert {it.pid for it in running} <= {it.pid for it in processes_of(second)}
    trial.crash()
    trial.tick(5)
    assert trial.unknown() == [f"ls-{second}-1"]

    assert trial.scheduler.unknown_attempts.end(f"ls-{second}-1")
    trial.wish(small, Desired.CANCEL)
    assert trial.ends(large).state is JobState.SUCCEEDED
    assert trial.unknown() == []
    assert trial.told() == ["found", "found", "gone"]
    assert processes_of(second) == []
    assert processes_of(first)


def test_a_job_that_was_started_after_the_copy_goes_on_with_its_attempt(trial: Restored) -> None:
    job = trial.submit("exec sleep 1000", gpus=3)
    trial.keep()
    trial.runs(job)
    placement = trial.attempts(job)[0].placement
    until(lambda: len(processes_of(job)) == 3)
    pids = {it.pid for it in processes_of(job)}
    trial.go_back()
    assert trial.job(job).state is JobState.QUEUED

    trial.runs(job)

    assert trial.unknown() == []
    assert [(row.number, row.placement) for row in trial.attempts(job)] == [(1, placement)]
    assert {it.pid for it in processes_of(job)} == pids
    trial.wish(job, Desired.CANCEL)
    assert trial.ends(job).state is JobState.CANCELLED


def test_an_operator_may_give_the_gpus_of_an_unknown_attempt_away(trial: Restored) -> None:
    trial.tick()
    trial.keep()
    lost = trial.submit("exec sleep 1000", gpus=8)
    trial.runs(lost)
    trial.go_back()
    waits = trial.submit("true", gpus=1)
    trial.tick(10)
    assert trial.job(waits).state is JobState.QUEUED
    assert not trial.scheduler.unknown_attempts.disregard("ls-nobody-1")
    assert trial.scheduler.unknown_attempts.disregard(f"ls-{lost}-1")
    assert trial.ends(waits).state is JobState.SUCCEEDED
    assert trial.told() == ["found", "disregarded"]


def test_nothing_starts_until_it_is_known_what_runs(trial: Restored, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("longshore.scheduler.control.unknown_attempts.FIND_AGAIN_S", 0.0)
    trial.crash()

    def fail(name: str) -> None:
        if name == "remembered":
            raise BackendError("status 500")

    trial.way.before = fail
    job = trial.submit("true")
    trial.tick(20)
    assert trial.job(job).state is JobState.QUEUED
    trial.way.before = lambda _name: None
    assert trial.ends(job).state is JobState.SUCCEEDED


def test_after_a_restore_by_hand_what_runs_is_shown_and_can_be_ended(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.start()
    served.call("backup", "copy.db")
    lost = served.submit("--gpus", "16", "--", "sleep", "1000")
    until(lambda: served.state(lost) == "running")
    served.end()
    assert "is in the place of" in served.call("restore", "copy.db").stdout
    served.start()

    assert f"ls-{lost}-1  rack0-node0:0,1,2,3 " in served.call("unknown").stdout
    waits = served.submit("--", "true")
    assert served.state(waits) == "queued"
    assert served.call("unknown", "--end", "ls-nobody-1", check=False).returncode == 2
    served.call("unknown", "--end", f"ls-{lost}-1")
    assert "succeeded" in served.ended(waits)
    assert served.call("unknown").stdout == "no unknown attempts\n"
    assert processes_of(lost) == []
    assert f"ls-{lost}-1 is not in the store and may run on" in (tmp_path / "serve.log").read_text()
    served.end()


NO_SENSE = [
    b"{torn", b"[]", b"{}", b'{"ranks": [], "command": [], "new": 1}', b"\xff",
    b"[" * 100_000, b'{"a":' * 100_000, b" " * (5 << 20),
    encode(Spec("ls-other-1", "other", 1, ("true",), "/", {}, 0.0, None, (Rank("a", 0, 0, (0,)),))),
]  # fmt: skip


@pytest.mark.parametrize("content", NO_SENSE, ids=range(len(NO_SENSE)))
def test_an_attempt_whose_file_makes_no_sense_is_passed_over_once_it_is_gone_and_the_others_are_found(
    content: bytes, trial: Restored, caplog: pytest.LogCaptureFixture
) -> None:
    trial.tick()
    trial.keep()
    lost, past = trial.submit("exec sleep 1000", gpus=2), trial.submit("true")
    trial.runs(lost)
    trial.ends(past)
    (trial.folder / "attempts" / f"ls-{past}-1" / "spec.json").write_bytes(content)
    trial.go_back()

    assert trial.ends(trial.submit("true")).state is JobState.SUCCEEDED

    assert trial.unknown() == [f"ls-{lost}-1"]
    assert f"ls-{past}-1: its spec.json cannot be read" in caplog.text


@pytest.mark.parametrize("content", NO_SENSE, ids=range(len(NO_SENSE)))
def test_nothing_starts_while_an_attempt_may_run_of_which_nobody_knows_the_gpus(
    content: bytes, trial: Restored
) -> None:
    trial.tick()
    trial.keep()
    lost = trial.submit("exec sleep 1000", gpus=2)
    trial.runs(lost)
    (trial.folder / "attempts" / f"ls-{lost}-1" / "spec.json").write_bytes(content)
    trial.go_back()
    waits = trial.submit("true")
    trial.tick(20)

    assert trial.job(waits).state is JobState.QUEUED
    assert trial.unknown() == [f"ls-{lost}-1"]
    assert "not known on which GPUs" in trial.scheduler.held_back
    assert trial.scheduler.unknown_attempts.end(f"ls-{lost}-1")
    assert trial.ends(waits).state is JobState.SUCCEEDED
    assert trial.unknown() == []


def test_the_file_of_an_attempt_that_the_store_has_may_make_no_sense(trial: Restored) -> None:
    runs = trial.submit("exec sleep 1000", gpus=2)
    trial.runs(runs)
    (trial.folder / "attempts" / f"ls-{runs}-1" / "spec.json").write_bytes(b"{torn")
    trial.crash()

    assert trial.ends(trial.submit("true")).state is JobState.SUCCEEDED
    assert trial.unknown() == []
    assert trial.job(runs).state is JobState.RUNNING


def test_an_operator_may_disregard_an_attempt_of_which_nobody_knows_the_gpus(trial: Restored) -> None:
    trial.tick()
    torn = trial.folder / "attempts" / "ls-torn-1"
    torn.mkdir()
    (torn / "spec.json").write_bytes(b"{torn")
    trial.crash()
    waits = trial.submit("true")
    trial.tick(20)
    assert (trial.unknown(), trial.job(waits).state) == (["ls-torn-1"], JobState.QUEUED)

    assert trial.scheduler.unknown_attempts.disregard("ls-torn-1")

    assert trial.ends(waits).state is JobState.SUCCEEDED
