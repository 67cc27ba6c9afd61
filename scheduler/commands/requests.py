"""`longshore cancel`, `wait` and `job hold`, `release`, `retry`, `priority`, `events`."""

import time
from collections.abc import Callable, Collection, Iterable, Mapping
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
    parse_duration,
    print_json,
)

if TYPE_CHECKING:
    from ..client import Client

Answer = dict[str, Any]


def change_each(
    jobs: list[str], change: Callable[[str], Answer], words: Callable[[Answer], str], *, json: bool
) -> None:
    """Change jobs and print the state of each; a failure of one does not stop the others.

    Args:
        jobs: Their ids.
        change: Changes one, and returns the answer of the API.
        words: Returns the text printed for one.
        json: Whether to print the answers of the API instead.

    Raises:
        InputError: For all that could not be changed.
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
    """Retry jobs that failed or are held, with their full number of retries.

    They keep their ids, their history and their checkpoints.
    """
    change_each(job, client_of(url, ca).retry, lambda found: f"{found['state']}, to be run", json=json)


FIRST_PAUSE_S, LONGEST_PAUSE_S = 0.2, 5.0  # between two polls of the same jobs
MIN_ANSWER_S, MAX_ANSWER_S = 1.0, 30.0  # for one answer
FAILED, LATE = 1, 124  # exit statuses; 124 is that of timeout(1)


def wait(
    job: JobsArgument,
    timeout: Annotated[
        float | None,
        typer.Option(parser=parse_duration, metavar=DURATION, help="Give up after this time; default: never."),
    ] = None,
    json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Wait until jobs have ended, and print the end of each.

    The exit status is 0 if all succeeded, 1 if one failed or was cancelled, 124 on a timeout.
    """
    from ..client import OUTAGE_S

    client, left = client_of(url, ca), dict.fromkeys(job)
    until_s = float("inf") if timeout is None else time.monotonic() + timeout
    ended: list[dict[str, Any]] = []
    pause_s, give_up_s = FIRST_PAUSE_S, 0.0  # a scheduler that never answered is not waited for
    reported = set[str]()  # held jobs
    while True:
        for each in list(left):
            found = _poll_job(client, each, give_up_s, until_s)
            if found is None:
                break
            give_up_s = time.monotonic() + OUTAGE_S
            if found["ended_s"] is not None:
                del left[each]
                ended.append(found)
                if not json:
                    typer.echo(f"{each}  {found['state']}  {in_one_line(found['cause'])}".rstrip())
            elif found["state"] == "held" and each not in reported:
                reported.add(each)
                typer.echo(f"longshore: {each} is held: {in_one_line(found['waiting']['reason'])}", err=True)
        now_s = time.monotonic()
        if not left or now_s >= until_s:
            break
        time.sleep(min(pause_s, until_s - now_s))
        pause_s = min(1.2 * pause_s, LONGEST_PAUSE_S)
    if json:
        print_json(ended)
    _exit_unless_succeeded(left, ended)


def _exit_unless_succeeded(left: Collection[str], ended: Iterable[Mapping[str, Any]]) -> None:
    """Exit with the status of a wait, unless all jobs have succeeded."""
    if left:
        typer.echo(f"longshore: not ended yet: {' '.join(left)}", err=True)
        raise typer.Exit(LATE)
    if any(found["state"] != "succeeded" for found in ended):
        raise typer.Exit(FAILED)


def _poll_job(client: "Client", job: str, give_up_s: float, until_s: float) -> dict[str, Any] | None:
    """Return a job, None if its scheduler has not answered by the end of the wait; both are by the monotonic clock.

    Args:
        client: Of the scheduler.
        job: Id of the job.
        give_up_s: When to give up a scheduler that does not answer.
        until_s: End of the wait.

    Raises:
        InputError: If there is no such job.
        BackendError: If the scheduler is given up.
    """
    while True:
        try:
            if until_s == float("inf"):
                return client.job(job)
            return client.job(job, within_s=min(max(until_s - time.monotonic(), MIN_ANSWER_S), MAX_ANSWER_S))
        except BackendError:
            now_s = time.monotonic()
            if now_s >= until_s:
                return None
            if now_s >= give_up_s:
                raise
            time.sleep(min(1.0, until_s - now_s))


def cancel(job: JobsArgument, json: JsonOption = False, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Cancel jobs; a running one gets SIGTERM, and is killed after its grace."""
    change_each(job, client_of(url, ca).cancel, _cancel_text, json=json)


def _cancel_text(found: dict[str, Any]) -> str:
    over = found["ended_s"] is not None
    return f"{found['state']}, already ended" if over else f"{found['state']}, to be cancelled"


def hold(job: JobsArgument, json: JsonOption = False, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Hold jobs: a running one is stopped, and none starts until it is released."""
    client = client_of(url, ca)
    change_each(job, lambda each: client.want(each, "hold"), lambda found: f"{found['state']}, to be held", json=json)


def release(job: JobsArgument, json: JsonOption = False, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Release held jobs."""
    client = client_of(url, ca)
    change_each(job, lambda each: client.want(each, "run"), lambda found: f"{found['state']}, to be run", json=json)


def priority(
    job: JobArgument,
    priority: Annotated[int, typer.Argument(help="Higher goes first.", min=-1000, max=1000)],
    json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Change the priority of a job. Write `-- JOB -5` for one below 0."""
    found = client_of(url, ca).prioritise(job, priority)
    if json:
        print_json(found)
    else:
        typer.echo(f"{job}  {found['state']}, priority {found['priority']}")


def events(
    after: Annotated[int | None, typer.Option(min=0, help="Begin after this event; 0 shows all.")] = None,
    json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Follow the events of all jobs, from now on, until Ctrl-C."""
    for event in client_of(url, ca).follow_events(after):
        if json:
            typer.echo(dumps(event))
            continue
        at = datetime.fromtimestamp(event["at_s"], UTC).strftime("%H:%M:%S")
        attempt = "" if event["attempt"] is None else f" attempt {event['attempt']}"
        change = f"{event['was']} -> {event['now']}" if event["was"] else event["now"]
        typer.echo(
            f"{event['seq']:8d}  {at}  {event['job'] or '-'}{attempt}  {event['kind']} {change}  "
            f"{in_one_line(event['cause'])}"
        )
