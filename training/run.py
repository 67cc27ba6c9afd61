"""A training run, kept in a folder and resumed from it."""

import json
import time
from collections.abc import Callable, Sequence
from hashlib import file_digest
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch

from ..agents.learned.checkpoint import layout_of, load_policy, save_policy, schema_of, untrained_network
from ..agents.learned.network import LearnedPolicy, Network
from ..agents.learned.schema import USERS, Schema, TrainedUnder, conditions_of_use
from ..agents.networks.candidates import TEMPERATURE, CandidateNetwork, CandidatePolicy
from ..cluster.files.errors import InputError
from ..cluster.files.output_file import encodable_text, file_errors_reported, locked_folder, replacing_file
from ..cluster.model.outcome import objective_of
from ..cluster.model.problem import Problem
from .config import BY_CANDIDATES, TrainingConfig, problem_request
from .distil import learn_by_distillation, mean_log_cost, with_best_margin
from .group import learn_by_groups
from .ppo import learn_by_ppo
from .problems import DEFAULT_SIZES, HISTORY, PRESETS, TRACES, Sizes
from .run_folder import BEST, OnProgress, RunFolder, stop_on_signal
from .snapshot import SNAPSHOT, read_arrays
from .validation import (
    LaterComparison,
    Score,
    Validation,
    compare_on_history,
    compare_on_later_windows,
    write_comparisons,
)

CONFIG, INPUTS = "config.json", "inputs.json"


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
    finished: bool  # whether all steps are done
    interrupted_by: int  # signal, 0 if there was none; it may come in the last update
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
        initial: Network that it begins with, None for one of random weights.
    """

    config: TrainingConfig
    sizes: Sizes
    folder: Path
    schema: Schema
    problems: Sequence[Problem]
    validated_on: Sequence[Problem]
    initial: Network | None


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
        InputError: If the folder holds a run of another configuration or of files that have changed since, the problem
            cannot be built, or the network to begin with is of another shape.
        CheckpointError: If the checkpoint to begin with, or what the folder kept of a run that was stopped, is damaged.
    """
    problems, validated_on = PRESETS[config.preset].build(problem_request(config, sizes))
    if not config.waiting:  # a history may allow it; the network that a run begins with may have no action for it
        problems, validated_on = tuple(map(_without_waiting, problems)), tuple(map(_without_waiting, validated_on))
    # What does not fit is refused before the folder is made.
    schema, initial = read_initial(config, _run_schema(config, problems))
    return TrainingRun(config, sizes, _open_folder(config, logdir), schema, problems, validated_on, initial)


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
        InputError: If another process trains in the folder, or it cannot be written any more; the same command then
            continues from the latest snapshot.
        CheckpointError: If the folder's snapshot is of another run.
    """
    config, sizes, folder, schema, problems, validated_on, initial = run
    torch.set_num_threads(1)  # learning has its own (agents/networks/sb3_policy.py)
    with file_errors_reported(folder), locked_folder(folder):
        run_folder = RunFolder(
            folder, schema, Validation(*validated_on, weighting=config.weighting), config, on_progress,
            validations=sizes.validations, initial=initial,
        )  # fmt: skip
        began = time.monotonic()
        with stop_on_signal(run_folder.interrupt) as interruption:
            steps = LEARNERS[config.algorithm](problems, run_folder)
        validation, finished = run_folder.validation, steps >= config.steps
        score = run_folder.best_score()
        if finished and config.algorithm == "group":
            score = _set_margin(folder / BEST, validated_on, config, validation) or score
        seconds = time.monotonic() - began
        # A signal in the last update ends the command, too; the same command compares.
        compares = compares and finished and not interruption.number
        later = _compare_later(config, sizes, folder) if compares else ()
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


def read_initial(config: TrainingConfig, schema: Schema) -> tuple[Schema, Network | None]:
    """Return the schema of a run, and the network that it begins with: that of its `init`, None if it has none.

    The network `layers` has the layers of the checkpoint.

    Raises:
        CheckpointError: If the file is missing or damaged, or does not fit this version.
        InputError: If it does not fit the run.
    """
    if config.init is None:
        return schema, None
    policy = load_policy(Path(config.init))
    if config.algorithm in BY_CANDIDATES:
        return schema, initial_candidate_network(config, policy)
    if config.network == "layers":
        schema = schema.model_copy(update={"layers": policy.schema.layers})
    return schema, initial_actor_critic(config, schema, policy)


def initial_actor_critic(config: TrainingConfig, schema: Schema, policy: LearnedPolicy) -> Network:
    """Return a network for PPO or A2C with the weights of a policy.

    The critic begins with the checkpoint's, whatever that predicts, and learns what the reward pays.

    Args:
        config: The run.
        schema: Of its policies.
        policy: Of the run's `init`.

    Raises:
        InputError: If it does not fit the run.
    """
    theirs, network = policy.schema, policy.network
    for what in ("network", "action", "observation"):
        if (has := getattr(theirs, what)) != (wants := getattr(schema, what)):
            raise InputError(
                f"{config.init} has the {what} {has}, this run {wants}", f"give --{what} {has}", field="--init"
            )
    if not network.any_size and not theirs.fits(schema.node_gpus):
        one, other = (f"{each.gpus} GPUs on {len(each.node_gpus)} nodes" for each in (theirs, schema))
        raise InputError(
            f"{config.init} was trained for {one}, this run has {other}",
            "give a checkpoint for this cluster, or one whose network serves any size", field="--init",
        )  # fmt: skip
    expected = {name: weight.shape for name, weight in untrained_network(schema).state_dict().items()}
    if not network.sized_by and expected != {name: weight.shape for name, weight in network.state_dict().items()}:
        fix = "give one without waiting" if config.history else f"give --{'' if theirs.waiting else 'no-'}waiting"
        raise InputError(
            f"{config.init} has {'waiting' if theirs.waiting else 'no waiting'} among its actions, and this run not so",
            fix, field="--init",
        )  # fmt: skip
    if isinstance(network, CandidateNetwork) and theirs.algorithm == "distil":
        network.score.weight.data /= TEMPERATURE
    network.layout = layout_of(schema)
    return network.train()


def initial_candidate_network(config: TrainingConfig, policy: LearnedPolicy) -> CandidateNetwork:
    """Return a network for `group` or `distil` with the weights of a policy, that of the run's `init`.

    `distil` learns gains. Divided by the temperature, they are the logits that `group` samples by; the other direction
    multiplies. The value is that of the checkpoint.

    Raises:
        InputError: If it holds a network of another shape.
    """
    schema, network = policy.schema, policy.network
    if not isinstance(network, CandidateNetwork):
        raise InputError(
            f"{config.init} has a network {schema.network} for {schema.action} actions, this run one for candidates",
            "give a checkpoint of the network `candidates`", field="--init",
        )  # fmt: skip
    has_gains, learns_gains = schema.algorithm == "distil", config.algorithm == "distil"
    if has_gains != learns_gains:
        network.score.weight.data *= TEMPERATURE if learns_gains else 1.0 / TEMPERATURE
    return network.train()


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
    digests = input_digests(config)
    if kept.exists() and digests:
        check_inputs(folder, digests)
    if snapshot.exists():
        with read_arrays(snapshot):  # whether it belongs to this run shows when learning loads it
            pass
    try:
        folder.mkdir(parents=True, exist_ok=True)
        write_inputs(folder, digests)
        with replacing_file(kept) as part:
            part.write_text(config.as_text())
    except OSError as error:
        raise InputError(f"cannot write here: {error.strerror}", "give another --logdir", path=folder) from error
    return folder


def input_digests(config: TrainingConfig) -> dict[str, str]:
    """Return the SHA-256 of each file that a run reads, by its path; the values in `parameters` are options themselves.

    Raises:
        InputError: If one cannot be read.
    """
    given = (*config.traces, config.history, config.cluster, config.faults, config.init)
    return {path: _sha256_of(Path(path)) for path in given if path is not None}


def _sha256_of(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file_digest(file, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", path=path) from error


def check_inputs(folder: Path, digests: dict[str, str]) -> None:
    """Refuse files that are not those with which the run or the study in a folder began.

    Raises:
        InputError: Naming the first file that differs.
    """
    try:
        before = json.loads((folder / INPUTS).read_text())
        changed = [path for path, digest in digests.items() if before.get(path) != digest]
    except (OSError, ValueError, AttributeError, RecursionError) as error:
        problem = "the digests of this run's files cannot be read"
        raise InputError(problem, "remove its folder", path=folder / INPUTS) from error
    if changed:
        raise InputError(
            f"this run began with another content of {changed[0]}",
            "take another --logdir or --seed, or remove the folder", path=folder,
        )  # fmt: skip


def write_inputs(folder: Path, digests: dict[str, str]) -> None:
    """Write the digests of the files with which a run or a study begins."""
    with replacing_file(folder / INPUTS) as part:
        part.write_text(json.dumps(digests, indent=1) + "\n")
