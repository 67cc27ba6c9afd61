"""`longshore submit`."""

import os
from pathlib import Path
from typing import Annotated

import typer

from ...cluster.errors import InputError
from .options import DEFAULT_URL, UrlOption, client_of


def submit(
    file: Annotated[Path | None, typer.Argument(help="Job file (YAML); or a command after --.")] = None,
    command: Annotated[list[str] | None, typer.Argument(help="Command, after --.")] = None,
    gpus: Annotated[int, typer.Option(min=1, help="GPUs that a command asks for.")] = 1,
    name: Annotated[str, typer.Option(help="Name of a command's job.")] = "job",
    estimate_h: Annotated[float, typer.Option(min=0.001, help="How long a command is expected to run.")] = 1.0,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would become of it.")] = False,
    url: UrlOption = DEFAULT_URL,
) -> None:
    """Submit a job: a file, or a command after --. The command runs once for each GPU."""
    spec = _spec(file, command or [], gpus, name, estimate_h)
    if not dry_run:
        typer.echo(client_of(url).submit(spec)["id"])
        return
    plan = client_of(url).plan(spec)
    fits = "they would do" if plan["would_fit"] else "too few"
    typer.echo(f"it can be submitted: {plan['jobs_ahead']} jobs before it, {plan['free_gpus']} GPUs free ({fits})")


def _spec(file: Path | None, command: list[str], gpus: int, name: str, estimate_h: float) -> dict[str, object]:
    from ...cluster.yaml_file import read_yaml, validated
    from ..job_file import JobFile

    if file is not None and file.suffix in (".yaml", ".yml") and not command:
        content = read_yaml(file, "docs/scheduler.md#job-files")
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
