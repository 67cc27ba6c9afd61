"""`longshore logs` while the job begins its next attempt."""

from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from longshore.scheduler.commands import jobs
from tests.command_line import Command

PAGE_BYTES = 3


class Retried:
    """The client of a scheduler that opens further attempts between requests."""

    def __init__(self, logs: list[bytes], opened_at: list[int]) -> None:
        self.outputs, self.opened_at, self.requests = logs, opened_at, 0

    def _attempts(self) -> int:
        self.requests += 1
        return 1 + sum(at < self.requests for at in self.opened_at[: len(self.outputs) - 1])

    def job(self, _job: str) -> dict[str, Any]:
        crash = {"rank": 1, "node": "n", "gpu": 0, "code": 1, "signal": 0}
        return {"attempts": [{"number": number + 1, "crash": crash} for number in range(self._attempts())]}

    def logs(
        self, _job: str, _rank: str, offset: int, attempt: int | None = None, _tail: int | None = None
    ) -> tuple[bytes, int | None]:
        last = self._attempts()
        data = self.outputs[(attempt or last) - 1][offset : offset + PAGE_BYTES]
        return data, offset + len(data)


@given(
    logs=st.lists(st.text("ab\n", max_size=12).map(str.encode), min_size=2, max_size=4),
    opened_at=st.lists(st.integers(0, 8), min_size=3, max_size=3).map(sorted),
    given_attempt=st.booleans(),
)
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
def test_the_output_of_one_attempt_is_printed_whole(
    longshore: Command,
    monkeypatch: pytest.MonkeyPatch,
    logs: list[bytes],
    opened_at: list[int],
    given_attempt: bool,  # noqa: FBT001
) -> None:
    fake = Retried(logs, opened_at)
    make: Callable[..., Any] = lambda *_: fake  # noqa: E731
    monkeypatch.setattr(jobs, "client_of", make)

    done = longshore("logs", "x", *(["--attempt", "1"] if given_attempt else []))

    first = 1 if given_attempt else 1 + sum(at < 1 for at in opened_at[: len(logs) - 1])
    assert done.status == 0
    assert done.out.encode() == logs[first - 1]
    assert f"--attempt {first} --rank 1" in done.err
