"""`longshore submit`: from options and a job file to a submitted job."""

import difflib
import os
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer
from typer.core import TyperCommand

from ...cluster.files.errors import InputError, raise_all
from ...cluster.files.output_file import encodable_text
from ...cluster.files.paths import exists, is_file, is_folder
from .options import DEFAULT_URL, DURATION, CaOption, JsonOption, UrlOption, client_of, print_json, run_time

if TYPE_CHECKING:
    from ...cluster.files.yaml_file import YamlFile
    from ..model.job_spec import JobFile

    # From a job file with `plan:` or `deadline:` and its content to the fields of the planned job.
    PlanJob = Callable[[YamlFile, Mapping[str, Any]], dict[str, Any]]

SCRIPTS = {".py": "python", ".sh": "sh", ".bash": "bash", ".slurm": "sh", ".sbatch": "sh"}
BATCH = "docs/migrate.md shows how to turn a batch script into a job file"
SHAPE = re.compile(r"([1-9][0-9]{0,6})[xX]([1-9][0-9]{0,6})")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
JOB_OPTIONS = {
    "gpus": "--gpus", "shape": "--shape", "name": "--name", "priority": "--priority", "estimate_s": "--estimate",
    "limit_s": "--limit", "folder": "--folder", "environment": "--env", "command": "the command behind --",
    "needs": "--gpu-type", "gpu_memory_bytes": "--gpu-memory", "visible_gpus": "--visible-gpus",
}  # fmt: skip


def file_of(words: Sequence[str]) -> Path | None:
    """Return the job file named before `--`, None if there is none.

    Raises:
        InputError: If it is no job file, with a suggestion.
    """
    if not words:
        return None
    first = words[0]
    if len(words) > 1:
        raise _too_many_files_error(words)
    if first == "-":
        raise InputError("- is no job file", "name /dev/stdin to read one from standard input")
    file = Path(first)
    if not first or is_folder(file):
        what = f"{first!r} is a folder" if first else "the name of the job file is empty"
        raise InputError(what, f"name a job file{_folder_hint(file) if first else ''}")
    if not exists(file):
        raise _absent_file_error(file)
    _refuse_script(file)
    return file


def shape_of(text: str) -> dict[str, int]:
    """Return the nodes, and the GPUs of each, of `--shape 2x4`.

    Raises:
        InputError: If it cannot be read.
    """
    found = SHAPE.fullmatch(text)
    if found is None:
        raise InputError(f"{text!r} is no shape", "write NODESxGPUS, as in --shape 2x4", field="--shape")
    return {"nodes": int(found[1]), "gpus_per_node": int(found[2])}


def needs_of(types: Sequence[str], memory_gb: float | None) -> dict[str, object] | None:
    """Return the `needs` of `--gpu-type` and `--gpu-memory`, None if neither is given."""
    needs: dict[str, object] = {}
    if types:
        needs["gpu_types"] = list(types)
    if memory_gb is not None:
        from ...cluster.model.topology import GB

        needs["gpu_memory_bytes"] = memory_gb * GB
    return needs or None


def command_of(words: Sequence[str] | None) -> list[str] | None:
    """Return the command behind `--`, None if there is no `--`.

    Raises:
        InputError: If it cannot be a command.
    """
    if words is None:
        return None
    if not words or not words[0].strip():
        raise InputError("there is no command behind --", "write one, as in: longshore submit -- python train.py")
    program = words[0]
    if program.startswith("-"):
        raise InputError(f"a command begins with a program, not with {program!r}", "write the whole command behind --")
    if ASSIGNMENT.fullmatch(program):
        raise InputError(f"{program!r} is no program", f"write --env {shlex.quote(program)} before --")
    if len(words) == 1 and re.search(r"\s", program) and not _passes_path_test(exists, program):
        raise InputError(
            f"{program!r} is one word, and no program has this name",
            f"omit the quotes, or let a shell split it: -- sh -c {shlex.quote(program)}",
        )
    return list(words)


def environment_of(settings: Iterable[str], present: Mapping[str, str]) -> dict[str, str] | None:
    """Return the variables of NAME=VALUE, and of NAME from the present environment; None if there are none.

    Args:
        settings: As typed.
        present: Environment of this command.

    Raises:
        InputError: If a variable is not set in it.
    """
    found = {}
    for setting in settings:
        name, is_set, value = setting.partition("=")
        if not is_set and name not in present:
            raise InputError(f"{name!r} is not set here", f"write {name}=VALUE", field="--env")
        found[name] = value if is_set else present[name]
    return found or None


def job_of_options(given: Mapping[str, Any]) -> "JobFile":
    """Return the job that options alone describe.

    Raises:
        InputError: For each option that cannot be used.
    """
    from pydantic import ValidationError

    from ...cluster.files.input_problems import input_problems
    from ..model.job_spec import JobFile

    try:
        return JobFile.model_validate(given)
    except ValidationError as error:
        found = input_problems(error.errors(include_url=False), JobFile.model_json_schema(), given)
        raise_all(InputError(problem.problem, problem.fix, field=_option_of_field(problem.place)) for problem in found)
        raise AssertionError("an error has a cause") from error


def _option_of_field(place: Sequence[str | int]) -> str:
    # Of needs each part has an option of its own; names of variables may be those of options.
    parts = (*reversed(place[:2]), place[0]) if place[0] == "needs" else place[:1]
    option = next(JOB_OPTIONS[str(part)] for part in parts if part in JOB_OPTIONS)
    return f"{option} {place[1]}" if option == "--env" and len(place) > 1 else option


def _too_many_files_error(words: Sequence[str]) -> InputError:
    files = [word for word in words if _passes_path_test(is_file, word) and not _run_command(Path(word))]
    if len(files) == len(words):
        return InputError(f"{len(words)} job files are named", "submit one after the other")
    if files[:1] == list(words[:1]):
        fix = f"options come before it, a command behind --: longshore submit {words[0]} -- {shlex.join(words[1:])}"
        return InputError(f"{words[1]!r} behind the job file is not understood", fix)
    return InputError(
        f"{shlex.join(words)!r} is no job file", f"if it is a command: longshore submit -- {shlex.join(words)}"
    )


def _passes_path_test(test: Callable[[Path], bool], word: str) -> bool:
    """Test a word as a path; one that is too long for a name is none."""
    try:
        return test(Path(word))
    except InputError:
        return False


def _absent_file_error(file: Path) -> InputError:
    text = str(file)
    close = difflib.get_close_matches(file.name, [sibling.name for sibling in _similar_files(file)], n=1)
    if close:
        return InputError(f"there is no file {text!r}", f"did you mean {str(file.with_name(close[0]))!r}?")
    if shutil.which(text):
        return InputError(f"{text!r} is a program, no job file", f"to run it: longshore submit -- {shlex.quote(text)}")
    fix = "name a job file, or write a command behind --: longshore submit -- python train.py"
    return InputError(f"there is no file {text!r}", fix)


def _similar_files(file: Path) -> list[Path]:
    try:
        return [path for path in file.parent.iterdir() if path.is_file()]
    except OSError:
        return []


def _folder_hint(folder: Path) -> str:
    found = sorted(path.name for path in _similar_files(folder / "x") if path.suffix in (".yaml", ".yml", ".json"))
    return f", such as {folder / found[0]}" if found else ""


def _refuse_script(file: Path) -> None:
    """Refuse a script or program.

    Raises:
        InputError: With the command that runs it.
    """
    runs = _run_command(file)
    if runs:
        how = f"; {BATCH}" if b"#SBATCH" in _first_bytes(file) else ""
        raise InputError(f"{str(file)!r} is a program, no job file", f"to run it: longshore submit -- {runs}{how}")


def _run_command(file: Path) -> str:
    """Return the command that runs a script or a program, nothing for other files."""
    if file.suffix in SCRIPTS:
        return f"{SCRIPTS[file.suffix]} {shlex.quote(str(file))}"
    head = _first_bytes(file)
    return shlex.quote(str(file.absolute())) if head.startswith((b"#!", b"\x7fELF")) else ""


def _first_bytes(file: Path) -> bytes:
    if not file.is_file():  # reading a pipe would consume it
        return b""
    try:
        with file.open("rb") as opened:
            return opened.read(4096)
    except OSError:
        return b""


COMMAND = "longshore.command"  # key of the words behind -- in the context of a call
BEHIND = "; options of a command go behind --, as in: longshore submit -- python train.py --lr 0.1"
JOB_FILES_PAGE = "docs/scheduler.md#job-files"


class SubmitCommand(TyperCommand):
    """Parses `longshore submit [OPTIONS] [FILE] [-- COMMAND ...]`."""

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """Return the usage line behind the name of the command."""
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
    float | None,
    typer.Option(parser=run_time, metavar=DURATION, help="Expected running time; default: of similar jobs, or 1h."),
]
LimitOption = Annotated[
    float | None, typer.Option(parser=run_time, metavar=DURATION, help="Running time after which the job is stopped.")
]
GpuTypeOption = Annotated[list[str] | None, typer.Option(metavar="TYPE", help="Node type that it accepts; repeatable.")]
GpuMemoryOption = Annotated[
    float | None, typer.Option(metavar="GB", help="Minimum memory of each GPU, in GB of 1e9 bytes.")
]

ShapeOption = Annotated[
    str | None, typer.Option(metavar="NODESxGPUS", help="N nodes with the same number of GPUs each, as in 2x4.")
]
VisibleGpusOption = Annotated[
    Literal["node", "rank"] | None,
    typer.Option(
        help="GPUs that each process sees: all of the job on its node, and LOCAL_RANK is its own (node, the default); "
        "or its own alone, with LOCAL_RANK 0 (rank)."
    ),
]


def submit(
    context: typer.Context,
    file: Annotated[list[str] | None, typer.Argument(metavar="FILE", help="Job file (YAML).")] = None,
    gpus: Annotated[int | None, typer.Option(help="GPUs; default: that of the file, or 1.")] = None,
    shape: ShapeOption = None,
    gpu_type: GpuTypeOption = None,
    gpu_memory: GpuMemoryOption = None,
    visible_gpus: VisibleGpusOption = None,
    name: Annotated[str | None, typer.Option(help="Name of the job.")] = None,
    priority: Annotated[int | None, typer.Option(help="Higher goes first, -1000 to 1000.")] = None,
    estimate: EstimateOption = None,
    limit: LimitOption = None,
    folder: Annotated[
        str | None, typer.Option(help="Working directory; default: that of the file, or the present one.")
    ] = None,
    env: Annotated[
        list[str] | None, typer.Option(metavar="NAME[=VALUE]", help="Set a variable, or copy it from here; repeatable.")
    ] = None,
    dry_run: Annotated[
        bool, typer.Option("--dry-run", help="Only validate the job and count those before it.")
    ] = False,
    json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Submit a job: a job file, or a command behind --, which runs once for each GPU. Prints the job's id.

    Options and a command behind -- override the file.
    """
    given = {
        "gpus": gpus, "shape": None if shape is None else shape_of(shape), "name": name, "priority": priority,
        "needs": needs_of(gpu_type or (), gpu_memory),
        "visible_gpus": visible_gpus, "estimate_s": estimate, "limit_s": limit,
        "folder": None if folder is None else str(Path.cwd() / folder),
        "command": command_of(context.meta[COMMAND]), "environment": environment_of(env or (), os.environ),
    }  # fmt: skip

    def planned(job_file: "YamlFile", data: Mapping[str, Any]) -> dict[str, Any]:
        home = _home_of(job_file.path) / str(data.get("folder") or "")
        # The planner is no part of the scheduler: the command line passes `planned_jobs.plan_job` in.
        found: dict[str, Any] = context.obj(
            job_file, data, home, lambda: client_of(url, ca).cluster(),
            lambda line: typer.echo(f"longshore: {line}", err=True),
        )  # fmt: skip
        return found

    spec = _spec_to_send(
        file_of(file or []), {key: value for key, value in given.items() if value is not None}, planned
    )
    if not dry_run:
        job = client_of(url, ca).submit(spec)
        print_json(job) if json else typer.echo(job["id"])
        return
    plan = client_of(url, ca).dry_run(spec)
    if json:
        print_json(plan)
        return
    fits = "enough" if plan["would_fit"] else "too few"
    typer.echo(f"it can be submitted: {plan['jobs_ahead']} jobs before it, {plan['free_gpus']} GPUs free ({fits})")


def _spec_to_send(file: Path | None, given: Mapping[str, Any], planned: "PlanJob") -> dict[str, object]:
    if file is None and "command" not in given:
        raise InputError(
            "there is no job", "write `longshore submit job.yaml`, or a command behind --: "
            "longshore submit -- python train.py",
        )  # fmt: skip
    job = _described_job(file, given, planned)
    # Relative folders and programs are found as by the user's own shell.
    folder = str(_home_of(file) / job.folder)
    if not _is_encodable(folder):
        raise InputError(f"the job's folder {folder!r} has a name that is not UTF-8", "name another by --folder")
    programs = os.pathsep.join(filter(_is_encodable, os.environ.get("PATH", os.defpath).split(os.pathsep)))
    environment = {"PATH": programs, **job.environment}
    omitted = {"estimate_s"} - job.model_fields_set  # the scheduler estimates by jobs that have ended
    return job.model_copy(update={"folder": folder, "environment": environment}).model_dump(
        mode="json", exclude=omitted
    )


def _home_of(file: Path | None) -> Path:
    """Return where relative folders of a job start: at its file, unless that is a pipe, or /dev/stdin."""
    if file is None or not is_file(file) or _is_descriptor(file):
        return Path.cwd()
    return file.absolute().parent


def _is_descriptor(file: Path) -> bool:
    """Return whether a path names an open file of a process, as /dev/stdin and /dev/fd/3 do."""
    names = [file, file.parent / file.readlink()] if file.is_symlink() else [file]
    return any(Path("/proc") in name.parent.resolve().parents for name in names)


def _is_encodable(text: str) -> bool:
    """Return whether text can be sent: a path may hold bytes that are no UTF-8, which Python keeps as surrogates."""
    return encodable_text(text) == text


def _described_job(file: Path | None, given: Mapping[str, Any], planned: "PlanJob") -> "JobFile":
    if file is None:
        return job_of_options(given)
    from ...cluster.files.yaml_file import read_yaml, validated
    from ..model.job_spec import JobFile

    content = read_yaml(file, JOB_FILES_PAGE)
    data = dict(content.data) if isinstance(content.data, dict) else {}
    job_of_options({"command": ["x"], **given})  # errors of options name the option, not a line of the file
    for section in ("environment", "needs"):
        if section in given and isinstance(data.get(section, {}), dict):
            given = {**given, section: {**data.get(section, {}), **given[section]}}
    for one, other in (("gpus", "shape"), ("shape", "gpus")):  # either gives the number of GPUs, so one replaces both
        if one in given and other not in given:
            data.pop(other, None)
    data = {**data, **given}
    if "plan" in data or "deadline" in data:
        data = planned(content, data)
    return validated(content, JobFile, data)
