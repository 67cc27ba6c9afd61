"""docs/api.md has the events that the store writes."""

import re
from pathlib import Path

from longshore.scheduler.api.jobs import EventPage
from longshore.scheduler.control import adoption, job_errors, node_checks
from longshore.scheduler.health import step_monitor
from longshore.scheduler.store import attempts, jobs, nodes, rings
from longshore.scheduler.store.events import EventRow

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "api.md").read_text()
KINDS = {
    jobs.CHANGE, jobs.DESIRED, jobs.PRIORITY, attempts.CHANGE, attempts.CONTACT, attempts.CLEANUP, attempts.LAUNCH,
    step_monitor.HEALTH, attempts.SAVED, job_errors.ERROR_EVENT, adoption.UNKNOWN_EVENT, nodes.QUARANTINE,
    node_checks.PREFLIGHT_EVENT, rings.SEAT_EVENT, rings.RING_EVENT, nodes.CHANGE,
}  # fmt: skip
RENAMED = {"job_id": "job", "number": "attempt"}  # in answers of the API


def rows_of(heading: str) -> list[list[str]]:
    """Return the cells of a section's table, without its first two lines."""
    section = PAGE.partition("\n## Events\n")[2].partition(f"\n### {heading}\n")[2].partition("\n##")[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines[2:]]


def names_in(cell: str) -> list[str]:
    return re.findall(r"`([\w-]+)`", cell)


def test_the_page_has_every_kind_of_event_and_no_other() -> None:
    assert {name for row in rows_of("Kinds") for name in names_in(row[0])} == KINDS


def test_every_event_that_is_written_in_the_code_is_of_a_kind_that_has_a_name() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "scheduler").rglob("*.py"))
    written = set(re.findall(r"\bNewEvent\(\s*(\w+|\"[^\"]*\")", sources))
    written |= set(re.findall(r"_replace\(kind=(\w+|\"[^\"]*\")", sources))
    named = {
        "CHANGE", "DESIRED", "PRIORITY", "CONTACT", "CLEANUP", "LAUNCH", "JOB_CHANGE", "ATTEMPT_CHANGE", "HEALTH",
        "SAVED", "ERROR_EVENT", "UNKNOWN_EVENT", "QUARANTINE", "PREFLIGHT_EVENT", "SEAT_EVENT", "RING_EVENT",
    }  # fmt: skip

    assert written - {'""', "NamedTuple"} <= named  # "" is a form whose kind is filled in


def test_the_page_has_every_field_of_an_event_and_says_which_are_in_answers() -> None:
    reported = {name: row[1] for row in rows_of("Fields") for name in names_in(row[0])}
    shown = {RENAMED.get(name, name) for name, cell in reported.items() if cell != "no"}

    assert set(reported) == set(EventRow._fields)
    assert shown == set(EventPage.model_fields)
    assert {name: names_in(cell)[0] for name, cell in reported.items() if cell.startswith("as ")} == RENAMED
