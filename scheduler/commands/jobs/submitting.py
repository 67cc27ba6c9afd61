"""`longshore submit`."""

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, NamedTuple, Protocol

import typer
from typer.core import TyperCommand

from ....cluster.files.errors import InputError
from ..durations import DURATION, run_time
from ..options import DEFAULT_URL, CaOption, JsonOption, UrlOption, client_of, print_json

if TYPE_CHECKING:
    from ....cluster.files.yaml_file import YamlFile
    from ...model.job_spec import JobFile

COMMAND = "longshore.command"  # what stands behind -- in the context of a call
BEHIND = "; options of a command go behind --, as in: longshore submit -- python train.py --lr 0.1"
PAGE = "docs/scheduler.md#job-files"


class PlansJobs(Protocol):
    """What plans the model of a job file. It is no part of the scheduler, so the command line hands it in."""

    def __call__(
        self,
        file: "YamlFile",
        data: Mapping[str, Any],
        folder: Path,
        cluster: Callable[[], Mapping[str, Any]],
        tell: Callable[[str], None],
    ) -> dict[str, Any]:
        """Return the fields of a job with a plan in place of the wish for one."""
        ...


class Planner(NamedTuple):
    """What plans jobs, and for which cluster."""

    plans: PlansJobs
    cluster: Callable[[], Mapping[str, Any]]

    def plan(self, file: "YamlFile", data: Mapping[str, Any]) -> dict[str, Any]:
        """Return the fields of a job file with a plan; say on standard error what was chosen."""
        folder = file.path.absolute().parent / str(data.get("folder") or "")
        return self.plans(file, data, folder, self.cluster, lambda line: typer.echo(f"longshore: {line}", err=True))


class SubmitCommand(TyperCommand):
    """Keeps what stands behind `--` apart from what stands before it."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return what stands behind the name of the command in a line on its use."""
        return ["[OPTIONS]", "[FILE]", "[-- COMMAND ...]"]

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Read the options and the file."""
        at = args.index("--") if "--" in args else None
        ctx.meta[COMMAND] = None if at is None else args[at + 1 :]
        try:
            return super().parse_args(ctx, args[:at])
        except typer.TyperException as error:
            if at is None and "No such option" in error.message:
                error.message = error.message.rstrip(".") + BEHIND
            raise


EstimateOption = Annotated[
    float | None, typer.Option(parser=run_time, metavar=DURATION, help="How long it is expected to run; 1h if unsaid.")
]
LimitOption = Annotated[
    float | None, typer.Option(parser=run_time, metavar=DURATION, help="Running time after which it is stopped.")
]
GpuTypeOption = Annotated[
    list[str] | None,
    typer.Option(metavar="TYPE", help="Node type that it accepts, by its name; several times for one of several."),
]
GpuMemoryOption = Annotated[
    float | None, typer.Option(metavar="GB", help="Least memory of each GPU, in GB of 1e9 bytes.")
]

ShapeOption = Annotated[
    str | None, typer.Option(metavar="NODESxGPUS", help="N nodes with the same number of GPUs each, as in 2x4.")
]
VisibleGpusOption = Annotated[
    Literal["node", "rank"] | None,
    typer.Option(
        help="GPUs that each process sees: all of the job on its node, and LOCAL_RANK is its own (node, the default); "
        "or its own alone, with LOCAL_RANK 0 (rank).",
    ),
]


def submit(
    context: typer.Context,
    file: Annotated[list[str] | None, typer.Argument(metavar="FILE", help="Job file (YAML).")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs; 1 if neither file nor option says.")] = None,
    shape: ShapeOption = None,
    gpu_type: GpuTypeOption = None,
    gpu_memory: GpuMemoryOption = None,
    visible_gpus: VisibleGpusOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the job.")] = None,
    priority: Annotated[int | None, typer.Option(help="Higher goes first, -1000 to 1000.")] = None,
    estimate: EstimateOption = None,
    limit: LimitOption = None,
    folder: Annotated[
        str | None, typer.Option(help="Working directory; that of the file, or the present one, if unsaid.")
    ] = None,
    env: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME[=VALUE]", help="Sets a variable, or takes it from here; several times if need be."),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would become of it.")] = False,
    json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Submit a job: a job file, or a command behind --, which runs once for each GPU. Prints the job's id.

    Options go before what the file says, and so does a command behind --.
    """
    from .submission import command_of, environment_of, file_of, needs_of, shape_of

    given = {
        "gpus": gpus, "shape": None if shape is None else shape_of(shape), "name": name, "priority": priority,
        "needs": needs_of(gpu_type or (), gpu_memory),
        "visible_gpus": visible_gpus, "estimate_s": estimate, "limit_s": limit,
        "folder": None if folder is None else str(Path.cwd() / folder),
        "command": command_of(context.meta[COMMAND]), "environment": environment_of(env or (), os.environ),
    }  # fmt: skip
    planner = Planner(context.obj, lambda: client_of(url, ca).cluster())
    spec = _spec(file_of(file or []), {key: value for key, value in given.items() if value is not None}, planner)
    if not dry_run:
        job = client_of(url, ca).submit(spec)
        print_json(job) if json else typer.echo(job["id"])
        return
    plan = client_of(url, ca).plan(spec)
    if json:
        print_json(plan)
        return
    fits = "they would do" if plan["would_fit"] else "too few"
    typer.echo(f"it can be submitted: {plan['jobs_ahead']} jobs before it, {plan['free_gpus']} GPUs free ({fits})")


def _spec(file: Path | None, given: Mapping[str, Any], planner: "Planner") -> dict[str, object]:
    if file is None and "command" not in given:
        raise InputError(
            "there is nothing to submit", "write `longshore submit job.yaml`, or a command behind --: "
            "longshore submit -- python train.py",
        )  # fmt: skip
    job = _job(file, given, planner)
    home = Path.cwd() if file is None else file.absolute().parent
    # As the user's own shell would find them: relative folders, and programs.
    folder = str(home / job.folder)
    environment = {"PATH": os.environ.get("PATH", os.defpath), **job.environment}
    unsaid = {"estimate_s"} - job.model_fields_set  # the scheduler has one by the jobs that have ended
    return job.model_copy(update={"folder": folder, "environment": environment}).model_dump(mode="json", exclude=unsaid)


def _job(file: Path | None, given: Mapping[str, Any], planner: "Planner") -> "JobFile":
    from ...model.job_spec import JobFile
    from .submission import job_with

    if file is None:
        return job_with(given)
    from ....cluster.files.yaml_file import read_yaml, validated

    content = read_yaml(file, PAGE)
    data = dict(content.data) if isinstance(content.data, dict) else {}
    job_with({"command": ["x"], **given})  # an option is blamed as one, not as a line of the file
    for section in ("environment", "needs"):
        if section in given and isinstance(data.get(section, {}), dict):
            given = {**given, section: {**data.get(section, {}), **given[section]}}
    for one, other in (("gpus", "shape"), ("shape", "gpus")):  # each says how many GPUs, so one replaces both
        if one in given and other not in given:
            data.pop(other, None)
    data = {**data, **given}
    if "plan" in data or "deadline" in data:
        data = planner.plan(content, data)
    return validated(content, JobFile, data)
