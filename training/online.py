"""Learning in rounds from a scheduler that goes on deciding, and publishing what is shown to be better.

Learning in rounds from a scheduler that goes on deciding, and publishing what is shown to be better.

A round begins with the version that is served, and learns from the past as it is then. What comes of it is compared
with that version on the last jobs of the past, which it has not met: the same windows and the same faults.

Source: SPEC R9.
"""

import json
import os
import shutil
import time
from collections.abc import Callable
from contextlib import AbstractContextManager
from hashlib import sha256
from pathlib import Path
from typing import NamedTuple

from ..agents.learned.checkpoint import load_policy
from ..cluster.files.errors import CheckpointError, InputError
from ..cluster.files.output_file import make_folder, replacing
from .config import BY_CANDIDATES, TrainingConfig
from .history import read_history
from .initial import initial_network
from .problems import DEFAULT_SIZES, Sizes, later_problem
from .run import train
from .run_folder import OnProgress, interruptible
from .validation import Later, compared, plain


def digest_of(path: Path) -> str:
    """Return what tells one version of a checkpoint from another, as the scheduler shows it.

    Raises:
        CheckpointError: If the file cannot be read.
    """
    try:
        return sha256(path.read_bytes()).hexdigest()
    except OSError as error:
        raise CheckpointError(f"{path} cannot be read: {error.strerror}") from error


def publish(new: Path, served: Path) -> None:
    """Put a checkpoint in the place of another one. Whoever reads finds the old one or the new one, whole.

    That is so also where this process or the machine dies in between.

    Raises:
        InputError: If nothing can be written there; the old one is still served.
    """
    place = served.resolve()  # a link stays one
    try:
        with replacing(place) as part:
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


PAST, SERVED, ROUND, SOURCES = "decisions.jsonl", "serving.zip", "round.json", "whose.json"
MIN_GROWTH = 1.05  # times as many jobs must have ended as at the last round
HISTORY_POLL_S = 1.0  # between two looks at a file that has not changed
ONLINE_STOP_NOTICE = "stopping after what is in progress; the same command goes on"


class Round(NamedTuple):
    """What came of a round."""

    number: int
    jobs: int  # that had ended
    later: Later  # the new version against the one that is served
    published: bool
    replaced: bool  # somebody else has replaced the one that is served meanwhile

    @property
    def text(self) -> str:
        """In words."""
        why = "another version is served by now" if self.replaced else "not shown to be better"
        end = "published" if self.published else f"not published: {why}"
        measured = self.later.text.partition(": ")[2]
        return f"round {self.number}, {self.jobs} jobs: mean JCT against the serving version {measured}: {end}"


class OnlineRequest(NamedTuple):
    """What is learned online."""

    config: TrainingConfig  # of each round's run; its history is the file that the scheduler's decisions come into
    served: Path  # the checkpoint that the scheduler serves
    logdir: Path
    telling: Callable[[], AbstractContextManager[OnProgress]]  # shows how far a round's run is
    say: Callable[[str], None]  # called with a line on each round
    sizes: Sizes = DEFAULT_SIZES


class _Learner:
    """Learns round by round.

    Args:
        asked: What.
    """

    def __init__(self, asked: OnlineRequest) -> None:
        assert asked.config.history is not None
        self.asked, self.interrupted, self.interrupted_by = asked, False, 0
        self.history = Path(asked.config.history)
        self.folder = asked.logdir.absolute() / f"online-{asked.config.name}"
        make_folder(self.folder, "--logdir")
        self._claim()
        self._stamp: tuple[int, int] | None = None
        self._told = ""

    def _claim(self) -> None:
        """Refuse a folder that learns from another scheduler's past, or for another checkpoint.

        Raises:
            InputError: If it is one.
        """
        mine = {"history": str(self.history.absolute()), "served": str(self.asked.served.absolute())}
        path = self.folder / SOURCES
        if not path.exists():
            with replacing(path) as part:
                part.write_text(json.dumps(mine, indent=1) + "\n")
        elif path.read_bytes() != (json.dumps(mine, indent=1) + "\n").encode():
            raise InputError(
                "this folder learns from another past or for another checkpoint", "take another --logdir", path=path
            )

    def next(self) -> Round | None:
        """Go through a round, or on with one that was interrupted; None if this one is."""
        done = sorted(self.folder.glob(f"round-*/{ROUND}"))
        folder = self.folder / f"round-{len(done):03d}"
        if (folder / PAST).exists() and digest_of(self.asked.served) != digest_of(folder / SERVED):
            shutil.rmtree(folder)  # what is served has been replaced since: the round would be for nothing
        if not (folder / PAST).exists() and not self._begin(folder, _jobs_in(done[-1]) if done else 0):
            return None
        best = self._train(folder)
        if best is None:
            return None
        found = self._judge(folder, best, len(done))
        with replacing(folder / ROUND) as part:
            values = found._asdict() | {"later": plain(found.later)}
            part.write_text(json.dumps(values, indent=1, allow_nan=False) + "\n")
        (folder / PAST).unlink()  # it may be large, and the scheduler has it
        return found

    def _begin(self, folder: Path, jobs: int) -> bool:
        """Wait until so many more jobs have ended, and keep the past and what is served; False if interrupted."""
        while not self.interrupted:
            if self._has_more(MIN_GROWTH * jobs):
                folder.mkdir(exist_ok=True)
                shutil.copyfile(self.asked.served, folder / SERVED)
                with replacing(folder / PAST) as part:
                    shutil.copyfile(self.history, part)
                return True
            time.sleep(HISTORY_POLL_S)
        return False

    def _has_more(self, jobs: float) -> bool:
        """Say whether the past has changed, and tells of more ended jobs than these."""
        try:
            found = self.history.stat()
        except OSError:  # it is being replaced
            return False
        stamp = found.st_mtime_ns, found.st_size
        if stamp == self._stamp:
            return False
        self._stamp = stamp
        try:
            return read_history(self.history).workload.jobs > jobs
        except InputError as error:  # too little has happened yet
            self._tell_once(f"waiting: {error}")
            return False

    def _tell_once(self, line: str) -> None:
        if line != self._told:
            self.asked.say(line)
        self._told = line

    def _train(self, folder: Path) -> Path | None:
        """Return the best checkpoint of a round's run, None if it was interrupted."""
        files = {"history": str(folder / PAST), "init": str(folder / SERVED)}
        config = self.asked.config.model_copy(update=files)
        with self.asked.telling() as tell:
            result = train(config, folder, tell, sizes=self.asked.sizes, compares=False)
        self.interrupted, self.interrupted_by = self.interrupted or not result.finished, result.interrupted_by
        return result.best if result.finished else None

    def _judge(self, folder: Path, best: Path, number: int) -> Round:
        """Compare what came of a round with what is served, and publish it if it is shown to be better."""
        history = read_history(folder / PAST)
        policy, serving = load_policy(best), load_policy(folder / SERVED)
        later = compared(self.history.name, later_problem(history), policy, serving)
        is_better = later.high < 0.0  # not if there is no interval
        replaced = digest_of(self.asked.served) != digest_of(folder / SERVED)
        if is_better and not replaced:
            publish(best, self.asked.served)
        return Round(number, history.workload.jobs, later, is_better and not replaced, replaced)


def _jobs_in(path: Path) -> int:
    """Return how many jobs had ended at a round."""
    try:
        return int(json.loads(path.read_text())["jobs"])
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise InputError("what came of this round cannot be read", "remove its folder", path=path) from error


class Learned(NamedTuple):
    """What was learned online."""

    rounds: list[Round]
    interrupted_by: int  # signal that ended it, 0 if none came


def learn_online(asked: OnlineRequest, *, rounds: int | None = None) -> Learned:
    """Learn in rounds until interrupted by Ctrl-C or SIGTERM, or for so many; return what came of each.

    Raises:
        InputError: If the policy that is served cannot be learned from, or nothing can be written.
        CheckpointError: If the checkpoint that is served is damaged.
    """
    load_policy(asked.served)  # refused at once
    if asked.config.algorithm in BY_CANDIDATES:
        initial_network(asked.config.model_copy(update={"init": str(asked.served)}))
    learner, found = _Learner(asked), list[Round]()
    with interruptible(learner, ONLINE_STOP_NOTICE) as interruption:
        while not learner.interrupted and (rounds is None or len(found) < rounds):
            one = learner.next()
            if one is not None:
                found.append(one)
                asked.say(one.text)
    return Learned(found, interruption.number or learner.interrupted_by)
