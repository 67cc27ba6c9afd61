"""`longshore compile`."""

from pathlib import Path
from typing import Annotated

import typer

from ..cluster.files.errors import InputError
from .progress import compile_all

SERVE = "serve"
GROUP_NAMES = ("heuristics", "candidates", "networks", "environments", "training", SERVE)  # all that there are


def compile_(
    groups: Annotated[
        list[str] | None, typer.Argument(metavar="[GROUP]...", help=f"{', '.join(GROUP_NAMES)}; all if left out.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Configuration of `longshore serve`: compile what it names, and for no other.")
    ] = None,
    jobs: Annotated[int | None, typer.Option(min=1, help="Processes; one for each core if left out.")] = None,
) -> None:
    """Compile beforehand what other commands would compile at their first use, such as in an image for containers.

    heuristics: for evaluate and simulate. candidates, networks: for checkpoints, and rollouts. environments,
    training: with those, for train and tune. serve: for a scheduler and its policy.

    What was compiled before is left alone, so that an interrupted command goes on where it stopped. Code is kept in
    $XDG_CACHE_HOME/longshore (~/.cache/longshore if that is not set), which may be read-only afterwards.
    """
    asked = dict.fromkeys(groups or ([SERVE] if config else GROUP_NAMES))
    if wrong := [name for name in asked if name not in GROUP_NAMES]:
        raise typer.BadParameter(f"there is no group {wrong[0]!r}; take some of {', '.join(GROUP_NAMES)}")
    if config and SERVE not in asked:
        raise typer.BadParameter(f"--config goes with the group {SERVE}")
    from ..cluster.kernels.ahead import missing
    from ..cluster.kernels.kept import can_be_kept, folder
    from ..scheduler.mirror.rehearsal import rehearsals_of
    from ..scheduler.settings import Settings, read_settings
    from ..training.run import GROUPS

    policy = (read_settings(config).settings if config else Settings()).policy
    serve = rehearsals_of(*filter(None, (policy.fallback, policy.name)))
    names = [each for name in asked for each in (serve if name == SERVE else GROUPS[name])]
    if missing(names) and not can_be_kept():
        raise InputError(f"compiled code cannot be kept in {folder()}", "set XDG_CACHE_HOME to a folder to write to")
    said = "compiled" if compile_all(names, jobs) else "was compiled before"
    typer.echo(f"{', '.join(asked)}: {said}, in {folder()}")
