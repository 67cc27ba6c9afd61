"""`longshore logs`, and which rank of a failed attempt is worth a look."""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ....cluster.files.errors import InputError
from ..options import DEFAULT_URL, CaOption, JobArgument, UrlOption, client_of

if TYPE_CHECKING:
    from ...client import Client

ALL = "all"


def logs(
    job: JobArgument,
    rank: Annotated[str, typer.Option(help="Rank whose output is shown, or `all`: each line behind its [RANK].")] = "0",
    attempt: Annotated[int | None, typer.Option(min=1, help="Of this attempt only; the last one if left out.")] = None,
    tail: Annotated[int | None, typer.Option(min=0, max=100_000, help="Only the last lines of each rank.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")] = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Show what ranks of a job wrote; of a failed attempt, say which rank to look at."""
    if rank != ALL and not rank.isdecimal():
        raise InputError(f"--rank is {rank!r}; write the number of a rank, or all")
    client = client_of(url, ca)
    if follow:
        for text in client.follow_logs(job, rank, attempt, tail):
            typer.echo(text, nl=False)
    else:
        _show(client, job, rank, attempt, tail)
    _point_at_crash(client, job, rank, attempt)


def _show(client: "Client", job: str, rank: str, attempt: int | None, tail: int | None) -> None:
    data, after = client.logs(job, rank, 0, attempt, tail)
    typer.echo(data, nl=False)
    while after is not None and (part := client.logs(job, rank, after, attempt))[0]:
        typer.echo(part[0], nl=False)
        after = part[1]


def _point_at_crash(client: "Client", job: str, rank: str, attempt: int | None) -> None:
    """Name, beside the output, the rank that explains why the attempt failed, unless it is what is shown."""
    attempts = [it for it in client.job(job)["attempts"] if attempt in (None, it["number"])]
    crash = crash_line(job, attempts[-1]) if attempts else ""
    if crash and rank not in (ALL, str(attempts[-1]["crash"]["rank"])):
        typer.echo(crash, err=True)


def crash_line(job: str, attempt: Mapping[str, Any]) -> str:
    """Return which rank of an attempt failed, where, and how to see what it wrote; "" if none did.

    Args:
        job: Id of the job.
        attempt: As the API tells of it.
    """
    crash = attempt["crash"]
    if crash is None:
        return ""
    how = f"signal {crash['signal']}" if crash["signal"] else f"exit code {crash['code']}"
    return (
        f"rank {crash['rank']} on {crash['node']}, GPU {crash['gpu']}, failed first ({how}): "
        f"longshore logs {job} --attempt {attempt['number']} --rank {crash['rank']}"
    )
