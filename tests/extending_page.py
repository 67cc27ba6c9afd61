"""The examples of docs/extending.md: the files that they show, and what they register."""

import re
import tomllib
from pathlib import Path

PAGE = (Path(__file__).parent.parent / "docs" / "extending.md").read_text()
PARTS = {part.split("\n", 1)[0]: part for part in PAGE.split("\n## ")[1:]}


def files_of(part: str) -> dict[str, str]:
    """Return the Python files that a part of the page shows, by name."""
    blocks = re.findall(r"```python\n# (\w+\.py)\n(.*?)```", part, re.S)
    assert len(blocks) == part.count("```python")
    return dict(blocks)


def points_of(part: str) -> dict[str, dict[str, str]]:
    """Return the entry points that a part of the page registers, by group."""
    (block,) = re.findall(r"```toml\n(.*?)```", part, re.S)
    groups: dict[str, dict[str, str]] = tomllib.loads(block)["project"]["entry-points"]
    return groups
