"""One trial: a training run with other hyper-parameters, which may be left when it is clearly worse than others."""

from collections.abc import Mapping
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np

from ...cluster.files.errors import LongshoreError
from ..asked import SIZES, Sizes
from ..config import TrainingConfig
from ..run import train
from ..run_folder import Progress
from ..validation import Score

State = Literal["finished", "left", "stopped", "failed", "refused"]


class StopFile:
    """Tells all trials, wherever they run, to stop after their updates in progress.

    Args:
        path: The file, which is there once they are to stop.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    @property
    def interrupted(self) -> bool:
        """Whether they are to stop."""
        return self.path.exists()

    @interrupted.setter
    def interrupted(self, stops: bool) -> None:
        if stops:
            self.path.touch()
        else:
            self.path.unlink(missing_ok=True)


class Work(NamedTuple):
    """What a trial is to do."""

    config: TrainingConfig
    folder: Path  # of its run; one that stopped there goes on
    stop: Path
    to_beat: Mapping[int, float]  # by number of the validation, the most that the best so far may be
    sizes: Sizes = SIZES
    reached: float = float("nan")  # its best validation before it was stopped


class Ended(NamedTuple):
    """What came of a trial."""

    state: State
    percent: float  # best validation against the best heuristic, below 0 is better; nan if there was none
    so_far: Mapping[int, float]  # the best so far at each validation on the way, by its number
    best: Path | None = None  # its policy
    problem: str = ""  # why it failed or was refused


class _LeftError(Exception):
    """It is worse than the others were by then."""


class _StoppedError(Exception):
    """It is to stop."""


class _Watch:
    """Looks at each validation, and ends the run if nothing is to be hoped for or all trials are to stop."""

    def __init__(self, work: Work) -> None:
        self.work, self.so_far, self.best = work, dict[int, float](), work.reached
        self._seen: Score | None = None

    def __call__(self, progress: Progress) -> None:
        steps, score = self.work.config.steps, progress.score
        if score is not None and score is not self._seen and progress.steps < steps:
            self._seen, self.best = score, float(np.fmin(self.best, score.percent))
            number = progress.steps * self.work.sizes.validations // steps
            self.so_far[number] = self.best
            if self.best > self.work.to_beat.get(number, float("inf")):
                raise _LeftError
        if StopFile(self.work.stop).interrupted and progress.steps < steps:
            raise _StoppedError


def run_trial(work: Work) -> Ended:
    """Run a trial, or go on with one that was stopped. Whatever happens is told, for it may happen elsewhere."""
    watch = _Watch(work)
    try:
        result = train(work.config, work.folder, watch, sizes=work.sizes, compares=False)
    except _LeftError:
        return Ended("left", watch.best, watch.so_far)
    except _StoppedError:
        return Ended("stopped", watch.best, watch.so_far)
    except LongshoreError as error:
        return Ended("refused", watch.best, watch.so_far, problem=str(error))
    except (ValueError, RuntimeError, FloatingPointError) as error:  # weights that are not finite any more
        return Ended("failed", watch.best, watch.so_far, problem=f"{type(error).__name__}: {error}")
    if not result.finished:
        return Ended("stopped", watch.best, watch.so_far)
    return Ended("finished", result.score.percent, watch.so_far, result.best)
