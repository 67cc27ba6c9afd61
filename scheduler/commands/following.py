"""Commands that show what is written and what happens, also as it does."""

from datetime import UTC, datetime
from json import dumps
from typing import Annotated

import typer

from .options import DEFAULT_URL, JobArgument, JsonOption, UrlOption, client_of


def logs(
    job: JobArgument,
    rank: Annotated[int, typer.Option(min=0, help="Rank whose output is shown.")] = 0,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")] = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Show what a rank of a job wrote."""
    client, offset = client_of(url), 0
    if follow:
        for text in client.follow_logs(job, rank):
            typer.echo(text, nl=False)
        return
    while (part := client.logs(job, rank, offset))[0]:
        typer.echo(part[0], nl=False)
        offset = part[1]


def events(
    after: Annotated[int | None, typer.Option(min=0, help="Begin behind this event; 0 shows all.")] = None,
    json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Show what happens, from now on, until Ctrl-C."""
    for it in client_of(url).follow_events(after):
        if json:
            typer.echo(dumps(it))
            continue
        at = datetime.fromtimestamp(it["at_s"], UTC).strftime("%H:%M:%S")
        attempt = "" if it["attempt"] is None else f" attempt {it['attempt']}"
        change = f"{it['was']} -> {it['now']}" if it["was"] else it["now"]
        typer.echo(f"{it['seq']:8d}  {at}  {it['job'] or '-'}{attempt}  {it['kind']} {change}  {it['cause']}")
