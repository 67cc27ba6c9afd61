"""Jobs that would bring a scheduler to fall, against one that is served as users have it."""

import sqlite3
from pathlib import Path

import httpx
import pytest

from .served import PATIENCE_S, Served, until

pytestmark = pytest.mark.full

SMALL = Path(__file__).parent.parent.parent / "examples" / "small.yaml"
AGAIN = ["/bin/sh", "-c", "sleep 1; exit 75"]


def underflow(store: sqlite3.Connection, job: str) -> None:
    """Leave numbers of a job as an older version left them."""
    store.execute("UPDATE job SET spec = json_set(spec, '$.compute_s', 5e-324) WHERE id = ?", (job,))
    store.execute("UPDATE attempt SET slowdown = 0.0 WHERE job_id = ?", (job,))


def tear(store: sqlite3.Connection, job: str) -> None:
    """Leave a job that does not say what to run."""
    store.execute("UPDATE job SET spec = '{torn', gpus = 1 WHERE id = ?", (job,))


def refuse(served: Served) -> None:
    """A job whose numbers would underflow is not taken."""
    poison = {"gpus": 16, "compute_s": 5e-324, "command": AGAIN}
    refused = httpx.post(f"{served.url}/v1/jobs", json=poison, timeout=PATIENCE_S)
    assert (refused.status_code, refused.json()["detail"]) == (
        422, "compute_s: '5e-324' cannot be used; it should be a number from 1e-06 to 86400",
    )  # fmt: skip


def test_a_job_that_underflows_is_refused_and_one_that_is_stored_and_one_that_says_nothing_stop_no_one(
    tmp_path: Path,
) -> None:
    served = Served(tmp_path, "--cluster", str(SMALL), "--folder", "state", "--open")
    served.start()
    refuse(served)
    tiny = served.add("/bin/sh", "-c", "while [ ! -e go ]; do sleep 0.1; done; exit 75", gpus=16)
    served.add("sleep", "1000", gpus=32)
    odd = served.add("true", gpus=64)  # it waits
    until(lambda: served.state(tiny) == "running")
    served.end()
    with sqlite3.connect(tmp_path / "state" / "longshore.db") as store:
        underflow(store, tiny)
        tear(store, odd)
    served.start()
    (tmp_path / "go").touch()

    until(lambda: served.state(odd) == "held")
    assert "could not be handled 3 times in a row: UnreadableSpecError" in served.call("status", odd).stdout
    assert served.ended(served.add("true")) == "succeeded"
    assert httpx.get(f"{served.url}/v1/jobs/{tiny}", timeout=PATIENCE_S).status_code == 200
    assert httpx.get(f"{served.url}/readyz", timeout=PATIENCE_S).status_code == 200
    for job in (tiny, odd):
        served.cancel(job)
        assert served.ended(job) == "cancelled"
    assert "Traceback" not in (tmp_path / "serve.log").read_text()
    served.cancel_all()
    served.end()
