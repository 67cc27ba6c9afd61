"""`longshore queue` and `longshore jobs`."""

import time
from collections.abc import Iterable
from typing import Annotated, Any

import typer

from ....cluster.files.durations import duration_text
from ...model.states import JobState
from ..moments import ended_s, moment, ran_s
from ..options import DEFAULT_URL, CaOption, JsonOption, UrlOption, client_of, print_json
from ..tables import Column, print_table

StateOption = Annotated[list[JobState] | None, typer.Option(help="Only jobs in this state; several times if need be.")]
UserOption = Annotated[str | None, typer.Option(help="Only jobs of this user.")]
NameOption = Annotated[str | None, typer.Option(help="Only jobs of this name; * stands for any text.")]

JOB, NAME, USER = Column("JOB"), Column("NAME", gives=True), Column("USER", gives=True)
STATE, GPUS = Column("STATE"), Column("GPUS", right=True)
SUBMITTED, STARTED, RAN = Column("SUBMITTED"), Column("STARTED"), Column("RAN", right=True)


def queue(
    state: StateOption = None,
    user: UserOption = None,
    name: NameOption = None,
    json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """List the jobs that have not ended: those with GPUs, then the queue in its order, then those outside of it."""
    found = client_of(url, ca).queue(_asked(state, user, name))
    if json:
        print_json(list(found))
        return
    place, why = Column("PLACE", right=True), Column("NODES OR REASON", gives=True)
    columns = (place, JOB, NAME, USER, STATE, GPUS, SUBMITTED, STARTED, RAN, why)
    _show(columns, [(_place(job), *_cells(job), _where_or_why(job)) for job in found], "no jobs are running or waiting")


def jobs(
    state: StateOption = None,
    user: UserOption = None,
    name: NameOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Most jobs to show.")] = 20,
    json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """List the last jobs, the newest first, those that have ended too."""
    found = client_of(url, ca).jobs(_asked(state, user, name), limit)
    if json:
        print_json(list(found))
        return
    ended, why = Column("ENDED"), Column("CAUSE, NODES OR REASON", gives=True)
    columns = (JOB, NAME, USER, STATE, GPUS, SUBMITTED, STARTED, RAN, ended, why)
    _show(columns, [(*_cells(job), moment(ended_s(job)), _where_or_why(job)) for job in found], "no jobs")


def _asked(state: list[JobState] | None, user: str | None, name: str | None) -> dict[str, object]:
    asked = {"state": [it.value for it in state] if state else None, "user": user, "name": name}
    return {key: value for key, value in asked.items() if value is not None}


def _show(columns: tuple[Column, ...], rows: Iterable[tuple[str, ...]], none: str) -> None:
    found = list(rows)
    if found:
        print_table(columns, found)
    else:
        typer.echo(none)


def _cells(job: dict[str, Any]) -> tuple[str, ...]:
    run_s = ran_s(job, time.time())
    times = (moment(job["submitted_s"]), moment(job["started_s"]), "-" if run_s is None else duration_text(run_s))
    return (job["id"], job["name"], job["owner"], job["state"], str(job["gpus"]), *times)


def _place(job: dict[str, Any]) -> str:
    position = job["waiting"] and job["waiting"]["position"]
    return "-" if position is None else str(position)


def _where_or_why(job: dict[str, Any]) -> str:
    """Return the cause of an end, why a job waits, or where it runs."""
    if job["ended_s"] is not None:
        return str(job["cause"])
    if job["waiting"]:
        return str(job["waiting"]["reason"])
    return " ".join(str(share["node"]) for share in job["placement"])
