"""Checkpoints of a ring: written whole, named only with the coordinator's leave, and the newest found again.

A name holds step, generation and member, so that no process ever writes over what another one wrote. A process that was
left behind gets no leave. If it gets it and stops before the name is given, the file is of a step that the ring had.
"""

import os
import re
from pathlib import Path
from typing import Any

import torch

from ..wire import GONE_STATUS
from .control import Control, end_process

KEPT = 3  # newest ones that are not removed
_NAME = re.compile(r"step-(\d+)-g(\d+)-m(\d+)\.pt")


def write_checkpoint(folder: Path, control: Control, state: dict[str, Any], mark: str) -> Path:
    """Write a checkpoint.

    Args:
        folder: Where to.
        control: Asked for leave.
        state: Of the ring.
        mark: Generation and member, for the name.

    Returns:
        The file.

    Raises:
        OSError: If it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{control.step:09d}-{mark}.pt"
    draft = folder / f".{path.name}.draft"
    with draft.open("wb") as file:
        torch.save(state, file)
        file.flush()
        os.fsync(file.fileno())
    if not control.may_save():
        draft.unlink()
        end_process(GONE_STATUS, "a checkpoint was refused: this process has no seat")
    draft.rename(path)
    for old in _checkpoints(folder)[:-KEPT]:
        old.unlink(missing_ok=True)
    return path


def load_newest(folder: Path) -> dict[str, Any] | None:
    """Return the state of the newest checkpoint, None if there is none.

    Raises:
        OSError: If it cannot be read.
    """
    found = _checkpoints(folder)
    if not found:
        return None
    state: dict[str, Any] = torch.load(found[-1], map_location="cpu", weights_only=True)
    return state


def _checkpoints(folder: Path) -> list[Path]:
    """Return all checkpoints, the newest last."""
    found = [(match, path) for path in folder.glob("step-*.pt") if (match := _NAME.fullmatch(path.name))]
    return [path for _, path in sorted(found, key=lambda it: [int(part) for part in it[0].groups()])]
