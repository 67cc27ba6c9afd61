"""A scheduler as users run it: jobs through its API, its decisions in a file, and a policy that learns from them."""

from collections.abc import Iterator
from pathlib import Path

import httpx
import pytest

from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.networks.candidates import CandidateNetwork
from longshore.training.history.problems import LEAST_JOBS, read_history
from tests.scheduler.served import PATIENCE_S, Served, until

CHECKPOINT = Path(__file__).parents[2] / "checkpoints" / "hetero64-wait-1.zip"
JOBS = LEAST_JOBS + 2  # the last may end after the last decision
CONFIG = f"policy: {{name: {CHECKPOINT}, deadline_s: 60, sample_temperature: 1.0}}\nopen: true\n"


@pytest.fixture
def served(tmp_path: Path) -> Iterator[Served]:
    (tmp_path / "longshore.yaml").write_text(CONFIG)
    served = Served(tmp_path, "--config", "longshore.yaml", "--open")
    served.start()
    yield served
    served.end()


def test_a_policy_learns_from_what_a_scheduler_has_been_through(served: Served) -> None:
    for number in range(JOBS):
        spec = {"gpus": 1 + number % 3, "command": ["sleep", "0.2"], "estimate_s": 1.0 + number % 5}
        httpx.post(f"{served.url}/v1/jobs", json=spec, timeout=PATIENCE_S).raise_for_status()
    until(lambda: served.ask("/v1/queue")["jobs"] == [])
    served.call("decisions", "--out", "decisions.jsonl")

    past = read_history(served.folder / "decisions.jsonl")
    assert past.workload.jobs == JOBS
    assert (past.workload.work_s > 0.0).all()
    trained = served.call("train", "--history", "decisions.jsonl", "--init", str(CHECKPOINT), "--steps", "1000")

    assert "run" in trained.stdout.splitlines()[-1]
    (best,) = served.folder.glob("runs/history-decisions-group-init-wait-0/best.zip")
    assert isinstance(load_policy(best).network, CandidateNetwork)
