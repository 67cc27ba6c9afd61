"""What somebody means who types something behind `longshore submit`."""

import difflib
import re
import shlex
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from ....cluster.files.errors import InputError, raise_all
from ....cluster.files.input_problems import input_problems
from ....cluster.model.needs import GB
from ...files.paths import exists, is_file, is_folder
from ...model.job_spec import JobFile

SCRIPTS = {".py": "python", ".sh": "sh", ".bash": "bash", ".slurm": "sh", ".sbatch": "sh"}
BATCH = "docs/migrate.md says how a batch script becomes a job file"
SHAPE = re.compile(r"([1-9][0-9]{0,6})[xX]([1-9][0-9]{0,6})")
ASSIGNMENT = re.compile(r"[A-Za-z_]\w*=.*", re.DOTALL)
OPTIONS = {
    "gpus": "--gpus", "shape": "--shape", "name": "--name", "priority": "--priority", "estimate_s": "--estimate",
    "limit_s": "--limit", "folder": "--folder", "environment": "--env", "command": "the command behind --",
    "needs": "--gpu-type", "gpu_memory_bytes": "--gpu-memory", "visible_gpus": "--visible-gpus",
}  # fmt: skip


def file_of(words: Sequence[str]) -> Path | None:
    """Return the job file that is meant by what stands before `--`, None if nothing does.

    Raises:
        InputError: If it is none, saying what may have been meant.
    """
    if not words:
        return None
    first = words[0]
    if len(words) > 1:
        raise _too_many(words)
    if first == "-":
        raise InputError("- is no job file", "name /dev/stdin to read one from standard input")
    file = Path(first)
    if not first or is_folder(file):
        what = f"{first!r} is a folder" if first else "the name of the job file is empty"
        raise InputError(what, f"name a job file{_in_there(file) if first else ''}")
    if not exists(file):
        raise _absent(file)
    _refuse_script(file)
    return file


def shape_of(text: str) -> dict[str, int]:
    """Return what `--shape 2x4` asks for: nodes, and GPUs of each.

    Raises:
        InputError: If it cannot be read.
    """
    found = SHAPE.fullmatch(text)
    if found is None:
        raise InputError(f"{text!r} is no shape", "write NODESxGPUS, as in --shape 2x4", field="--shape")
    return {"nodes": int(found[1]), "gpus_per_node": int(found[2])}


def needs_of(types: Sequence[str], memory_gb: float | None) -> dict[str, object] | None:
    """Return what `--gpu-type` and `--gpu-memory` ask of nodes, None if neither is given."""
    told: dict[str, object] = {}
    if types:
        told["gpu_types"] = list(types)
    if memory_gb is not None:
        told["gpu_memory_bytes"] = memory_gb * GB
    return told or None


def command_of(words: Sequence[str] | None) -> list[str] | None:
    """Return the command that stands behind `--`, None if there is no `--`.

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
    if len(words) == 1 and re.search(r"\s", program) and not _sees(exists, program):
        raise InputError(
            f"{program!r} is one word, and no program has this name",
            f"leave the quotes out, or let a shell take it apart: -- sh -c {shlex.quote(program)}",
        )
    return list(words)


def environment_of(wishes: Iterable[str], present: Mapping[str, str]) -> dict[str, str] | None:
    """Return the variables that NAME=VALUE sets and that NAME takes over, None if there is no wish.

    Args:
        wishes: As they were typed.
        present: Environment of whoever types.

    Raises:
        InputError: If a variable is to be taken over that there is not.
    """
    found = {}
    for wish in wishes:
        name, is_set, value = wish.partition("=")
        if not is_set and name not in present:
            raise InputError(f"{name!r} is not set here", f"write {name}=VALUE", field="--env")
        found[name] = value if is_set else present[name]
    return found or None


def job_with(given: Mapping[str, Any]) -> JobFile:
    """Return the job that options alone describe.

    Raises:
        InputError: Naming each option that cannot be used.
    """
    try:
        return JobFile.model_validate(given)
    except ValidationError as error:
        found = input_problems(error.errors(include_url=False), JobFile.model_json_schema(), given)
        raise_all(InputError(it.problem, it.fix, field=_option(it.place)) for it in found)
        raise AssertionError("an error has a cause") from error


def _option(place: Sequence[str | int]) -> str:
    # Of needs each part has an option of its own; names of variables may be those of options.
    parts = (*reversed(place[:2]), place[0]) if place[0] == "needs" else place[:1]
    option = next(OPTIONS[str(part)] for part in parts if part in OPTIONS)
    return f"{option} {place[1]}" if option == "--env" and len(place) > 1 else option


def _too_many(words: Sequence[str]) -> InputError:
    files = [word for word in words if _sees(is_file, word) and not _runs(Path(word))]
    if len(files) == len(words):
        return InputError(f"{len(words)} job files are named", "submit one after the other")
    if files[:1] == list(words[:1]):
        fix = f"options come before it, a command behind --: longshore submit {words[0]} -- {shlex.join(words[1:])}"
        return InputError(f"{words[1]!r} behind the job file is not understood", fix)
    return InputError(
        f"{shlex.join(words)!r} is no job file", f"if it is a command: longshore submit -- {shlex.join(words)}"
    )


def _sees(look: Callable[[Path], bool], word: str) -> bool:
    """Look whether a word is a path; one that is too long for a name is none."""
    try:
        return look(Path(word))
    except InputError:
        return False


def _absent(file: Path) -> InputError:
    text = str(file)
    close = difflib.get_close_matches(file.name, [it.name for it in _siblings(file)], n=1)
    if close:
        return InputError(f"there is no file {text!r}", f"did you mean {str(file.with_name(close[0]))!r}?")
    if shutil.which(text):
        return InputError(f"{text!r} is a program, no job file", f"to run it: longshore submit -- {shlex.quote(text)}")
    fix = "name a job file, or write a command behind --: longshore submit -- python train.py"
    return InputError(f"there is no file {text!r}", fix)


def _siblings(file: Path) -> list[Path]:
    try:
        return [it for it in file.parent.iterdir() if it.is_file()]
    except OSError:
        return []


def _in_there(folder: Path) -> str:
    found = sorted(it.name for it in _siblings(folder / "x") if it.suffix in (".yaml", ".yml", ".json"))
    return f", such as {folder / found[0]}" if found else ""


def _refuse_script(file: Path) -> None:
    """Refuse what is run, not read.

    Raises:
        InputError: Saying how it is run.
    """
    runs = _runs(file)
    if runs:
        how = "" if not _is_batch(file) else f"; {BATCH}"
        raise InputError(f"{str(file)!r} is a program, no job file", f"to run it: longshore submit -- {runs}{how}")


def _runs(file: Path) -> str:
    """Return the command that runs a script or a program, nothing for other files."""
    if file.suffix in SCRIPTS:
        return f"{SCRIPTS[file.suffix]} {shlex.quote(str(file))}"
    head = _head(file)
    return shlex.quote(str(file.absolute())) if head.startswith((b"#!", b"\x7fELF")) else ""


def _is_batch(file: Path) -> bool:
    return b"#SBATCH" in _head(file)


def _head(file: Path) -> bytes:
    if not file.is_file():  # reading a pipe would take away what is to be read
        return b""
    try:
        with file.open("rb") as opened:
            return opened.read(4096)
    except OSError:
        return b""
