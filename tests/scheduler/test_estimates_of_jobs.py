"""What a running scheduler expects of a job whose owner gives no estimate."""

import json
import signal
from pathlib import Path

from .served import Served


def estimate(served: Served, job: str) -> tuple[float, str, int]:
    found = served.ask(f"/v1/jobs/{job}")
    return found["estimate_s"], found["estimate_from"], found["estimate_jobs"]


def test_a_job_is_expected_to_run_as_long_as_the_last_of_its_name_also_after_a_restart(tmp_path: Path) -> None:
    served = Served(tmp_path)
    served.start()
    try:
        first = served.submit("--name", "train", "--", "sleep", "1")
        assert estimate(served, first) == (3600.0, "unknown", 0)
        assert "estimate   1h 00m, assumed: no job had ended when it was submitted" in served.ended(first)

        plan = served.call("submit", "--dry-run", "--json", "--name", "train", "--gpus", "2", "--", "true").stdout
        second = served.submit("--name", "train", "--gpus", "2", "--", "true")
        expected_s, *origin = estimate(served, second)
        assert 0.5 < expected_s < 60.0
        assert json.loads(plan)["spec"]["estimate_s"] == expected_s
        assert origin == ["user-and-name", 1]
        assert "from the last ended job of the same user and name" in served.ended(second)
        assert "from the last ended job of the same user and name" in served.call("explain", second).stdout

        third = served.submit("--name", "train", "--gpus", "2", "--", "true")
        before = [estimate(served, job) for job in (first, second, third)]
        served.ended(third)
        served.end(signal.SIGKILL)
        served.start()
        assert [estimate(served, job) for job in (first, second, third)] == before

        said = served.submit("--name", "train", "--estimate", "90m", "--", "true")
        assert estimate(served, said) == (5400.0, "given", 0)
        assert "1h 30m, as its owner says" in served.ended(said)
    finally:
        served.end()
