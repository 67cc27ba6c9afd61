"""Commands about jobs: lists, one of them, and what its owner wants of it."""

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Annotated, Any

import typer

from .options import DEFAULT_URL, JobArgument, UrlOption, client_of

OPEN = ["queued", "starting", "running", "stopping", "held"]


def jobs(
    limit: Annotated[int, typer.Option(min=1, help="Most jobs to show.")] = 20, url: UrlOption = DEFAULT_URL
) -> None:
    """List the last jobs."""
    _show_jobs(client_of(url).jobs([], limit))


def queue(url: UrlOption = DEFAULT_URL) -> None:
    """List the jobs that have not ended."""
    _show_jobs(client_of(url).jobs(OPEN))


def _show_jobs(found: Iterable[dict[str, Any]]) -> None:
    shown = 0
    for shown, job in enumerate(found, 1):  # noqa: B007
        at = datetime.fromtimestamp(job["submitted_s"], UTC).strftime("%Y-%m-%d %H:%M:%S")
        typer.echo(f"{job['id']}  {job['state']:9s}  {job['gpus']:4d} GPUs  {at}  {job['name']:20s}  {job['cause']}")
    if not shown:
        typer.echo("no jobs")


def status(job: JobArgument, url: UrlOption = DEFAULT_URL) -> None:
    """Show a job with all its attempts, and why it waits."""
    found = client_of(url).job(job)
    typer.echo(f"{found['id']}  {found['name']}  {found['state']}  {found['cause']}")
    if found["waiting"]:
        position = found["waiting"]["position"]
        place = "" if position is None else f"place {position} in the queue: "
        typer.echo(f"  {place}{found['waiting']['reason']}")
    for attempt in found["attempts"]:
        shares = _shares(attempt["placement"])
        typer.echo(f"  attempt {attempt['number']}  {attempt['state']}  {shares}  {attempt['cause']}")


def _shares(placement: list[dict[str, Any]] | None) -> str:
    if placement is None:
        return "wait"
    return " ".join(f"{share['node']}:{','.join(map(str, share['gpus']))}" for share in placement)


def cancel(job: JobArgument, url: UrlOption = DEFAULT_URL) -> None:
    """Cancel a job; it is asked to stop, and killed after its grace."""
    found = client_of(url).cancel(job)
    over = found["ended_s"] is not None
    typer.echo(f"{found['state']}, and stays so" if over else f"{found['state']}, to be cancelled")


def hold(job: JobArgument, url: UrlOption = DEFAULT_URL) -> None:
    """Hold a job: it is stopped if it runs, and not started before it is released."""
    typer.echo(f"{client_of(url).want(job, 'hold')['state']}, to be held")


def release(job: JobArgument, url: UrlOption = DEFAULT_URL) -> None:
    """Let a job run that is held."""
    typer.echo(f"{client_of(url).want(job, 'run')['state']}, to be run")


def priority(
    job: JobArgument,
    priority: Annotated[int, typer.Argument(help="Higher goes first.", min=-1000, max=1000)],
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Give a job another priority. Write `-- -5` for one below 0."""
    found = client_of(url).prioritise(job, priority)
    typer.echo(f"{found['state']}, priority {found['priority']}")
