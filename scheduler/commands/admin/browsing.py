"""`longshore dashboard`."""

import typer

from ..options import DEFAULT_URL, CaOption, UrlOption, client_of


def dashboard(url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Print a link that lets one browser into the dashboard, once and within an hour."""
    typer.echo(f"{url.rstrip('/')}{client_of(url, ca).browser_path()}")
