"""Reports of steps and checkpoints from a job to Longshore, for programs in Python; docs/steps.md has the format.

Standard library only, so that a job can have a copy of this file in place of the package.
"""

import math
import os
import time
from contextlib import suppress
from typing import SupportsFloat


class Steps:
    """The steps of one rank. Outside of a Longshore job, and on a full disk, it does nothing.

    Make one object, before any other process that reports on this rank, and call it at the top of the loop:

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
        """Report the begin of a step, which is the end of the one before.

        With steps shorter than 0.1 s report only every N-th, by the step number, so that all ranks report the same.

        Args:
            step: Number of the step, the same on all ranks.
            kind: train, checkpoint, evaluate, or other.
            computed_s: Seconds of the last step without waiting for other ranks or for data. It shows which of several
                nodes is slow.
            loss: Loss of the last step; it may be infinite or no number.
            away_bytes: Bytes of state that is offloaded while the step does not need it.
        """
        is_known = computed_s is not None and math.isfinite(computed_s)
        tail = f" {max(computed_s, 0.0):.6f}" if computed_s is not None and is_known else ""
        value = None if loss is None else _number(loss)
        if value is not None:
            tail = f"{tail or ' -'} {value:.9g}"
        if away_bytes is not None:
            tail = f"{tail or ' -'}{' -' if value is None else ''} {max(away_bytes, 0)}"
        _append(self._steps, f"{kind} {step} {time.time():.6f}{tail}\n")

    def done(self, *, loss: SupportsFloat | None = None) -> None:
        """Report that there are no more steps; the rest of the job may take any time.

        Args:
            loss: Loss of the last step.
        """
        self.begin(0, "done", loss=loss)

    def saved(self, step: int, path: str, *, digest: str = "-") -> None:
        """Report a complete checkpoint; the next attempt finds its path in LONGSHORE_CHECKPOINT.

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
    """Return a loss as a number, None if it is none, such as a tensor of several."""
    try:
        return float(loss)
    except Exception:  # reporting must never end a training
        return None


def _append(file: int | None, line: str) -> None:
    # Reporting must never end a training.
    if file is not None:
        with suppress(OSError, ValueError):
            os.write(file, line.encode(errors="surrogateescape"))
