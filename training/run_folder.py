"""The folder of a training run: what the run begins with, what it keeps, and the snapshot from which it continues.

`RunFolder` validates, and writes checkpoints and metrics. A snapshot is of the moment between two updates: the run
continues exactly where it was. The network that a run begins with may have the weights of a checkpoint.
"""

import json
import logging
import signal
import threading
import time
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from stable_baselines3.common.logger import HParam, Logger, TensorBoardOutputFormat
from torch import Tensor, nn
from torch.optim import Optimizer, RMSprop
from torch.utils.tensorboard.writer import SummaryWriter

from ..agents.learned.archive import stored_arrays
from ..agents.learned.checkpoint import layout_of, load_policy, policy_of, save_policy, untrained_network
from ..agents.learned.network import Network
from ..agents.learned.schema import Schema
from ..agents.networks.candidates import TEMPERATURE, CandidateNetwork
from ..cluster.files.errors import CheckpointError, InputError
from ..cluster.files.output_file import encodable_text, replacing_file
from ..cluster.files.signals import handled_signals
from ..cluster.simulator.state_border import MAX_MAGNITUDE, checked_state
from ..cluster.state.beliefs import initial_beliefs
from ..cluster.state.border import refuse_unless_all
from ..cluster.state.state import State
from ..envs.batch import Batch
from ..envs.sb3 import PlacementVecEnv
from .config import REPLAYS, TrainingConfig
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
    """

    def __init__(
        self, folder: Path, schema: Schema, validation: Validation, config: TrainingConfig, on_progress: OnProgress,
        *, validations: int = VALIDATIONS,
    ) -> None:  # fmt: skip
        self.path, self.schema, self.validation, self.config, self.on_progress = (
            folder,
            schema,
            validation,
            config,
            on_progress,
        )
        self._validations = validations
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


SNAPSHOT = "snapshot.npz"
MT19937_KEYS = 624
MAX_GRADIENT = 100.0  # learners cut gradients to length 1
# Fields of the state that snapshots of earlier versions may lack: no result depends on them, or they had no meaning
# then.
YOUNGER = (
    "quiet", "unpolled", "shown_class", "reserved_class", "hidden", "class_usable", "class_in_service", "switches",
    "shrunk", "spare", "died", "struck_s", "short", "fresh_s", "fresh_gpu_s", "since_s",
    "slowed", "node_slow", "pace_s", "pace_k", "slowed_s", "relieved", "relieved_of",
    "kept_for", "backup_of", "backups", "backup_gpu_s",
    "leads", "turns", "came_back", "next_in_line", "previous_in_line", "line_head", "line_tail", "line_oldest",
    "line_since_s", "line_number", "turn_s", "turn_number", "next_line", "previous_line", "first_line", "last_line",
    "index_own_leaf", "index_line",
)  # fmt: skip

Arrays = dict[str, NDArray[Any]]
Record = TypeVar("Record", bound=tuple[Any, ...])


def save_snapshot(path: Path, model: MaskablePPO, env: PlacementVecEnv, other_arrays: Arrays) -> None:
    """Write weights, optimiser, random numbers, counters, all environments and some more; nothing is pickled."""
    arrays = learned_arrays(model.policy, model.policy.optimizer)
    name, keys, position, has_gauss, gauss = np.random.get_state()  # noqa: NPY002 (Stable-Baselines3 shuffles with it)
    assert name == "MT19937"
    arrays |= {"numpy/keys": np.asarray(keys), "numpy/rest": np.array([position, has_gauss, gauss])}
    arrays |= {"torch": torch.get_rng_state().numpy(), "episode_starts": np.asarray(model._last_episode_starts)}
    arrays["counters"] = np.array([model.num_timesteps, model._n_updates])
    arrays |= {f"state/{field}": value for field, value in env.batch.sim.state._asdict().items()}
    arrays |= {f"batch/{field}": value for field, value in env.batch.snapshot_arrays().items()} | other_arrays
    write_arrays(path, arrays)


def learned_arrays(network: nn.Module, optimizer: Optimizer) -> Arrays:
    """Return the weights of a network and the moments of its Adam or RMSprop."""
    arrays: Arrays = {f"network/{name}": tensor.numpy() for name, tensor in network.state_dict().items()}
    for index, state in optimizer.state_dict()["state"].items():
        arrays |= {f"adam/{index}/{name}": np.asarray(value) for name, value in state.items()}
    return arrays


def restore_learned(arrays: Arrays, network: nn.Module, optimizer: Optimizer) -> None:
    """Load what `learned_arrays` returned into a network and its optimiser.

    Raises:
        ValueError: If an array has another type or shape than theirs, or is not finite.
    """
    restore_weights(arrays, "network", network)
    adam = optimizer.state_dict()
    adam["state"] = {
        index: _checked_moments(arrays, f"adam/{index}/", weight, optimizer)
        for index, weight in enumerate(optimizer.param_groups[0]["params"])
        if f"adam/{index}/step" in arrays  # a head that is not used gets no gradient, and has no state
    }
    optimizer.load_state_dict(adam)


def _checked_moments(arrays: Arrays, prefix: str, weight: Tensor, optimizer: Optimizer) -> dict[str, Tensor]:
    """Return what an optimiser keeps of one weight, which it divides by steps and takes the roots of.

    Raises:
        ValueError: If no step could have left it.
    """
    squares = (0.0, MAX_GRADIENT**2)
    kept = {"square_avg": squares} if isinstance(optimizer, RMSprop) else {
        "exp_avg": (-MAX_GRADIENT, MAX_GRADIENT), "exp_avg_sq": squares,
    }  # fmt: skip
    found = {"step": checked_finite(arrays, f"{prefix}step", np.zeros((), dtype=np.float32))}
    found |= {name: checked_finite(arrays, prefix + name, weight.detach().numpy()) for name in kept}
    for name, (least, most) in ({"step": (1.0, np.inf)} | kept).items():
        check_within(prefix + name, found[name], least, most)
    return {name: torch.from_numpy(values) for name, values in found.items()}


def restore_weights(arrays: Arrays, prefix: str, network: nn.Module) -> None:
    """Load the weights below a prefix into a network.

    Raises:
        ValueError: If one has another type or shape than the network's, or is not finite.
    """
    weights = network.state_dict().items()
    network.load_state_dict({name: _checked_tensor(arrays, f"{prefix}/{name}", weight) for name, weight in weights})


def _checked_tensor(arrays: Arrays, name: str, like: Tensor) -> Tensor:
    return torch.from_numpy(checked_finite(arrays, name, like.detach().numpy()))


def checked_finite(arrays: Arrays, name: str, like: NDArray[Any]) -> NDArray[Any]:
    """Return an array of the type and shape of another, with finite numbers alone.

    Raises:
        ValueError: If it differs from that.
        KeyError: If it is missing.
    """
    found = checked_alike(arrays, name, like)
    if not np.isfinite(found).all():
        raise ValueError(f"{name} holds numbers that are not finite")
    return found


def checked_alike(arrays: Arrays, name: str, like: NDArray[Any]) -> NDArray[Any]:
    """Return an array of the type and shape of another, without nan; times may be infinite.

    Raises:
        ValueError: If it differs from that.
        KeyError: If it is missing.
    """
    found = arrays[name]
    if (found.dtype, found.shape) != (like.dtype, like.shape):
        raise ValueError(f"{name} is {found.dtype} of shape {found.shape}, expected {like.dtype} of {like.shape}")
    if found.dtype.kind == "f" and np.isnan(found).any():
        raise ValueError(f"{name} holds nan")
    return found


def check_within(name: str, values: NDArray[Any], least: float, most: float) -> None:
    """Refuse numbers unless all of them lie in a range.

    Raises:
        ValueError: Naming the first that does not.
    """
    wrong = values[(values < least) | (values > most)]
    if wrong.size:
        raise ValueError(f"{name} holds {wrong[0]}, expected {least} to {most}")


def checked_counts(arrays: Arrays, name: str, like: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return counts of the shape of another array, none of them below 0.

    Raises:
        ValueError: If they differ from that.
        KeyError: If they are missing.
    """
    found: NDArray[np.int64] = checked_alike(arrays, name, like)
    check_within(name, found, 0, np.inf)
    return found


def zeros_of_length(like: NDArray[Any], entries: int) -> NDArray[Any]:
    """Return zeros, without memory for them, of the type and shape of an array but for the length of its first axis."""
    zeros: NDArray[Any] = np.broadcast_to(np.zeros((), dtype=like.dtype), (entries, *like.shape[1:]))
    return zeros


def checked_record(arrays: Arrays, prefix: str, like: Record) -> Record:
    """Return a named tuple of finite arrays like another's, all of one length.

    Raises:
        ValueError: If they differ from that.
        KeyError: If one is missing.
    """
    fields = type(like).__annotations__
    entries = np.atleast_1d(arrays[prefix + next(iter(fields))]).shape[0]
    found = (
        checked_finite(arrays, prefix + name, zeros_of_length(part, entries))
        for name, part in zip(fields, like, strict=True)
    )
    return type(like)(*found)


def write_arrays(path: Path, arrays: Arrays) -> None:
    """Write arrays into a file, which is replaced at once or not at all."""
    with replacing_file(path) as part, part.open("wb") as file:
        np.savez(file, allow_pickle=False, **arrays)


@contextmanager
def read_arrays(path: Path) -> Iterator[Arrays]:
    """Read arrays for use under the context.

    Raises:
        CheckpointError: If the file is damaged, or its use fails as that of another run's would.
    """
    try:
        yield stored_arrays(path)
    except (
        OSError, ValueError, TypeError, KeyError, RuntimeError, EOFError, OverflowError, MemoryError,
        zipfile.BadZipFile,
    ) as error:  # fmt: skip
        reason = " ".join(str(error).split())[:1000] or "it takes too much memory"
        raise CheckpointError(
            f"{path} is damaged or of another run: {reason}; remove its folder to start again"
        ) from error


def restore_model(arrays: Arrays, model: MaskablePPO, env: PlacementVecEnv) -> None:
    """Load what `save_snapshot` wrote into a fresh model of the same configuration and its environments.

    Raises:
        ValueError: If it belongs to another run.
        KeyError: If an array is missing.
    """
    restore_learned(arrays, model.policy, model.policy.optimizer)
    np.random.set_state(_checked_numpy_state(arrays))  # noqa: NPY002
    restore_torch_rng(arrays)
    model.num_timesteps, model._n_updates = (
        int(count) for count in checked_counts(arrays, "counters", np.zeros(2, dtype=np.int64))
    )
    restore_batch(arrays, env.batch)
    model._last_obs = env.batch.observations.copy()
    model._last_episode_starts = checked_alike(arrays, "episode_starts", env.batch.ended)


def _checked_numpy_state(arrays: Arrays) -> tuple[str, NDArray[np.uint32], int, int, float]:
    """Return the state of NumPy's random numbers; NumPy itself reads beyond its end at too large a position."""
    keys = checked_alike(arrays, "numpy/keys", np.zeros(MT19937_KEYS, dtype=np.uint32))
    position, has_gauss, gauss = (float(each) for each in checked_finite(arrays, "numpy/rest", np.zeros(3)))
    if position not in range(MT19937_KEYS + 1) or has_gauss not in (0.0, 1.0):
        raise ValueError(f"numpy/rest has position {position:g} and has_gauss {has_gauss:g}")
    return "MT19937", keys, int(position), int(has_gauss), gauss


def restore_torch_rng(arrays: Arrays) -> None:
    """Load torch's random numbers; torch reads beyond their end if two counts disagree.

    It is a legacy of torch's first random numbers: at byte 8, how many numbers are left until new ones are made, and at
    byte 16, which of them is next. A seed counts as one that is left.

    Raises:
        ValueError: If they do.
        KeyError: If they are missing.
    """
    found = checked_alike(arrays, "torch", torch.get_rng_state().numpy())
    left, following = int(found[8:12].view(np.int32)[0]), int(found[16:24].view(np.uint64)[0])
    if (left, following) != (1, 0) and (left not in range(1, MT19937_KEYS + 1) or left + following != MT19937_KEYS + 1):
        raise ValueError(f"torch has {left} numbers left and number {following} next, which no generator has")
    torch.set_rng_state(torch.from_numpy(found))


def _initial_belief_arrays(arrays: Arrays, batch: Batch) -> Arrays:
    """Return what policies know of fault rates in snapshots whose state lacks it: the initial rates."""
    last = batch.sim.scenarios.jobs.size - 1
    scenarios = np.clip(checked_alike(arrays, "state/scenario", batch.sim.state.scenario), 0, last)  # checked later
    return {f"state/{field}": begun for field, begun in initial_beliefs(batch.sim, scenarios).items()}


def restore_batch(arrays: Arrays, batch: Batch) -> None:
    """Load the state of all environments; their observations follow from it.

    Raises:
        ValueError: If steps of these environments could not have reached it; then no environment is changed.
        KeyError: If an array is missing.
    """
    state = batch.sim.state
    missing = {f"state/{field}": np.zeros_like(getattr(state, field)) for field in YOUNGER}
    kept = missing | arrays
    if not batch.sim.rules.estimated_hazards:
        kept = _initial_belief_arrays(arrays, batch) | kept
    # Kernels read the state by addresses and check no bound.
    given = State(*(checked_alike(kept, f"state/{field}", value) for field, value in state._asdict().items()))
    found = checked_state(batch.sim, given)._asdict()
    if batch.view.action == "candidate":  # a move picks all its nodes at once, for any job
        refuse_unless_all(
            "state.picked_nodes", given.picked_nodes, given.picked_nodes == 0, "none before a whole placement"
        )
    others = {
        field: checked_finite(arrays, f"batch/{field}", value) for field, value in batch.snapshot_arrays().items()
    }
    check_within("batch/paid_s", others["paid_s"], -MAX_MAGNITUDE, MAX_MAGNITUDE)
    for field, value in state._asdict().items():
        value[...] = found[field]
    for field, value in batch.snapshot_arrays().items():
        value[...] = others[field]
    batch.observe_again()


def initial_actor_critic(config: TrainingConfig, schema: Schema) -> Network | None:
    """Return a network for PPO or A2C with the weights of the run's `init`, None if it begins at random.

    The critic begins with the checkpoint's, whatever that predicts, and learns what the reward pays.

    Args:
        config: The run.
        schema: Of its policies.

    Raises:
        CheckpointError: If the file is missing or damaged, or does not fit this version.
        InputError: If it does not fit the run.
    """
    if config.init is None or config.algorithm not in REPLAYS:
        return None
    policy = load_policy(Path(config.init))
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


def with_initial_layers(config: TrainingConfig, schema: Schema) -> Schema:
    """Return the schema of a run, with the layers of the checkpoint that it begins with, if that has some."""
    if config.init is None or config.network != "layers":
        return schema
    return schema.model_copy(update={"layers": load_policy(Path(config.init)).schema.layers})


def initial_candidate_network(config: TrainingConfig) -> CandidateNetwork | None:
    """Return a network with the weights of the run's `init`, None if it begins at random.

    `distil` learns gains. Divided by the temperature, they are the logits that `group` samples by; the other direction
    multiplies. The value is that of the checkpoint.

    Raises:
        CheckpointError: If the file is missing or damaged, or does not fit this version.
        InputError: If it holds a network of another shape.
    """
    if config.init is None:
        return None
    policy = load_policy(Path(config.init))
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
