"""Lines of the pages that benchmarks write."""

import re
import textwrap
from collections.abc import Iterable
from pathlib import Path

WIDTH = 120
CODE = re.compile(r"`[^`]+`")
OPERATOR = re.compile(r" (?=([-+*#|%]|\d+\.) )")  # before what would begin a list or a heading, or belongs to a number
KEPT = "\x01"  # a space at which no line ends


def wrapped(paragraphs: Iterable[str]) -> str:
    """Return a page; prose is wrapped at 120 columns.

    Args:
        paragraphs: Each paragraph, item of a list, heading, row of a table or line of indented code; and empty lines.
    """
    return "\n".join(line for paragraph in paragraphs for line in _lines_of(paragraph)).rstrip() + "\n"


def write_part(path: Path, name: str, text: str) -> None:
    """Replace the part of a page between the markers of a name; a page without them gets the part at its end."""
    begin, end = f"<!-- {name}: begin -->", f"<!-- {name}: end -->"
    page = path.read_text(encoding="utf-8") if path.exists() else ""
    before, found, rest = page.partition(begin)
    after = rest.partition(end)[2] if found else "\n"
    path.write_text(f"{before}{begin}\n\n{text}\n{end}{after}", encoding="utf-8")


def _lines_of(paragraph: str) -> list[str]:
    if len(paragraph) <= WIDTH or paragraph.startswith(("|", "#", "![", "    ")):
        return [paragraph]
    item = "- " if paragraph.startswith("- ") else ""
    text = CODE.sub(_unbroken, OPERATOR.sub(KEPT, paragraph.removeprefix(item)))
    lines = textwrap.wrap(
        text,
        WIDTH,
        initial_indent=item,
        subsequent_indent=" " * len(item),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(KEPT, " ") for line in lines]


def _unbroken(code: re.Match[str]) -> str:
    return code[0].replace(" ", KEPT) if len(code[0]) < WIDTH - 2 else code[0]
