"""`longshore logs` and `status` of jobs of several ranks."""

import pytest

from .served import Served

ONE_FAILS = """
echo hello
[ $RANK = 1 ] || { touch said-$LONGSHORE_JOB-$LONGSHORE_ATTEMPT; exec sleep 1000; }
until [ -e said-$LONGSHORE_JOB-$LONGSHORE_ATTEMPT ]; do sleep 0.02; done
echo "no such layer"
exit 4
"""


@pytest.fixture
def failed(served: Served) -> str:
    """A job of two ranks, of which the second failed."""
    job = served.submit("--gpus", "2", "--", "sh", "-c", ONE_FAILS)
    served.ended(job)
    return job


def test_a_failed_job_names_the_rank_to_look_at(served: Served, failed: str) -> None:
    line = f"failed first (exit code 4): longshore logs {failed} --attempt 1 --rank 1"

    status, first, second = served.call("status", failed), served.call("logs", failed), served.call(
        "logs", failed, "--rank", "1"
    )  # fmt: skip

    assert line in status.stdout
    assert (first.stdout, line in first.stderr) == ("hello\n", True)
    assert (second.stdout, second.stderr) == ("hello\nno such layer\n", "")


def test_all_ranks_and_the_last_lines_are_shown(served: Served, failed: str) -> None:
    every = served.call("logs", failed, "--rank", "all", "--attempt", "1")
    last = served.call("logs", failed, "--rank", "all", "--tail", "1")
    followed = served.call("logs", failed, "--rank", "all", "-f")

    assert every.stdout == "[0] hello\n[1] hello\n[1] no such layer\n"
    assert last.stdout == "[0] hello\n[1] no such layer\n"
    assert followed.stdout == every.stdout


@pytest.mark.parametrize("options", [("--rank", "first"), ("--rank", "-1"), ("--attempt", "0"), ("--attempt", "9")])
def test_what_is_no_rank_or_attempt_is_one_line_of_error(served: Served, failed: str, options: tuple[str, str]) -> None:
    answer = served.call("logs", failed, *options, check=False)
    assert (answer.returncode, answer.stdout) == (2, "")
    assert "Traceback" not in answer.stderr


def test_a_failed_job_is_tried_again(served: Served, failed: str) -> None:
    assert served.call("retry", failed).stdout == f"{failed}  queued, to be run\n"
    served.ended(failed)
    assert served.call("logs", failed, "--attempt", "2").stdout == "hello\n"
