"""States of trainings for tests: all that may be in one, and whether two are the same."""

from collections import Counter, OrderedDict
from typing import Any

import numpy as np
import torch
from hypothesis import strategies as st
from hypothesis.extra import numpy as arrays
from torch import Tensor

DTYPES = [np.float32, np.float64, np.int64, np.uint8, np.bool_, np.float16, np.complex64]
shapes = arrays.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=4)
numbers = st.sampled_from(DTYPES).flatmap(lambda dtype: arrays.arrays(dtype, shapes))
tensors = st.tuples(numbers, st.booleans()).map(lambda it: torch.from_numpy(np.array(it[0].T if it[1] else it[0])))
odd_tensors = st.sampled_from(
    [
        torch.zeros(2, 3, dtype=torch.bfloat16), torch.zeros(2, dtype=torch.float8_e4m3fn), torch.zeros(0, 3),
        torch.arange(24.0).reshape(1, 2, 3, 4).to(memory_format=torch.channels_last), torch.arange(9.0)[::2],
        torch.ones(3).expand(2, 3), torch.tensor([1 + 2j]).conj(), torch.nn.Parameter(torch.ones(2)),
        torch.tensor(-0.0),
    ]
)  # fmt: skip
# Any code point: a string of Python may hold halves of surrogate pairs, also both beside each other.
text = st.text(st.characters(exclude_categories=())) | st.just("\ud83d\ude00") | st.just("a folder/with \0")
plain = (
    st.none() | st.booleans() | st.integers() | st.integers(-(2**1999), 2**1999) | st.floats() | text | st.binary()
    | st.complex_numbers() | st.binary().map(bytearray) | st.sampled_from([torch.float16, torch.device("cpu")])
)  # fmt: skip
keys = text | st.integers() | st.booleans() | st.binary() | st.tuples(st.integers(), text)
trees = st.recursive(
    plain | tensors | odd_tensors | numbers | st.sets(keys),
    lambda inner: (
        st.lists(inner)
        | st.lists(inner).map(tuple)
        | st.dictionaries(keys, inner)
        | st.dictionaries(keys, inner).map(OrderedDict)
        | st.lists(st.integers(0, 3)).map(Counter)
    ),
    max_leaves=12,
)


def same(one: Any, other: Any) -> bool:
    """Whether two trees are of the same types and the same bits; a parameter counts as a tensor."""
    if isinstance(one, Tensor) or isinstance(other, Tensor):
        return (
            isinstance(one, Tensor)
            and isinstance(other, Tensor)
            and one.dtype == other.dtype
            and one.shape == other.shape
            and alike(one, other)
        )
    if type(one) is not type(other):
        return False
    if isinstance(one, np.ndarray):
        return bool(one.dtype == other.dtype and one.shape == other.shape and one.tobytes() == other.tobytes())
    if isinstance(one, dict):
        return [*map(repr, one)] == [*map(repr, other)] and all(map(same, one.values(), other.values()))
    if isinstance(one, list | tuple):
        return len(one) == len(other) and all(map(same, one, other))
    return bool(one == other) if isinstance(one, set) else repr(one) == repr(other)


def alike(one: Tensor, other: Tensor) -> bool:
    """Whether two tensors of a shape have the same bits, and strides that are as dense."""
    return bits(one) == bits(other) and (one.numel() < 2 or strides(one) == strides(other))


def bits(tensor: Tensor) -> bytes:
    copied = torch.empty(tensor.shape, dtype=tensor.dtype).copy_(tensor.detach())
    return copied.reshape(-1).view(torch.uint8).numpy().tobytes()


def strides(tensor: Tensor) -> tuple[int, ...]:
    return torch.empty_like(tensor).stride()
