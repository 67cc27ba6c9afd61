"""All commands that need no scheduler."""

from collections.abc import Callable

import typer

from ..scheduler.commands.panels import POLICIES
from . import planning, traces
from .evaluating import evaluate
from .listing import policies
from .simulating import simulate
from .training import train
from .tuning import tune

COMMANDS: dict[Callable[..., None], str] = {
    simulate: "longshore simulate --cluster examples/hetero64.yaml --policy patient --waiting --order easy",
    evaluate: "longshore evaluate --trace jobs.csv --policy checkpoints/hetero64.zip --report report.html",
    train: "longshore train --preset hetero64 --steps 2e6 --seed 0",
    tune: "longshore tune --preset hetero64 --trials 20 --jobs 2",
    policies: "longshore policies",
    planning.plan: "longshore plan examples/plan/llama7b.py --deadline 24h --tokens 1e9 --cluster examples/small.yaml",
}  # each with an example


def add_commands(app: typer.Typer) -> None:
    """Add the commands that need no scheduler to the command line."""
    for command, example in COMMANDS.items():
        app.command(rich_help_panel=POLICIES, epilog=f"Example: {example}")(command)
    app.add_typer(planning.app, name="planner", rich_help_panel=POLICIES)
    app.add_typer(traces.app, name="trace", rich_help_panel=POLICIES)
