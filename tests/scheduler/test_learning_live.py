"""A scheduler as users run it: jobs through its API, and its decisions in a file that training reads."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from longshore.training.history import MIN_HISTORY_JOBS, read_history
from tests.scheduler.served import PATIENCE_S, Served, until

pytestmark = pytest.mark.full

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "hetero64-wait-1.zip"
JOBS = MIN_HISTORY_JOBS + 2  # the last may end after the last decision
CONFIG = f"policy: {{name: {CHECKPOINT}, deadline_s: 60, sample_temperature: 1.0}}\nopen: true\n"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "longshore.yaml").write_text(CONFIG)
    served = Served(tmp_path, "--config", "longshore.yaml", "--open")
    served.start()
    yield served
    served.end()


def test_what_a_scheduler_has_been_through_can_be_learned_from(served: Served) -> None:
    for number in range(JOBS):
        spec = {"gpus": 1 + number % 3, "command": ["sleep", "0.2"], "estimate_s": 1.0 + number % 5}
        httpx.post(f"{served.url}/v1/jobs", json=spec, timeout=PATIENCE_S).raise_for_status()
    until(lambda: served.ask("/v1/queue")["jobs"] == [])
    served.call("store", "decisions", "--out", "decisions.jsonl")

    past = read_history(served.folder / "decisions.jsonl")
    assert past.workload.jobs == JOBS
    assert (past.workload.work_s > 0.0).all()
