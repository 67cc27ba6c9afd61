"""docs/nodes.md lists faults, and docs/developers/requirements.md the tests of each; these have to exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "nodes.md").read_text().partition("\n## What happens when something fails\n")[2]
TESTS = (ROOT / "docs" / "developers" / "requirements.md").read_text().partition("\n## Tests of faults\n")[2]
NAMED = set(re.findall(r"`([^`]+)`", PAGE + TESTS))
LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")


def first_cells(text: str) -> list[str]:
    """Return what the lines of the tables in a text begin with, links as their words."""
    lines = [line for line in text.splitlines() if line.startswith("| ") and "---" not in line]
    return [LINK.sub(r"\1", line.split(" | ")[0].removeprefix("| ")) for line in lines]


def test_every_test_that_the_page_names_is_there() -> None:
    files = list((ROOT / "tests").rglob("test_*.py"))
    defined = {name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)}
    defined |= {path.name for path in files}
    named = {name for name in NAMED if name.startswith("test_")}

    assert named
    assert named - defined == set()


def test_every_line_of_a_table_has_its_tests() -> None:
    lines = [line for line in TESTS.splitlines() if line.startswith("| ")]
    faults = [fault for fault in first_cells(PAGE) if fault != "what fails"]

    assert len(faults) > 20
    assert first_cells(TESTS) == ["what fails", *faults]
    assert [line for line in lines[2:] if "`test_" not in line.rpartition(" | ")[2]] == []


def test_every_benchmark_that_the_page_names_is_there() -> None:
    named = {name.removeprefix("make bench-") for name in NAMED if name.startswith("make bench-")}

    assert named
    assert {name for name in named if not (ROOT / "benchmarks" / f"{name}.py").is_file()} == set()
