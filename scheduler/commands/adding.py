"""All commands of the live scheduler."""

import typer

from ..extender.command import extender
from ..replay_commands import decisions, replay
from . import tokens
from .following import events, logs
from .jobs import cancel, explain, hold, jobs, priority, queue, release, status
from .nodes import agent, drain, nodes, resume
from .retrying import retry
from .serving import serve
from .submitting import submit


def add_commands(app: typer.Typer) -> None:
    """Add the commands of the live scheduler to the command line."""
    for command in (
        serve, submit, jobs, queue, status, explain, logs, events, hold, release, retry, priority, cancel, nodes, drain,
        resume, agent, extender, decisions,
        replay,
    ):  # fmt: skip
        app.command()(command)
    app.add_typer(tokens.app, name="token")
