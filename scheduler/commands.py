"""Commands of the live scheduler. Heavy modules are imported by the command that needs them."""

import os
import time
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..cluster.errors import InputError, LongshoreError
from .extender.command import extender
from .log_lines import LogFormat, log_as_json

if TYPE_CHECKING:
    from .client import Client

UrlOption = Annotated[str, typer.Option("--url", envvar="LONGSHORE_URL", help="Where the scheduler serves.")]
DEFAULT_URL = "http://127.0.0.1:8765"
JobArgument = Annotated[str, typer.Argument(help="Id of a job.")]
FINAL = ("succeeded", "failed", "cancelled")
FOLLOW_S = 0.3


def add_commands(app: typer.Typer) -> None:
    """Add the commands of the live scheduler to the command line."""
    from .replay_commands import decisions, replay

    for command in (serve, submit, jobs, queue, status, explain, logs, cancel, nodes, extender, decisions, replay):
        app.command()(command)


def _client(url: str) -> "Client":
    from .client import Client

    return Client(url)


def serve(
    cluster: Annotated[Path | None, typer.Option(help="Cluster file; 4 nodes of 4 slots if left out.")] = None,
    folder: Annotated[Path, typer.Option(help="Where the store, the jobs and their logs are.")] = Path(".longshore"),
    store: Annotated[str | None, typer.Option(help="URL of the store; SQLite in the folder if left out.")] = None,
    policy: Annotated[str | None, typer.Option(help="Policy that decides; patient alone if left out.")] = None,
    port: Annotated[int, typer.Option(min=1, max=65535, help="Port on the loopback interface.")] = 8765,
    log_format: Annotated[LogFormat, typer.Option(help="Of the log: text for people, json for programs.")] = (
        LogFormat.TEXT
    ),
) -> None:
    """Run a scheduler for jobs on this machine, with its API on http://127.0.0.1:8765."""
    import uvicorn

    from .api.app import create_app
    from .service import Service, Settings, default_cluster

    if log_format is LogFormat.JSON:
        log_as_json()
    folder.mkdir(parents=True, exist_ok=True)
    service = Service(Settings(cluster or default_cluster(folder), folder, store, policy))
    try:
        if policy:
            typer.echo(f"loading {policy} ...")
        service.take_up()
    except LongshoreError:
        service.close()
        raise
    gpus = sum(service.layout.nodes.values())
    typer.echo(f"Longshore serves {gpus} slots on {len(service.layout.nodes)} nodes at http://127.0.0.1:{port}")
    typer.echo("Its slots behave like GPUs, but no GPU is behind them. Ctrl-C stops it; jobs run on.")
    # No configuration of its own: its lines are written like all others.
    uvicorn.run(create_app(service), host="127.0.0.1", port=port, log_level="warning", log_config=None)


def submit(
    file: Annotated[Path | None, typer.Argument(help="Job file (YAML); or a command after --.")] = None,
    command: Annotated[list[str] | None, typer.Argument(help="Command, after --.")] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs that a command asks for.")] = 1,
    name: Annotated[str, typer.Option(help="Name of a command's job.")] = "job",
    estimate_h: Annotated[float, typer.Option(min=0.001, help="How long a command is expected to run.")] = 1.0,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Submit a job: a file, or a command after --. The command runs once for each GPU."""
    spec = _spec(file, command or [], gpus, name, estimate_h)
    typer.echo(_client(url).submit(spec)["id"])


def _spec(file: Path | None, command: list[str], gpus: int, name: str, estimate_h: float) -> dict[str, object]:
    from ..cluster.yaml_file import read_yaml, validated
    from .job_file import JobFile

    if file is not None and file.suffix in (".yaml", ".yml") and not command:
        content = read_yaml(file)
        job, home = validated(content, JobFile, content.data), file.absolute().parent
    else:
        words = [*([] if file is None else [str(file)]), *command]
        if not words:
            raise InputError("there is nothing to submit; write `longshore submit job.yaml`, or a command after --")
        given = {"name": name, "gpus": gpus, "command": words, "estimate_s": estimate_h * 3600.0}
        job, home = JobFile.model_validate(given), Path.cwd()
    # As the user's own shell would find them: relative folders, and programs.
    folder = str(home / job.folder)
    environment = {"PATH": os.environ.get("PATH", os.defpath), **job.environment}
    return job.model_copy(update={"folder": folder, "environment": environment}).model_dump(mode="json")


def jobs(
    limit: Annotated[int, typer.Option(min=1, max=200, help="Most jobs to show.")] = 20, url: UrlOption = DEFAULT_URL
) -> None:
    """List the last jobs."""
    _show_jobs(_client(url).jobs([], limit))


def queue(url: UrlOption = DEFAULT_URL) -> None:
    """List the jobs that have not ended."""
    _show_jobs(_client(url).jobs(["queued", "starting", "running", "stopping", "held"], 200))


def _show_jobs(found: list[dict[str, Any]]) -> None:
    for job in found:
        at = datetime.fromtimestamp(job["submitted_s"], UTC).strftime("%Y-%m-%d %H:%M:%S")
        typer.echo(f"{job['id']}  {job['state']:9s}  {job['gpus']:4d} GPUs  {at}  {job['name']:20s}  {job['cause']}")
    if not found:
        typer.echo("no jobs")


def status(job: JobArgument, url: UrlOption = DEFAULT_URL) -> None:
    """Show a job with all its attempts."""
    found = _client(url).job(job)
    typer.echo(f"{found['id']}  {found['name']}  {found['state']}  {found['cause']}")
    for attempt in found["attempts"]:
        shares = _shares(attempt["placement"])
        typer.echo(f"  attempt {attempt['number']}  {attempt['state']}  {shares}  {attempt['cause']}")


def _shares(placement: list[dict[str, Any]] | None) -> str:
    if placement is None:
        return "wait"
    return " ".join(f"{share['node']}:{','.join(map(str, share['gpus']))}" for share in placement)


def explain(job: JobArgument, url: UrlOption = DEFAULT_URL) -> None:
    """Show which GPUs a job was given and by whom, and what the heuristic would have chosen."""
    found = _client(url).decisions(job)
    for it in found:
        at = datetime.fromtimestamp(it["at_s"], UTC).strftime("%H:%M:%S")
        policy = f"{it['policy']} ({it['mode']})"
        typer.echo(f"{at}  {_shares(it['placement'])}  chosen by {it['obeyed']} in {1e3 * it['took_s']:.1f} ms")
        typer.echo(f"          policy {policy}, version {it['version'][:12]}; the heuristic: {_shares(it['fallback'])}")
        if it["missed"]:
            typer.echo(f"          the policy was not heard: {it['missed']}")
    if not found:
        typer.echo("nothing was decided on it yet: it waits in the queue behind others, or for GPUs")


def logs(
    job: JobArgument,
    rank: Annotated[int, typer.Option(min=0, help="Rank whose output is shown.")] = 0,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Go on until the job has ended.")] = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Show what a rank of a job wrote."""
    client, offset = _client(url), 0
    while True:
        over = not follow or client.job(job)["state"] in FINAL
        while (part := client.logs(job, rank, offset))[0]:
            typer.echo(part[0], nl=False)
            offset = part[1]
        if over:
            return
        time.sleep(FOLLOW_S)


def cancel(job: JobArgument, url: UrlOption = DEFAULT_URL) -> None:
    """Cancel a job; it is asked to stop, and killed after its grace."""
    typer.echo(f"{_client(url).cancel(job)['state']}, to be cancelled")


def nodes(url: UrlOption = DEFAULT_URL) -> None:
    """Show all nodes and which of their GPUs are free."""
    for node in _client(url).nodes():
        grid = " ".join("." if job is None else job[-4:] for job in node["gpus"])
        kind = "slots" if node["slots"] else "GPUs"
        typer.echo(
            f"{node['name']:16s} {sum(job is None for job in node['gpus'])} of {len(node['gpus'])} {kind} free  {grid}"
        )
