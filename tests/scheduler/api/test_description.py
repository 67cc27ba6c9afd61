"""The API does what its description says, tried by requests that are made up from it."""

import httpx
import pytest

from benchmarks.fuzz import jobs, logs, schemathesis
from longshore.scheduler.api.problems import CODES

OTHERS = ("method-not-allowed", "unavailable", "compressed")  # of every path, and of the extender
FEW = ("--phases", "fuzzing", "--max-examples", "2")


@pytest.fixture(scope="module")
def command() -> str:
    found = schemathesis()
    if found is None:
        pytest.skip("schemathesis is not installed: pip install -c constraints.txt -e '.[dev]'")
    return found


@pytest.mark.full
def test_no_made_up_request_about_jobs_gets_an_answer_that_is_not_described(command: str) -> None:
    found = jobs(command, *FEW)

    assert found.failures == 0, found.reported
    assert found.cases > 0


@pytest.mark.full
def test_no_made_up_request_about_logs_gets_an_answer_that_is_not_described(command: str) -> None:
    found = logs(command, *FEW)

    assert found.failures == 0, found.reported
    assert found.cases > 0


def test_every_error_that_is_described_is_one_of_the_table(refusing_api: httpx.Client) -> None:
    paths = refusing_api.get("/openapi.json").json()["paths"]
    statuses = {
        int(status)
        for path in paths.values()
        for each in path.values()
        for status in each["responses"]
        if status >= "400"
    }

    assert statuses == {each.status for code, each in CODES.items() if code not in OTHERS}
