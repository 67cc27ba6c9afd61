"""`longshore trace list` and `longshore trace download`."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .options import number
from .progress import console, download_progress

if TYPE_CHECKING:
    from ..cluster.traces.public.catalogue import PublicTrace

CatalogueOption = Annotated[
    Path | None, typer.Option(help="Another table of traces (docs/formats.md), such as your group's own.")
]


def list_traces(catalogue: CatalogueOption = None) -> None:
    """List the public traces that can be downloaded."""
    from rich.table import Table

    from ..cluster.traces.public.catalogue import OURS, read_catalogue

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0))
    for title in ("name", "bytes", "licence", "good for"):
        table.add_column(title, justify="right" if title == "bytes" else "left", no_wrap=title in ("name", "bytes"))
    for trace in read_catalogue(catalogue or OURS).values():
        table.add_row(trace.name, f"{trace.size_bytes:,}" if trace.size_bytes else "?", trace.licence, trace.good_for)
    console().print(table)


def download_trace(
    name: Annotated[str | None, typer.Argument(help="Which; all are listed if left out.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File to write, or folder for an archive; or where to put it.")
    ] = None,
    mirror: Annotated[
        str | None,
        typer.Option(envvar="LONGSHORE_MIRROR", help="Base URL instead of https://raw.githubusercontent.com."),
    ] = None,
    timeout: Annotated[
        float, typer.Option(min=0.1, max=3600.0, callback=number, help="Seconds of silence that are too long.")
    ] = 30.0,
    catalogue: CatalogueOption = None,
) -> None:
    """Download a public trace: one fixed version, checked by its SHA-256.

    A download that broke off is gone on with. One that is there is only checked.
    """
    if name is None:
        list_traces(catalogue)
        return
    from ..cluster.traces.public.catalogue import OURS, read_catalogue, trace_named
    from ..cluster.traces.public.download import MIRROR, download, target_of

    trace = trace_named(name, read_catalogue(catalogue or OURS))
    target = target_of(trace, output)
    typer.echo(f"{trace.name}: {trace.good_for}")
    typer.echo(f"licence: {trace.licence}")
    typer.echo(f"from: https://github.com/{trace.repository}, {trace.path} at {trace.commit}")
    with download_progress(trace.name) as tell:
        new = download(trace, target, mirror=mirror or MIRROR, timeout_s=timeout, tell=tell)
    typer.echo(f"{target}: {'downloaded' if new else 'was there already'}, SHA-256 checked")
    _tell_next(trace, target)


def _tell_next(trace: "PublicTrace", target: Path) -> None:
    if trace.members is not None:
        files = sorted(path.name for path in target.glob(trace.members))
        typer.echo(f"files: {', '.join(files)}")
