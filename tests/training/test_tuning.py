"""The search for hyper-parameters: what it repeats, what it keeps, and what `train` takes from it."""

import json
import math
import shlex
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.cluster.files.errors import InputError
from longshore.training.config import PARAMETER_FIELDS, PARAMETER_RANGES, TrainingConfig, config_of, with_parameter_file
from longshore.training.problems import GroupParameters, Sizes
from longshore.training.run import CONFIG
from longshore.training.tuning import ProcessTrialRunner, StudyState, TrialWork, run_trial, tune
from tests.command_line import Command
from tests.training.smaller import trace, with_few_draws, with_few_windows, with_small_groups

SIZES = Sizes(16, 4, validations=6)
STEPS = 6000


def configured(seed: int = 0) -> TrainingConfig:
    return TrainingConfig(
        preset="hetero64", algorithm="group", steps=STEPS, seed=seed, network="candidates", action="candidate",
        reward="dt", group=GroupParameters(groups=4, runs=4, group_minibatch=256), threads=1,
    )  # fmt: skip


class Kept(ProcessTrialRunner):
    """Processes that stay from study to study: each takes seconds to import what it trains with."""

    def close(self) -> None:
        pass


@pytest.fixture(scope="module")
def kept() -> Iterator[Kept]:
    pytest.importorskip("optuna", reason="no optuna here; pip install -e '.[dev]'")
    processes = Kept(2)
    yield processes
    ProcessTrialRunner.close(processes)


def quiet(line: str) -> None:
    del line


def summary_of(tuned: StudyState) -> list[tuple[str, float | None, dict[str, float]]]:
    return [(it.state, it.percent, dict(it.parameters)) for it in tuned.trials]


@pytest.fixture(scope="module")
def whole(kept: Kept, tmp_path_factory: pytest.TempPathFactory) -> StudyState:
    return tune(configured(), tmp_path_factory.mktemp("whole"), lambda: kept, quiet, trials=3, jobs=1, sizes=SIZES)


def test_the_first_trial_is_the_presets_own_and_the_best_is_no_worse(whole: StudyState) -> None:
    first, best = whole.trials[0], whole.best
    assert first.parameters["group_learning_rate"] == GroupParameters().group_learning_rate
    assert first.parameters["group_minibatch"] == 256
    assert "group_horizon" not in first.parameters  # it is off in this preset
    assert best is not None
    assert first.percent is not None
    assert best.percent == min(it.percent for it in whole.trials if it.percent is not None) <= first.percent
    assert len({it.parameters["group_learning_rate"] for it in whole.trials}) == 3


@pytest.mark.full
def test_what_was_best_can_be_trained_with(whole: StudyState) -> None:
    assert whole.best is not None
    config = with_parameter_file(configured(), whole.parameter_file)
    for name, value in whole.best.parameters.items():
        assert getattr(config.group, name) == value
        assert type(getattr(config.group, name)) is type(getattr(GroupParameters(), name))
    run = next(whole.best.folder.glob("*"))
    assert json.loads((run / CONFIG).read_text())["group"] == json.loads(config.model_dump_json())["group"]


@pytest.mark.full
def test_a_study_that_was_stopped_within_a_trial_ends_as_if_it_had_not_been(
    whole: StudyState, kept: Kept, tmp_path: Path
) -> None:
    def stop_in_the_second(line: str) -> None:
        if line.startswith("trial 1 of 3 begins"):
            signal.raise_signal(signal.SIGTERM)

    stopped = tune(configured(), tmp_path, lambda: kept, stop_in_the_second, trials=3, jobs=1, sizes=SIZES)
    assert (stopped.finished, stopped.interrupted_by) == (False, signal.SIGTERM)
    assert [it.state for it in stopped.trials] == ["finished", "running"]
    again = tune(configured(), tmp_path, lambda: kept, quiet, trials=3, jobs=1, sizes=SIZES)
    assert again.finished
    assert summary_of(again) == summary_of(whole)


@pytest.mark.full
def test_trials_run_side_by_side_and_a_larger_number_continues(kept: Kept, tmp_path: Path) -> None:
    lines: list[str] = []
    short = configured().model_copy(update={"steps": 1000})
    for trials in (2, 3):
        tuned = tune(short, tmp_path, lambda: kept, lines.append, trials=trials, jobs=2, sizes=SIZES)
        assert [it.number for it in tuned.trials] == list(range(trials))
        assert {it.state for it in tuned.trials} == {"finished"}
    of_trials = [line for line in lines if line.startswith("trial ")]
    assert "begins" in of_trials[0]
    assert "begins" in of_trials[1]


def test_another_search_in_the_same_folder_is_refused(whole: StudyState, kept: Kept) -> None:
    config = configured().model_copy(update={"steps": STEPS + 1})
    with pytest.raises(InputError, match="another --logdir or --seed"):
        tune(config, whole.folder.parent, lambda: kept, quiet, trials=3, jobs=1, sizes=SIZES)


@pytest.mark.parametrize(("to_beat", "state"), [(-1e9, "pruned"), (1e9, "finished")])
def test_a_trial_is_left_that_is_worse_than_the_others_were_by_then(to_beat: float, state: str, tmp_path: Path) -> None:
    ended = run_trial(
        TrialWork(configured(), tmp_path / "run", tmp_path / "stop", dict.fromkeys(range(3, 6), to_beat), SIZES)
    )
    assert ended.state == state
    assert min(ended.so_far) == 1
    assert len(ended.so_far) == (3 if state == "pruned" else 5)
    assert list(ended.so_far.values()) == sorted(ended.so_far.values(), reverse=True)


def test_a_continued_trial_counts_what_it_had_reached_before(tmp_path: Path) -> None:
    work = TrialWork(
        configured(), tmp_path / "run", tmp_path / "stop", dict.fromkeys(range(3, 6), -50.0), SIZES, reached=-60.0
    )
    assert run_trial(work).state == "finished"


def test_a_trial_whose_input_cannot_be_ends_the_search_with_its_problem(kept: Kept, tmp_path: Path) -> None:
    short = trace(tmp_path / "short.csv", 0, jobs=50)
    config = config_of(
        preset=None, algorithm=None, steps=2000, seed=0, network=None, action=None, observation=None, reward=None,
        waiting=None, threads=1, traces=(short,),
    )  # fmt: skip
    with pytest.raises(InputError, match="too few"):
        tune(config, tmp_path, lambda: kept, quiet, trials=2, jobs=1, sizes=SIZES)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("group_learning_rat: 0.1", "did you mean 'group_learning_rate'"),
        ("group_learning_rate: 5", "'5' is not a number from 0.0001 to 0.03"),
        ("group_learning_rate: fast", "'fast' is not a number"),
        ("group_minibatch: 300.5", "'300.5' is not a whole number"),
        ("group_learning_rate: yes", "is not a number"),
    ],
)
def test_a_file_of_other_parameters_is_refused_by_its_line(
    text: str, problem: str, tmp_path: Path, longshore: Command
) -> None:
    file = tmp_path / "mine.yaml"
    file.write_text(f"group_clip: 0.3\n{text}\n")
    done = longshore("train", "--algo", "group", "--parameters", file, "--logdir", tmp_path)
    assert done.status == 2
    assert f"{file}:2:" in done.err
    assert problem in done.err


@pytest.mark.parametrize("algorithm", PARAMETER_RANGES)
def test_the_own_values_of_every_algorithm_lie_within_the_bounds(algorithm: str) -> None:
    own = getattr(configured(), PARAMETER_FIELDS[algorithm])
    for name, bounds in PARAMETER_RANGES[algorithm].items():
        value = getattr(own, name)
        assert bounds.holds(value) or value == 0.0, name
        assert math.isfinite(bounds.high)


@pytest.mark.full
def test_tune_prints_the_command_to_run(tmp_path: Path, longshore: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("optuna", reason="no optuna here; pip install -e '.[dev]'")
    for make_smaller in (with_small_groups, with_few_draws, with_few_windows):
        make_smaller(monkeypatch)
    jobs = trace(tmp_path / "jobs.csv", 1, jobs=200)
    line = ("--trace", jobs, "--order", "easy", "--steps", 1000, "--trials", 2, "--logdir", tmp_path / "runs")
    done = longshore("tune", *line, "--jobs", 2, "--objective", "p99-jct:2,mean-jct")
    assert done.status == 0, done.err
    assert "trial 1 of 2 begins: group_learning_rate" in done.err
    *_, last = done.out.splitlines()
    words = shlex.split(last.removeprefix("Use them by: "))
    assert words[:4] == ["longshore", "train", "--trace", str(jobs)]
    trained = longshore(*words[1:])
    assert trained.status == 0, trained.err
    assert len(list((tmp_path / "runs").glob("traces-jobs-*p99-jct*parameters-0/best.zip"))) == 1  # by the objective
    assert len(list((tmp_path / "runs").glob("tune-*/trial-*/*p99-jct*/best.zip"))) == 2
    assert not list((tmp_path / "runs").glob("tune-*/trial-*/*/later.json"))  # the last part is for the end


def test_without_optuna_the_error_is_how_to_install_it(
    tmp_path: Path, longshore: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "optuna", None)
    done = longshore("tune", "--logdir", tmp_path)
    assert done.status == 2
    assert "pip install '.[tune]'" in done.err.splitlines()[-1]
    assert "Traceback" not in done.err
