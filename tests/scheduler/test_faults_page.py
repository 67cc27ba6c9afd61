"""docs/nodes.md names the test of each fault that it lists; that test has to exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "nodes.md").read_text().partition("\n## What happens when something fails\n")[2]
NAMED = set(re.findall(r"`([^`]+)`", PAGE))


def test_every_test_that_the_page_names_is_there() -> None:
    files = list((ROOT / "tests").rglob("test_*.py"))
    defined = {name for path in files for name in re.findall(r"^def (test_\w+)", path.read_text(), re.MULTILINE)}
    defined |= {path.name for path in files}
    named = {name for name in NAMED if name.startswith("test_")}

    assert named
    assert named - defined == set()


def test_every_line_of_a_table_names_what_holds_it() -> None:
    lines = [line for line in PAGE.splitlines() if line.startswith("| ") and "---" not in line]
    held = [line for line in lines if "`test_" in line.rpartition(" | ")[2]]

    assert [line for line in lines if line not in held] == ["| what fails | what Longshore does | test |"] * 3


def test_every_benchmark_that_the_page_names_is_there() -> None:
    named = {name.removeprefix("make bench-") for name in NAMED if name.startswith("make bench-")}

    assert named
    assert {name for name in named if not (ROOT / "benchmarks" / f"{name}.py").is_file()} == set()
