"""The file of the store is deleted or replaced under a scheduler that runs."""

import shutil
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from longshore.scheduler.store.database import StoreLostError, open_store
from tests.scheduler.backends.attempts import end_all
from tests.scheduler.served import Served, until
from tests.scheduler.store.store_rows import job_now, submit
from tests.scheduler.trials import processes_of

pytestmark = pytest.mark.full


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    it = Served(tmp_path)
    it.start()
    yield it
    it.end()
    end_all(tmp_path / ".longshore")


def readiness(served: Served) -> httpx.Response:
    return httpx.get(f"{served.url}/readyz", trust_env=False, timeout=30.0, verify=False)


def assert_all_stands_still(served: Served, runs: str) -> None:
    """The store is reported to be lost, and nothing is taken while what runs goes on."""
    until(lambda: readiness(served).status_code == 503)
    reported = readiness(served).json()
    assert reported["code"] == "not-ready"
    assert reported["detail"].startswith("the file of the store was deleted or replaced")
    refused = served.call("submit", "--", "true", check=False)
    assert refused.returncode == 2
    assert processes_of(runs)


def test_a_store_whose_file_is_gone_is_noticed_and_nothing_is_started_or_lost_until_it_is_back(served: Served) -> None:
    file = served.folder / ".longshore" / "longshore.db"
    aside = served.folder / "aside.db"
    runs = served.add("sleep", "1000", gpus=15)
    until(lambda: served.state(runs) == "running")

    file.rename(aside)
    assert_all_stands_still(served, runs)
    assert not file.exists()
    log = (served.folder / "serve.log").read_text()
    assert log.count("stop all schedulers of it, put it back, and start again") == 1

    aside.rename(file)
    until(lambda: readiness(served).status_code == 200)
    assert served.state(runs) == "running"
    assert served.ended(served.add("true")) == "succeeded"

    shutil.copy(file, aside)
    aside.rename(file)
    assert_all_stands_still(served, runs)
    assert file.exists()


def test_nothing_counts_as_written_that_went_into_a_file_that_is_gone(tmp_path: Path) -> None:
    file = tmp_path / "store.db"
    store = open_store(f"sqlite:///{file}")
    job = submit(store, 0)
    with pytest.raises(StoreLostError, match="deleted or replaced"):
        store.write(lambda _tx: file.unlink())
    with pytest.raises(StoreLostError), store.read():
        pass
    assert not file.exists()
    (tmp_path / "other.db").touch()
    (tmp_path / "other.db").rename(file)
    with pytest.raises(StoreLostError):
        job_now(store, job.id)
    assert file.stat().st_size == 0
    store.close()
