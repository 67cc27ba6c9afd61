"""What many commands take, and their client. Heavy modules are imported by the command that needs them."""

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from ..client import Client

DEFAULT_URL = "http://127.0.0.1:8765"
UrlOption = Annotated[str, typer.Option("--url", envvar="LONGSHORE_URL", help="Where the scheduler serves.")]
CaOption = Annotated[
    Path | None,
    typer.Option(
        "--ca", envvar="LONGSHORE_CA", metavar="FILE",
        help="Certificates (PEM) of the authorities to trust if --url is https; those of the system by default.",
    ),
]  # fmt: skip
JobArgument = Annotated[str, typer.Argument(metavar="JOB", help="Id of a job.")]
JobsArgument = Annotated[list[str], typer.Argument(metavar="JOB...", help="Ids of jobs.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON, with the fields of docs/api.md.")]


def client_of(url: str, ca: Path | None) -> "Client":
    """Return a client of the scheduler at a URL.

    A token comes from the environment, as others see command lines, or from the file that this user's scheduler made.

    Args:
        url: Where it serves.
        ca: File of the authorities that vouch for it if it is behind TLS; those of the system if left out.

    Raises:
        InputError: If that file cannot be used.
    """
    from ..access.token_file import find_token
    from ..client import Client

    given = os.environ.get("LONGSHORE_TOKEN")
    return Client(url, lambda: given or find_token(url), ca)


def print_json(content: object) -> None:
    """Print what the API said, for programs."""
    typer.echo(json.dumps(content, indent=1))


def said(text: str) -> str:
    """Return what an option says for people.

    Raises:
        typer.BadParameter: If it says nothing.
    """
    if not text.strip():
        raise typer.BadParameter("it says nothing; write why, or leave the option out")
    return text
