"""Commands on the pages, as somebody would type them."""

import re
import shlex
from pathlib import Path

import pytest
import typer

from tests.command_line import command_of

ROOT = Path(__file__).parent.parent
LINE = re.compile(r"(?:^ *(?:\$ )?|`)(longshore [a-z][^`\n]*)", re.MULTILINE)
BEHIND = re.compile(r" +#| \| | > | && ")  # what stands behind a command in a line
LEFT_OUT = ("...", "[", "$(")  # parts that the reader or a shell fills in


def written() -> list[str]:
    """Return the commands of all pages that stand on a line of their own or between backticks."""
    docs = ROOT / "docs"
    pages = [ROOT / "README.md", *sorted(docs.glob("*.md")), *sorted((docs / "developers").glob("*.md"))]
    found = {BEHIND.split(text)[0].strip(): None for page in pages for text in LINE.findall(page.read_text())}
    return [text for text in found if not any(part in text for part in LEFT_OUT)]


@pytest.mark.few(45)
@pytest.mark.parametrize("text", written())
def test_a_command_of_the_pages_can_be_typed(text: str) -> None:
    command, words = command_of(shlex.split(text)[1:])
    problem = ""
    try:
        with command.make_context(command.name, words) as context:
            assert context.args == []
    except typer.TyperException as error:
        problem = error.format_message()
    # A page may name a command or one option of it alone; it may name nothing that there is not.
    assert not problem or problem.startswith("Missing"), problem


def test_many_commands_are_found() -> None:
    assert len(written()) > 50
