"""A policy that learns from the scheduler that it serves: when it is published, and how."""

import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from longshore.agents.learned.checkpoint import load_policy, save_policy, schema_of, untrained_network
from longshore.agents.learned.schema import MAX_MARGIN
from longshore.cluster.files.errors import CheckpointError, InputError
from longshore.training import online
from longshore.training.config import TrainingConfig, config_of
from longshore.training.history import read_history
from longshore.training.online import PAST, ROUND, Round, digest_of, learn_online, publish_checkpoint
from longshore.training.problems import GroupParameters, Hyperparameters, Sizes
from longshore.training.run_folder import OnProgress, Progress
from tests.command_line import Command
from tests.policies_under_test import untrained_candidates
from tests.scheduler.served import until
from tests.scheduler.twin_run import learning_case
from tests.strategies import Case
from tests.support import processes
from tests.training.recorded_history import RecordedHistory, record_history
from tests.training.smaller import with_few_draws, with_short_windows

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"


@pytest.fixture(autouse=True)
def small_rounds(monkeypatch: pytest.MonkeyPatch) -> None:
    with_few_draws(monkeypatch)
    with_short_windows(monkeypatch)


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> RecordedHistory:
    return record_history(learning_case(jobs=480), tmp_path_factory.mktemp("online"))


def easy_case(jobs: int) -> Case:
    """Return a cluster of GPUs that are all alike and never fail, on which each job is over before the next comes."""
    case = learning_case(jobs)
    scenarios = case.scenarios._replace(
        submit_s=case.scenarios.submit_s * 1e4, source_rate_per_s=np.zeros_like(case.scenarios.source_rate_per_s),
        gpus=np.ones_like(case.scenarios.gpus), speed=np.ones_like(case.scenarios.speed),
    )  # fmt: skip
    return case._replace(cluster=case.cluster._replace(speed=np.ones_like(case.cluster.speed)), scenarios=scenarios)


def config_for(history: Path, served: Path, steps: int = 4000) -> TrainingConfig:
    config = config_of(
        preset=None, algorithm=None, steps=steps, seed=0, network=None, action=None, observation=None, reward=None,
        waiting=None, threads=1, history=history, init=served,
    )  # fmt: skip
    return config.model_copy(update={"group": GroupParameters(groups=4, runs=4, group_horizon=4.0)})


@contextmanager
def silent() -> Iterator[OnProgress]:
    def ignore(progress: Progress) -> None:
        del progress

    yield ignore


def learned(
    folder: Path, history: Path, served: Path, report: Callable[[str], None] = print,
    show_progress: Callable[[], AbstractContextManager[OnProgress]] = silent, rounds: int = 1, steps: int = 4000,
) -> list[Round]:  # fmt: skip
    config = config_for(history, served, steps)
    return learn_online(config, served, folder / "runs", show_progress, report, rounds=rounds).rounds


def served_in(folder: Path, checkpoint: Path) -> Path:
    return Path(shutil.copy(checkpoint, folder / "policy.zip"))


def test_a_bad_policy_is_replaced_by_one_that_is_shown_to_be_better(recorded: RecordedHistory, tmp_path: Path) -> None:
    served, reported = served_in(tmp_path, recorded.checkpoint), list[str]()
    before = digest_of(served)
    (found,) = learned(tmp_path, recorded.file, served, reported.append)
    assert found.later.high < 0.0, reported
    assert found.published
    assert "published" in reported[-1]
    assert "not published" not in reported[-1]
    (new,) = (tmp_path / "runs").glob("online-*/round-000/history-*/best.zip")
    assert digest_of(served) == digest_of(new) != before
    load_policy(served)
    assert list(tmp_path.glob("*.part")) == []
    round_folder = new.parent.parent
    assert digest_of(round_folder / "serving.zip") == before  # to go back to
    assert not (round_folder / PAST).exists()

    # The same round again, as it was before the comparison: another process publishes a version in the meantime.
    (round_folder / ROUND).unlink()
    shutil.copyfile(recorded.file, round_folder / PAST)
    shutil.copyfile(recorded.checkpoint, served)
    theirs = CHECKPOINTS / "hetero64-wait-1.zip"

    @contextmanager
    def replacing_it() -> Iterator[OnProgress]:
        shutil.copyfile(theirs, served)
        yield lambda _: None

    (again,) = learned(tmp_path, recorded.file, served, reported.append, replacing_it)
    assert again.later == found.later
    assert not again.published
    assert "another version is served now" in reported[-1]
    assert digest_of(served) == digest_of(theirs)


def test_a_policy_of_the_patents_kind_learns_online_by_ppo(recorded: RecordedHistory, tmp_path: Path) -> None:
    schema = schema_of(
        algorithm="ppo", network="mlp", action="gpu", observation="patent", waiting=True, node_gpus=(1,) * 64
    )
    served, reported = tmp_path / "policy.zip", list[str]()
    save_policy(served, schema, untrained_network(schema))
    config = config_of(
        preset=None, algorithm="ppo", steps=64, seed=0, network=None, action=None, observation=None, reward=None,
        waiting=None, threads=1, history=recorded.file, init=served,
    )  # fmt: skip
    config = config.model_copy(update={"hyperparameters": Hyperparameters(rows=4, steps=16, minibatch=64, epochs=1)})
    few = Sizes(validations=1)
    (found,) = learn_online(config, served, tmp_path / "runs", silent, reported.append, rounds=1, sizes=few).rounds
    assert found.later.windows >= 1
    assert reported[-1].startswith("round 0")
    (new,) = (tmp_path / "runs").glob("online-*/round-000/history-*/best.zip")
    assert load_policy(new).schema.network == load_policy(served).schema.network == "mlp"


@pytest.mark.full
def test_a_policy_that_cannot_be_beaten_goes_on(tmp_path: Path) -> None:
    # Each job runs alone on GPUs that are all alike, and the policy starts it at once.
    past = record_history(easy_case(jobs=80), tmp_path)
    served, policy = tmp_path / "policy.zip", untrained_candidates(waiting=True)
    save_policy(served, policy.schema.model_copy(update={"margin": MAX_MARGIN}), policy.network)
    before, reported = served.read_bytes(), list[str]()
    (found,) = learned(tmp_path, past.file, served, reported.append)
    assert not found.published
    assert not found.later.high < 0.0
    assert "not published: not shown to be better" in reported[-1]
    assert served.read_bytes() == before


@pytest.mark.full
def test_a_round_begins_once_more_jobs_have_ended(recorded: RecordedHistory, tmp_path: Path) -> None:
    served, history = served_in(tmp_path, recorded.checkpoint), tmp_path / "decisions.jsonl"
    lines = recorded.file.read_text().splitlines(keepends=True)
    history.write_text("".join(lines[:3]))

    def grow(line: str) -> None:
        reported.append(line)
        share = {1: 0.4, 2: 0.6}.get(len(reported))
        if share is not None:
            _written(tmp_path / "next", lines[: int(share * len(lines))]).replace(history)

    reported = list[str]()
    first, second = learned(tmp_path, history, served, grow, rounds=2, steps=500)
    assert reported[0].startswith("waiting: ")
    assert "too few" in reported[0]
    assert first.jobs < second.jobs == read_history(history).workload.jobs
    assert [it.split(",")[0] for it in reported[1:]] == ["round 0", "round 1"]

    (runs,) = (tmp_path / "runs").glob("online-*")
    shutil.rmtree(runs / "round-000")  # it is large, and its policy has been replaced
    _written(tmp_path / "next", lines).replace(history)
    (third,) = learned(tmp_path, history, served, reported.append, steps=500)
    assert third.number == 2
    assert (runs / "round-002" / ROUND).exists()


def test_a_signal_in_the_last_update_of_a_round_begins_no_other(
    recorded: RecordedHistory, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    served = served_in(tmp_path, recorded.checkpoint)
    result = SimpleNamespace(best=served, finished=True, interrupted_by=signal.SIGTERM)
    monkeypatch.setattr(online, "train", lambda *_, **__: result)
    config = config_for(recorded.file, served, 500)
    done = learn_online(config, served, tmp_path / "runs", silent, lambda _: None, rounds=None)
    assert [found.number for found in done.rounds] == [0]
    assert done.interrupted_by == signal.SIGTERM


def _written(path: Path, lines: list[str]) -> Path:
    path.write_text("".join(lines))
    return path


def test_a_reader_finds_one_version_whole_while_another_is_published(recorded: RecordedHistory, tmp_path: Path) -> None:
    versions = [recorded.checkpoint, CHECKPOINTS / "hetero64-wait-1.zip"]
    whole = {path.read_bytes() for path in versions}
    served, ends, seen = served_in(tmp_path, versions[0]), threading.Event(), set[bytes]()

    def read() -> None:
        while not ends.is_set():
            seen.add(served.read_bytes())

    reader = threading.Thread(target=read)
    reader.start()
    for number in range(100):
        publish_checkpoint(versions[number % 2], served)
    ends.set()
    reader.join()
    assert seen <= whole


@pytest.mark.full
def test_what_cannot_be_published_leaves_what_is_served(recorded: RecordedHistory, tmp_path: Path) -> None:
    served = served_in(tmp_path, recorded.checkpoint)
    before = served.read_bytes()
    with pytest.raises(InputError, match="cannot be published"):
        publish_checkpoint(tmp_path / "nothing.zip", served)
    assert served.read_bytes() == before


@pytest.mark.full
def test_a_link_to_what_is_served_stays_one(recorded: RecordedHistory, tmp_path: Path) -> None:
    served, link = served_in(tmp_path, recorded.checkpoint), tmp_path / "link.zip"
    link.symlink_to(served)
    publish_checkpoint(CHECKPOINTS / "hetero64-wait-1.zip", link)
    assert link.is_symlink()
    assert digest_of(served) == digest_of(CHECKPOINTS / "hetero64-wait-1.zip")


def test_a_damaged_checkpoint_is_refused_at_once(recorded: RecordedHistory, tmp_path: Path) -> None:
    served = tmp_path / "policy.zip"
    served.write_bytes(recorded.checkpoint.read_bytes()[:100])
    with pytest.raises(CheckpointError, match="policy"):
        learned(tmp_path, recorded.file, served)


@pytest.mark.full
def test_train_learns_online_until_it_is_interrupted(recorded: RecordedHistory, tmp_path: Path) -> None:
    served, history = served_in(tmp_path, recorded.checkpoint), tmp_path / "decisions.jsonl"
    history.write_text("".join(recorded.file.read_text().splitlines(keepends=True)[:3]))
    line: list[str | Path] = [sys.executable, "-m", "longshore", "train", "--history", history]
    line += ["--online", served, "--logdir", tmp_path]
    with processes.start(line, stdout=processes.PIPE, text=True) as process:
        assert process.stdout is not None
        reported = process.stdout.readline()
        process.send_signal(signal.SIGTERM)
        process.wait()
    assert reported.startswith("waiting: ")
    assert "too few" in reported
    assert process.returncode == 128 + signal.SIGTERM


@pytest.mark.parametrize("more", [("--online", "p.zip"), ("--online", "p.zip", "--history", "h", "--init", "i.zip")])
def test_options_of_learning_online_go_together(more: tuple[str, ...], longshore: Command) -> None:
    done = longshore("train", *more)
    assert done.status == 2
    assert "--history" in done.err or "--init" in done.err


def test_decisions_are_written_again_and_again_and_always_whole(
    recorded: RecordedHistory, tmp_path: Path, longshore: Command
) -> None:
    file, store = tmp_path / "d.jsonl", recorded.file.parent / "store.db"

    def interrupt_once_it_is_there() -> None:
        until(file.exists)
        os.kill(os.getpid(), signal.SIGINT)

    waiting = threading.Thread(target=interrupt_once_it_is_there)
    waiting.start()
    done = longshore("store", "decisions", "--store", f"sqlite:///{store}", "--out", file, "--every", "1s")
    waiting.join()
    assert done.status == 130
    assert f"decisions in {file}" in done.out
    assert file.read_text() == recorded.file.read_text()
