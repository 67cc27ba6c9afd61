"""All commands of the live scheduler."""

from collections.abc import Callable
from typing import NamedTuple

import typer
from typer.core import TyperCommand

from .admin import config, tokens
from .admin.browsing import dashboard
from .admin.checking import preflight
from .admin.copying import backup, restore
from .admin.extending import extender
from .admin.nodes import agent, drain, nodes, resume
from .admin.pruning import prune
from .admin.replay import decisions, replay
from .admin.serving import serve
from .admin.unknown import unknown
from .jobs.explaining import explain
from .jobs.following import events
from .jobs.jobs import status
from .jobs.lists import jobs, queue
from .jobs.logs import logs
from .jobs.retrying import retry
from .jobs.submitting import SubmitCommand, submit
from .jobs.waiting import wait
from .jobs.wishes import cancel, hold, priority, release
from .monitoring import quarantine
from .monitoring.health import health
from .panels import JOBS, SCHEDULER


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
    app.add_typer(quarantine.app, name="quarantine", rich_help_panel=SCHEDULER)
    app.add_typer(config.app, name="config", rich_help_panel=SCHEDULER)
