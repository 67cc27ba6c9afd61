"""Checkpoints of a ring: written whole, named only with the coordinator's leave, and the newest found again.

A name holds step, generation and member, so that no process ever writes over what another one wrote. A process that was
left behind gets no leave. If it gets it and stops before the name is given, the file is of a step that the ring had.
"""

import os
import pickle
import re
from pathlib import Path
from typing import Any, NamedTuple

from ....cluster.files.errors import InputError
from ....plain_state import read_state, write_state
from ..wire import GONE_STATUS
from .control import Control, end_process

ANEW = "name another folder to begin anew"
KEPT = 3  # newest ones that are not removed
_NAME_TEXT = r"step-\d+-g\d+-m\d+\.pt"
_NAME = re.compile(_NAME_TEXT)
_DRAFT = re.compile(rf"\.{_NAME_TEXT}\.draft")


def write_checkpoint(folder: Path, control: Control, state: dict[str, Any], mark: str) -> Path | None:
    """Write a checkpoint.

    Args:
        folder: Where to.
        control: Asked for leave.
        state: Of the ring.
        mark: Generation and member, for the name.

    Returns:
        The file; None if another member computes in place of this one by now.

    Raises:
        InputError: If the state holds what could not be read again.
        OSError: If it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{control.step:09d}-{mark}.pt"
    draft = folder / f".{path.name}.draft"
    try:
        with draft.open("wb") as file:
            write_state(state, file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        draft.unlink(missing_ok=True)  # it may be what fills the disk
        raise
    if not control.may_save():
        draft.unlink(missing_ok=True)
        if control.is_relieved:
            return None
        end_process(GONE_STATUS, "a checkpoint was refused: this process has no seat")
    draft.rename(path)
    drafts = _found(folder, ".step-*.pt.draft", _DRAFT)
    # Of members that were killed while they wrote: nobody else writes one of an earlier step any more.
    for old in (*_found(folder, "step-*.pt", _NAME)[:-KEPT], *(it for it in drafts if _order(it) < _order(path))):
        old.unlink(missing_ok=True)
    return path


class Found(NamedTuple):
    """The newest checkpoint of a folder."""

    path: Path
    before: Path | None  # the one that was written before it

    @property
    def step(self) -> int:
        """Steps that its state has seen, by its name."""
        return _order(self.path)[0]

    def read(self) -> dict[str, Any]:
        """Return its state.

        Raises:
            InputError: If it cannot be read.
        """
        try:
            state: dict[str, Any] = read_state(self.path)
        except OSError as error:
            raise self.problem(f"the checkpoint cannot be read: {error.strerror or error}") from error
        except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
            raise self.problem("it is no checkpoint of a ring") from error
        return state

    def problem(self, what: str) -> InputError:
        """Return an error about it; what to do loses nothing that was written."""
        older = "" if self.before is None else f", or move it elsewhere to go on from {self.before.name}"
        return InputError(what, f"{ANEW}{older}", path=self.path)


def find_newest(folder: Path) -> Found | None:
    """Return the newest checkpoint of a folder, None if there is none."""
    found = _found(folder, "step-*.pt", _NAME)
    return Found(found[-1], found[-2] if len(found) > 1 else None) if found else None


def _found(folder: Path, pattern: str, name: re.Pattern[str]) -> list[Path]:
    """Return files of a folder by step, generation and member, the newest last."""
    return sorted((path for path in folder.glob(pattern) if name.fullmatch(path.name)), key=_order)


def _order(path: Path) -> list[int]:
    """Return step, generation and member of a checkpoint or its draft."""
    return [int(part) for part in re.findall(r"\d+", path.name)]
