"""A training run, kept in a folder and resumed from it."""

import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ..agents.learned.checkpoint import load_policy, save_policy, schema_of
from ..agents.learned.schema import USERS, Schema, TrainedUnder, conditions_of_use
from ..agents.networks.candidates import CandidatePolicy
from ..agents.rehearsals import POLICY_GROUPS
from ..cluster.files.errors import InputError
from ..cluster.files.output_file import encodable_text
from ..cluster.kernels.ahead import Rehearsal
from ..cluster.model.outcome import objective_of
from ..cluster.model.problem import Problem
from ..cluster.presets.drawn import hetero64
from ..cluster.simulator.engine import advance, reset
from ..cluster.simulator.simulation import simulation_of
from .config import BY_CANDIDATES, REPLAYS, TrainingConfig, problem_request
from .distil import learn_by_distillation, mean_log_cost, with_best_margin
from .group import learn_by_groups
from .ppo import learn_by_ppo
from .problems import DEFAULT_SIZES, HISTORY, PRESETS, TRACES, Sizes
from .run_folder import (
    BEST,
    SNAPSHOT,
    OnProgress,
    RunFolder,
    initial_actor_critic,
    initial_candidate_network,
    read_arrays,
    stop_on_signal,
    with_initial_layers,
)
from .validation import (
    LaterComparison,
    Score,
    Validation,
    compare_on_history,
    compare_on_later_windows,
    write_comparisons,
)

CONFIG = "config.json"


LEARNERS: dict[str, Callable[[Sequence[Problem], RunFolder], int]] = {  # only `group` learns from several problems
    "ppo": lambda problems, run_folder: learn_by_ppo(problems[0], run_folder),
    "a2c": lambda problems, run_folder: learn_by_ppo(problems[0], run_folder),
    "group": learn_by_groups,
    "distil": lambda problems, run_folder: learn_by_distillation(problems[0], run_folder),
}


class TrainingResult(NamedTuple):
    """How a run ended."""

    folder: Path
    best: Path  # checkpoint of the best validation
    score: Score  # its score
    finished: bool  # False if it was interrupted
    interrupted_by: int  # signal, 0 if there was none
    seconds: float  # of this session
    rival: str  # best heuristic
    scenarios: int  # validated on
    later: tuple[LaterComparison, ...]  # how it does on later windows of its traces; none of presets without


class TrainingRun(NamedTuple):
    """A run whose problems could be built, and whose folder can be written to.

    Args:
        folder: Of the run.
        problems: To learn from.
        validated_on: Problems that its policies are judged by.
    """

    config: TrainingConfig
    sizes: Sizes
    folder: Path
    schema: Schema
    problems: Sequence[Problem]
    validated_on: Sequence[Problem]


def train(
    config: TrainingConfig,
    logdir: Path,
    on_progress: OnProgress = lambda progress: None,
    *,
    sizes: Sizes = DEFAULT_SIZES,
    compares: bool = True,
) -> TrainingResult:
    """Open a run and learn.

    Args:
        config: Of the run.
        logdir: Folder of runs.
        on_progress: Called after every update and validation.
        sizes: Of the run.
        compares: Whether a policy of traces or a history is compared on their later windows, too.

    Raises:
        InputError: As of `open_run`.
        CheckpointError: As of `open_run` and `learn`.
    """
    return learn(open_run(config, logdir, sizes), on_progress, compares=compares)


def open_run(config: TrainingConfig, logdir: Path, sizes: Sizes = DEFAULT_SIZES) -> TrainingRun:
    """Read all that a run needs, and open its folder: what is wrong is refused before anything takes long.

    Args:
        config: Of the run.
        logdir: Folder of runs.
        sizes: Of the run.

    Raises:
        InputError: If the folder holds a run of another configuration, the problem cannot be built, or the network to
            begin with is of another shape.
        CheckpointError: If the checkpoint to begin with, or what the folder kept of a run that was stopped, is damaged.
    """
    problems, validated_on = PRESETS[config.preset].build(problem_request(config, sizes))
    if not config.waiting:  # a history may allow it; the network that a run begins with may have no action for it
        problems, validated_on = tuple(map(_without_waiting, problems)), tuple(map(_without_waiting, validated_on))
    schema = with_initial_layers(config, _run_schema(config, problems))
    # refused before the folder is made
    initial_actor_critic(config, schema) if config.algorithm in REPLAYS else initial_candidate_network(config)
    return TrainingRun(config, sizes, _open_folder(config, logdir), schema, problems, validated_on)


def learn(
    run: TrainingRun, on_progress: OnProgress = lambda progress: None, *, compares: bool = True
) -> TrainingResult:
    """Train a policy, or continue where the run in this folder was stopped.

    1. Build the validation: the scenarios, with the best heuristic on them.
    2. Learn by the algorithm of the run, until its steps are done or it is interrupted.
    3. Take the best validated policy, and the margin that suits it where it has one.
    4. Compare it on later windows of its traces or its history.

    Ctrl-C or SIGTERM ends the run after the update in progress and keeps everything; a second one ends it at once.

    Args:
        run: As `open_run` returns it.
        on_progress: Called after every update and validation.
        compares: Whether a policy of traces or a history is compared on their later windows, too.

    Raises:
        CheckpointError: If the folder's snapshot is of another run.
    """
    config, sizes, folder, schema, problems, validated_on = run
    torch.set_num_threads(1)  # learning has its own (agents/networks/sb3_policy.py)
    run_folder = RunFolder(
        folder, schema, Validation(*validated_on, weighting=config.weighting), config, on_progress,
        validations=sizes.validations,
    )  # fmt: skip
    began = time.monotonic()
    with stop_on_signal(run_folder.interrupt) as interruption:
        steps = LEARNERS[config.algorithm](problems, run_folder)
    validation, finished = run_folder.validation, steps >= config.steps
    score = run_folder.best_score()
    if finished and config.algorithm == "group":
        score = _set_margin(folder / BEST, validated_on, config, validation) or score
    seconds = time.monotonic() - began
    later = _compare_later(config, sizes, folder) if compares and finished else ()
    return TrainingResult(
        folder, folder / BEST, score, finished, interruption.number, seconds, validation.best, validation.scenarios,
        later,
    )  # fmt: skip


def _without_waiting(problem: Problem) -> Problem:
    return problem._replace(rules=problem.rules._replace(waiting=False))


def _run_schema(config: TrainingConfig, problems: Sequence[Problem]) -> Schema:
    problem = problems[0]
    return schema_of(
        algorithm=config.algorithm, network=config.network, action=config.action, observation=config.observation,
        waiting=config.waiting and (config.preset != HISTORY or bool(problem.rules.waiting)),  # a history has its rules
        node_gpus=tuple(int(n) for n in np.diff(problem.cluster.first_gpu)),
        time_to_go=objective_of(problem.scenarios.submit_s) if config.algorithm in BY_CANDIDATES else None,
        trained=_training_conditions(config, problems),
    )  # fmt: skip


def _training_conditions(config: TrainingConfig, problems: Sequence[Problem]) -> TrainedUnder:
    """Return what a run trains under: a history brings its scheduler's own rules."""
    known = {TRACES: config.estimates, HISTORY: USERS}.get(config.preset)
    estimates = known or ("trace" if PRESETS[config.preset].needs_trace else "exact")
    uses = [conditions_of_use(problem.rules, estimates) for problem in problems]
    orders = tuple(dict.fromkeys(order for use in uses for order in use.orders))
    return TrainedUnder(
        orders=orders, ageing_h=uses[0].ageing_h, waiting=uses[0].waiting, estimates=estimates, oracle=uses[0].oracle
    )


def _set_margin(
    best: Path, problems: Sequence[Problem], config: TrainingConfig, validation: Validation
) -> Score | None:
    """Give the best policy the margin that validates best, and return its score; None for one without margins.

    The run's own record keeps the score without: that is what later policies of the run are compared with.
    """
    policy = load_policy(best)
    if not isinstance(policy, CandidatePolicy):
        return None  # of a network that another package brings
    tail = config.group.group_tail
    policy = with_best_margin(policy, lambda tried: mean_log_cost(tried, problems, tail, config.weighting))
    save_policy(best, policy.schema, policy.network)
    return validation.score(policy)


def _compare_later(config: TrainingConfig, sizes: Sizes, folder: Path) -> tuple[LaterComparison, ...]:
    """Compare the best policy on later windows, if there are such, and keep that."""
    if config.preset not in (TRACES, HISTORY):
        return ()
    policy = load_policy(folder / BEST)
    found = (
        compare_on_later_windows(problem_request(config, sizes), policy, config.weighting)
        if config.history is None
        else compare_on_history(Path(config.history), policy, config.weighting)
    )
    write_comparisons(folder, found)
    return found


def _open_folder(config: TrainingConfig, logdir: Path) -> Path:
    folder = logdir / config.name
    snapshot = folder / SNAPSHOT
    if encodable_text(str(folder)) != str(folder):
        raise InputError("TensorBoard writes below names alone that are UTF-8", "give another --logdir", path=folder)
    kept = folder / CONFIG
    if kept.exists():
        try:
            before = TrainingConfig.of_text(kept.read_text())
        except (OSError, ValueError) as error:
            raise InputError("the configuration of this run cannot be read", "remove its folder", path=kept) from error
        given = set(TrainingConfig.model_fields) - {
            "steps",
            "threads",
        }  # a run may be made longer, or continue elsewhere
        fields = [name for name in sorted(given) if getattr(before, name) != getattr(config, name)]
        if fields:
            raise InputError(
                f"this run has another {fields[0]}: {getattr(before, fields[0])!r}, not {getattr(config, fields[0])!r}",
                "take another --logdir or --seed, or remove the folder",
                path=folder,
            )
    if snapshot.exists():
        with read_arrays(snapshot):  # whether it belongs to this run shows when learning loads it
            pass
    try:
        folder.mkdir(parents=True, exist_ok=True)
        kept.write_text(config.as_text())
    except OSError as error:
        raise InputError(f"cannot write here: {error.strerror}", "give another --logdir", path=folder) from error
    return folder


REHEARSED_RUNS = 2  # of a group
_RUN_MODULE = "longshore.training.run"
REHEARSAL_GROUPS = {
    **POLICY_GROUPS,
    "training": [f"{_RUN_MODULE}:group_rehearsal", f"{_RUN_MODULE}:distil_rehearsal"],
}  # by the names of `longshore compile`


def rehearsals_for(algorithm: str) -> list[str]:
    """Return what `compile_ahead` compiles for training by an algorithm; only some use environments."""
    used = ("candidates", "training") if algorithm in ("group", "distil") else ("networks", "environments")
    return [name for group in ("heuristics", *used) for name in REHEARSAL_GROUPS[group]]


def group_rehearsal() -> Rehearsal:
    """Groups of runs by sampled candidates, and what their decisions are worth."""
    from ..agents.learned.checkpoint import layout_of, schema_of
    from ..agents.networks.candidates import CandidateNetwork, candidate_weights
    from ..agents.networks.sampled_runs import sample_runs
    from .credit import credits_of, feature_gaps_of, write_credits, write_feature_gaps
    from .group import SHARDS, STATE_FEATURES, RunCollector

    problem = hetero64(1, 0, jobs=4)
    schema = schema_of(
        algorithm="group", network="candidates", action="candidate", observation="full", waiting=False,
        node_gpus=(8,) * 8,
    )  # fmt: skip
    network = CandidateNetwork(layout_of(schema))
    rows = SHARDS * REHEARSED_RUNS

    def play() -> None:
        with ThreadPoolExecutor(1) as pool:
            found = RunCollector([problem], [rows], pool).collect(network, np.zeros(rows, np.int64), 0)
        credits_of(found.record, found.times, REHEARSED_RUNS, np.ones(rows), 1.0)
        feature_gaps_of(found.record, REHEARSED_RUNS, STATE_FEATURES)

    return Rehearsal(
        [sample_runs, write_credits, write_feature_gaps], [simulation_of(problem), candidate_weights(network)], play
    )


def distil_rehearsal() -> Rehearsal:
    """Decisions that distillation learns from; rollouts label them."""
    from ..cluster.kernels.structures import uniform
    from ..envs.features import list_and_write_candidates
    from .group import OBSERVATION_SIZE

    sim = simulation_of(hetero64(1, 0, jobs=4))

    def play() -> None:
        reset(sim, 0, 0)
        advance(sim, 0)
        uniform(0, 0, 0)
        list_and_write_candidates(sim, 0, np.zeros((1, OBSERVATION_SIZE), np.float32), 0)

    return Rehearsal([uniform, list_and_write_candidates], [sim], play)
