"""The map of the code names files that exist, and every room."""

import re
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs" / "developers" / "architecture.md").read_text()
DRAWING = PAGE.split("```text\n")[1].split("```")[0]
WALKS = {part.split("\n", 1)[0]: part for part in PAGE.split("\n## ")[1:]}
MOST_FILES = 12


def named(text: str) -> list[str]:
    """Return the files that a text names."""
    return re.findall(
        r"`((?:src|cluster|envs|agents|training|eval|ring|preflight|scheduler|planner)/[\w/]+\.py)`", text
    )


def test_every_file_that_is_named_is_there() -> None:
    assert len(named(PAGE)) > 40
    assert [path for path in named(PAGE) if not (ROOT / path).is_file()] == []


def test_every_room_is_on_the_drawing() -> None:
    rooms = {
        path.parent
        for top in ("cluster", "envs", "agents", "training", "eval", "ring", "preflight", "scheduler", "planner")
        for path in [ROOT / top / "__init__.py", *(ROOT / top).glob("*/__init__.py")]
    }
    drawn = {word.rstrip("/") for line in DRAWING.splitlines() for word in line.split()}
    assert {room.name for room in rooms if room.name not in drawn} == set()


def test_every_room_of_the_drawing_is_there() -> None:
    top = ""
    for line in DRAWING.splitlines():
        names = line[:66].split()
        if names and line[0] != " " and names[0].endswith("/"):
            top, names = names[0], names[1:]
        for name in names if line[0] != "-" else ():
            inside = ROOT / top / name
            assert inside.is_dir() or inside.with_suffix(".py").is_file(), f"{top}{name}"


def test_a_walk_names_at_most_twelve_places() -> None:
    walks = [text for title, text in WALKS.items() if title.startswith("A ")]
    assert len(walks) == 7
    for text in walks:
        assert 5 <= len(re.findall(r"^\d+\. ", text, re.M)) <= MOST_FILES
        assert len(set(named(text))) <= MOST_FILES
