"""The command line: what `longshore --help` lists, and the module of each command, imported when it is called."""

import io
import logging
import sys
from collections.abc import Callable, Mapping
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from .cluster.files.errors import LongshoreError, ManyProblemsError
from .cluster.files.output_file import in_one_line
from .cluster.files.paths import FOLDER_GONE, is_present_folder_gone

if TYPE_CHECKING:
    from .cluster.files.yaml_file import YamlFile


class CommandEntry(NamedTuple):
    """A command, before its module is imported."""

    code: str  # MODULE:FUNCTION, the module relative to this package
    about: str
    example: str
    unwinds: bool = True  # at SIGTERM as at Ctrl-C; False where the command or its server has its own handlers
    kind: str = ""  # MODULE:CLASS of the command, where it parses its words in its own way


class CommandGroup(NamedTuple):
    """Commands behind one word."""

    about: str
    commands: "Mapping[str, CommandEntry | CommandGroup]"


JOB_COMMANDS = CommandGroup("List, hold, release, retry and reorder jobs; follow events.", {
    "list": CommandEntry(
        "scheduler.commands.jobs:jobs", "List the latest jobs, including ended ones.",
        "longshore job list --name 'train-*' --limit 50",
    ),
    "hold": CommandEntry(
        "scheduler.commands.requests:hold", "Stop jobs, or keep them from starting, until they are released.",
        "longshore job hold JOB",
    ),
    "release": CommandEntry("scheduler.commands.requests:release", "Release held jobs.", "longshore job release JOB"),
    "retry": CommandEntry(
        "scheduler.commands.requests:retry", "Run failed or held jobs again.", "longshore job retry JOB OTHER",
    ),
    "priority": CommandEntry(
        "scheduler.commands.requests:priority", "Change the priority of a job.", "longshore job priority JOB 10",
    ),
    "events": CommandEntry(
        "scheduler.commands.requests:events", "Follow the events of all jobs.", "longshore job events --after 0",
    ),
})  # fmt: skip

QUARANTINE_COMMANDS = CommandGroup("List, add and clear quarantined GPUs, links and nodes, on which no job starts.", {
    "list": CommandEntry(
        "scheduler.commands.nodes:quarantines", "List what is in quarantine, and why.",
        "longshore node quarantine list",
    ),
    "add": CommandEntry(
        "scheduler.commands.nodes:quarantine", "Let no job start on a node or GPU until it is cleared.",
        "longshore node quarantine add gpu-node-1:3 --reason 'coil noise' --action 'replace the GPU'",
    ),
    "clear": CommandEntry(
        "scheduler.commands.nodes:clear", "Check a node or GPU, and let jobs start there again.",
        "longshore node quarantine clear gpu-node-1:3",
    ),
})  # fmt: skip

NODE_COMMANDS = CommandGroup("List, drain, resume and quarantine nodes; run the agent of a node.", {
    "list": CommandEntry(
        "scheduler.commands.nodes:nodes", "List nodes, their free GPUs, and what is wrong with them.",
        "longshore node list",
    ),
    "health": CommandEntry(
        "scheduler.commands.nodes:health", "Show how often nodes fail, and which are lemons.", "longshore node health",
    ),
    "drain": CommandEntry(
        "scheduler.commands.nodes:drain", "Take a node out of service; its jobs run to their end.",
        "longshore node drain gpu-node-1 --reason 'a fan is loud'",
    ),
    "resume": CommandEntry(
        "scheduler.commands.nodes:resume", "Put a node back into service.", "longshore node resume gpu-node-1",
    ),
    "agent": CommandEntry(
        "scheduler.commands.nodes:agent", "Report this node's GPUs to the scheduler, until stopped.",
        "longshore node agent --node gpu-node-1 --url http://scheduler:8765", unwinds=False,
    ),
    "quarantine": QUARANTINE_COMMANDS,
})  # fmt: skip

TOKEN_COMMANDS = CommandGroup("Create, list and revoke access tokens.", {
    "create": CommandEntry(
        "scheduler.commands.tokens:create", "Create a token and print it, once.",
        "longshore token create ci --owner ada --lifetime 90d",
    ),
    "list": CommandEntry("scheduler.commands.tokens:show", "List tokens.", "longshore token list"),
    "revoke": CommandEntry(
        "scheduler.commands.tokens:revoke", "Revoke a token at once.", "longshore token revoke ci --owner ada",
    ),
})  # fmt: skip

STORE_COMMANDS = CommandGroup("Back up, restore, prune and export the store of a scheduler.", {
    "backup": CommandEntry(
        "scheduler.commands.store:backup", "Copy the store to a file, also while the scheduler runs.",
        "longshore store backup longshore-backup.db",
    ),
    "restore": CommandEntry(
        "scheduler.commands.store:restore", "Replace the store of a stopped scheduler by a backup.",
        "longshore store restore longshore-backup.db --folder .longshore",
    ),
    "unknown": CommandEntry(
        "scheduler.commands.store:unknown", "List running attempts that the store lacks, as after a restore.",
        "longshore store unknown",
    ),
    "prune": CommandEntry(
        "scheduler.commands.store:prune", "Delete old jobs, logs, events and decisions.",
        "longshore store prune --older-than 90d --dry-run",
    ),
    "decisions": CommandEntry(
        "scheduler.commands.store:decisions", "Export all decisions, to learn from them or replay them.",
        "longshore store decisions --folder .longshore --out decisions.jsonl",
    ),
})  # fmt: skip

CONFIG_COMMANDS = CommandGroup("Check the configuration of a scheduler.", {
    "check": CommandEntry(
        "scheduler.commands.serving:check", "List all problems of a configuration, its cluster file and its policy.",
        "longshore config check longshore.yaml",
    ),
})  # fmt: skip

POLICY_COMMANDS = CommandGroup("List policies, import models, replay decisions.", {
    "list": CommandEntry(
        "commands.policies:list_policies", "List the policies that can be named, and the shipped policy files.",
        "longshore policy list",
    ),
    "import": CommandEntry(
        "commands.policies:import_model", "Make a policy file of a Stable-Baselines3 model.",
        "longshore policy import model.zip --out policy.zip",
    ),
    "replay": CommandEntry(
        "scheduler.commands.store:replay", "Show what another policy would have decided, decision by decision.",
        "longshore policy replay decisions.jsonl --policy checkpoints/hetero64-wait.zip",
    ),
})  # fmt: skip

PLAN_COMMANDS = CommandGroup("Find the GPUs that train a model by a deadline; calibrate and run plans.", {
    "find": CommandEntry(
        "commands.planning:find", "Find the fewest GPUs that train a model by a deadline, and how to use them.",
        "longshore plan find examples/plan/llama7b.py --deadline 24h --tokens 1e9 --cluster examples/small.yaml",
    ),
    "calibrate": CommandEntry(
        "commands.planning:calibrate", "Fit the planner's constants to measured runs.",
        "longshore plan calibrate runs.csv --out mine-hardware.yaml",
    ),
    "measure": CommandEntry(
        "commands.planning:measure", "Measure this machine for plans without GPUs.",
        "longshore plan measure --ranks 4 --out here.yaml",
    ),
    "run": CommandEntry(
        "commands.planning:run", "Train by a plan, with processes on this machine.",
        "longshore plan run plan.json train.py:build --steps 20",
    ),
})  # fmt: skip

TRACE_COMMANDS = CommandGroup("Inspect, convert, sample, plan and download job traces.", {
    "inspect": CommandEntry(
        "commands.traces:inspect_trace", "Show the statistics of a trace.",
        "longshore trace inspect jobs.csv --gpus 64",
    ),
    "convert": CommandEntry(
        "commands.traces:convert_trace", "Write a trace in Longshore's own format.",
        "longshore trace convert jobs.swf jobs.csv",
    ),
    "sample": CommandEntry(
        "commands.traces:sample_trace", "Write a window of consecutive jobs.",
        "longshore trace sample jobs.csv window.csv --jobs 96 --load 0.8",
    ),
    "plan": CommandEntry(
        "commands.traces:plan_trace", "Give each job of a trace a model, and plans that train it.",
        "longshore trace plan jobs.csv planned.csv --models examples/plan/models.yaml --cluster mine.yaml",
    ),
    "list": CommandEntry(
        "commands.traces:list_traces", "List the public traces that can be downloaded.", "longshore trace list",
    ),
    "download": CommandEntry(
        "commands.traces:download_trace", "Download a public trace.", "longshore trace download philly_vc_2869ce",
    ),
})  # fmt: skip

HELP_PANELS: Mapping[str, Mapping[str, CommandEntry | CommandGroup]] = {
    "Run jobs": {
        "submit": CommandEntry(
            "scheduler.commands.submitting:submit", "Submit a job: a job file, or a command behind --.",
            "longshore submit --gpus 2 -- python train.py", kind="scheduler.commands.submitting:SubmitCommand",
        ),
        "queue": CommandEntry(
            "scheduler.commands.jobs:queue", "List running and waiting jobs, in the order of the queue.",
            "longshore queue --user ada --state queued",
        ),
        "status": CommandEntry(
            "scheduler.commands.jobs:status", "Show a job, its attempts, and why it waits.", "longshore status JOB",
        ),
        "explain": CommandEntry(
            "scheduler.commands.jobs:explain", "Show which GPUs a job got, and why.", "longshore explain JOB",
        ),
        "logs": CommandEntry(
            "scheduler.commands.jobs:logs", "Show the output of a job.", "longshore logs JOB --rank all --tail 20",
        ),
        "wait": CommandEntry(
            "scheduler.commands.requests:wait", "Wait until jobs have ended.",
            "longshore wait JOB --timeout 2h && echo done",
        ),
        "cancel": CommandEntry("scheduler.commands.requests:cancel", "Cancel jobs.", "longshore cancel JOB OTHER"),
        "job": JOB_COMMANDS,
    },
    "Run a scheduler": {
        "serve": CommandEntry(
            "scheduler.commands.serving:serve", "Run a scheduler with its API and dashboard.",
            "longshore serve --config longshore.yaml", unwinds=False,
        ),
        "dashboard": CommandEntry(
            "scheduler.commands.serving:dashboard", "Print a link that opens the dashboard in a browser.",
            "longshore dashboard",
        ),
        "node": NODE_COMMANDS,
        "preflight": CommandEntry(
            "scheduler.commands.preflight:preflight", "Check nodes of this machine, as before a job starts on them.",
            "longshore preflight --nodes rack0-node0,rack0-node1 --level 2",
        ),
        "token": TOKEN_COMMANDS,
        "store": STORE_COMMANDS,
        "config": CONFIG_COMMANDS,
        "extender": CommandEntry(
            "scheduler.commands.serving:extender", "Rank nodes for kube-scheduler, as its HTTP extender.",
            "longshore extender --cluster mine.yaml --policy patient", unwinds=False,
        ),
    },
    "Simulate, train and compare policies": {
        "simulate": CommandEntry(
            "commands.evaluating:simulate", "Run one workload under one policy.",
            "longshore simulate --cluster examples/hetero64.yaml --policy patient --waiting --order easy",
        ),
        "evaluate": CommandEntry(
            "commands.evaluating:evaluate", "Compare orders and policies on the same workloads and faults.",
            "longshore evaluate --trace jobs.csv --policy checkpoints/hetero64.zip --report report.html",
        ),
        "train": CommandEntry(
            "commands.training:train", "Train a policy.", "longshore train --preset hetero64 --steps 2e6 --seed 0",
        ),
        "tune": CommandEntry(
            "commands.training:tune", "Search for better hyper-parameters of training.",
            "longshore tune --preset hetero64 --trials 20 --jobs 2",
        ),
        "policy": POLICY_COMMANDS,
        "plan": PLAN_COMMANDS,
        "trace": TRACE_COMMANDS,
        "compile": CommandEntry(
            "commands.policies:compile_kernels", "Compile kernels before other commands need them.",
            "longshore compile heuristics serve",
        ),
    },
}  # fmt: skip


class UnloadedCommand(TyperCommand):
    """A command as help lists it, whose module is not imported yet."""

    def __init__(self, name: str, command: CommandEntry, panel: str | None) -> None:
        super().__init__(name, help=command.about, rich_help_panel=panel)
        self.command = command

    def load(self) -> TyperCommand:
        """Import the command."""
        from .cluster.files.signals import unwound_by_signals

        code, _, example, unwinds, kind = self.command
        function, app = _import_object(code), typer.Typer(add_completion=False, pretty_exceptions_enable=False)
        cls = _import_object(kind) if kind else TyperCommand
        app.command(self.name, epilog=f"Example: {example}", cls=cls)(
            unwound_by_signals()(function) if unwinds else function
        )
        loaded = get_command(app)
        assert isinstance(loaded, TyperCommand)
        return loaded


def _import_object(code: str) -> Any:
    module, _, name = code.partition(":")
    return getattr(import_module(f".{module}", __package__), name)


class LazyGroup(TyperGroup):
    """Commands that are imported when they are called."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        """Return the name of a command, the command itself, and its arguments."""
        name, command, rest = super().resolve_command(ctx, args)
        return name, command.load() if isinstance(command, UnloadedCommand) else command, rest


class _TopGroup(LazyGroup):
    """All commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes)
        for panel, commands in HELP_PANELS.items():
            self.commands.update(_lazy_commands(commands, panel))


def _lazy_commands(commands: Mapping[str, CommandEntry | CommandGroup], panel: str | None = None) -> dict[str, Any]:
    return {
        name: UnloadedCommand(name, each, panel)
        if isinstance(each, CommandEntry)
        else LazyGroup(
            name=name,
            help=each.about,
            commands=_lazy_commands(each.commands),
            no_args_is_help=True,
            rich_help_panel=panel,
        )
        for name, each in commands.items()
    }


def _plan_job(
    file: "YamlFile",
    data: Mapping[str, Any],
    folder: Path,
    cluster: Callable[[], Mapping[str, Any]],
    report: Callable[[str], None],
) -> dict[str, Any]:
    """Plan the model of a job file (`planned_jobs.plan_job`); the scheduler's own commands do not know the planner."""
    from .commands.progress import progress

    with progress("planning the job"):
        from .commands.planned_jobs import plan_job

        return plan_job(file, data, folder, cluster, report)


app = typer.Typer(
    cls=_TopGroup,
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"], "obj": _plan_job},
    help="Place deep-learning training jobs on the GPUs of shared, mixed, fault-prone clusters.",
    epilog="Begin with `longshore serve`, and `longshore submit` in a second terminal. Durations are written 30s, 15m, "
    "2h or 3d.",
)


def _show_version(requested: bool) -> None:
    if requested:
        from importlib.metadata import version

        typer.echo(f"Longshore {version('longshore')}")
        raise typer.Exit


@app.callback()
def _longshore(
    version: Annotated[
        bool, typer.Option("--version", is_eager=True, callback=_show_version, help="Show the version and exit.")
    ] = False,
) -> None:
    """Take the options that stand before a command."""
    del version  # its callback has shown it


class _LogLines(logging.Handler):
    """Shows warnings and notes on the standard error of the moment, so that a status line moves out of their way."""

    def __init__(self) -> None:
        super().__init__()
        self._shown = set[str]()

    def emit(self, record: logging.LogRecord) -> None:
        if record.levelno >= logging.WARNING:
            typer.echo(f"longshore: warning: {in_one_line(record.getMessage())}", err=True)
        elif record.getMessage() not in self._shown:  # a file may be read several times
            self._shown.add(record.getMessage())
            typer.echo(f"longshore: {in_one_line(record.getMessage())}", err=True)


def main() -> None:
    """Run the command line; each `LongshoreError` becomes a line on standard error, and the exit status 2."""
    logging.basicConfig(handlers=[_LogLines()], level=logging.WARNING, force=True)
    logging.getLogger("longshore.cluster.traces.read").setLevel(logging.INFO)  # the detected format of a trace
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal that knows ASCII only shows a question mark
    try:
        sys.exit(get_command(app).main(prog_name="longshore", standalone_mode=False))
    except typer.TyperException as error:
        _report_wrong_usage(error)
        sys.exit(error.exit_code)
    except FileNotFoundError:
        if not is_present_folder_gone():
            raise
        typer.echo(f"longshore: {FOLDER_GONE}", err=True)
        sys.exit(2)
    except LongshoreError as error:
        for each in error.errors if isinstance(error, ManyProblemsError) else (error,):
            typer.echo(f"longshore: {in_one_line(str(each))}", err=True)
        sys.exit(2)


def _report_wrong_usage(error: typer.TyperException) -> None:
    """Print what is wrong with a command line, in one line; on a terminal, its usage before that."""
    context: typer.Context | None = getattr(error, "ctx", None)
    problem = in_one_line(error.format_message()).removesuffix(".")
    if not problem:  # no command was named, and the help has been shown
        return
    for theirs, ours in PLAIN_WORDS.items():
        problem = problem.replace(theirs, ours)
    if context is None:
        typer.echo(f"longshore: {problem}", err=True)
        return
    if sys.stderr.isatty():
        typer.echo(context.get_usage(), err=True)
    typer.echo(f"longshore: {problem}; see `{context.command_path} --help`", err=True)


PLAIN_WORDS = {
    "Input should be a valid integer, unable to parse string as an integer": "it should be a whole number",
    "Input should be a valid number, unable to parse string as a number": "it should be a number",
    "Input should be ": "it should be ",
    "greater than or equal to": "at least",
    "less than or equal to": "at most",
}  # words of the library that reads options, and ours
