"""What a run of tests says of a fault that is seeded into the code."""

from pathlib import Path

import pytest

from benchmarks.mutation import Copy
from tests.support import processes

TESTS = """\
import made

def test_sum():
    assert made.added(1, 2) == 3

def test_nothing():
    pass
"""
CODE = "def added(a, b):\n    return a + b\n"
SUM, NOTHING = "test_made.py::test_sum", "test_made.py::test_nothing"


@pytest.fixture
def copy(tmp_path: Path) -> Copy:
    root = tmp_path / "checkout"
    (root / "src").mkdir(parents=True)
    (root / "src/made.py").write_text(CODE)
    (root / "test_made.py").write_text(TESTS)
    for line in (["init", "-q"], ["add", "-A"]):
        processes.run(["git", *line], cwd=root, check=True)
    return Copy(root, tmp_path / "copy")


@pytest.mark.parametrize(
    ("code", "tests", "said"),
    [
        (CODE, [SUM, NOTHING], None),
        (CODE.replace("+", "-"), [SUM, NOTHING], SUM),
        (CODE.replace("+", "-"), [NOTHING], None),
        ("raise OSError", [NOTHING], ""),  # where tests are imported
        ("import os\nos._exit(3)", [NOTHING], ""),  # the run breaks off
        ("while True:\n    pass", [NOTHING], None),  # the time is over
    ],
    ids=["no fault", "found", "not reached", "found at the import", "found by the end", "endless"],
)
def test_a_run_says_which_test_failed(copy: Copy, code: str, tests: list[str], said: str | None) -> None:
    (copy.place / "src/made.py").write_text(code)
    most_s = 2.0 if "while" in code else 60.0
    assert copy.first_failure(tests, "quick", plain=False, most_s=most_s) == said


def test_a_test_that_there_is_not_is_no_verdict(copy: Copy) -> None:
    with pytest.raises(RuntimeError, match="no_such"):
        copy.first_failure(["test_made.py::no_such"], "quick", plain=False, most_s=60.0)
