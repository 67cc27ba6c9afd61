"""The copy of state from one member to others, over a group that is only memory."""

from collections import OrderedDict, deque
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from longshore.cluster.files.errors import InputError
from longshore.ring import state
from longshore.ring.groups import LinkError
from tests.states import same, trees


class Sender:
    """Records what is broadcast."""

    endpoints: list[str] = []  # noqa: RUF012
    rank, size = 0, 2

    def __init__(self) -> None:
        self.sent: deque[Tensor] = deque()

    def sum(self, tensor: Tensor) -> None:
        raise AssertionError

    def broadcast(self, tensor: Tensor, root: int) -> None:
        self.sent.append(tensor.clone())

    def begin_broadcast(self, tensor: Tensor, root: int) -> Callable[[], None]:
        self.broadcast(tensor, root)
        return lambda: None

    def close(self) -> None:
        raise AssertionError


class Receiver(Sender):
    """Returns what was broadcast, in order."""

    def __init__(self, sent: deque[Tensor]) -> None:
        self.sent = sent

    def broadcast(self, tensor: Tensor, root: int) -> None:
        tensor.copy_(self.sent.popleft())


@given(trees, st.integers(1, 50))
def test_what_is_received_is_what_was_sent(tree: Any, piece_bytes: int) -> None:
    before, state.COPY_PIECE_BYTES = state.COPY_PIECE_BYTES, piece_bytes
    try:
        sender = Sender()
        state.send_state(tree, sender, 0)
        found = state.receive_state(Receiver(sender.sent), 0)
    finally:
        state.COPY_PIECE_BYTES = before
    assert same(found, tree)
    assert not sender.sent


@given(trees, st.data())
def test_a_copy_with_one_other_bit_is_refused_by_all(tree: Any, data: st.DataObject) -> None:
    sender = Sender()
    state.send_state([tree, torch.ones(3)], sender, 0)
    at = data.draw(st.integers(1, len(sender.sent) - 1))
    bit = data.draw(st.integers(0, 8 * sender.sent[at].numel() - 1))
    sender.sent[at][bit // 8] ^= 1 << bit % 8
    with pytest.raises(LinkError, match="SHA-256"):
        state.receive_state(Receiver(sender.sent), 0)


@pytest.mark.parametrize("odd", [object(), lambda: 0, torch.eye(2).to_sparse()])
def test_a_state_that_cannot_be_copied_names_the_place(odd: object) -> None:
    with pytest.raises(InputError, match=r"state\['kept'\]\['sampler'\]\[1\] is "):
        state.send_state({"kept": OrderedDict(sampler=[1, odd])}, Sender(), 0)


def test_a_model_of_other_shapes_is_named() -> None:
    model = torch.nn.Linear(2, 3)
    with pytest.raises(ValueError, match=r"differs from the ring's in bias, weight"):
        state.load_model_state(model, state.model_state(torch.nn.Linear(3, 4)))


def test_random_numbers_go_on_where_they_were() -> None:
    import random

    def draw() -> list[float]:
        return [random.random(), float(np.random.rand()), float(torch.rand(()))]  # noqa: NPY002

    before = state.random_state()
    first = draw()
    state.set_random_state(before)
    assert draw() == first
