"""`longshore config`."""

from pathlib import Path
from typing import Annotated

import typer

from ....cluster.files.output_file import in_one_line

WRONG = 2  # exit status

app = typer.Typer(no_args_is_help=True, help="Look through the configuration of a scheduler.")


@app.callback()
def config() -> None:
    """Look through the configuration of a scheduler."""


@app.command(epilog="Example: longshore config check longshore.yaml")
def check(
    file: Annotated[Path | None, typer.Argument(help="Configuration file; the defaults if left out.")] = None,
) -> None:
    """Say all that is wrong with a configuration, its cluster file and its policy; exit status 2 if anything is."""
    from ...serve.config_check import check as checked
    from ...serve.config_check import summary

    found = checked(file)
    for problem in found.problems:
        typer.echo(f"longshore: {in_one_line(str(problem))}", err=True)
    if found.problems:
        raise typer.Exit(WRONG)
    for line in summary(found):
        typer.echo(line)
