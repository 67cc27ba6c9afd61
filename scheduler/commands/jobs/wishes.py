"""`longshore cancel`, `hold`, `release` and `priority`: what the owner of jobs wants of them."""

from typing import Annotated, Any

import typer

from ..options import DEFAULT_URL, CaOption, JobArgument, JobsArgument, JsonOption, UrlOption, client_of, print_json
from .each import do_to_each


def cancel(job: JobsArgument, json: JsonOption = False, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Cancel jobs; one that runs is asked to stop, and killed after its grace."""
    do_to_each(job, client_of(url, ca).cancel, _cancelled, json=json)


def _cancelled(found: dict[str, Any]) -> str:
    over = found["ended_s"] is not None
    return f"{found['state']}, and stays so" if over else f"{found['state']}, to be cancelled"


def hold(job: JobsArgument, json: JsonOption = False, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Hold jobs: one that runs is stopped, and none is started before it is released."""
    client = client_of(url, ca)
    do_to_each(job, lambda each: client.want(each, "hold"), lambda found: f"{found['state']}, to be held", json=json)


def release(job: JobsArgument, json: JsonOption = False, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Let jobs run that are held."""
    client = client_of(url, ca)
    do_to_each(job, lambda each: client.want(each, "run"), lambda found: f"{found['state']}, to be run", json=json)


def priority(
    job: JobArgument,
    priority: Annotated[int, typer.Argument(help="Higher goes first.", min=-1000, max=1000)],
    json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Give a job another priority. Write `-- JOB -5` for one below 0."""
    found = client_of(url, ca).prioritise(job, priority)
    if json:
        print_json(found)
    else:
        typer.echo(f"{job}  {found['state']}, priority {found['priority']}")
