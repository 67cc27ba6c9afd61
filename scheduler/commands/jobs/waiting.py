"""`longshore wait`."""

import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ....cluster.files.errors import BackendError
from ....cluster.files.output_file import in_one_line
from ..durations import DURATION, duration
from ..options import DEFAULT_URL, CaOption, JobsArgument, JsonOption, UrlOption, client_of, print_json

if TYPE_CHECKING:
    from ...client import Client

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
    from ...client import OUTAGE_S

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
