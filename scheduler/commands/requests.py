"""`longshore cancel`, `wait` and `job hold`, `release`, `retry`, `priority`, `events`."""

import time
from collections.abc import Callable
from datetime import UTC, datetime
from json import dumps
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...cluster.files.errors import BackendError, InputError, raise_all
from ...cluster.files.output_file import in_one_line
from .options import (
    DEFAULT_URL,
    DURATION,
    CaOption,
    JobArgument,
    JobsArgument,
    JsonOption,
    UrlOption,
    client_of,
    duration,
    print_json,
)

if TYPE_CHECKING:
    from ..client import Client

Answer = dict[str, Any]


def do_to_each(jobs: list[str], change: Callable[[str], Answer], words: Callable[[Answer], str], *, json: bool) -> None:
    """Change jobs and say how each stands; one that cannot be changed does not keep the others from it.

    Args:
        jobs: Their ids.
        change: Changes one, and returns what the API says of it.
        words: What is said of one.
        json: Whether the answers of the API are printed in place of words.

    Raises:
        InputError: Naming all that could not be changed.
    """
    answers, errors = [], []
    for job in dict.fromkeys(jobs):
        try:
            answers.append(change(job))
        except InputError as error:
            errors.append(error)
        else:
            if not json:
                typer.echo(f"{job}  {words(answers[-1])}")
    if json:
        print_json(answers)
    raise_all(errors)


def retry(job: JobsArgument, json: JsonOption = False, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Try jobs again that failed or are held, with all their tries.

    They keep their ids, their history and their checkpoints.
    """
    do_to_each(job, client_of(url, ca).retry, lambda found: f"{found['state']}, to be run", json=json)


FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0  # between two looks at the same jobs
FAILED, LATE = 1, 124  # exit statuses; 124 is that of timeout(1)


def wait(
    job: JobsArgument,
    timeout: Annotated[
        float | None,
        typer.Option(parser=duration, metavar=DURATION, help="Give up after so long; never if left out."),
    ] = None,
    json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Wait until jobs have ended, and say how each did.

    The exit status is 0 if all succeeded, 1 if one failed or was cancelled, 124 if the time was over before.
    """
    from ..client import OUTAGE_S

    client, left = client_of(url, ca), dict.fromkeys(job)
    until_s = float("inf") if timeout is None else time.monotonic() + timeout
    ended: list[dict[str, Any]] = []
    pause_s, told, give_up_s = FIRST_PAUSE_S, set[str](), 0.0  # a scheduler that was never there is not waited for
    while True:
        for each in list(left):
            found = _look(client, each, give_up_s)
            give_up_s = min(time.monotonic() + OUTAGE_S, until_s)
            if found["ended_s"] is not None:
                del left[each]
                ended.append(found)
                if not json:
                    typer.echo(f"{each}  {found['state']}  {in_one_line(found['cause'])}".rstrip())
            elif found["state"] == "held" and each not in told:
                told.add(each)
                typer.echo(f"longshore: {each} is held: {in_one_line(found['waiting']['reason'])}", err=True)
        now_s = time.monotonic()
        if not left or now_s >= until_s:
            break
        time.sleep(min(pause_s, until_s - now_s))
        pause_s = min(1.2 * pause_s, LONGEST_PAUSE_S)
    if json:
        print_json(ended)
    if left:
        typer.echo(f"longshore: not over by now: {' '.join(left)}", err=True)
        raise typer.Exit(LATE)
    if any(found["state"] != "succeeded" for found in ended):
        raise typer.Exit(FAILED)


def _look(client: "Client", job: str, give_up_s: float) -> dict[str, Any]:
    """Return how a job stands; a scheduler that is away is waited for, until a moment of the monotonic clock.

    Raises:
        InputError: If there is no such job.
        BackendError: If the scheduler stays away.
    """
    while True:
        try:
            return client.job(job)
        except BackendError:
            if time.monotonic() >= give_up_s:
                raise
            time.sleep(1.0)


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
