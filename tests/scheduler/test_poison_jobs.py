"""Jobs that would bring a scheduler to fall, against one that is served as users have it."""

import sqlite3
from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from .served import PATIENCE_S, Served, until

SMALL = Path(__file__).parent.parent.parent / "examples" / "small.yaml"
AGAIN = ["/bin/sh", "-c", "sleep 1; exit 75"]


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    it = Served(tmp_path, "--cluster", str(SMALL), "--folder", "state", "--open")
    it.start()
    yield it
    it.cancel_all()
    it.end()


def test_a_job_whose_numbers_underflow_is_refused_and_one_that_is_stored_stops_nobody(served: Served) -> None:
    poison = {"gpus": 16, "compute_s": 5e-324, "command": AGAIN}

    refused = httpx.post(f"{served.url}/v1/jobs", json=poison, timeout=PATIENCE_S)
    assert (refused.status_code, refused.json()["detail"]) == (
        422, "compute_s: '5e-324' cannot be used; it should be a number from 1e-06 to 86400",
    )  # fmt: skip

    waits = f"while [ ! -e {served.folder}/go ]; do sleep 0.1; done; exit 75"
    spec = {"gpus": 16, "command": ["/bin/sh", "-c", waits]}
    answer = httpx.post(f"{served.url}/v1/jobs", json=spec, timeout=PATIENCE_S)
    job = answer.json()["id"]
    until(lambda: served.state(job) == "running")
    served.end()
    with sqlite3.connect(served.folder / "state" / "longshore.db") as store:  # as an older version left them
        store.execute("UPDATE job SET spec = json_set(spec, '$.compute_s', 5e-324) WHERE id = ?", (job,))
        store.execute("UPDATE attempt SET slowdown = 0.0 WHERE job_id = ?", (job,))
    served.start()
    (served.folder / "go").touch()

    good = served.submit("--", "true")
    assert "succeeded" in served.ended(good)
    assert httpx.get(f"{served.url}/v1/jobs/{job}", timeout=PATIENCE_S).status_code == 200
    assert httpx.get(f"{served.url}/readyz", timeout=PATIENCE_S).status_code == 200
    served.call("cancel", job)
    assert "cancelled" in served.ended(job)
    log = (served.folder / "serve.log").read_text()
    assert "Traceback" not in log


def test_a_stored_job_that_does_not_say_what_to_run_is_held_and_named(served: Served) -> None:
    served.submit("--gpus", "32", "--", "sleep", "1000")
    odd = served.submit("--gpus", "64", "--", "true")  # it waits
    served.end()
    with sqlite3.connect(served.folder / "state" / "longshore.db") as store:
        store.execute("UPDATE job SET spec = '{torn' WHERE id = ?", (odd,))
        store.execute("UPDATE job SET gpus = 1 WHERE id = ?", (odd,))
    served.start()

    until(lambda: served.state(odd) == "held")
    assert "could not be handled 3 times in a row: UnreadableSpecError" in served.call("status", odd).stdout
    assert "succeeded" in served.ended(served.submit("--", "true"))
    served.call("cancel", odd)
    assert "cancelled" in served.ended(odd)
