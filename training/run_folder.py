"""The folder of a training run: `RunFolder` validates, and writes checkpoints and metrics; signals stop the run."""

import json
import logging
import signal
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import NamedTuple

from stable_baselines3.common.logger import HParam, Logger, TensorBoardOutputFormat
from torch.utils.tensorboard.writer import SummaryWriter

from ..agents.learned.checkpoint import load_policy, policy_of, save_policy
from ..agents.learned.network import Network
from ..agents.learned.schema import Schema
from ..cluster.files.output_file import encodable_text, replacing_file
from ..cluster.files.signals import handled_signals
from .config import TrainingConfig
from .problems import VALIDATIONS
from .validation import Score, Validation

log = logging.getLogger(__name__)

STOP_NOTICE = "stopping after this update; Ctrl-C again stops at once and loses it"
EVENTS = "events.out.tfevents."  # how the name of a file for TensorBoard begins
POLICY, BEST, SCORE, SPENT = "policy.zip", "best.zip", "score.json", "spent.json"


class Progress(NamedTuple):
    """Progress of a run, reported after every update and validation."""

    steps: int
    steps_per_s: float
    score: Score | None  # of the latest validation
    rival: str  # best heuristic


OnProgress = Callable[[Progress], None]


class TimeSpent(NamedTuple):
    """What a run has taken so far, all its sessions together."""

    wall_s: float = 0.0
    core_s: float = 0.0  # CPU time


def _times_now() -> TimeSpent:
    return TimeSpent(time.monotonic(), time.process_time())


def _rename_to_come_first(files: list[Path]) -> None:
    """Rename the files of earlier sessions, if need be, so that TensorBoard reads them before one that is opened now.

    It reads them by name, and a name begins with the second in which its file was opened: another machine's clock may
    be ahead, and sessions of one process in one second differ by a number without leading zeros.
    """
    if files and files[-1].name >= f"{EVENTS}{int(time.time()):010d}":
        for place, file in enumerate(files, 1):
            rest = file.name.removeprefix(EVENTS).partition(".")[2]
            file.replace(file.with_name(f"{EVENTS}{place:010d}.{rest}"))


class _TensorBoardCurves(TensorBoardOutputFormat):
    """Writes figures for TensorBoard, which hides what is in the folder already from a step on."""

    def __init__(self, folder: Path, *, hidden_from: int) -> None:
        _rename_to_come_first(sorted(folder.glob(f"{EVENTS}*")))
        self.writer = SummaryWriter(str(folder), purge_step=hidden_from)
        self._is_closed = False


class RunFolder:
    """Validates, writes checkpoints and metrics, and remembers that the run was interrupted.

    Args:
        folder: Of the run.
        schema: Of its policies.
        validation: Scenarios to validate on.
        config: Of the run.
        on_progress: Called after every update and validation.
        validations: In the run, spread evenly.
        initial: Network that the run begins with, None for one of random weights.
    """

    def __init__(
        self, folder: Path, schema: Schema, validation: Validation, config: TrainingConfig, on_progress: OnProgress,
        *, validations: int = VALIDATIONS, initial: Network | None = None,
    ) -> None:  # fmt: skip
        self.path, self.schema, self.validation, self.config, self.on_progress = (
            folder,
            schema,
            validation,
            config,
            on_progress,
        )
        self._validations, self.initial = validations, initial
        folder.mkdir(parents=True, exist_ok=True)
        self.logger = Logger(str(folder), [])  # it begins to write where the run begins
        self.interrupted = False
        self.best: Score | None = None
        self.latest: Score | None = None
        self._began_at, self._began = 0, time.monotonic()
        self._validated_at = 0
        self._opened, self._before = _times_now(), self._read_spent()
        self._read_score()

    def _read_spent(self) -> TimeSpent:
        path = self.path / SPENT
        if path.exists():
            with suppress(OSError, ValueError, TypeError, RecursionError):
                return TimeSpent(**json.loads(path.read_text()))
        return TimeSpent()

    def _write_json(self, name: str, values: TimeSpent | Score) -> None:
        """Write a small file; a process that is cut off leaves it as it was."""
        with replacing_file(self.path / name) as part:
            part.write_text(json.dumps(values._asdict()) + "\n")

    def _read_score(self) -> None:
        """Load the best validation so far; one that cannot be read is repeated."""
        path = self.path / SCORE
        if path.exists() and (self.path / BEST).exists():
            with suppress(OSError, ValueError, TypeError, RecursionError):
                self.best = Score(**json.loads(path.read_text()))

    def interrupt(self) -> None:
        """Stop the run after the update in progress."""
        self.interrupted = True

    def begin(self, steps: int) -> None:
        """Begin, or continue, at a number of steps.

        A session that was cut off has written figures of steps beyond its last snapshot: TensorBoard hides them, so
        that no curve goes back.
        """
        self.logger.output_formats.append(_TensorBoardCurves(self.path, hidden_from=steps + 1))
        self._began_at, self._began, self._validated_at = steps, time.monotonic(), steps
        values = self.config.model_dump()
        values |= values.pop("hyperparameters") | values.pop("group") | values.pop("distil")
        plain = {name: encodable_text(value) if isinstance(value, str) else value for name, value in values.items()}
        flat = {name: value for name, value in plain.items() if isinstance(value, int | float | str)}
        metrics: dict[str, float] = {"validation/percent": 0.0, "rollout/makespan_h": 0.0}
        self.logger.record("hparams", HParam(flat, metrics), exclude=("stdout", "log"))

    def is_validation_due(self, steps: int) -> bool:
        """Return whether the run, which is not over yet, is to be validated."""
        every = self.config.steps / self._validations
        return steps // every > self._validated_at // every and steps < self.config.steps

    def record_progress(self, steps: int) -> None:
        """Write the metrics recorded since the last time, and report the progress."""
        rate = (steps - self._began_at) / max(time.monotonic() - self._began, 1e-9)
        spent = TimeSpent(
            *(was + now - then for was, now, then in zip(self._before, _times_now(), self._opened, strict=True))
        )
        self._write_json(SPENT, spent)
        self.logger.record("time/steps_per_s", rate)
        self.logger.record("time/core_minutes", spent.core_s / 60.0)
        self.logger.dump(steps)
        self.on_progress(Progress(steps, rate, self.latest, self.validation.best))

    def validate(self, network: Network, steps: int, *, for_best: bool = True) -> None:
        """Validate a network and keep it, as the best too if it is."""
        self._validated_at = steps
        score = self.latest = self.validation.score(policy_of("policy", self.schema, network))
        self.logger.record("validation/percent", score.percent)
        self.logger.record("validation/half_width", score.half_width)
        name, mean = self.validation.reported_mean(score)
        self.logger.record(f"validation/{name}", mean)
        save_policy(self.path / POLICY, self.schema, network)
        if for_best and (self.best is None or score.percent < self.best.percent):
            self._keep_best(score, network)
        elif self.best is None:
            # Without a score on file, any validation of the continued run replaces it.
            self.best = score
            save_policy(self.path / BEST, self.schema, network)

    def _keep_best(self, score: Score, network: Network) -> None:
        self.best = score
        save_policy(self.path / BEST, self.schema, network)
        self._write_json(SCORE, score)

    def best_score(self) -> Score:
        """Return the score of the best validation, or that of the latest policy if it was lost."""
        if self.best is None:
            policy = load_policy(self.path / POLICY)
            self._keep_best(self.validation.score(policy), policy.network)
        assert self.best is not None
        return self.best


@dataclass(slots=True)
class Interruption:
    """The signal that interrupted a run."""

    number: int = 0  # 0 if there was none


@contextmanager
def stop_on_signal(stop: Callable[[], None], notice: str = STOP_NOTICE) -> Iterator[Interruption]:
    """Turn the first Ctrl-C or SIGTERM into a stop after the update in progress; the next is the program's own.

    Outside the main thread all are the program's own. A signal that is ignored stays ignored.

    Args:
        stop: Called at the first signal.
        notice: Logged then.
    """
    found = Interruption()
    if threading.current_thread() is not threading.main_thread():
        yield found  # Python handles signals in the main thread alone
        return

    def restore() -> None:
        for number, handler in before.items():
            signal.signal(number, handler)

    def interrupt(number: int, frame: FrameType | None) -> None:
        del frame
        found.number = number
        stop()
        restore()
        log.warning(notice)

    before = {number: signal.signal(number, interrupt) for number in handled_signals()}
    try:
        yield found
    finally:
        restore()
