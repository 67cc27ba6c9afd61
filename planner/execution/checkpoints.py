"""Checkpoints of a planned training: each is a folder with a file per stage, which gets its name once it is complete.

Source: SPEC P1, K4.
"""

import os
import pickle
import re
import shutil
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from math import ceil
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist

from ...cluster.files.errors import InputError
from ...cluster.model.training_plan import PlanFile
from ...reporting import Steps
from ...ring.state import read_state, write_state
from .training import Seat

CHECKPOINT, ATTEMPT = "LONGSHORE_CHECKPOINT", "LONGSHORE_ATTEMPT"
KEPT_CHECKPOINTS = 2  # newest ones, that are not removed
NAME_ANOTHER_FOLDER = "name another folder to start from the beginning"
MEASURED_STEPS = 3  # first steps, which measure how many steps the interval has
_ATTEMPT_VARIABLE = re.compile(r"ls-(?P<job>[0-9a-zA-Z]{1,60})-(?P<number>[0-9]{1,9})")
_CHECKPOINT_NAME = re.compile(r"step-\d{9,}-a\d+")
_DRAFT_NAME = re.compile(r"\.step-\d{9,}-a\d+\.draft")


def job_folder_and_attempt(folder: Path) -> tuple[Path, int]:
    """Return the folder of this process's job in a folder, and the number of its attempt; 0 without a job."""
    found = _ATTEMPT_VARIABLE.fullmatch(os.environ.get(ATTEMPT, ""))
    return (folder, 0) if found is None else (folder / found["job"], int(found["number"]))


def has_checkpoints_without_ring(folder: Path) -> bool:
    """Return whether a folder has checkpoints of processes without a ring.

    Raises:
        InputError: If the folder cannot be listed.
    """
    return bool(_checkpoints_in(folder))


def resume(folder: Path | None, plan: PlanFile, seat: Seat, load: Callable[[Mapping[str, Any]], None]) -> int:
    """Resume from the checkpoint that the scheduler names, else from the newest one of a folder, else start.

    All processes call it. If one of them cannot resume, all raise its error.

    Returns:
        The first step to take.

    Raises:
        InputError: If the folder cannot be listed, or the checkpoint cannot be read or is of another plan or model.
    """
    path, problem, first = _path_to_resume_from(folder), "", 0
    if path is None:
        return 0
    try:
        first, state = _read_checkpoint(path, plan, seat)
        load(state)
    except InputError as error:
        problem = str(error)
    outcomes: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(outcomes, (problem, first))
    if problems := [text for text, _ in outcomes if text]:
        raise InputError(problems[0])
    if any(step != first for _, step in outcomes):
        raise InputError("its stages are of several steps", NAME_ANOTHER_FOLDER, path=path)
    return first


def _path_to_resume_from(folder: Path | None) -> Path | None:
    """Return the checkpoint that the first process finds, None if there is none; all processes call it."""
    found: list[tuple[str, str]] = [("", "")]  # the path, and the problem
    if dist.get_rank() == 0:
        try:
            found = [(os.environ.get(CHECKPOINT) or _newest_checkpoint(folder), "")]
        except InputError as error:
            found = [("", str(error))]
    dist.broadcast_object_list(found)
    path, problem = found[0]
    if problem:
        raise InputError(problem)
    return Path(path) if path else None


def _newest_checkpoint(folder: Path | None) -> str:
    """Return the path of the newest checkpoint of this process's job, "" if there is none."""
    found = [] if folder is None else _checkpoints_in(job_folder_and_attempt(folder)[0])
    return str(max(found, key=_attempt_and_step)) if found else ""


def _checkpoints_in(folder: Path) -> list[Path]:
    """Return the checkpoints in a folder.

    Raises:
        InputError: If it cannot be listed: a training that then began anew would lose all steps of its checkpoints.
    """
    try:
        return _paths_named(folder, _CHECKPOINT_NAME)
    except OSError as error:
        problem = f"its checkpoints cannot be listed: {error.strerror or error}"
        raise InputError(problem, f"correct that, or {NAME_ANOTHER_FOLDER}", path=folder) from error


def _paths_named(folder: Path, name: re.Pattern[str]) -> list[Path]:
    """Return what has such a name in a folder, nothing if there is no folder.

    Raises:
        OSError: If it cannot be listed.
    """
    try:
        return [old for old in folder.iterdir() if name.fullmatch(old.name)]
    except (FileNotFoundError, NotADirectoryError):
        return []


def _attempt_and_step(path: Path) -> tuple[int, int]:
    """Return attempt and step: checkpoints of later attempts are newer."""
    step, attempt = map(int, re.findall(r"\d+", path.name))
    return attempt, step


def _read_checkpoint(path: Path, plan: PlanFile, seat: Seat) -> tuple[int, Mapping[str, Any]]:
    """Return the step after a checkpoint, and the state of this process's stage."""
    file = path / f"stage-{seat.stage}.pt"
    try:
        found = read_state(file)
        step, layers, state = int(found["step"]), list(found["layers"]), dict(found["state"])
        batch = int(found.get("batch", plan.batch))  # of a step; it decides the samples of a step
    except OSError as error:
        instead = f"unset {CHECKPOINT} to start from the beginning" if CHECKPOINT in os.environ else NAME_ANOTHER_FOLDER
        fix = f"put it on storage that all nodes share, or {instead}"
        raise InputError(f"the checkpoint cannot be read: {error.strerror or error}", fix, path=file) from error
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
        raise InputError("it is no checkpoint of a stage", NAME_ANOTHER_FOLDER, path=file) from error
    if batch != plan.batch:
        raise InputError(
            f"the checkpoint is of a plan with a batch of {batch}, and this one has {plan.batch}",
            NAME_ANOTHER_FOLDER,
            path=path,
        )
    if layers != [list(stage.layers) for stage in plan.stages]:
        raise InputError("the checkpoint is of another plan", NAME_ANOTHER_FOLDER, path=path)
    return step + 1, state


class Checkpoints:
    """Writes checkpoints; all processes call the same methods after the same steps.

    Args:
        folder: On storage that all nodes share.
        every_s: Approximate interval; the last step always has a checkpoint.
        steps: Of the training.
        report_every: Steps between two reports to the scheduler; a checkpoint is written before a reported step.
        plan: Of the training.
        seat: Of this process.
        reports: To the scheduler.
        print_line: Prints a line.
    """

    def __init__(
        self, folder: Path, every_s: float, steps: range, report_every: int, plan: PlanFile, seat: Seat, reports: Steps,
        print_line: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._folder, self._attempt = job_folder_and_attempt(folder)
        self._every_s, self._last, self._report_every = every_s, steps.stop - 1, report_every
        self._plan, self._seat, self._reports, self._print_line = plan, seat, reports, print_line
        self._is_first = dist.get_rank() == 0
        self._agrees_at, self._writes_at = steps.start + MEASURED_STEPS - 1, -1
        self._since, self._since_s = steps.start - 1, time.monotonic()

    def write_if_due(self, step: int, state: Callable[[], Mapping[str, Any]]) -> None:
        """Write a checkpoint if it is due; called after each step, while all state is in memory."""
        if step not in (self._last, self._agrees_at, self._writes_at):
            return
        taken_s = (time.monotonic() - self._since_s) / max(1, step - self._since)
        if step in (self._last, self._writes_at):
            self._write(step, state)
        if step != self._last:
            self._agree_on_next_checkpoint(step, taken_s)

    def _agree_on_next_checkpoint(self, step: int, taken_s: float) -> None:
        """Agree on the next step with a checkpoint, by the clock of the first process."""
        steps = torch.tensor([max(1, ceil(self._every_s / max(taken_s, 1e-9)))])
        dist.broadcast(steps, 0)
        self._agrees_at, self._writes_at = (
            -1,
            ceil((step + 1 + int(steps)) / self._report_every) * self._report_every - 1,
        )
        self._since, self._since_s = step, time.monotonic()

    def _write(self, step: int, state: Callable[[], Mapping[str, Any]]) -> None:
        self._reports.begin(step, "checkpoint")
        path = self._folder / f"step-{step:09d}-a{self._attempt}"
        draft = path.with_name(f".{path.name}.draft")
        problem = ""
        if self._seat.replica == 0:
            layers = [list(stage.layers) for stage in self._plan.stages]
            content = {"step": step, "batch": self._plan.batch, "layers": layers, "state": dict(state())}
            try:
                draft.mkdir(parents=True, exist_ok=True)
                _write_stage_file(draft / f"stage-{self._seat.stage}.pt", content)
            except (OSError, RuntimeError, InputError) as error:  # the second is PyTorch's for a full disk
                problem = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        problems: list[Any] = [""] * dist.get_world_size()
        dist.all_gather_object(problems, problem)  # and wait for all
        if self._is_first:
            try:
                self._publish_and_prune(draft, path, next((text for text in problems if text), ""))
                self._reports.saved(step, str(path.absolute()))
            except OSError as error:
                shutil.rmtree(draft, ignore_errors=True)
                self._print_line(f"no checkpoint of step {step + 1}: {error.strerror or error}; training continues")

    def _publish_and_prune(self, draft: Path, path: Path, problem: str) -> None:
        """Give a complete checkpoint its name, and remove older ones.

        Raises:
            OSError: If it is not complete.
        """
        if problem:
            raise OSError(problem)
        absent = [k for k in range(self._plan.pipeline) if not (draft / f"stage-{k}.pt").exists()]
        if absent:
            raise OSError(f"{path.parent} is not on storage that all nodes share: stage {absent[0]} is not in it")
        if path.exists():  # of a previous run that was not resumed
            shutil.rmtree(path)
        draft.rename(path)
        _sync_folder(path.parent)
        with suppress(OSError):  # what cannot be listed is removed with a later checkpoint
            _prune(path)


def _prune(newest: Path) -> None:
    """Remove what is older than a checkpoint, never what is of a later attempt.

    Raises:
        OSError: If the folder cannot be listed.
    """

    def older(name: re.Pattern[str]) -> list[Path]:
        found = _paths_named(newest.parent, name)
        return [path for path in found if _attempt_and_step(path) < _attempt_and_step(newest)]

    checkpoints = sorted(older(_CHECKPOINT_NAME), key=_attempt_and_step)
    for path in (*checkpoints[: 1 - KEPT_CHECKPOINTS], *older(_DRAFT_NAME)):
        shutil.rmtree(path, ignore_errors=True)


def _write_stage_file(path: Path, content: Mapping[str, Any]) -> None:
    with path.open("wb") as file:
        write_state(content, file)
        file.flush()
        os.fsync(file.fileno())
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    with suppress(OSError):  # not every file system has it
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
