"""`longshore nodes`."""

import typer

from .options import DEFAULT_URL, UrlOption, client_of


def nodes(url: UrlOption = DEFAULT_URL) -> None:
    """Show all nodes and which of their GPUs are free."""
    for node in client_of(url).nodes():
        grid = " ".join("." if job is None else job[-4:] for job in node["gpus"])
        kind = "slots" if node["slots"] else "GPUs"
        typer.echo(
            f"{node['name']:16s} {sum(job is None for job in node['gpus'])} of {len(node['gpus'])} {kind} free  {grid}"
        )
