"""How a job tells Longshore of its steps and checkpoints, for programs in Python; docs/steps.md has the format.

Standard library only, so that a job can have a copy of this file in place of the package.
"""

import math
import os
import time
from contextlib import suppress
from typing import SupportsFloat


class Steps:
    """The steps of one rank. Where nobody listens, and where a disk is full, it does nothing.

    One object, made before any other process that tells of this rank, and told of at the top of the loop:

        steps = Steps()
        for step in range(1000):
            steps.begin(step)
            ...
        steps.done()
    """

    def __init__(self) -> None:
        self._steps = _open(os.environ.get("LONGSHORE_STEPS"))
        self._saved = _open(os.environ.get("LONGSHORE_SAVED"))

    def begin(
        self, step: int, kind: str = "train", *, computed_s: float | None = None, loss: SupportsFloat | None = None,
        away_bytes: int | None = None,
    ) -> None:  # fmt: skip
        """Tell that a step begins, and with it that the one before is over.

        Tell only of every N-th where steps are shorter than 0.1 s: N from the step numbers, so that all ranks tell of
        the same ones.

        Args:
            step: Its number, which all ranks count alike.
            kind: train, checkpoint, evaluate, or other.
            computed_s: What the step that is over took without waiting for other ranks or for data, in seconds. By
                that the slow one of several nodes is known.
            loss: Of the step that is over; it may be infinite or no number.
            away_bytes: Of state that is put away while the step needs none of it.
        """
        is_told = computed_s is not None and math.isfinite(computed_s)
        tail = f" {max(computed_s, 0.0):.6f}" if computed_s is not None and is_told else ""
        value = None if loss is None else _number(loss)
        if value is not None:
            tail = f"{tail or ' -'} {value:.9g}"
        if away_bytes is not None:
            tail = f"{tail or ' -'}{' -' if value is None else ''} {max(away_bytes, 0)}"
        _append(self._steps, f"{kind} {step} {time.time():.6f}{tail}\n")

    def done(self, *, loss: SupportsFloat | None = None) -> None:
        """Tell that there are no more steps, and that what still comes may take as long as it likes.

        Args:
            loss: Of the last step.
        """
        self.begin(0, "done", loss=loss)

    def saved(self, step: int, path: str, *, digest: str = "-") -> None:
        """Tell that a checkpoint is complete; the next attempt finds its path in LONGSHORE_CHECKPOINT.

        Args:
            step: The last step that it holds.
            path: Of the checkpoint, absolute, or a URL.
            digest: Of what it holds, in hexadecimal; "-" for none.
        """
        _append(self._saved, f"{step} {time.time():.6f} {digest} {path}\n")


def _open(path: str | None) -> int | None:
    if path:
        with suppress(OSError):
            return os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o600)
    return None


def _number(loss: SupportsFloat) -> float | None:
    """Return a loss as a number, None of what is none, such as a tensor of several."""
    try:
        return float(loss)
    except Exception:  # no training is to end because it cannot tell how it does
        return None


def _append(file: int | None, line: str) -> None:
    # No training is to end because it cannot tell how it does.
    if file is not None:
        with suppress(OSError, ValueError):
            os.write(file, line.encode(errors="surrogateescape"))
