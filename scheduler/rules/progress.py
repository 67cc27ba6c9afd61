"""How far an attempt brought its job, and which of its tries the job gets back for that.

Source: SPEC K5, K10; docs/scheduler.md, Exit classes.
"""

from collections.abc import Mapping
from typing import NamedTuple

from ..model.tries import Tries

SILENT_S = 3600.0  # of running that count as progress of a job that tells nothing of itself
HURRIED, HURRIED_S = 20, 3600.0  # attempts that began within that time: then no try comes back
STEP, SAVED = "step", "saved_s"  # what the progress file may tell


class LastLook(NamedTuple):
    """What an attempt that has ended told of its steps and checkpoints."""

    came_further: bool = False  # than where it began
    saved_more: bool = False  # a checkpoint of a later step than those of all attempts before
    tells: bool = False  # of anything
    step: float | None = None  # the highest


class Came(NamedTuple):
    """How far an attempt brought its job."""

    is_further: bool  # than where it began
    is_farthest: bool  # farther than any attempt before it
    tells: bool  # False where nothing is known but how long it ran
    step: float | None  # the highest that any attempt has told of
    ran_s: float

    @property
    def made_progress(self) -> bool:
        """Whether it was not in vain."""
        return self.is_further or self._ran_long

    @property
    def _ran_long(self) -> bool:
        return not self.tells and self.ran_s >= SILENT_S

    def left_of(self, used: Tries) -> Tries:
        """Return which of the tries that a job has used up still count against it."""
        if self.is_farthest:
            return Tries()
        # Memory that runs out and errors of the program come again, however long that takes.
        return used._replace(infra=0, asked=0, ambiguous=0) if self._ran_long else used


def how_far(look: LastLook, told: Mapping[str, float], before: float | None, ran_s: float) -> Came:
    """Return how far an attempt brought its job.

    Args:
        look: What it told of steps and checkpoints.
        told: What it wrote into its progress file.
        before: The highest step that an attempt before it told of, None if none did.
        ran_s: How long all its ranks ran.
    """
    steps = [step for step in (look.step, told.get(STEP)) if step is not None]
    saved = told.get(SAVED, 0.0) > 0.0  # of this attempt's own work
    highest = max(steps, default=None)
    is_new = highest is not None and (before is None or highest > before)
    return Came(
        is_further=look.came_further or saved or told.get(STEP, 0.0) > 0.0,
        is_farthest=look.saved_more or saved or is_new,
        tells=look.tells or STEP in told or SAVED in told,
        step=max([*steps, *([] if before is None else [before])], default=None),
        ran_s=ran_s,
    )
