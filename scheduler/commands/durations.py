"""Durations as options of the command line."""

import typer

from ...cluster.durations import seconds_of

DURATION = "DURATION"  # in place of a value in the help
LONGEST_S = 366 * 86400.0  # as in job files


def duration(text: str) -> float:
    """Return the seconds of an option such as 30s, 15m, 2h or 3d.

    Raises:
        typer.BadParameter: If it is none.
    """
    try:
        return seconds_of(text)
    except ValueError as error:
        raise typer.BadParameter(str(error)) from error


def run_time(text: str) -> float:
    """Return the seconds of an option about how long a job runs.

    Raises:
        typer.BadParameter: If it is no duration, or one that no job has.
    """
    duration_s = duration(text)
    if not duration_s > 0.0:
        raise typer.BadParameter(f"{text!r} is no time at all; write more than 0s")
    if duration_s > LONGEST_S:
        raise typer.BadParameter(f"{text!r} is longer than a job may run; write 366d at most")
    return duration_s
