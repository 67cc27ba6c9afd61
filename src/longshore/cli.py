"""The command line: commands/ has those that need no scheduler, scheduler/commands/ all others.

Heavy modules are imported by the command that needs them, so that --help is instant.
"""

import io
import logging
import sys
from typing import Annotated

import typer
from typer.main import get_command

from .cluster.files.errors import LongshoreError, ManyProblemsError
from .cluster.files.output_file import in_one_line
from .cluster.files.paths import GONE, is_gone
from .commands import adding
from .scheduler.commands.adding import add_commands

app = typer.Typer(
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "obj": adding.plan_job},
    help="Place deep-learning training jobs on the GPUs of shared, mixed, fault-prone clusters.",
    epilog="Begin with `longshore serve`, and `longshore submit` in a second terminal. Durations are written 30s, 15m, "
    "2h or 3d.",
)
add_commands(app)
adding.add_commands(app)


def _show_version(asked: bool) -> None:
    if asked:
        from importlib.metadata import version

        typer.echo(f"Longshore {version('longshore')}")
        raise typer.Exit


@app.callback()
def _longshore(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""
    del version  # its callback has shown it


class _Lines(logging.Handler):
    """Shows warnings and notes on standard error as it is at the moment: a status line moves out of their way."""

    def __init__(self) -> None:
        super().__init__()
        self._shown = set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            typer.echo(f"longshore: warning: {in_one_line(record.getMessage())}", err=True)
        elif record.getMessage() not in self._shown:  # a file may be read several times
            self._shown.add(record.getMessage())
            typer.echo(f"longshore: {in_one_line(record.getMessage())}", err=True)


def main() -> None:
    """Run the command line; what the outside did wrong becomes a line for each fault, and exit status 2."""
    logging.basicConfig(handlers=[_Lines()], level=logging.WARNING, force=True)
    logging.getLogger("longshore.cluster.traces.read").setLevel(logging.INFO)  # what a trace was taken for
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows ASCII only shows a question mark
    try:
        sys.exit(get_command(app).main(prog_name="longshore", standalone_mode=False))
    except typer.TyperException as error:
        _tell_wrong_usage(error)
        sys.exit(error.exit_code)
    except FileNotFoundError:
        if not is_gone():
            raise
        typer.echo(f"longshore: {GONE}", err=True)
        sys.exit(2)
    except LongshoreError as error:
        for each in error.errors if isinstance(error, ManyProblemsError) else (error,):
            typer.echo(f"longshore: {in_one_line(str(each))}", err=True)
        sys.exit(2)


def _tell_wrong_usage(error: typer.TyperException) -> None:
    """Say what is wrong with a command line, in one line; with how it is used, where somebody sits before it."""
    context: typer.Context | None = getattr(error, "ctx", None)
    problem = in_one_line(error.format_message()).removesuffix(".")
    if not problem:  # no command was named, and the help has been shown
        return
    for said, meant in PLAIN.items():
        problem = problem.replace(said, meant)
    if context is None:
        typer.echo(f"longshore: {problem}", err=True)
        return
    if sys.stderr.isatty():
        typer.echo(context.get_usage(), err=True)
    typer.echo(f"longshore: {problem}; `{context.command_path} --help` shows what can be said", err=True)


PLAIN = {
    "Input should be a valid integer, unable to parse string as an integer": "it should be a whole number",
    "Input should be a valid number, unable to parse string as a number": "it should be a number",
    "Input should be ": "it should be ",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}  # words of the library that reads options, and ours
