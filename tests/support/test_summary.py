"""What a run of tests says in the end of tests that were skipped, and what would let them run."""

import re
from pathlib import Path

import pytest

from tests.support.processes import run
from tests.support.summary import by_cause

ROOT = Path(__file__).parents[2]
NAMED = re.compile(r"apt-get install (?:--[\w-]+ )*([\w .+-]+)")


def packages_named(folder: Path) -> set[str]:
    """Return the Debian packages that reasons to skip name."""
    texts = [path.read_text() for path in folder.rglob("*.py") if path != Path(__file__)]
    return {word.rstrip(".") for text in texts for found in NAMED.findall(text) for word in found.split()}


def test_each_package_that_a_reason_to_skip_names_is_on_the_list_of_all() -> None:
    listed = {
        word
        for found in re.findall(r"missing\+=\((.*?)\)", (ROOT / ".ci/missing").read_text())
        for word in found.split()
    }
    named = packages_named(ROOT / "tests") | packages_named(ROOT / "benchmarks")
    assert {"chromium", "slurm-wlm", "prometheus"} <= named
    assert named - listed == set()


def test_the_list_is_one_line_of_what_is_not_here(tmp_path: Path) -> None:
    bash = Path("/bin/bash")
    here = run([bash, ROOT / ".ci/missing"], check=True, capture_output=True).stdout
    nothing = run([bash, ROOT / ".ci/missing"], check=True, capture_output=True, env={"PATH": str(tmp_path)}).stdout
    assert (here.count("\n"), nothing.count("\n")) == (1, 1)
    assert set(here.split()) <= set(nothing.split())
    assert {"chromium", "slurm-wlm", "gcc"} <= set(nothing.split())


def test_skipped_tests_are_counted_by_cause() -> None:
    reports = [
        pytest.TestReport(
            str(number), ("", 0, ""), {}, "skipped", ("test_it.py", number, f"Skipped: {reason}"), "setup"
        )
        for number, reason in enumerate(["no GPU here", "not root", "no GPU here"])
    ]
    assert [line.split(maxsplit=1) for line in by_cause(reports)] == [["2", "no GPU here"], ["1", "not root"]]
