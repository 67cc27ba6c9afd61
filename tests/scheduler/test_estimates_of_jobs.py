"""What a running scheduler expects of a job whose owner gives no estimate."""

import json
import signal
from pathlib import Path

import pytest

from .conftest import Here
from .served import Served

pytestmark = pytest.mark.full


def estimate(served: Served, job: str) -> tuple[float, str, int]:
    found = served.ask(f"/v1/jobs/{job}")
    return found["estimate_s"], found["estimate_from"], found["estimate_jobs"]


def test_a_job_is_expected_to_run_as_long_as_the_last_of_its_name_also_after_a_restart(
    tmp_path: Path, here: Here
) -> None:
    served = Served(tmp_path)
    served.start()
    try:
        first = served.add("sleep", "1", name="train")
        assert estimate(served, first) == (3600.0, "unknown", 0)
        served.ended(first)
        assert "estimate   1h 00m, assumed: no job had ended when it was submitted" in here(served, "status", first).out

        plan = here(served, "submit", "--dry-run", "--json", "--name", "train", "--gpus", "2", "--", "true").out
        second = served.add("true", name="train", gpus=2)
        expected_s, *origin = estimate(served, second)
        assert 0.5 < expected_s < 60.0
        assert json.loads(plan)["spec"]["estimate_s"] == expected_s
        assert origin == ["user-and-name", 1]
        served.ended(second)
        assert "from the last ended job of the same user and name" in here(served, "status", second).out
        assert "from the last ended job of the same user and name" in here(served, "explain", second).out

        third = served.add("true", name="train", gpus=2)
        before = [estimate(served, job) for job in (first, second, third)]
        served.ended(third)
        served.end(signal.SIGKILL)
        served.start()
        assert [estimate(served, job) for job in (first, second, third)] == before

        said = served.submit("--name", "train", "--estimate", "90m", "--", "true")
        assert estimate(served, said) == (5400.0, "given", 0)
        assert "1h 30m, given by its owner" in here(served, "status", said).out
    finally:
        served.end()
