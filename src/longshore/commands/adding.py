"""All commands that need no scheduler."""

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from ..cluster.files.unwinding import unwound_by_signals
from ..scheduler.commands.panels import POLICIES
from . import listing, planning, traces
from .compiling import compile_
from .evaluating import evaluate
from .progress import progress
from .simulating import simulate
from .training import train
from .tuning import tune

if TYPE_CHECKING:
    from ..cluster.files.yaml_file import YamlFile

COMMANDS: dict[Callable[..., None], str] = {
    simulate: "longshore simulate --cluster examples/hetero64.yaml --policy patient --waiting --order easy",
    evaluate: "longshore evaluate --trace jobs.csv --policy checkpoints/hetero64.zip --report report.html",
    train: "longshore train --preset hetero64 --steps 2e6 --seed 0",
    tune: "longshore tune --preset hetero64 --trials 20 --jobs 2",
    compile_: "longshore compile heuristics serve",
    planning.plan: "longshore plan examples/plan/llama7b.py --deadline 24h --tokens 1e9 --cluster examples/small.yaml",
}  # each with an example


def add_commands(app: typer.Typer) -> None:
    """Add the commands that need no scheduler to the command line."""
    for command, example in COMMANDS.items():
        # SIGTERM, by which jobs are held and cancelled, ends it as Ctrl-C does: what that keeps is kept.
        name, unwound = command.__name__.rstrip("_"), unwound_by_signals()(command)
        app.command(name, rich_help_panel=POLICIES, epilog=f"Example: {example}")(unwound)
    app.add_typer(listing.app, name="policies", rich_help_panel=POLICIES)
    app.add_typer(planning.app, name="planner", rich_help_panel=POLICIES)
    app.add_typer(traces.app, name="trace", rich_help_panel=POLICIES)


def plan_job(
    file: "YamlFile",
    data: Mapping[str, Any],
    folder: Path,
    cluster: Callable[[], Mapping[str, Any]],
    tell: Callable[[str], None],
) -> dict[str, Any]:
    """Return the fields of a job with a plan in place of the wish for one; see `planned_jobs.plan_job`."""
    with progress("planning the job"):
        from .planned_jobs import plan_job as plan

        return plan(file, data, folder, cluster, tell)
