"""`longshore events`."""

from datetime import UTC, datetime
from json import dumps
from typing import Annotated

import typer

from ....cluster.files.output_file import in_one_line
from ..options import DEFAULT_URL, CaOption, JsonOption, UrlOption, client_of


def events(
    after: Annotated[int | None, typer.Option(min=0, help="Begin behind this event; 0 shows all.")] = None,
    json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Show what happens, from now on, until Ctrl-C."""
    for it in client_of(url, ca).follow_events(after):
        if json:
            typer.echo(dumps(it))
            continue
        at = datetime.fromtimestamp(it["at_s"], UTC).strftime("%H:%M:%S")
        attempt = "" if it["attempt"] is None else f" attempt {it['attempt']}"
        change = f"{it['was']} -> {it['now']}" if it["was"] else it["now"]
        typer.echo(
            f"{it['seq']:8d}  {at}  {it['job'] or '-'}{attempt}  {it['kind']} {change}  {in_one_line(it['cause'])}"
        )
