"""The state of a training: its copy from one member of a ring to others, as plain values, and in checkpoints.

A state is a tree of dicts, lists, tuples and sets of numbers, strings, bytes, tensors and NumPy's arrays. Files are
read with `torch.load(weights_only=True)`, which runs no code of a file; what that would refuse is refused here, when it
is written. A copy is a head, which has the shapes of the tensors, and one stream of bytes, in pieces, followed by its
SHA-256. The receiver uses nothing of it before all has arrived and the digest is right.

Checkpoints are written whole, and named only with the coordinator's permission. A name holds step, generation and
member, so that no process overwrites the file of another one. A process that has lost its seat gets no permission. If
it gets it and stops before it names the file, the file is of a step that the ring had. Source: SPEC F8 to F10, K4.
"""

import hashlib
import io
import os
import pickle
import random
import re
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import IO, Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_leaves, tree_map_only

from ..cluster.files.errors import InputError
from .groups import LinkError, RingGroup, keep_for_ever
from .member_client import MemberClient, end_process
from .wire import GONE_STATUS

COPY_PIECE_BYTES = 2 << 20  # small, so that both sides compute the digest of a piece while others are under way
PIECES_UNDER_WAY = 3
MAX_INTEGER_BITS = 2000  # of a number that `weights_only` reads
TENSORS = (Tensor, nn.Parameter)
KEEP_PLAIN = "keep numbers, strings, bytes, tensors, arrays of numbers, and dicts, lists, tuples and sets of them"
# What pickled arrays and empty bytes name; none of it runs code of a file.
_SAFE_GLOBALS: list[Any] = [bytes, np.ndarray, np.dtype, np.zeros(0).__reduce__()[0]]
_SAFE_GLOBALS.extend({type(np.dtype(code)) for code in np.typecodes["AllFloat"] + np.typecodes["AllInteger"] + "?"})


class HasState(Protocol):
    """An object whose state is kept with the model's, such as a learning-rate schedule or a sampler of data."""

    def state_dict(self) -> dict[str, Any]:
        """Return its state."""

    def load_state_dict(self, state: dict[str, Any]) -> object:
        """Load a state."""


def random_state() -> dict[str, Any]:
    """Return the state of the random numbers of Python, NumPy and PyTorch."""
    name, keys, at, has_gauss, gauss = np.random.get_state(legacy=True)  # noqa: NPY002
    state: dict[str, Any] = {
        "python": random.getstate(),
        "numpy": (str(name), torch.from_numpy(np.array(keys, dtype=np.int64)), int(at), int(has_gauss), float(gauss)),
        "torch": torch.get_rng_state(),
    }
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        state["cuda"] = torch.cuda.get_rng_state()
    return state


def set_random_state(state: Mapping[str, Any]) -> None:
    """Continue the random numbers from a state."""
    random.setstate(state["python"])
    name, keys, at, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), at, has_gauss, gauss))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.set_rng_state(state["cuda"])


def model_state(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return a model's parameters and buffers, also those buffers that its state_dict omits."""
    return {name: tensor.detach() for name, tensor in (*model.named_parameters(), *model.named_buffers())}


def load_model_state(model: torch.nn.Module, state: Mapping[str, Tensor]) -> None:
    """Load parameters and buffers, in place.

    Raises:
        ValueError: If the state is of another model.
    """
    own = model_state(model)
    shapes = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in own.items()}
    loaded = {name: (tuple(tensor.shape), tensor.dtype) for name, tensor in state.items()}
    if shapes != loaded:
        odd = sorted(name for name in shapes.keys() | loaded.keys() if shapes.get(name) != loaded.get(name))
        raise ValueError(f"this member's model differs from the ring's in {', '.join(odd[:5])}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(state[name])


# The copy


def send_state(state: Any, group: RingGroup, root: int) -> None:
    """Send a state to the other members of a group.

    Raises:
        InputError: If it holds something that cannot be copied.
        AbortedError: If the ring is formed again.
        LinkError: If an exchange fails.
    """
    values = plain_state(state)
    tensors = [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]
    written = io.BytesIO()
    torch.save(tree_map_only(Tensor, partial(torch.empty_like, device="meta"), values), written)
    head = written.getvalue()
    digest = hashlib.sha256(head)
    group.broadcast(torch.tensor([len(head), sum(_tensor_bytes(tensor) for tensor in tensors)]), root)
    group.broadcast(torch.frombuffer(bytearray(head), dtype=torch.uint8), root)
    for piece in _broadcast_pieces(_byte_pieces(tensors, COPY_PIECE_BYTES), group, root):
        digest.update(piece.numpy().data)
    group.broadcast(torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8), root)


def receive_state(group: RingGroup, root: int) -> Any:
    """Receive a state, its tensors on the CPU.

    Args:
        group: The member that sends, and all that receive.
        root: Rank of the member that sends.

    Raises:
        AbortedError: If the ring is formed again.
        LinkError: If an exchange fails, or other bytes arrived than were sent.
    """
    sizes = torch.zeros(2, dtype=torch.int64)
    group.broadcast(sizes, root)
    head_bytes, left = (int(size) for size in sizes)
    head = torch.empty(head_bytes, dtype=torch.uint8)
    group.broadcast(head, root)
    digest = hashlib.sha256(head.numpy().data)
    stream = torch.empty(left, dtype=torch.uint8)
    for piece in _broadcast_pieces(iter(torch.split(stream, COPY_PIECE_BYTES) if left else ()), group, root):
        digest.update(piece.numpy().data)
    sent = torch.empty(digest.digest_size, dtype=torch.uint8)
    group.broadcast(sent, root)
    if bytes(sent.numpy()) != digest.digest():
        raise LinkError(f"the copied state has SHA-256 {digest.hexdigest()}, and {bytes(sent.numpy()).hex()} was sent")
    return _fill_tensors(read_state(io.BytesIO(head.numpy().tobytes())), stream)


def _broadcast_pieces(pieces: Iterator[Tensor], group: RingGroup, root: int) -> Iterator[Tensor]:
    """Yield each piece once it has been exchanged, while the next ones are under way: the link is never idle."""
    under_way: deque[tuple[Tensor, Callable[[], None]]] = deque()
    try:
        for piece in pieces:
            under_way.append((piece, group.begin_broadcast(piece, root)))
            if len(under_way) > PIECES_UNDER_WAY:
                done, finish = under_way[0]
                finish()
                under_way.popleft()
                yield done
        while under_way:
            done, finish = under_way[0]
            finish()
            under_way.popleft()
            yield done
    except BaseException:
        keep_for_ever(under_way)  # the group may still read and write them
        raise


def _tensor_bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _byte_pieces(tensors: list[Tensor], max_bytes: int) -> Iterator[Tensor]:
    """Yield the bytes of tensors in pieces of one size, the last one smaller."""
    left = sum(_tensor_bytes(tensor) for tensor in tensors)
    piece, filled = torch.empty(min(left, max_bytes), dtype=torch.uint8), 0
    for tensor in (tensor for tensor in tensors if tensor.numel()):
        flat = tensor.detach().reshape(-1).cpu()
        # Of a single number any stride counts as contiguous, but only this one can be viewed as bytes.
        flat = (flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)).view(torch.uint8)
        while flat.numel():
            part = flat[: piece.numel() - filled]
            piece[filled : filled + part.numel()] = part
            filled, flat = filled + part.numel(), flat[part.numel() :]
            if filled == piece.numel():
                yield piece
                left -= filled
                # A piece that was sent may still be read if the exchange is aborted.
                piece, filled = torch.empty(min(left, max_bytes), dtype=torch.uint8), 0


def _fill_tensors(tree: Any, stream: Tensor) -> Any:
    """Return a tree whose tensors, which have only shapes, are filled from a stream of bytes, in order."""
    at = 0

    def filled(empty: Tensor) -> Tensor:
        nonlocal at
        # `empty_like` of a tensor without numbers imports a library of algebra, half a second.
        tensor = torch.empty_strided(empty.shape, empty.stride(), dtype=empty.dtype)
        flat = torch.empty(empty.shape, dtype=empty.dtype).reshape(-1)
        size = _tensor_bytes(flat)
        if size:
            flat.view(torch.uint8).copy_(stream[at : at + size])
            tensor.copy_(flat.view(empty.shape))
        at += size
        return tensor

    return tree_map_only(Tensor, filled, tree)


# Plain values


def plain_state(state: Any, where: str = "state") -> Any:
    """Return a state with NumPy's numbers as Python's, and subclasses of dicts, lists and the like as these.

    Args:
        state: Its tensors are not copied.
        where: Its name in errors.

    Raises:
        InputError: If it holds anything else, naming the place.
    """
    try:
        return _plain_value(state, where)
    except RecursionError as error:
        raise InputError(f"{where} holds itself, or is nested too deep", KEEP_PLAIN) from error


def _plain_value(value: Any, where: str) -> Any:
    if isinstance(value, Tensor):
        return _plain_tensor(value, where)
    if isinstance(value, np.ndarray):
        return _plain_array(value, where)
    if isinstance(value, dict):
        return _plain_dict(value, where)
    if isinstance(value, list | tuple):
        kind = list if isinstance(value, list) else tuple
        return kind(_plain_value(part, f"{where}[{at}]") for at, part in enumerate(value))
    if isinstance(value, set):
        return {_plain_key(part, where) for part in value}
    return _plain_scalar(value, where)


def _plain_key(key: Any, where: str) -> Any:
    """Return a key of a dict, or a member of a set."""
    return (
        tuple(_plain_key(part, where) for part in key)
        if isinstance(key, tuple)
        else _plain_scalar(key, f"a key of {where}")
    )


def _plain_scalar(value: Any, where: str) -> Any:
    if value is None or isinstance(value, bool | np.bool_):
        return None if value is None else bool(value)
    if isinstance(value, int | np.integer):
        number = int(value)
        if number.bit_length() > MAX_INTEGER_BITS:
            problem = f"{where} is a number of {number.bit_length()} bits, which cannot be read again"
            raise InputError(problem, KEEP_PLAIN)
        return number
    if isinstance(value, str):
        return str(value)
    if isinstance(value, bytes | bytearray):
        return bytes(value) if isinstance(value, bytes) else bytearray(value)
    if isinstance(value, float | np.floating):
        return float(value)
    if isinstance(value, complex | np.complexfloating):
        return complex(value)
    if isinstance(value, torch.dtype | torch.device):
        return value
    problem = f"{where} is of type {type(value).__name__}, which can neither be saved nor sent to others"
    raise InputError(problem, KEEP_PLAIN)


def _plain_tensor(tensor: Tensor, where: str) -> Tensor:
    odd = None if type(tensor) in TENSORS else type(tensor).__name__
    if tensor.layout is not torch.strided or tensor.is_quantized or tensor.is_meta or tensor.is_nested:
        odd = str(tensor.device if tensor.is_meta else tensor.dtype if tensor.is_quantized else tensor.layout)
    if odd is not None:
        problem = f"{where} is a tensor of {odd}, which can neither be saved nor sent to others"
        raise InputError(problem, KEEP_PLAIN)
    return tensor.detach().resolve_conj().resolve_neg()


def _plain_array(array: np.ndarray[Any, Any], where: str) -> np.ndarray[Any, Any]:
    if type(array) is not np.ndarray or array.dtype.kind not in "biufc":
        problem = f"{where} is a {type(array).__name__} of {array.dtype}, which can neither be saved nor sent to others"
        raise InputError(problem, KEEP_PLAIN)
    return array


def _plain_dict(values: Mapping[Any, Any], where: str) -> Any:
    pairs = [(_plain_key(key, where), _plain_value(value, f"{where}[{key!r}]")) for key, value in values.items()]
    if isinstance(values, Counter):
        return Counter(dict(pairs))
    if not isinstance(values, OrderedDict):
        return dict(pairs)
    found = OrderedDict(pairs)
    if hasattr(values, "_metadata"):  # of a module's state: the versions of its parts
        vars(found)["_metadata"] = _plain_value(values._metadata, f"{where}._metadata")
    return found


# Files

KEPT_RING_CHECKPOINTS = 3  # the newest ones are not removed
_NAME_PATTERN = r"step-\d+-g\d+-m\d+\.pt"
_RING_CHECKPOINT_NAME = re.compile(_NAME_PATTERN)
_RING_DRAFT_NAME = re.compile(rf"\.{_NAME_PATTERN}\.draft")


def write_state(state: Any, file: IO[bytes]) -> None:
    """Write a state so that `read_state` can read it.

    Raises:
        InputError: If it could not be read again; nothing is written.
        OSError: If it cannot be written.
        RuntimeError: The same, from PyTorch.
    """
    torch.save(plain_state(state), file)


def read_state(source: Path | IO[bytes]) -> Any:
    """Return a state, its tensors on the CPU.

    Args:
        source: A file.

    Raises:
        Exception: Any that PyTorch raises for a file that has no state.
    """
    with torch.serialization.safe_globals(_SAFE_GLOBALS):
        return torch.load(source, map_location="cpu", weights_only=True)


def write_checkpoint(folder: Path, client: MemberClient, state: dict[str, Any], mark: str) -> Path | None:
    """Write a checkpoint.

    Args:
        folder: To write to.
        client: That permits it.
        state: Of the ring.
        mark: Generation and member, for the name.

    Returns:
        The file; None if this member has a backup by now.

    Raises:
        InputError: If the state could not be read again.
        OSError: If it cannot be written.
    """
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"step-{client.step:09d}-{mark}.pt"
    draft = folder / f".{path.name}.draft"
    try:
        with draft.open("wb") as file:
            write_state(state, file)
            file.flush()
            os.fsync(file.fileno())
    except BaseException:
        draft.unlink(missing_ok=True)  # it may fill the disk
        raise
    if not client.request_save():
        draft.unlink(missing_ok=True)
        if client.is_relieved:
            return None
        end_process(GONE_STATUS, "a checkpoint was refused: this process has no seat")
    draft.rename(path)
    drafts = _sorted_files(folder, ".step-*.pt.draft", _RING_DRAFT_NAME)
    # Of members that were killed while they wrote: no process writes one of an earlier step any more.
    left = [draft for draft in drafts if _name_numbers(draft) < _name_numbers(path)]
    for old in (*_sorted_files(folder, "step-*.pt", _RING_CHECKPOINT_NAME)[:-KEPT_RING_CHECKPOINTS], *left):
        old.unlink(missing_ok=True)
    return path


class NewestCheckpoint(NamedTuple):
    """The newest checkpoint of a folder."""

    path: Path
    before: Path | None  # the one that was written before it

    @property
    def step(self) -> int:
        """Steps that its state has seen, by its name."""
        return _name_numbers(self.path)[0]

    def read(self) -> dict[str, Any]:
        """Return its state.

        Raises:
            InputError: If it cannot be read.
        """
        try:
            state: dict[str, Any] = read_state(self.path)
        except OSError as error:
            raise self.error_about(f"the checkpoint cannot be read: {error.strerror or error}") from error
        except (RuntimeError, pickle.UnpicklingError, EOFError, KeyError, TypeError, ValueError) as error:
            raise self.error_about("it is no checkpoint of a ring") from error
        return state

    def error_about(self, text: str) -> InputError:
        """Return an error about it; the fix that it names loses nothing that was written."""
        older = "" if self.before is None else f", or move it elsewhere to continue from {self.before.name}"
        return InputError(text, f"name another folder to begin again{older}", path=self.path)


def find_newest_checkpoint(folder: Path) -> NewestCheckpoint | None:
    """Return the newest checkpoint of a folder, None if there is none."""
    found = _sorted_files(folder, "step-*.pt", _RING_CHECKPOINT_NAME)
    return NewestCheckpoint(found[-1], found[-2] if len(found) > 1 else None) if found else None


def _sorted_files(folder: Path, pattern: str, name: re.Pattern[str]) -> list[Path]:
    """Return files of a folder by step, generation and member, the newest last."""
    return sorted((path for path in folder.glob(pattern) if name.fullmatch(path.name)), key=_name_numbers)


def _name_numbers(path: Path) -> list[int]:
    """Return step, generation and member of a checkpoint or its draft."""
    return [int(part) for part in re.findall(r"\d+", path.name)]
