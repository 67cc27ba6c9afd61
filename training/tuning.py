"""A search for hyper-parameters by Optuna: trials are training runs, on this machine or on a Ray cluster.

The study is kept in a folder and resumed from it. Optuna proposes trials and records them; trials only train. So they
run in any process or on any machine. With one at a time the same seed gives the same trials, even if the study was
stopped in between.

Source: Akiba et al., Optuna (2019); the tree-structured Parzen estimator of Bergstra et al. (2011).
"""

import json
import math
import multiprocessing
import os
import re
import signal
import socket
from collections.abc import Callable, Collection, Mapping
from concurrent.futures import FIRST_COMPLETED, ProcessPoolExecutor
from concurrent.futures import wait as wait_for
from concurrent.futures.process import BrokenProcessPool
from contextlib import closing
from importlib.util import find_spec
from pathlib import Path
from statistics import median
from types import FrameType
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol

import numpy as np

from ..cluster.files.errors import BackendError, InputError, LongshoreError
from ..cluster.files.output_file import file_errors_reported, locked_folder, make_folder, replacing_file
from .config import (
    PARAMETER_FIELDS,
    PARAMETER_RANGES,
    ParameterRange,
    TrainingConfig,
    problem_request,
    to_parameter_type,
    with_parameters,
)
from .problems import DEFAULT_SIZES, PRESETS, Sizes
from .run import check_inputs, input_digests, train, write_inputs
from .run_folder import Progress, stop_on_signal
from .validation import Score

if TYPE_CHECKING:
    from optuna.study import Study
    from optuna.trial import FrozenTrial

State = Literal["finished", "pruned", "stopped", "failed", "refused"]


class TrialWork(NamedTuple):
    """One trial to run."""

    config: TrainingConfig
    folder: Path  # of its run; one that stopped there is continued
    stop: Path  # file that stops all trials, on any machine, after their updates in progress
    to_beat: Mapping[int, float]  # by number of the validation, the most that the best so far may be
    sizes: Sizes = DEFAULT_SIZES
    reached: float = float("nan")  # its best validation before it was stopped


class TrialResult(NamedTuple):
    """Result of a trial."""

    state: State
    percent: float  # best validation against the best heuristic, below 0 is better; nan if there was none
    so_far: Mapping[int, float]  # the best so far at each validation, by its number
    best: Path | None = None  # its policy
    problem: str = ""  # why it failed or was refused


class _EndedError(Exception):
    """The run ends early: the trial is worse than the others were by then, or all trials are to stop."""

    def __init__(self, state: Literal["pruned", "stopped"]) -> None:
        super().__init__(state)
        self.state = state


class _TrialMonitor:
    """Checks each validation, and ends the run if the trial is pruned or all trials are to stop."""

    def __init__(self, work: TrialWork) -> None:
        self.work, self.so_far, self.best = work, dict[int, float](), work.reached
        self._latest: Score | None = None

    def __call__(self, progress: Progress) -> None:
        steps, score = self.work.config.steps, progress.score
        if score is not None and score is not self._latest and progress.steps < steps:
            self._latest, self.best = score, float(np.fmin(self.best, score.percent))
            number = progress.steps * self.work.sizes.validations // steps
            self.so_far[number] = self.best
            if self.best > self.work.to_beat.get(number, float("inf")):
                raise _EndedError("pruned")
        if self.work.stop.exists() and progress.steps < steps:
            raise _EndedError("stopped")


def run_trial(work: TrialWork) -> TrialResult:
    """Run a trial, or continue one that was stopped. Errors are part of the result, as it may run elsewhere."""
    watch = _TrialMonitor(work)
    try:
        result = train(work.config, work.folder, watch, sizes=work.sizes, compares=False)
    except _EndedError as error:
        return TrialResult(error.state, watch.best, watch.so_far)
    except LongshoreError as error:
        return TrialResult("refused", watch.best, watch.so_far, problem=str(error))
    except (ValueError, RuntimeError, FloatingPointError) as error:  # weights that are not finite any more
        return TrialResult("failed", watch.best, watch.so_far, problem=f"{type(error).__name__}: {error}")
    if not result.finished:
        return TrialResult("stopped", watch.best, watch.so_far)
    return TrialResult("finished", result.score.percent, watch.so_far, result.best)


RAY_CONNECT_S = 10.0  # limit for a connection to a Ray cluster


class TrialRunner(Protocol):
    """Runs trials, each independent of the others."""

    def start(self, work: TrialWork) -> Any:
        """Start a trial and return its handle."""
        ...

    def wait(self, handles: Collection[Any]) -> list[tuple[Any, TrialResult]]:
        """Wait until at least one of some trials has ended; return the ended ones with their results."""
        ...

    def close(self) -> None:
        """Release processes and connections."""
        ...


def _ignore_interrupts() -> None:
    """Leave Ctrl-C and SIGTERM, which all processes may get, to the one that started this while it lives."""
    starter = os.getppid()

    def end_if_left(number: int, frame: FrameType | None) -> None:
        del frame
        if os.getppid() != starter:
            raise SystemExit(128 + number)

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, end_if_left)


class ProcessTrialRunner:
    """Runs trials in processes on this machine.

    Args:
        jobs: At once.
    """

    def __init__(self, jobs: int) -> None:
        self._pool = ProcessPoolExecutor(
            jobs, mp_context=multiprocessing.get_context("spawn"), initializer=_ignore_interrupts
        )

    def start(self, work: TrialWork) -> Any:
        """Start a trial and return its handle."""
        return self._pool.submit(run_trial, work)

    def wait(self, handles: Collection[Any]) -> list[tuple[Any, TrialResult]]:
        """Wait until at least one of some trials has ended; return the ended ones with their results."""
        try:
            return [(handle, handle.result()) for handle in wait_for(handles, return_when=FIRST_COMPLETED).done]
        except BrokenProcessPool as error:
            raise BackendError("the process of a trial was killed; it may lack memory: take fewer --jobs") from error

    def close(self) -> None:
        """End the processes."""
        self._pool.shutdown(cancel_futures=True)


def _check_port(address: str) -> None:
    """Refuse a HOST:PORT on which no process listens: Ray itself would try for minutes.

    Raises:
        BackendError: If it is one.
    """
    found = re.fullmatch(r"(?:ray://)?([^:/]+):(\d{1,5})", address)
    if found is None:
        return
    try:
        socket.create_connection((found[1], int(found[2])), RAY_CONNECT_S).close()
    except OSError as error:
        raise BackendError(f"no Ray answers at {address}: {error.strerror or error}") from error


class RayTrialRunner:
    """Runs trials as tasks of a Ray cluster, each on one core.

    Args:
        address: Of the cluster, as `ray.init` takes it: HOST:PORT, or ray://HOST:PORT from outside.

    Raises:
        InputError: If Ray is not installed.
        BackendError: If nothing answers there.
    """

    def __init__(self, address: str) -> None:
        if find_spec("ray") is None:
            raise InputError("Ray is not installed", "pip install '.[ray]' in a clone of Longshore", field="--ray")
        _check_port(address)
        import ray

        self._ray: Any = ray
        try:
            ray.init(address, log_to_driver=False)
        except (ConnectionError, RuntimeError, ValueError) as error:
            raise BackendError(f"no Ray answers at {address}: {str(error).strip().splitlines()[0]}") from error
        self._run: Any = ray.remote(num_cpus=1)(run_trial)

    def start(self, work: TrialWork) -> Any:
        """Start a trial and return its handle."""
        return self._run.remote(work)

    def wait(self, handles: Collection[Any]) -> list[tuple[Any, TrialResult]]:
        """Wait until at least one of some trials has ended; return the ended ones with their results.

        Raises:
            BackendError: If Ray has lost one.
        """
        done, _ = self._ray.wait(list(handles), num_returns=1)
        try:
            return [(handle, self._ray.get(handle)) for handle in done]
        except self._ray.exceptions.RayError as error:
            raise BackendError(f"Ray has lost a trial: {str(error).strip().splitlines()[0]}") from error

    def close(self) -> None:
        """Leave the cluster."""
        self._ray.shutdown()


JOURNAL, CONFIG, BEST, STOP = "study.jsonl", "config.json", "parameters.json", "stop"
MIN_EARLIER_TRIALS = 4  # that have ended before one may be pruned; likewise validations of its own
TUNING_STOP_NOTICE = "stopping all trials after their updates in progress; the same command continues"


class Trial(NamedTuple):
    """A trial, for reports."""

    number: int
    state: str  # running, finished, pruned or failed
    percent: float | None  # best validation
    parameters: Mapping[str, float]
    folder: Path


class StudyState(NamedTuple):
    """State of a study."""

    folder: Path
    trials: tuple[Trial, ...]
    best: Trial | None  # None if none has finished
    finished: bool  # False if it was interrupted
    interrupted_by: int = 0  # signal, 0 if there was none

    @property
    def parameter_file(self) -> Path:
        """File of the best trial's hyper-parameters."""
        return self.folder / BEST


Report = Callable[[str], None]


class StudyFolder:
    """The study, its folder, and what is tuned.

    Args:
        config: Of the runs, but for the hyper-parameters.
        folder: Where all of it stands.
        sizes: Of the runs.
    """

    def __init__(self, config: TrainingConfig, folder: Path, sizes: Sizes) -> None:
        self.config, self.folder, self.sizes = config, folder, sizes
        self.own: dict[str, float] = {
            name: getattr(getattr(config, PARAMETER_FIELDS[config.algorithm]), name)
            for name in PARAMETER_RANGES[config.algorithm]
        }
        # What is off in the preset, such as a horizon where no job arrives later, stays off.
        self.bounds = {name: PARAMETER_RANGES[config.algorithm][name] for name, value in self.own.items() if value}
        self.study = _open_study(folder)
        self.study.enqueue_trial({name: self.own[name] for name in self.bounds}, skip_if_exists=True)

    def new_trial(self) -> int:
        """Return the number of a new trial; the first has the preset's own hyper-parameters."""
        import optuna

        number = len(self.study.get_trials(deepcopy=False))
        # Of the number, not of the session: a study that is continued proposes what it would have proposed.
        self.study.sampler = optuna.samplers.TPESampler(
            seed=self.config.seed * 100_003 + number, constant_liar=True, n_startup_trials=2 * len(self.bounds)
        )
        return int(self.study.ask({name: _optuna_distribution(bounds) for name, bounds in self.bounds.items()}).number)

    def trials(self, state: str = "") -> "list[FrozenTrial]":
        """Return the trials in their order, those of a state if one is named."""
        known = self.study.get_trials(deepcopy=False)
        return [trial for trial in known if trial.state.name == state or (not state and trial.state.name != "WAITING")]

    def trial_work(self, number: int) -> TrialWork:
        """Return a trial to run."""
        trial = self.study.get_trials(deepcopy=False)[number]
        config = with_parameters(self.config, self._parameter_values(trial))
        reached = min(trial.intermediate_values.values(), default=math.nan)
        folder = self.folder / f"trial-{number:03d}"
        return TrialWork(config, folder, self.folder / STOP, self._medians_to_beat(), self.sizes, reached)

    def _parameter_values(self, trial: "FrozenTrial") -> dict[str, float]:
        return {name: to_parameter_type(self.bounds[name], value) for name, value in trial.params.items()}

    def _medians_to_beat(self) -> dict[int, float]:
        """Return the median of what the finished trials had reached by each validation, once there are some."""
        done = [trial.intermediate_values for trial in self.trials("COMPLETE")]
        numbers = set[int]().union(*done) if len(done) >= MIN_EARLIER_TRIALS else ()
        return {
            number: median(values[number] for values in done if number in values)
            for number in numbers
            if number >= MIN_EARLIER_TRIALS
        }

    def record_result(self, number: int, ended: TrialResult) -> None:
        """Record the result of a trial; one that was stopped is continued later.

        Raises:
            InputError: If it was refused, as all others would be.
        """
        import optuna

        trial = optuna.trial.Trial(self.study, self.study.get_trials(deepcopy=False)[number]._trial_id)
        for step, value in ended.so_far.items():
            trial.report(value, step)
        if ended.state == "refused":
            raise InputError(ended.problem)
        if ended.state == "stopped":
            return
        states = optuna.trial.TrialState
        if ended.state == "finished" and math.isfinite(ended.percent):
            self.study.tell(number, ended.percent)
        else:
            self.study.tell(number, state=states.PRUNED if ended.state == "pruned" else states.FAIL)

    def save_state(self, *, finished: bool) -> StudyState:
        """Return the state of the study, and write the best trial's hyper-parameters."""
        trials = tuple(self._trial_report(trial) for trial in self.trials())
        done = [trial for trial in trials if trial.state == "finished" and trial.percent is not None]
        best = min(done, key=lambda trial: (trial.percent, trial.number)) if done else None
        if best is not None:
            with replacing_file(self.folder / BEST) as part:
                part.write_text(json.dumps(best.parameters, indent=1) + "\n")
        return StudyState(self.folder, trials, best, finished)

    def _trial_report(self, trial: "FrozenTrial") -> Trial:
        state = {"COMPLETE": "finished", "PRUNED": "pruned", "FAIL": "failed"}.get(trial.state.name, "running")
        reached = min(trial.intermediate_values.values(), default=None)
        percent = trial.value if state == "finished" else reached
        folder = self.folder / f"trial-{trial.number:03d}"
        return Trial(trial.number, state, percent, self._parameter_values(trial), folder)


def tune(
    config: TrainingConfig, logdir: Path, runner: Callable[[], TrialRunner], report: Report, *, trials: int, jobs: int,
    sizes: Sizes = DEFAULT_SIZES,
) -> StudyState:  # fmt: skip
    """Search for hyper-parameters until a study has a number of trials, or continue where it was stopped.

    1. Open the study, whose first trial has the preset's own hyper-parameters.
    2. Keep `jobs` trials running: those that were stopped, then new ones that Optuna proposes.
    3. Record each result; a trial that is worse than the median of the others at a validation is pruned.
    4. Write the hyper-parameters of the best trial.

    Ctrl-C or SIGTERM ends the trials after their updates in progress and keeps everything.

    Args:
        config: Of the runs, but for the hyper-parameters.
        logdir: Folder of runs; the study's own goes there.
        runner: Makes what runs trials.
        report: Called with a line whenever a trial starts or ends.
        trials: In all.
        jobs: Trials at once.
        sizes: Of the runs.

    Raises:
        InputError: If Optuna is not installed, the folder holds another study or one of files that have changed since,
            or the runs cannot be.
        BackendError: If trials are lost.
    """
    folder = logdir / f"tune-{config.name}"
    _check_folder(config, folder)
    report("drawing workloads")
    # What is wrong is refused before anything is compiled or any trial begins.
    PRESETS[config.preset].build(problem_request(config, sizes))
    digests = input_digests(config)
    if (folder / CONFIG).exists() and digests:
        check_inputs(folder, digests)
    make_folder(folder, "--logdir")
    with file_errors_reported(folder), locked_folder(folder):
        write_inputs(folder, digests)
        with replacing_file(folder / CONFIG) as part:
            part.write_text(config.as_text())
        study_folder, stop = StudyFolder(config, folder, sizes), folder / STOP
        stop.unlink(missing_ok=True)
        with stop_on_signal(stop.touch, TUNING_STOP_NOTICE) as interruption, closing(runner()) as found:
            try:
                _run_trials(study_folder, found, stop, report, trials=trials, jobs=jobs)
                interrupted = stop.exists()
            except BaseException:
                stop.touch()  # the other trials stop soon, and are continued with the study
                raise
        stop.unlink(missing_ok=True)
        return study_folder.save_state(finished=not interrupted)._replace(interrupted_by=interruption.number)


def _run_trials(
    study_folder: StudyFolder, runner: TrialRunner, stop: Path, report: Report, *, trials: int, jobs: int
) -> None:
    """Run trials until there are enough, or all have stopped."""
    stopped = [trial.number for trial in study_folder.trials("RUNNING")]
    running: dict[Any, int] = {}
    while True:
        while not stop.exists() and len(running) < jobs and (stopped or len(study_folder.trials()) < trials):
            number = stopped.pop(0) if stopped else study_folder.new_trial()
            work = study_folder.trial_work(number)
            parameters = study_folder.save_state(finished=False).trials[number].parameters
            report(f"trial {number} of {trials} begins: {parameters_text(parameters)}")
            running[runner.start(work)] = number
        if not running:
            return
        for handle, ended in runner.wait(running):
            number = running.pop(handle)
            study_folder.record_result(number, ended)
            report(f"trial {number} {_result_text(ended)}{_best_text(study_folder.save_state(finished=False))}")


def parameters_text(parameters: Mapping[str, float]) -> str:
    """Return hyper-parameters in words."""
    return ", ".join(f"{name} {value:.4g}" for name, value in parameters.items())


def _result_text(ended: TrialResult) -> str:
    percent = "" if math.isnan(ended.percent) else f" at {ended.percent:+.2f} %"
    problem = f": {ended.problem}" if ended.problem else ""
    verb = "is" if ended.state == "pruned" else "has"
    return f"{verb} {ended.state}{problem}{percent}"


def _best_text(tuned: StudyState) -> str:
    best = tuned.best
    return "" if best is None else f"; the best is trial {best.number} at {best.percent:+.2f} %"


def _optuna_distribution(bounds: ParameterRange) -> Any:
    import optuna

    if bounds.is_whole:
        return optuna.distributions.IntDistribution(int(bounds.low), int(bounds.high), log=bounds.by_factors)
    return optuna.distributions.FloatDistribution(bounds.low, bounds.high, log=bounds.by_factors)


def _open_study(folder: Path) -> "Study":
    import optuna

    optuna.logging.set_verbosity(optuna.logging.WARNING)
    journal = optuna.storages.journal.JournalFileBackend(str(folder / JOURNAL))
    storage = optuna.storages.JournalStorage(journal)
    return optuna.create_study(storage=storage, study_name="tune", direction="minimize", load_if_exists=True)


def _check_folder(config: TrainingConfig, folder: Path) -> None:
    """Refuse a folder that a study cannot have.

    Raises:
        InputError: If Optuna is not installed, or it holds a study of something else.
    """
    if find_spec("optuna") is None:
        raise InputError(
            "Optuna, which proposes hyper-parameters, is not installed", "pip install '.[tune]' in a clone of Longshore"
        )
    kept = folder / CONFIG
    if kept.exists() and not _holds_config(config, kept):
        raise InputError(
            "this folder has a study of another configuration",
            "take another --logdir or --seed, or remove it",
            path=folder,
        )


def _holds_config(config: TrainingConfig, kept: Path) -> bool:
    try:
        return TrainingConfig.of_text(kept.read_text()) == config
    except (OSError, ValueError):
        return False
