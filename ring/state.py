"""The state of a ring's member as numbers and tensors, and its copy from one member to others.

State is a tree of plain values and tensors. It is copied as a head, which has the shapes of its tensors, and one stream
of bytes, in pieces, with its SHA-256 behind it. Nothing is taken over before all is there and the digest is right.
Source: SPEC F8.
"""

import hashlib
import io
import random
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from torch import Tensor
from torch.utils._pytree import tree_leaves, tree_map_only

from .groups import Group, LinkError, keep_for_ever
from .plain_state import plain, read_state

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
        InputError: If it holds something that cannot be copied.
        AbortedError: If the ring is formed anew.
        LinkError: If an exchange fails.
    """
    values = plain(state)
    tensors = [it for it in tree_leaves(values) if isinstance(it, Tensor)]
    written = io.BytesIO()
    torch.save(tree_map_only(Tensor, partial(torch.empty_like, device="meta"), values), written)
    head = written.getvalue()
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
    return Copied(_filled(read_state(io.BytesIO(head.numpy().tobytes())), stream), digest.hexdigest())


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
        flat = tensor.detach().reshape(-1).cpu()
        # Of a single number any stride counts as contiguous, but only this one can be seen as bytes.
        flat = (flat if flat.stride(0) == 1 else flat.clone(memory_format=torch.contiguous_format)).view(torch.uint8)
        while flat.numel():
            part = flat[: piece.numel() - filled]
            piece[filled : filled + part.numel()] = part
            filled, flat = filled + part.numel(), flat[part.numel() :]
            if filled == piece.numel():
                yield piece
                left -= filled
                # A piece that was sent may still be read if the exchange is given up.
                piece, filled = torch.empty(min(left, most_bytes), dtype=torch.uint8), 0


def _filled(tree: Any, stream: Tensor) -> Any:
    """Return a tree whose tensors, which have shapes alone, hold what a stream of bytes has for them, in order."""
    at = 0

    def filled(empty: Tensor) -> Tensor:
        nonlocal at
        # `empty_like` of what has no numbers imports a library of algebra, half a second.
        tensor = torch.empty_strided(empty.shape, empty.stride(), dtype=empty.dtype)
        flat = torch.empty(empty.shape, dtype=empty.dtype).reshape(-1)
        size = _bytes(flat)
        if size:
            flat.view(torch.uint8).copy_(stream[at : at + size])
            tensor.copy_(flat.view(empty.shape))
        at += size
        return tensor

    return tree_map_only(Tensor, filled, tree)
