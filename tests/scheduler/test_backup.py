"""A store is copied while it is written to, and put back; what runs and is not in it is found, and keeps its GPUs."""

import errno
import os
import shutil
import sqlite3
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from longshore.scheduler.model.job import JobRow
from longshore.scheduler.store import copying
from longshore.scheduler.store.copying import back_up, swap_in_backup
from longshore.scheduler.store.database import StoreError, open_store
from longshore.scheduler.store.events import SCHEDULER_LEASE, acquire_lease
from tests.command_line import Command
from tests.scheduler.restored_trial import Restored, restored_trial
from tests.scheduler.served import LONGSHORE
from tests.scheduler.store.store_rows import job_now, submit
from tests.support import processes


@pytest.fixture
def trial(tmp_path: Path) -> Iterator[Restored]:
    with restored_trial(tmp_path) as it:
        yield it


def call(folder: Path, *arguments: str) -> processes.CompletedProcess[str]:
    return processes.run([*LONGSHORE, *arguments], cwd=folder, capture_output=True, check=False)


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
        swap_in_backup(tmp_path / "odd.db", tmp_path / "store.db", "aside")

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

    aside = swap_in_backup(tmp_path / "copy.db", tmp_path / "killed.db", "aside")

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
        swap_in_backup(tmp_path / "copy.db", killed, "aside")
    with pytest.raises(StoreError, match="a restore of it was cut off; call `longshore store restore` again"):
        open_store(url)

    assert swap_in_backup(tmp_path / "copy.db", killed, "later") == tmp_path / "killed.db.aside"

    for path, jobs in ((killed, [first.id]), (tmp_path / "killed.db.aside", [first.id, last.id])):
        opened = open_store(f"sqlite:///{path}")
        assert [job_now(opened, job).id for job in jobs] == jobs
        opened.close()


@pytest.mark.parametrize("name", ["killed.db", "new.db"])  # the second is not there yet
@pytest.mark.parametrize("step", ["write_text", "_sync_folder", "rename"])
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
        full.setattr(copying if step == "_sync_folder" else Path, step, fail)
        with pytest.raises(StoreError, match=rf"{name}: cannot be written: .*No space left on device"):
            swap_in_backup(tmp_path / "copy.db", old, "aside")

    assert sorted(tmp_path.iterdir()) == before
    opened = open_store(f"sqlite:///{old}")
    with opened.read() as tx:
        found = tx.exec_driver_sql("SELECT id FROM job ORDER BY id").scalars().all()
    opened.close()
    assert found == ([first.id, last.id] if name == "killed.db" else [])


@pytest.mark.full
def test_a_store_is_not_replaced_while_a_scheduler_leads_or_has_it_open(
    tmp_path: Path, longshore: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    folder = tmp_path / ".longshore"
    folder.mkdir()
    file = folder / "longshore.db"
    store = open_store(f"sqlite:///{file}")
    assert longshore("store", "backup", "copy.db").out.startswith(".longshore/longshore.db is copied to copy.db: ")
    assert (
        call(tmp_path, "store", "backup", "copy.db").stderr.strip()
        == "longshore: copy.db: is there already; give another path"
    )

    refused = call(tmp_path, "store", "restore", "copy.db")
    assert (refused.returncode, f"is open in process {os.getpid()}" in refused.stderr) == (2, True)
    store.write(lambda tx: acquire_lease(tx, SCHEDULER_LEASE, "1@elsewhere", 4e9, 60.0))
    store.close()
    assert "a scheduler leads with .longshore/longshore.db: 1@elsewhere" in longshore("store", "restore", "copy.db").err
    file.unlink()
    assert "is in the place of" in longshore("store", "restore", "copy.db").out
    assert file.stat().st_mode & 0o777 == 0o600
    told = longshore("store", "backup", "x.db", "--store", "postgresql://nobody@nowhere/x").err.strip()
    assert told == (
        "longshore: the store is in PostgreSQL, which has its own commands for this; use pg_dump -Fc -f FILE DATABASE"
    )
