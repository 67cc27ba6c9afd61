"""docs/security.md names what holds its claims; that has to be there."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent.parent
PAGE = (ROOT / "docs" / "security.md").read_text()
NAMED = set(re.findall(r"`([^`]+)`", PAGE))


def test_every_test_that_the_page_names_is_there() -> None:
    sources = "\n".join(path.read_text() for path in (ROOT / "tests").rglob("test_*.py"))
    defined = set(re.findall(r"^(?:async )?def (test_\w+)", sources, re.MULTILINE))
    named = {name for name in NAMED if re.fullmatch(r"test_\w+", name)}

    assert named
    assert named - defined == set()


def test_every_file_that_the_page_names_is_there() -> None:
    own = ("scheduler/policy_host", "scheduler/backends/local")
    folders = [ROOT, *(ROOT / it for it in own), ROOT / "tests" / "scheduler"]
    named = {name for name in NAMED if re.fullmatch(r"[\w/-]+\.(py|yaml)", name)}

    assert named
    assert {name for name in named if not any((folder / name).is_file() for folder in folders)} == set()
