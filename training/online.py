"""Learning in rounds from a running scheduler, and publishing policies that are shown to be better.

A round begins with the served version of the policy, and learns from the history as it is then. Its policy is compared
with that version on the last jobs of the history, which it has not trained on: the same windows and the same faults.

Source: SPEC R9.
"""

import json
import math
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

import numpy as np

from ..agents.learned.checkpoint import load_policy
from ..cluster.files.errors import CheckpointError, InputError
from ..cluster.files.output_file import file_errors_reported, locked_folder, make_folder, replacing_file
from .config import BY_CANDIDATES, TrainingConfig
from .history import read_history
from .problems import DEFAULT_SIZES, Sizes, later_problem
from .run import initial_candidate_network, train
from .run_folder import BEST, OnProgress, stop_on_signal
from .validation import LaterComparison, compare_policies, comparison_json


def digest_of(path: Path) -> str:
    """Return the digest of a checkpoint, as the scheduler shows it.

    Raises:
        CheckpointError: If the file cannot be read.
    """
    try:
        return sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def publish_checkpoint(new: Path, served: Path) -> None:
    """Replace a checkpoint by another one. A reader finds the old one or the new one, whole.

    That holds even if this process or the machine dies in between.

    Raises:
        InputError: If nothing can be written there; the old one is still served.
    """
    place = served.resolve()  # a link stays one
    try:
        with replacing_file(place) as part:
            shutil.copyfile(new, part)
            shutil.copymode(place, part)
            with part.open("rb+") as file:
                os.fsync(file.fileno())
        folder = os.open(place.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise InputError(f"cannot be published: {error.strerror}", "make its folder writable", path=served) from error


PAST, SERVED, ROUND, SOURCES = "decisions.jsonl", "serving.zip", "round.json", "sources.json"
MIN_GROWTH = 1.05  # ended jobs in the history over those of them that the last round knew
HISTORY_POLL_S = 1.0  # between two reads of a file that has not changed
ONLINE_STOP_NOTICE = "stopping after the round's update; the same command continues"


ShowProgress = Callable[[], AbstractContextManager[OnProgress]]


class Round(NamedTuple):
    """Result of a round."""

    number: int
    jobs: int  # that had ended
    until_s: float  # when the last of them ended, by the scheduler's clock
    later: LaterComparison  # the new version against the one that is served
    published: bool
    replaced: bool  # another process has replaced the served version in the meantime

    @property
    def text(self) -> str:
        """In words."""
        why = "another version is served now" if self.replaced else "not shown to be better"
        end = "published" if self.published else f"not published: {why}"
        measured = self.later.text.partition(": ")[2]
        return f"round {self.number}, {self.jobs} jobs: mean JCT against the serving version {measured}: {end}"


class _OnlineLearner:
    """Learns round by round. The arguments are those of `learn_online`."""

    def __init__(
        self, config: TrainingConfig, served: Path, logdir: Path, show_progress: ShowProgress,
        report: Callable[[str], None], sizes: Sizes,
    ) -> None:  # fmt: skip
        assert config.history is not None
        self.config, self.served, self.history, self.sizes = config, served, Path(config.history), sizes
        self.show_progress, self.report = show_progress, report
        self.interrupted, self.interrupted_by = False, 0
        self.folder = logdir.absolute() / f"online-{config.name}"
        make_folder(self.folder, "--logdir")
        with file_errors_reported(self.folder):
            self._claim_folder()
        self._stamp: tuple[int, int] | None = None
        self._reported = ""

    def interrupt(self) -> None:
        self.interrupted = True

    def _claim_folder(self) -> None:
        """Refuse a folder that learns from another scheduler's history, or for another checkpoint.

        Raises:
            InputError: If it is one.
        """
        mine = {"history": str(self.history.absolute()), "served": str(self.served.absolute())}
        path = self.folder / SOURCES
        if not path.exists():
            with replacing_file(path) as part:
                part.write_text(json.dumps(mine, indent=1) + "\n")
        elif path.read_bytes() != (json.dumps(mine, indent=1) + "\n").encode():
            raise InputError(
                "this folder learns from another history or for another checkpoint", "take another --logdir", path=path
            )

    def run_round(self) -> Round | None:
        """Run a round, or continue one that was interrupted; None if this one is interrupted."""
        folder, until_s = self._next_round()
        if not (folder / PAST).exists() and not self._await_and_copy_history(folder, until_s):
            return None
        best = self._train_round(folder)
        if best is None:
            return None
        found = self._compare_and_publish(folder, best)
        with replacing_file(folder / ROUND) as part:
            values = found._asdict() | {"later": comparison_json(found.later)}
            part.write_text(json.dumps(values, indent=1, allow_nan=False) + "\n")
        (folder / PAST).unlink()  # it may be large, and the scheduler has it
        return found

    def _next_round(self) -> tuple[Path, float]:
        """Return the folder of the round to run, and the time until which the last finished round knew of ended jobs.

        A round that was interrupted is continued, unless another process has replaced the served version since: then it
        would be for nothing. Its folder stays, as it holds the version that was served before.
        """
        folders = sorted(self.folder.glob("round-*"), key=_round_number)  # some may have been removed
        done = [folder / ROUND for folder in folders if (folder / ROUND).exists()]
        until_s = _end_of_history(done[-1]) if done else -math.inf
        if folders and (folders[-1] / PAST).exists():
            if not (folders[-1] / ROUND).exists() and self._is_own_version(folders[-1]):
                return folders[-1], until_s
            (folders[-1] / PAST).unlink()
        return self.folder / f"round-{_round_number(folders[-1]) + 1 if folders else 0:03d}", until_s

    def _is_own_version(self, folder: Path) -> bool:
        """Return whether the version that is served is the one that a round began with, or the round's own.

        It is the round's own if the process ended after publishing it, and before the result was written.
        """
        own = [folder / SERVED, *folder.glob(f"*/{BEST}")]
        return digest_of(self.served) in map(digest_of, own)

    def _await_and_copy_history(self, folder: Path, until_s: float) -> bool:
        """Wait until enough more jobs have ended, and copy the history and the served version; False if interrupted."""
        while not self.interrupted:
            if self._has_more_jobs(until_s):
                folder.mkdir(exist_ok=True)
                shutil.copyfile(self.served, folder / SERVED)
                with replacing_file(folder / PAST) as part:
                    shutil.copyfile(self.history, part)
                return True
            time.sleep(HISTORY_POLL_S)
        return False

    def _has_more_jobs(self, until_s: float) -> bool:
        """Return whether the history has changed, and enough jobs have ended after a time.

        What counts is their share: old decisions are deleted, so that a history need not grow.
        """
        try:
            found = self.history.stat()
        except OSError:  # it is being replaced
            return False
        stamp = found.st_mtime_ns, found.st_size
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            ended_s = read_history(self.history).ended_s
        except InputError as error:  # too little has happened yet
            if (line := f"waiting: {error}") != self._reported:
                self.report(line)
                self._reported = line
            return False
        return bool(ended_s.size > MIN_GROWTH * np.count_nonzero(ended_s <= until_s))

    def _train_round(self, folder: Path) -> Path | None:
        """Return the best checkpoint of a round's run, None if it was interrupted."""
        files = {"history": str(folder / PAST), "init": str(folder / SERVED)}
        config = self.config.model_copy(update=files)
        with self.show_progress() as on_progress:
            result = train(config, folder, on_progress, sizes=self.sizes, compares=False)
        # A signal may come while the last update is finished: the round is done, and no other begins.
        self.interrupted |= bool(result.interrupted_by) or not result.finished
        self.interrupted_by = result.interrupted_by
        return result.best if result.finished else None

    def _compare_and_publish(self, folder: Path, best: Path) -> Round:
        """Compare the policy of a round with the served one, and publish it if it is shown to be better."""
        history = read_history(folder / PAST)
        policy, serving = load_policy(best), load_policy(folder / SERVED)
        later = compare_policies(self.history.name, later_problem(history), policy, serving)
        is_better = later.high < 0.0  # not if there is no interval
        replaced = not self._is_own_version(folder)
        if is_better and not replaced:
            publish_checkpoint(best, self.served)
        until_s = float(history.ended_s.max())
        jobs = history.workload.jobs
        return Round(_round_number(folder), jobs, until_s, later, is_better and not replaced, replaced)


def _round_number(folder: Path) -> int:
    """Return the number of a round by its folder; -1 of a folder of another name."""
    number = folder.name.removeprefix("round-")
    return int(number) if number.isdecimal() else -1


def _end_of_history(path: Path) -> float:
    """Return when the last of the jobs ended that a round knew, by its result."""
    try:
        return float(json.loads(path.read_text())["until_s"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError("the result of this round cannot be read", "remove its folder", path=path) from error


class OnlineResult(NamedTuple):
    """What was learned online."""

    rounds: list[Round]
    interrupted_by: int  # signal that ended it, 0 if there was none


def learn_online(
    config: TrainingConfig, served: Path, logdir: Path, show_progress: ShowProgress, report: Callable[[str], None], *,
    rounds: int | None = None, sizes: Sizes = DEFAULT_SIZES,
) -> OnlineResult:  # fmt: skip
    """Learn in rounds until interrupted by Ctrl-C or SIGTERM, or for a number of rounds; return their results.

    1. Wait until the history has 5 % more ended jobs than the last round knew of; copy it and the served version.
    2. Train on the history, from the served version.
    3. Compare both on the last jobs of the history, and publish the new version if it is shown to be better.

    Args:
        config: Of each round's run; its history is the file that the scheduler writes its decisions to.
        served: The checkpoint that the scheduler serves.
        logdir: Folder of runs.
        show_progress: Shows the progress of a round's run.
        report: Called with a line on each round.
        rounds: Number of rounds; None: until interrupted.
        sizes: Of each round's run.

    Raises:
        InputError: If the policy that is served cannot be learned from, another process learns in the folder, or
            nothing can be written.
        CheckpointError: If the checkpoint that is served is damaged.
    """
    policy = load_policy(served)  # refused at once
    if config.algorithm in BY_CANDIDATES:
        initial_candidate_network(config.model_copy(update={"init": str(served)}), policy)
    learner, found = _OnlineLearner(config, served, logdir, show_progress, report, sizes), list[Round]()
    with (
        stop_on_signal(learner.interrupt, ONLINE_STOP_NOTICE) as interruption,
        file_errors_reported(learner.folder), locked_folder(learner.folder),
    ):  # fmt: skip
        while not learner.interrupted and (rounds is None or len(found) < rounds):
            one = learner.run_round()
            if one is not None:
                found.append(one)
                report(one.text)
    return OnlineResult(found, interruption.number or learner.interrupted_by)
