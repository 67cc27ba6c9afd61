"""The state of a ring's member as numbers and tensors, and its copy from one member to others.

State is a tree of dicts, lists, tuples, plain values and tensors. It is copied as a head (JSON) and one stream of
bytes, in pieces, with its SHA-256 behind it. Nothing is taken over before all is there and the digest is right.
Source: SPEC F8.
"""

import hashlib
import json
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor

from .groups import Group, LinkError, keep_for_ever

PIECE_BYTES = 2 << 20  # small, so that both sides compute the digest of a piece while others are under way
AHEAD = 3  # pieces under way


class HasState(Protocol):
    """Something whose state goes along, such as a learning-rate schedule or the sampler of a data set."""

    def state_dict(self) -> dict[str, Any]:
        """Return its state."""

    def load_state_dict(self, state: dict[str, Any]) -> object:
        """Take a state over."""


class Copied(NamedTuple):
    """What was received."""

    state: Any
    digest: str


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
    """Let the random numbers go on from a state."""
    random.setstate(state["python"])
    name, keys, at, has_gauss, gauss = state["numpy"]
    np.random.set_state((name, keys.numpy().astype(np.uint32), at, has_gauss, gauss))  # noqa: NPY002
    torch.set_rng_state(state["torch"])
    if "cuda" in state and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        torch.cuda.set_rng_state(state["cuda"])


def model_state(model: torch.nn.Module) -> dict[str, Tensor]:
    """Return a model's parameters and buffers, also those buffers that its state_dict leaves out."""
    return {name: it.detach() for name, it in (*model.named_parameters(), *model.named_buffers())}


def load_model(model: torch.nn.Module, state: Mapping[str, Tensor]) -> None:
    """Take over parameters and buffers, in place.

    Raises:
        ValueError: If the model is another one.
    """
    own = model_state(model)
    shapes = {name: (tuple(it.shape), it.dtype) for name, it in own.items()}
    given = {name: (tuple(it.shape), it.dtype) for name, it in state.items()}
    if shapes != given:
        odd = sorted(name for name in shapes.keys() | given.keys() if shapes.get(name) != given.get(name))
        raise ValueError(f"this member's model differs from the ring's in {', '.join(odd[:5])}")
    with torch.no_grad():
        for name, tensor in own.items():
            tensor.copy_(state[name])


def send_state(state: Any, group: Group, root: int) -> str:
    """Give a state to the other members of a group, and return its digest.

    Raises:
        TypeError: If it holds something that cannot be copied.
        AbortedError: If the ring is formed anew.
        LinkError: If an exchange fails.
    """
    tensors: list[Tensor] = []
    head = json.dumps(_pack(state, tensors, "state")).encode()
    digest = hashlib.sha256(head)
    group.broadcast(torch.tensor([len(head), sum(_bytes(it) for it in tensors)]), root)
    group.broadcast(torch.frombuffer(bytearray(head), dtype=torch.uint8), root)
    for piece in _ahead(_pieces(tensors, PIECE_BYTES), group, root):
        digest.update(piece.numpy().data)
    group.broadcast(torch.frombuffer(bytearray(digest.digest()), dtype=torch.uint8), root)
    return digest.hexdigest()


def receive_state(group: Group, root: int) -> Copied:
    """Take a state over.

    Args:
        group: The member that gives, and all that take.
        root: Rank of the member that gives.

    Returns:
        The state, of tensors on the CPU, and its digest.

    Raises:
        AbortedError: If the ring is formed anew.
        LinkError: If an exchange fails, or other bytes came than were sent.
    """
    sizes = torch.zeros(2, dtype=torch.int64)
    group.broadcast(sizes, root)
    head_bytes, left = (int(it) for it in sizes)
    head = torch.empty(head_bytes, dtype=torch.uint8)
    group.broadcast(head, root)
    digest = hashlib.sha256(head.numpy().data)
    stream = torch.empty(left, dtype=torch.uint8)
    for piece in _ahead(iter(torch.split(stream, PIECE_BYTES) if left else ()), group, root):
        digest.update(piece.numpy().data)
    told = torch.empty(digest.digest_size, dtype=torch.uint8)
    group.broadcast(told, root)
    if bytes(told.numpy()) != digest.digest():
        raise LinkError(f"the copied state has SHA-256 {digest.hexdigest()}, and {bytes(told.numpy()).hex()} was sent")
    return Copied(_unpack(json.loads(bytes(head.numpy())), _Reader(stream)), digest.hexdigest())


def _ahead(pieces: Iterator[Tensor], group: Group, root: int) -> Iterator[Tensor]:
    """Yield each piece once it has been exchanged, while the next ones are under way: the link is never idle."""
    under_way: deque[tuple[Tensor, Callable[[], None]]] = deque()
    try:
        for piece in pieces:
            under_way.append((piece, group.begin_broadcast(piece, root)))
            if len(under_way) > AHEAD:
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


def _bytes(tensor: Tensor) -> int:
    return tensor.numel() * tensor.element_size()


def _pieces(tensors: list[Tensor], most_bytes: int) -> Iterator[Tensor]:
    """Yield the bytes of tensors in pieces of one size, the last one smaller."""
    left = sum(_bytes(it) for it in tensors)
    piece, filled = torch.empty(min(left, most_bytes), dtype=torch.uint8), 0
    for tensor in (it for it in tensors if it.numel()):
        flat = tensor.detach().reshape(-1).cpu().contiguous().view(torch.uint8)
        while flat.numel():
            part = flat[: piece.numel() - filled]
            piece[filled : filled + part.numel()] = part
            filled, flat = filled + part.numel(), flat[part.numel() :]
            if filled == piece.numel():
                yield piece
                left -= filled
                # A piece that was sent may still be read if the exchange is given up.
                piece, filled = torch.empty(min(left, most_bytes), dtype=torch.uint8), 0


def _pack(it: Any, tensors: list[Tensor], where: str) -> Any:
    """Return a tree as JSON, its tensors aside."""
    if isinstance(it, Tensor):
        tensors.append(it)
        return {"tensor": [str(it.dtype).removeprefix("torch."), list(it.shape)]}
    if isinstance(it, dict):
        pairs = [[_pack(key, tensors, where), _pack(value, tensors, f"{where}[{key!r}]")] for key, value in it.items()]
        return {"dict": pairs}
    if isinstance(it, list | tuple):
        name = "list" if isinstance(it, list) else "tuple"
        return {name: [_pack(one, tensors, f"{where}[{at}]") for at, one in enumerate(it)]}
    if it is None or isinstance(it, bool | int | float | str):
        return it
    if isinstance(it, np.generic):
        return it.item()
    raise TypeError(f"{where} is of type {type(it).__name__}, which cannot be copied to another member")


class _Reader:
    """Takes tensors off a stream of bytes, in order."""

    def __init__(self, stream: Tensor) -> None:
        self._stream, self._at = stream, 0

    def take(self, kind: str, shape: list[int]) -> Tensor:
        dtype = getattr(torch, kind)
        tensor = torch.empty(shape, dtype=dtype)
        size = _bytes(tensor)
        if size:
            tensor.reshape(-1).view(torch.uint8).copy_(self._stream[self._at : self._at + size])
        self._at += size
        return tensor


def _unpack(it: Any, reader: _Reader) -> Any:
    if not isinstance(it, dict):
        return it
    ((kind, content),) = it.items()
    if kind == "tensor":
        return reader.take(*content)
    if kind == "dict":
        # A key may be a tuple, but not a list or a dict.
        return {_unpack(key, reader): _unpack(value, reader) for key, value in content}
    parts = [_unpack(one, reader) for one in content]
    return tuple(parts) if kind == "tuple" else parts
