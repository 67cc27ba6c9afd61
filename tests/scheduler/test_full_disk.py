"""A scheduler whose disk is really full: what is known can be read, what runs can be ended, and nothing is lost."""

import os
import resource
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager, suppress
from pathlib import Path

import httpx
import pytest
from sqlalchemy import Connection

from longshore.cluster.files.disk_space import RESERVE, DiskSpace
from longshore.scheduler.store.database import StoreFullError, open_store
from tests.scheduler.backends.attempts import end_all
from tests.scheduler.served import Served, until
from tests.scheduler.store.store_rows import job_now, submit
from tests.support.small_disk import small_disk

MIB = 1 << 20
LEAST_BYTES = 8 * MIB
JOB = {"name": "job", "gpus": 1, "command": ["true"], "estimate_s": 60.0}


def file_system(folder: Path) -> AbstractContextManager[Path]:
    """A small file system in a folder that there is not yet."""
    return small_disk(folder, 32 * MIB, lambda: end_all(folder / ".longshore"))


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A file system of its own."""
    with file_system(tmp_path / "small") as folder:
        yield folder


def fill(folder: Path, left_bytes: int = 0) -> None:
    file = os.open(folder / "filling", os.O_WRONLY | os.O_CREAT)
    while (free := free_bytes(folder)) > left_bytes:
        with suppress(OSError):  # the scheduler has written something meanwhile
            os.posix_fallocate(file, os.fstat(file).st_size, free - left_bytes)
            break
    os.close(file)


def free_bytes(folder: Path) -> int:
    found = os.statvfs(folder)
    return found.f_bavail * found.f_frsize


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A scheduler on a small file system, whose log is elsewhere, and which asks for a token."""
    folder = tmp_path_factory.mktemp("served")
    with file_system(folder / "small") as small:
        config = folder / "c.yaml"
        config.write_text(f"folder: {small / '.longshore'}\nleast_free_bytes: {LEAST_BYTES}\n")
        (small / ".longshore").mkdir(mode=0o700)
        open_store(f"sqlite:///{small / '.longshore' / 'longshore.db'}").close()
        it = Served(folder, "--config", str(config))
        made = it.call("token", "create", "laptop", "--role", "operator", "--folder", str(small / ".longshore"))
        it.environment["LONGSHORE_TOKEN"] = made.stdout.strip()
        it.start()
        yield it
        it.end()


@pytest.fixture
def served(running: Served) -> Iterator[Served]:
    """The same, of which the disk is full only in a test."""
    until(reserve_of(running).exists)
    yield running
    (disk_of(running) / "filling").unlink(missing_ok=True)
    running.cancel_all()


def disk_of(served: Served) -> Path:
    return served.folder / "small"


def reserve_of(served: Served) -> Path:
    return disk_of(served) / ".longshore" / RESERVE


def api_of(served: Served, token: str = "") -> httpx.Client:
    headers = {"Authorization": f"Bearer {token or served.token}"}
    return httpx.Client(base_url=served.url, headers=headers, trust_env=False, timeout=30.0)


@pytest.mark.full
def test_on_a_full_disk_jobs_are_refused_and_none_starts_while_all_can_be_read_and_cancelled(served: Served) -> None:
    runs = served.add("sleep", "1000", gpus=16)
    until(lambda: served.state(runs) == "running")
    waits = served.add("true")

    fill(disk_of(served))
    until(lambda: not reserve_of(served).exists())

    with api_of(served) as api:
        refused = api.post("/v1/jobs", json=JOB)
        assert (refused.status_code, refused.json()["code"]) == (507, "no-room")
        assert {it["id"] for it in api.get("/v1/jobs").json()["jobs"]} == {runs, waits}
        figures = dict(line.split() for line in api.get("/metrics").text.splitlines() if line.startswith("longshore_d"))
        assert float(figures["longshore_disk_free_bytes"]) < float(figures["longshore_disk_least_free_bytes"])
        assert api.get("/readyz").status_code == 200
        served.call("cancel", runs)
        assert served.ended(runs) == "cancelled"
        until(lambda: all(it["gpus"] == [None] * 4 for it in served.ask("/v1/nodes")))
        assert served.state(waits) == "queued"

        (disk_of(served) / "filling").unlink()
        assert served.ended(waits) == "succeeded"
        assert api.post("/v1/jobs", json=JOB).status_code == 201
    until(reserve_of(served).exists)
    log = (served.folder / "serve.log").read_text()
    # A disk that a large file is just put on may be seen full, with room, and full again; each is logged once.
    full, again = log.count("no job is admitted and none starts"), log.count("there is room again")
    assert full == again >= 1
    assert 1 <= log.count("its reserve is given up") <= full


@pytest.mark.full
def test_a_token_is_known_and_figures_are_reported_where_not_a_byte_can_be_written(served: Served) -> None:
    made = served.call("token", "create", "never-used", "--role", "operator")
    fill(disk_of(served))
    until(lambda: not reserve_of(served).exists())
    while free_bytes(disk_of(served)):
        fill(disk_of(served))

    with api_of(served, made.stdout.strip()) as api:
        assert api.get("/v1/jobs").status_code == 200
        assert "longshore_store_up 1.0" in api.get("/metrics").text
        assert api.get("/healthz").status_code == 200
        reported = api.put("/v1/nodes/rack0-node0", json={"out_of_service": "x" * 5000})
        assert reported.status_code in (404, 405, 422, 507)


def test_a_scheduler_starts_on_a_full_disk_with_its_reserve(served: Served) -> None:
    served.end()
    fill(disk_of(served))
    served.start()
    assert served.call("queue").stdout == "no jobs are running or waiting\n"


def test_what_finds_the_disk_of_the_store_full_is_undone_and_said_so(small: Path) -> None:
    store = open_store(f"sqlite:///{small / 'store.db'}")
    known = submit(store, 0)
    fill(small)

    stored = 1
    with pytest.raises(StoreFullError):  # noqa: PT012 - which of them meets the end of the log's room is not known
        for stored in range(1, 3000):
            submit(store, stored)

    assert job_now(store, known.id) == known
    (small / "filling").unlink()
    assert submit(store, stored).submit_seq == stored + 1
    store.close()


@pytest.mark.full
def test_a_write_that_finds_no_room_is_repeated_once_there_is(small: Path) -> None:
    store = open_store(f"sqlite:///{small / 'store.db'}")
    asked = []

    def make_room() -> bool:
        asked.append(True)
        (small / "filling").unlink()
        return True

    store.make_room = make_room
    fill(small)
    rows = [submit(store, number) for number in range(3000)]
    assert asked == [True]
    assert [job_now(store, row.id) for row in rows[:1] + rows[-1:]] == rows[:1] + rows[-1:]
    store.close()


@contextmanager
def quota(file: Path, more_bytes: int) -> Iterator[Callable[[], bool]]:
    """Let no file of this process grow beyond so much more than one has; yield what lifts that once, as a reserve."""
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    lifted = []

    def lift() -> bool:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
        lifted.append(True)
        return len(lifted) == 1

    resource.setrlimit(resource.RLIMIT_FSIZE, (file.stat().st_size + more_bytes, limits[1]))
    try:
        yield lift
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)


def test_a_reserve_helps_all_whose_transaction_met_a_full_quota(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    store.write(lambda tx: tx.exec_driver_sql("CREATE TABLE filling (number INTEGER, content BLOB)"))
    began, together = threading.Event(), threading.Event()

    def hold_up(tx: Connection) -> None:
        began.set()
        together.wait()

    def fill_up(number: int) -> None:
        store.write(lambda tx: tx.exec_driver_sql(f"INSERT INTO filling VALUES ({number}, zeroblob(300000))"))

    with quota(tmp_path / "store.db-wal", 100_000) as store.make_room, ThreadPoolExecutor(5) as pool:
        first = pool.submit(store.write, hold_up)
        began.wait()
        others = [pool.submit(fill_up, number) for number in range(4)]
        while store._writer._waiting.qsize() < 4:
            time.sleep(0.001)
        together.set()
        for each in (first, *others):
            each.result()

    with store.read() as tx:
        assert tx.exec_driver_sql("SELECT count(*) FROM filling").scalar_one() == 4
    store.close()


@pytest.mark.full
def test_a_quota_that_is_used_up_is_reported_as_a_full_disk(tmp_path: Path) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    store.write(lambda tx: tx.exec_driver_sql("CREATE TABLE filling (content BLOB)"))
    with quota(tmp_path / "store.db-wal", 100_000), pytest.raises(StoreFullError, match="or the quota of its user"):
        store.write(lambda tx: tx.exec_driver_sql("INSERT INTO filling VALUES (zeroblob(300000))"))
    store.close()


def test_the_reserve_is_kept_given_up_and_taken_again_by_what_is_left(small: Path) -> None:
    room = DiskSpace([small], LEAST_BYTES)
    reserve = small / RESERVE
    free = free_bytes(small)
    room.adjust_reserve()
    assert reserve.stat().st_blocks * 512 == reserve.stat().st_size == LEAST_BYTES // 4
    assert not room.is_low()
    assert free_bytes(small) == room.free_bytes() == free - LEAST_BYTES // 4

    fill(small, LEAST_BYTES - MIB)
    room.adjust_reserve()
    assert room.is_low()
    assert reserve.exists()
    fill(small, MIB // 4)
    room.adjust_reserve()
    assert not reserve.exists()
    assert not room.release_reserve()
    room.adjust_reserve()
    (small / "filling").unlink()
    room.adjust_reserve()
    assert reserve.exists()
    assert not room.is_low()


@pytest.mark.parametrize("before_bytes", [None, 0, 1, LEAST_BYTES // 8, LEAST_BYTES // 4, LEAST_BYTES])
@pytest.mark.parametrize("draft_bytes", [None, 0, LEAST_BYTES])
def test_a_reserve_is_whole_whatever_a_crash_left(
    tmp_path: Path, before_bytes: int | None, draft_bytes: int | None
) -> None:
    room = DiskSpace([tmp_path], LEAST_BYTES)
    for name, size in ((RESERVE, before_bytes), (f"{RESERVE}.draft", draft_bytes)):
        if size is not None:
            (tmp_path / name).write_bytes(b"x" * size)
    room.adjust_reserve()
    assert (tmp_path / RESERVE).stat().st_size == max(LEAST_BYTES // 4, before_bytes or 0)
    assert room.release_reserve()
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("call", ["posix_fallocate", "rename"])
def test_a_reserve_that_cannot_be_made_leaves_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    def failing(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os if call == "posix_fallocate" else Path, call, failing)
    DiskSpace([tmp_path], LEAST_BYTES).adjust_reserve()
    assert not list(tmp_path.iterdir())


def test_no_bound_is_no_reserve_and_a_folder_that_is_gone_has_no_room(tmp_path: Path) -> None:
    room = DiskSpace([tmp_path], 0)
    room.adjust_reserve()
    assert not room.is_low()
    assert not (tmp_path / RESERVE).exists()
    assert DiskSpace([tmp_path / "gone"], 1).is_low()
