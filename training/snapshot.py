"""The snapshot from which a run continues exactly where it was: of the moment between two updates, and no pickle.

A learner writes what it has by `write_arrays`. What is read from a file is refused unless a run could have left it.
"""

import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from sb3_contrib import MaskablePPO
from torch import Tensor, nn
from torch.optim import Optimizer, RMSprop

from ..agents.learned.archive import stored_arrays
from ..cluster.files.errors import CheckpointError
from ..cluster.files.output_file import replacing_file
from ..cluster.simulator.state_border import MAX_MAGNITUDE, checked_state
from ..cluster.state.border import refuse_unless_all
from ..cluster.state.state import State
from ..envs.batch import Batch
from ..envs.sb3 import PlacementVecEnv

SNAPSHOT = "snapshot.npz"
MT19937_KEYS = 624
MAX_GRADIENT = 100.0  # learners cut gradients to length 1

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


def restore_batch(arrays: Arrays, batch: Batch) -> None:
    """Load the state of all environments; their observations follow from it.

    Raises:
        ValueError: If steps of these environments could not have reached it; then no environment is changed.
        KeyError: If an array is missing.
    """
    state = batch.sim.state
    # Kernels read the state by addresses and check no bound.
    given = State(*(checked_alike(arrays, f"state/{field}", value) for field, value in state._asdict().items()))
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
