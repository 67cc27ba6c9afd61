"""Durations as options of the command line."""

from collections.abc import Callable

import typer

from ...cluster.files.durations import seconds_of

DURATION = "DURATION"  # in place of a value in the help


def duration(text: str) -> float:
    """Return the seconds of an option such as 30s, 15m, 2h or 3d.

    Raises:
        typer.BadParameter: If it is none.
    """
    try:
        return seconds_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def duration_between(least: str, most: str) -> Callable[[str | float], float]:
    """Return what reads an option that has bounds; a default is in seconds already.

    Args:
        least: Shortest duration, as it is typed.
        most: Longest one.
    """
    least_s, most_s = seconds_of(least), seconds_of(most)

    def read(text: str | float) -> float:
        duration_s = duration(text) if isinstance(text, str) else text
        if not least_s <= duration_s <= most_s:
            raise typer.BadParameter(f"{text!r} is too short or too long; write {least} to {most}")
        return duration_s

    return read


run_time = duration_between("1ms", "366d")  # of a job
