"""All commands of the live scheduler."""

import typer

from ..extender.command import extender
from ..replay_commands import decisions, replay
from . import config, tokens
from .browsing import dashboard
from .copying import backup, restore
from .explaining import explain
from .following import events, logs
from .jobs import cancel, hold, jobs, priority, queue, release, status
from .nodes import agent, drain, nodes, resume
from .pruning import prune
from .serving import serve
from .submitting import submit
from .unknown import unknown


def add_commands(app: typer.Typer) -> None:
    """Add the commands of the live scheduler to the command line."""
    for command in (
        serve, submit, jobs, queue, status, explain, logs, events, hold, release, priority, cancel, nodes, drain,
        resume, agent, dashboard, extender, decisions, replay, prune, backup, restore, unknown,
    ):  # fmt: skip
        app.command()(command)
    app.add_typer(tokens.app, name="token")
    app.add_typer(config.app, name="config")
