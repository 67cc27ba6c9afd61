"""Checkpoints of a training by a plan: each is a folder with a file for each stage, and has its name once it is whole.

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
KEPT = 2  # newest ones that are not removed
ANEW = "name another folder to begin anew"
MEASURED = 3  # first steps, by which it is found out how many take as long as is asked for
_ATTEMPT = re.compile(r"ls-(?P<job>[0-9a-zA-Z]{1,60})-(?P<number>[0-9]{1,9})")
_NAME = re.compile(r"step-\d{9,}-a\d+")
_DRAFT = re.compile(r"\.step-\d{9,}-a\d+\.draft")


def folder_of_job(folder: Path) -> tuple[Path, int]:
    """Return where this process's job has its checkpoints in a folder, and the number of its attempt; 0 without one."""
    found = _ATTEMPT.fullmatch(os.environ.get(ATTEMPT, ""))
    return (folder, 0) if found is None else (folder / found["job"], int(found["number"]))


def is_of_a_plan(folder: Path) -> bool:
    """Say whether a folder has checkpoints of processes without a ring."""
    return bool(_found(folder, _NAME))


def resume(folder: Path | None, plan: PlanFile, seat: Seat, take: Callable[[Mapping[str, Any]], None]) -> int:
    """Go on from what the scheduler says, else from the newest checkpoint of a folder, else from nothing.

    All processes call it. If one of them cannot go on, all say why.

    Args:
        folder: Of the checkpoints.
        plan: What is carried out.
        seat: Of this process.
        take: Takes over the state of this process.

    Returns:
        The step that comes first.

    Raises:
        InputError: If the checkpoint cannot be read, or is of another plan or model.
    """
    path: list[str | None] = [None]
    if dist.get_rank() == 0:
        newest = None if folder is None else _newest(folder_of_job(folder)[0])
        path = [os.environ.get(CHECKPOINT) or (None if newest is None else str(newest))]
    dist.broadcast_object_list(path)
    if path[0] is None:
        return 0
    problem, first = "", 0
    try:
        first, state = _read(Path(path[0]), plan, seat)
        take(state)
    except InputError as error:
        problem = str(error)
    told: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(told, (problem, first))
    if problems := [said for said, _ in told if said]:
        raise InputError(problems[0])
    if any(step != first for _, step in told):
        raise InputError("its stages are of several steps", ANEW, path=Path(path[0]))
    return first


def _newest(folder: Path) -> Path | None:
    return max(_found(folder, _NAME), key=_order, default=None)


def _found(folder: Path, name: re.Pattern[str]) -> list[Path]:
    try:
        return [it for it in folder.iterdir() if name.fullmatch(it.name)]
    except OSError:
        return []


def _order(path: Path) -> tuple[int, int]:
    """Return attempt and step: what a later attempt has written goes before what an earlier one has."""
    step, attempt = map(int, re.findall(r"\d+", path.name))
    return attempt, step


def _read(path: Path, plan: PlanFile, seat: Seat) -> tuple[int, Mapping[str, Any]]:
    """Return the step behind a checkpoint, and the state of this process's stage."""
    file = path / f"stage-{seat.stage}.pt"
    try:
        found = read_state(file)
        step, layers, state = int(found["step"]), list(found["layers"]), dict(found["state"])
        batch = int(found.get("batch", plan.batch))  # of a step; the samples of a step go by it
    except OSError as error:
        anew = f"unset {CHECKPOINT} to begin anew" if CHECKPOINT in os.environ else ANEW
        fix = f"put it on storage that all nodes share, or {anew}"
        raise InputError(f"the checkpoint cannot be read: {error.strerror or error}", fix, path=file) from error
    except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
        raise InputError("it is no checkpoint of a stage", ANEW, path=file) from error
    if batch != plan.batch:
        raise InputError(
            f"the checkpoint is of a plan with a batch of {batch}, and this one has {plan.batch}", ANEW, path=path
        )
    if layers != [list(it.layers) for it in plan.stages]:
        raise InputError("the checkpoint is of another plan", ANEW, path=path)
    return step + 1, state


class Checkpoints:
    """Writes them; all processes call the same of its methods after the same steps.

    Args:
        folder: On storage that all nodes share.
        every_s: About so long passes between two; the last step always has one.
        steps: Those that are taken.
        told: Of so many steps the scheduler is told of one: a checkpoint is written before such a step.
        plan: What is carried out.
        seat: Of this process.
        reports: Tells the scheduler of each.
        say: Prints a line.
    """

    def __init__(
        self, folder: Path, every_s: float, steps: range, told: int, plan: PlanFile, seat: Seat, reports: Steps,
        say: Callable[[str], None],
    ) -> None:  # fmt: skip
        self._folder, self._attempt = folder_of_job(folder)
        self._every_s, self._last, self._told = every_s, steps.stop - 1, told
        self._plan, self._seat, self._reports, self._say = plan, seat, reports, say
        self._is_first = dist.get_rank() == 0
        self._agrees_at, self._writes_at = steps.start + MEASURED - 1, -1
        self._since, self._since_s = steps.start - 1, time.monotonic()

    def after(self, step: int, state: Callable[[], Mapping[str, Any]]) -> None:
        """Write one if it is time; called after each step, while all state is in memory.

        Args:
            step: That was taken.
            state: Returns that of this process.
        """
        if step not in (self._last, self._agrees_at, self._writes_at):
            return
        taken_s = (time.monotonic() - self._since_s) / max(1, step - self._since)
        if step in (self._last, self._writes_at):
            self._write(step, state)
        if step != self._last:
            self._agree(step, taken_s)

    def _agree(self, step: int, taken_s: float) -> None:
        """Find the next step that ends with a checkpoint, by the clock of the first process."""
        steps = torch.tensor([max(1, ceil(self._every_s / max(taken_s, 1e-9)))])
        dist.broadcast(steps, 0)
        self._agrees_at, self._writes_at = -1, ceil((step + 1 + int(steps)) / self._told) * self._told - 1
        self._since, self._since_s = step, time.monotonic()

    def _write(self, step: int, state: Callable[[], Mapping[str, Any]]) -> None:
        self._reports.begin(step, "checkpoint")
        path = self._folder / f"step-{step:09d}-a{self._attempt}"
        draft = path.with_name(f".{path.name}.draft")
        problem = ""
        if self._seat.replica == 0:
            layers = [list(it.layers) for it in self._plan.stages]
            content = {"step": step, "batch": self._plan.batch, "layers": layers, "state": dict(state())}
            try:
                draft.mkdir(parents=True, exist_ok=True)
                _put(draft / f"stage-{self._seat.stage}.pt", content)
            except (OSError, RuntimeError, InputError) as error:  # PyTorch says of a full disk what the second is
                problem = getattr(error, "strerror", None) or str(error).partition("\n")[0]
        problems: list[Any] = [""] * dist.get_world_size()
        dist.all_gather_object(problems, problem)  # and wait for all
        if self._is_first:
            try:
                self._name(draft, path, next((it for it in problems if it), ""))
                self._reports.saved(step, str(path.absolute()))
            except OSError as error:
                shutil.rmtree(draft, ignore_errors=True)
                self._say(f"no checkpoint of step {step + 1}: {error.strerror or error}; training goes on")

    def _name(self, draft: Path, path: Path, problem: str) -> None:
        """Give a whole checkpoint its name, and remove older ones.

        Raises:
            OSError: If it is not whole.
        """
        if problem:
            raise OSError(problem)
        absent = [k for k in range(self._plan.pipeline) if not (draft / f"stage-{k}.pt").exists()]
        if absent:
            raise OSError(f"{path.parent} is not on storage that all nodes share: stage {absent[0]} is not in it")
        if path.exists():  # of a run before, that was not gone on from
            shutil.rmtree(path)
        draft.rename(path)
        _sync(path.parent)
        older = sorted((it for it in _found(path.parent, _NAME) if _order(it) < _order(path)), key=_order)
        drafts = (it for it in _found(path.parent, _DRAFT) if _order(it) < _order(path))
        for it in (*older[: 1 - KEPT], *drafts):  # never those of a later attempt
            shutil.rmtree(it, ignore_errors=True)


def _put(path: Path, content: Mapping[str, Any]) -> None:
    with path.open("wb") as file:
        write_state(content, file)
        file.flush()
        os.fsync(file.fileno())
    _sync(path.parent)


def _sync(folder: Path) -> None:
    with suppress(OSError):  # some file systems do not have it
        opened = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(opened)
        finally:
            os.close(opened)
