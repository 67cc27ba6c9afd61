"""`longshore unknown`."""

from datetime import UTC, datetime
from typing import Annotated

import typer

from ..options import DEFAULT_URL, CaOption, UrlOption, client_of


def unknown(
    end: Annotated[str | None, typer.Option(metavar="ATTEMPT", help="Stop this one.")] = None,
    disregard: Annotated[
        str | None, typer.Option(metavar="ATTEMPT", help="Give its GPUs away though it is not proven gone.")
    ] = None,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """List attempts that run but are not in the store, as after a restore; no job starts on their GPUs."""
    client = client_of(url, ca)
    for name, wish in ((end, "end"), (disregard, "disregard")):
        if name is not None:
            client.settle_unknown(name, wish)
            typer.echo(f"{name}: {wish} asked for")
    if end is not None or disregard is not None:
        return
    found = client.unknown()
    for it in found:
        shares = " ".join(f"{share['node']}:{','.join(map(str, share['gpus']))}" for share in it["placement"])
        at = datetime.fromtimestamp(it["found_s"], UTC).strftime("%Y-%m-%d %H:%M:%S")
        typer.echo(f"{it['attempt']}  {shares or 'on GPUs that nobody knows'}  found {at}")
    if not found:
        typer.echo("no unknown attempts")
