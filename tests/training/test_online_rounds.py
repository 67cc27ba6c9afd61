"""When a round of learning online begins, and what is kept of rounds that were cut off. No round here really learns."""

import errno
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest

from longshore.cluster.files.errors import InputError
from longshore.cluster.files.output_file import locked_folder
from longshore.scheduler.mirror.cluster_mirror import JobRequest
from longshore.training import online
from longshore.training.config import TrainingConfig
from longshore.training.online import PAST, ROUND, SERVED, Round, digest_of, learn_online
from longshore.training.run_folder import BEST, OnProgress
from longshore.training.validation import LaterComparison
from tests.training.written_history import lines_of_jobs, site_of_types, written

VERSIONS = [Path(__file__).parents[2] / "checkpoints" / f"hetero64-wait-{number}.zip" for number in (1, 2, 3)]
SITE = site_of_types(["a"], ["a", "a"])


class Setup(NamedTuple):
    """What is learned from, and what is served."""

    config: TrainingConfig
    history: Path
    served: Path
    logdir: Path

    def learn(self, rounds: int = 1) -> list[Round]:
        @contextmanager
        def silent() -> Iterator[OnProgress]:
            yield lambda _: None

        return learn_online(self.config, self.served, self.logdir, silent, lambda _: None, rounds=rounds).rounds


def jobs(first: int, count: int) -> list[str]:
    """Return the decisions of a scheduler that starts a job every 100 seconds, of those that its store still has."""
    return lines_of_jobs(SITE, [JobRequest(f"{job}", 1, 60.0, 100.0 * job) for job in range(first, first + count)])


@pytest.fixture
def setup(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Setup:
    """Learning whose every round learns the version that is not served, and finds it better."""

    def train(config: TrainingConfig, folder: Path, *_: object, **__: object) -> SimpleNamespace:
        best = folder / "run" / BEST
        best.parent.mkdir(exist_ok=True)
        other = next(path for path in VERSIONS if digest_of(path) != digest_of(Path(config.init or "")))
        shutil.copyfile(other, best)
        return SimpleNamespace(best=best, finished=True, interrupted_by=0)

    better = LaterComparison("here", 9, -2.0, -3.0, -1.0, 1.0)
    monkeypatch.setattr(online, "train", train)
    monkeypatch.setattr(online, "load_policy", lambda _: None)  # which takes longest, and is only compared
    monkeypatch.setattr(online, "compare_policies", lambda *_: better)
    monkeypatch.setattr(online, "later_problem", lambda _: None)
    history, served = written(tmp_path / "decisions.jsonl", jobs(0, 60)), tmp_path / "policy.zip"
    shutil.copyfile(VERSIONS[0], served)
    config = TrainingConfig(
        preset="history", algorithm="ppo", steps=1, seed=0, reward="jct", history=str(history), init=str(served)
    )
    return Setup(config, history, served, tmp_path / "runs")


@pytest.mark.parametrize(
    ("kept", "forgotten", "new"), [(60, 1, 1), (60, 0, 1), (80, 2, 1), (60, 5, 7), (45, 45, 45), (200, 1, 1)]
)
def test_a_round_begins_once_enough_jobs_have_ended_although_the_store_forgets_old_ones(
    kept: int, forgotten: int, new: int, setup: Setup, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Oracle: the sets of ended jobs in the file, by their names."""
    first, count, known = 0, kept, set[int]()

    def is_due() -> bool:
        ended = set(range(first, first + count))
        return len(ended - known) > 0.05 * len(ended & known)

    def export_again(_: float) -> None:
        nonlocal first, count
        assert not is_due()
        first, count = first + forgotten, count + new - forgotten
        written(setup.history, jobs(first, count))

    monkeypatch.setattr(online, "time", SimpleNamespace(sleep=export_again))
    written(setup.history, jobs(first, count))
    for number in range(3):
        (found,) = setup.learn()
        assert is_due()
        assert (found.number, found.jobs) == (number, count)
        known = set(range(first, first + count))


class _CutOffError(BaseException):
    """The process ends here."""


def _cut_off(setup: Setup, monkeypatch: pytest.MonkeyPatch, at: int, *, is_full: bool) -> bool:
    """Learn a round whose process ends behind a write, or whose disk is full there; return whether it got there."""
    writes = 0

    def cut(write: Callable[..., Any]) -> Callable[..., Any]:
        def counted(*args: Any, **options: Any) -> Any:
            nonlocal writes
            writes += 1
            is_last = writes == at
            if is_last and is_full:
                raise OSError(errno.ENOSPC, "full")
            done = write(*args, **options)
            if is_last:
                raise _CutOffError
            return done

        return counted

    with monkeypatch.context() as patch:
        patch.setattr(shutil, "copyfile", cut(shutil.copyfile))
        for name in ("mkdir", "replace", "unlink", "write_text"):
            patch.setattr(Path, name, cut(getattr(Path, name)))
        try:
            setup.learn()
        except (_CutOffError, InputError):
            return True
    return False


@pytest.mark.parametrize(("is_replaced", "is_full"), [(False, False), (True, False), (False, True)])
def test_wherever_a_round_is_cut_off_there_is_a_way_back_to_each_version(
    setup: Setup, monkeypatch: pytest.MonkeyPatch, *, is_replaced: bool, is_full: bool
) -> None:
    def export_more(_: float) -> None:
        written(setup.history, jobs(0, 120))

    monkeypatch.setattr(online, "time", SimpleNamespace(sleep=export_more))

    def kept() -> set[str]:
        return {digest_of(path) for name in (SERVED, BEST) for path in setup.logdir.rglob(name)}

    at = 1
    while _cut_off(setup, monkeypatch, at, is_full=is_full):
        assert not is_full or not list(setup.logdir.parent.rglob("*.part"))
        versions = kept()
        if is_replaced:
            shutil.copyfile(VERSIONS[2], setup.served)
        before = digest_of(setup.served)
        (found,) = setup.learn()
        assert found.published
        assert versions | {before} <= kept() | {digest_of(setup.served)}
        (runs,) = setup.logdir.iterdir()
        results = [json.loads(path.read_text()) for path in sorted(runs.glob(f"round-*/{ROUND}"))]
        assert [result["published"] for result in results] == [True] * len(results)
        assert not list(runs.glob(f"round-*/{PAST}"))
        own = digest_of(runs / f"round-{found.number:03d}" / SERVED)
        assert before in (own, digest_of(setup.served))  # a round that was cut off behind its publishing is finished

        shutil.rmtree(setup.logdir)
        written(setup.history, jobs(0, 60))
        shutil.copyfile(VERSIONS[0], setup.served)
        at += 1
    assert at > 10


def test_a_folder_in_which_another_process_learns_is_left_to_it(setup: Setup) -> None:
    setup.learn()
    (folder,) = setup.logdir.iterdir()
    with locked_folder(folder), pytest.raises(InputError, match="another process"):
        setup.learn()
