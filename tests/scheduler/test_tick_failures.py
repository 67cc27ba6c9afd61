"""Failed passes of the loop are reported once, retried less and less often, and make the scheduler not ready."""

import json
import logging
from functools import partial

import httpx
import pytest

from longshore.scheduler.control.reconciler import Reconciler
from longshore.scheduler.logs import REPEATS_S, JsonLines, RepeatFilter
from longshore.scheduler.service.service import FIRST_TICK_WAIT_S, LONGEST_TICK_WAIT_S, REPEATED, LoopFailures, Service
from tests.scheduler.api.conftest import api, app, service  # noqa: F401 (fixtures)
from tests.scheduler.served import until


def missing(*_: object) -> None:
    raise KeyError("missing")


def raised(text: str) -> Exception:
    try:
        raise KeyError(text)
    except KeyError as error:
        return error


def test_the_wait_before_the_next_try_is_doubled_up_to_a_bound_and_begins_anew() -> None:
    failures = LoopFailures()

    waits = [failures.count(raised("x")) for _ in range(60)]
    failures.end()

    assert waits[:3] == [FIRST_TICK_WAIT_S, 2 * FIRST_TICK_WAIT_S, 4 * FIRST_TICK_WAIT_S]
    assert max(waits) == waits[-1] == LONGEST_TICK_WAIT_S
    assert failures.count(raised("x")) == FIRST_TICK_WAIT_S


def test_a_failure_that_passes_does_not_make_the_scheduler_unready_and_one_that_stays_does() -> None:
    failures = LoopFailures()

    reasons = [(failures.count(raised("secret")), failures.reason)[1] for _ in range(REPEATED)]
    assert reasons[:-1] == [""] * (REPEATED - 1)
    assert "failed 3 times in a row (KeyError)" in reasons[-1]
    assert "secret" not in reasons[-1]
    failures.end()
    assert failures.reason == ""


@pytest.mark.full
def test_an_answer_of_readyz_says_why_nothing_is_scheduled_and_is_well_again_by_itself(
    service: Service, api: httpx.Client, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    service.reconciler.tick()
    assert api.get("/readyz").status_code == 200
    with monkeypatch.context() as broken:
        broken.setattr(Reconciler, "_run_cycle", missing)
        service.start()
        until(lambda: api.get("/readyz").status_code == 503)
        assert "times in a row (KeyError)" in api.get("/readyz").json()["detail"]
    until(lambda: api.get("/readyz").status_code == 200)


def test_a_first_look_that_fails_does_not_keep_a_scheduler_from_being_served(
    service: Service, monkeypatch: pytest.MonkeyPatch  # noqa: F811
) -> None:  # fmt: skip
    with monkeypatch.context() as broken:
        broken.setattr(Reconciler, "_run_cycle", missing)
        service.lead()
    service.lead()

    assert service.leads()


class Lines(logging.Handler):
    """Keeps what is written."""

    def __init__(self) -> None:
        super().__init__()
        self.now_s, self.lines = 0.0, list[str]()
        self.setFormatter(JsonLines())
        self.addFilter(RepeatFilter(lambda: self.now_s))

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(self.format(record))


@pytest.fixture
def lines() -> Lines:
    return Lines()


def fail(lines: Lines, text: str, level: int = logging.ERROR) -> None:
    error = raised(text)
    reported = (type(error), error, error.__traceback__)
    lines.handle(
        logging.getLogger("longshore.test").makeRecord("test", level, "", 0, "a tick failed: %s", (text,), reported)
    )


def test_a_line_that_repeats_is_written_once_a_minute_with_how_often_it_came(lines: Lines) -> None:
    for _ in range(38):
        fail(lines, "x")
        lines.now_s += 1.0
    lines.now_s = REPEATS_S
    fail(lines, "x")

    first, second = map(json.loads, lines.lines)
    assert first["event"] == "a tick failed: x"
    assert second["event"].startswith("a tick failed: x (38 times since ")
    assert "Traceback" in first["error"]
    assert "error" not in second


def test_lines_that_differ_are_all_written_and_none_below_a_warning_is_counted(lines: Lines) -> None:
    for number in range(5):
        fail(lines, f"x{number}")
        fail(lines, "the same", logging.INFO)

    assert len(lines.lines) == 10


def test_what_is_remembered_of_lines_is_bounded(lines: Lines) -> None:
    for number in range(5000):
        fail(lines, f"x{number}")

    (known,) = (it for it in lines.filters if isinstance(it, RepeatFilter))
    assert len(known._lines) <= 1000


KEPT = {
    "adjust_reserve": "free disk space could not be checked",
    "_note_use": "the use of GPUs could not be recorded",
    "_prune": "old history could not be deleted",
}


@pytest.mark.parametrize("failing", KEPT)
def test_of_what_is_done_beside_the_ticks_the_log_names_what_failed_and_the_rest_is_done(
    failing: str,
    service: Service,  # noqa: F811
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    done: list[str] = []

    def do(name: str) -> None:
        done.append(name)
        if len(done) == 2 * len(KEPT):
            service.ends.set()
        if name == failing:
            raise KeyError("missing")

    for name in KEPT:
        monkeypatch.setattr(service.room if name == "adjust_reserve" else service, name, partial(do, name))

    service._do_upkeep(every_s=0.0)

    assert done == 2 * [*KEPT]
    assert [row.getMessage() for row in caplog.records if row.exc_info] == 2 * [KEPT[failing]]
