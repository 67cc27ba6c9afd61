"""All commands of the live scheduler."""

from collections.abc import Callable
from typing import NamedTuple

import typer
from typer.core import TyperCommand

from . import serving, tokens
from .jobs import explain, jobs, logs, queue, status
from .nodes import agent, drain, health, nodes, resume
from .nodes import app as quarantine
from .options import JOBS, SCHEDULER
from .preflight import preflight
from .requests import cancel, events, hold, priority, release, retry, wait
from .serving import dashboard, extender, serve
from .store import backup, decisions, prune, replay, restore, unknown
from .submitting import SubmitCommand, submit


class Entry(NamedTuple):
    """A command as the help shows it."""

    command: Callable[..., None]
    panel: str  # group of commands that it stands in
    example: str
    kind: type[TyperCommand] = TyperCommand


ENTRIES = (
    Entry(submit, JOBS, "longshore submit --gpus 2 -- python train.py", SubmitCommand),
    Entry(queue, JOBS, "longshore queue --user ada --state queued"),
    Entry(jobs, JOBS, "longshore jobs --name 'train-*' --limit 50"),
    Entry(status, JOBS, "longshore status JOB"),
    Entry(wait, JOBS, "longshore wait JOB --timeout 2h && echo done"),
    Entry(logs, JOBS, "longshore logs JOB --rank all --tail 20"),
    Entry(explain, JOBS, "longshore explain JOB"),
    Entry(hold, JOBS, "longshore hold JOB"),
    Entry(release, JOBS, "longshore release JOB"),
    Entry(retry, JOBS, "longshore retry JOB OTHER"),
    Entry(priority, JOBS, "longshore priority JOB 10"),
    Entry(cancel, JOBS, "longshore cancel JOB OTHER"),
    Entry(events, JOBS, "longshore events --after 0"),
    Entry(serve, SCHEDULER, "longshore serve --config longshore.yaml"),
    Entry(nodes, SCHEDULER, "longshore nodes"),
    Entry(health, SCHEDULER, "longshore health"),
    Entry(drain, SCHEDULER, "longshore drain gpu-node-1 --reason 'a fan is loud'"),
    Entry(resume, SCHEDULER, "longshore resume gpu-node-1"),
    Entry(preflight, SCHEDULER, "longshore preflight --nodes rack0-node0,rack0-node1 --level 2"),
    Entry(agent, SCHEDULER, "longshore agent --node gpu-node-1 --url http://scheduler:8765"),
    Entry(dashboard, SCHEDULER, "longshore dashboard"),
    Entry(prune, SCHEDULER, "longshore prune --older-than 90d --dry-run"),
    Entry(backup, SCHEDULER, "longshore backup longshore-backup.db"),
    Entry(restore, SCHEDULER, "longshore restore longshore-backup.db --folder .longshore"),
    Entry(unknown, SCHEDULER, "longshore unknown"),
    Entry(extender, SCHEDULER, "longshore extender --cluster mine.yaml --policy patient"),
    Entry(decisions, SCHEDULER, "longshore decisions --folder .longshore --out decisions.jsonl"),
    Entry(replay, SCHEDULER, "longshore replay decisions.jsonl --policy checkpoints/hetero64-wait.zip"),
)


def add_commands(app: typer.Typer) -> None:
    """Add the commands of the live scheduler to the command line."""
    for entry in ENTRIES:
        app.command(rich_help_panel=entry.panel, epilog=f"Example: {entry.example}", cls=entry.kind)(entry.command)
    app.add_typer(tokens.app, name="token", rich_help_panel=SCHEDULER)
    app.add_typer(quarantine, name="quarantine", rich_help_panel=SCHEDULER)
    app.add_typer(serving.app, name="config", rich_help_panel=SCHEDULER)
