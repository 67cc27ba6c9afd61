"""The metrics that docs/operate.md lists."""

import re
from pathlib import Path

PAGE = Path(__file__).parent.parent.parent / "docs" / "operate.md"


def documented() -> dict[str, set[str]]:
    """Return the labels of each metric of the page."""
    rows = re.findall(r"^\| `(longshore_\w+)` \| (\w+) \|([^|]*)\|", PAGE.read_text(), re.MULTILINE)
    return {name: set(re.findall(r"`(\w+)`", labels)) for name, _, labels in rows}
