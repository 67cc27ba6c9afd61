"""Names of figures: those that a run has written for TensorBoard, and those of docs/training.md."""

from pathlib import Path

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def events_of(folder: Path) -> EventAccumulator:
    """Return what a run has written."""
    events = EventAccumulator(str(folder))
    events.Reload()
    return events


def shown(folder: Path, prefix: str = "") -> set[str]:
    """Return the names of a run's figures."""
    return {name for name in events_of(folder).Tags()["scalars"] if name.startswith(prefix)}


def documented(kind: str | None = None) -> set[str]:
    """Return the names of the page's rows: those that begin with a name, or those whose first column has a kind."""
    rows = [line.split("|")[1:-1] for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| ")]
    of_kind = rows if kind is None else [row[1:] for row in rows if kind in row[0].replace(",", "").split()]
    return {row[0].split("`")[1] for row in of_kind if row[0].startswith(" `") and "/" in row[0].split("`")[1]}
