"""`longshore retry`."""

import typer

from .options import DEFAULT_URL, JobArgument, UrlOption, client_of


def retry(job: JobArgument, url: UrlOption = DEFAULT_URL) -> None:
    """Try a job again that failed or is held. It keeps its id, its history and its checkpoints.

    All its tries are given back.
    """
    typer.echo(f"{client_of(url).retry(job)['state']}, to be run")
