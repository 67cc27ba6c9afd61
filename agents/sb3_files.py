"""Reads what Stable-Baselines3 has saved without unpickling anything: the file may be hostile.

Reading weights that `torch.save` wrote, without unpickling: a file can say numbers and their shapes, and no more.

Of pickle only what a dict of tensors takes is understood. Names of functions are compared and never looked up.
"""

import io
import json
import math
import pickletools
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.files.errors import CheckpointError
from .learned.archive import read_file, stored_entries

MOST_PICKLE_BYTES = 1 << 18  # of names and shapes; a tensor takes 160
MOST_TENSOR_ENTRIES = 5000
MOST_AXES = 4
STORAGES = {"FloatStorage": "<f4", "DoubleStorage": "<f8", "HalfStorage": "<f2"}
DICT, TENSOR = "collections OrderedDict", "torch._utils _rebuild_tensor_v2"
LITERALS = {
    "BININT", "BININT1", "BININT2", "LONG1", "BINUNICODE", "SHORT_BINUNICODE", "NEWTRUE", "NEWFALSE", "NONE",
}  # fmt: skip
CONSTANTS = {"NEWTRUE": True, "NEWFALSE": False, "NONE": None}
TUPLES = {"EMPTY_TUPLE": 0, "TUPLE1": 1, "TUPLE2": 2, "TUPLE3": 3}


class _Name(NamedTuple):
    """A module and what is taken of it."""

    text: str


class _Storage(NamedTuple):
    """Numbers in an entry of their own."""

    dtype: str
    key: str


def weights_in(content: bytes) -> dict[str, NDArray[np.float32]]:
    """Return the tensors of a file that `torch.save` wrote of a state dict, by name.

    Raises:
        ValueError: If it is anything else. Together they take no more memory than twice the file.
        zipfile.BadZipFile: If it is damaged.
    """
    entries = stored_entries(content, MOST_TENSOR_ENTRIES)
    roots = [name.removesuffix("/data.pkl") for name in entries if name.endswith("/data.pkl")]
    if len(roots) != 1 or entries.get(f"{roots[0]}/byteorder", b"little") != b"little":
        raise ValueError("it holds no weights as PyTorch saves them")
    return _Reader(entries, roots[0], len(content)).read()


class _Reader:
    """Follows the opcodes of one pickle.

    Args:
        entries: Of the archive, by name.
        root: Folder of all of them.
        most_bytes: Of all tensors together.
    """

    def __init__(self, entries: dict[str, bytes], root: str, most_bytes: int) -> None:
        self.entries, self.root, self.left_bytes = entries, root, most_bytes
        self.stack: list[Any] = []
        self.marks: list[int] = []  # where on the stack the items of a tuple or a dict begin
        self.memo: dict[int, Any] = {}

    def read(self) -> dict[str, NDArray[np.float32]]:
        """Return what is pickled."""
        pickled = self.entries[f"{self.root}/data.pkl"]
        if len(pickled) > MOST_PICKLE_BYTES:
            raise ValueError(f"its names and shapes take {len(pickled)} bytes, expected at most {MOST_PICKLE_BYTES}")
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of escapes in texts that are refused
                for opcode, argument, _ in pickletools.genops(io.BytesIO(pickled)):
                    self._step(opcode.name, argument)
            (found,) = self.stack
        except (IndexError, KeyError, TypeError, AttributeError, OverflowError) as error:
            raise ValueError("it is no pickle of a dict of tensors") from error
        if not isinstance(found, dict) or not all(isinstance(it, np.ndarray) for it in found.values()):
            raise ValueError("it is no dict of tensors")
        return found

    def _step(self, name: str, argument: Any) -> None:
        if name in LITERALS:
            self.stack.append(CONSTANTS.get(name, argument))
        elif name in TUPLES:
            count = TUPLES[name]
            values = tuple(self.stack[len(self.stack) - count :]) if count else ()
            del self.stack[len(self.stack) - count :]
            self.stack.append(values)
        elif name in ("PROTO", "FRAME", "STOP"):
            pass
        else:
            step = getattr(self, f"_{name.lower()}", None)
            if step is None:
                raise ValueError(f"it is pickled with {name}, which no dict of tensors is")
            step(argument)

    def _mark(self, _: object) -> None:
        self.marks.append(len(self.stack))

    def _empty_dict(self, _: object) -> None:
        self.stack.append({})

    def _tuple(self, _: object) -> None:
        self.stack.append(tuple(self._since_mark()))

    def _binput(self, key: int) -> None:
        self.memo[key] = self.stack[-1]

    _long_binput = _binput

    def _memoize(self, _: object) -> None:
        self.memo[len(self.memo)] = self.stack[-1]

    def _binget(self, key: int) -> None:
        self.stack.append(self.memo[key])

    _long_binget = _binget

    def _global(self, text: str) -> None:
        self.stack.append(_Name(text))

    def _stack_global(self, _: object) -> None:
        name, module = self.stack.pop(), self.stack.pop()
        self.stack.append(_Name(f"{module!s:.100} {name!s:.100}"))

    def _setitem(self, _: object) -> None:
        value, key = self.stack.pop(), self.stack.pop()
        self._set(key, value)

    def _setitems(self, _: object) -> None:
        items = self._since_mark()
        for key, value in zip(items[::2], items[1::2], strict=True):
            self._set(key, value)

    def _build(self, _: object) -> None:
        self.stack.pop()  # what PyTorch notes of the versions of modules

    def _binpersid(self, _: object) -> None:
        kind, storage, key, *_others = self.stack.pop()
        dtype = STORAGES.get(storage.text.removeprefix("torch "))
        if kind != "storage" or dtype is None or not isinstance(key, str):
            raise ValueError(f"its numbers are of {storage.text:.100}, expected floating numbers")
        self.stack.append(_Storage(dtype, key))

    def _reduce(self, _: object) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if function == _Name(DICT) and arguments == ():
            self.stack.append({})
        elif function == _Name(TENSOR):
            self.stack.append(self._tensor(*arguments[:4]))
        else:
            raise ValueError(f"it calls {function.text:.100}, which no dict of tensors does")

    def _since_mark(self) -> list[Any]:
        at = self.marks.pop()
        values = self.stack[at:]
        del self.stack[at:]
        return values

    def _set(self, key: object, value: object) -> None:
        found = self.stack[-1]
        if not isinstance(key, str) or not isinstance(found, dict):
            raise ValueError("it has a name that is no text")
        found[key] = value

    def _tensor(self, storage: object, offset: object, size: object, stride: object) -> NDArray[np.float32]:
        """Return a tensor whose numbers lie one behind the other, as those of a module do."""
        shape = _extents(size)
        contiguous = tuple(math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        if not isinstance(storage, _Storage) or type(offset) is not int or offset < 0:
            raise ValueError("a tensor is without numbers")
        if _extents(stride) != contiguous:
            raise ValueError("the numbers of a tensor do not lie one behind the other")
        width, count = np.dtype(storage.dtype).itemsize, math.prod(shape)
        self.left_bytes -= width * count
        numbers = self.entries[f"{self.root}/data/{storage.key}"]
        if self.left_bytes < 0 or width * (offset + count) > len(numbers):
            raise ValueError(f"a tensor of shape {shape} has more numbers than the file")
        found = np.frombuffer(numbers, storage.dtype, count, width * offset).reshape(shape)
        return np.array(found, dtype=np.float32)


def _extents(values: object) -> tuple[int, ...]:
    if (
        not isinstance(values, tuple)
        or len(values) > MOST_AXES
        or not all(type(it) is int and it >= 0 for it in values)
    ):
        raise ValueError("a tensor is without a shape")
    return values


DATA, WEIGHTS = "data", "policy.pth"
MOST_SAVED_ENTRIES = 16
MOST_TEXT = 1000  # letters of what is compared
MOST_DATA_BYTES = 1 << 26  # it holds the last observations of all environments, in base64

Weights = Mapping[str, NDArray[np.float32]]


class Saved(NamedTuple):
    """What a model was saved with, as far as it is plain text and numbers."""

    data: Mapping[str, Any]
    weights: Weights

    def text(self, *names: str) -> str:
        """Return what stands under a name of the data, and below it, as text in one line; "" if nothing does."""
        found: Any = self.data
        for name in names:
            found = found.get(name) if isinstance(found, Mapping) else None
        return "" if found is None else " ".join(str(found)[:MOST_TEXT].split())


def read_saved(path: Path) -> Saved:
    """Return what a file holds that `save` of a model of Stable-Baselines3 wrote.

    Raises:
        CheckpointError: If it is missing, damaged or no such file, in one line.
    """
    try:
        entries = stored_entries(read_file(path), MOST_SAVED_ENTRIES)
        if not {DATA, WEIGHTS} <= entries.keys():
            raise CheckpointError(f"{path} is no model of Stable-Baselines3: it has no {DATA} and {WEIGHTS}")
        if len(entries[DATA]) > MOST_DATA_BYTES:
            raise ValueError(f"{DATA} has {len(entries[DATA])} bytes, expected at most {MOST_DATA_BYTES}")
        data = json.loads(entries[DATA])
        if not isinstance(data, dict):
            raise ValueError(f"{DATA} is no object of JSON")
        weights = weights_in(entries[WEIGHTS])
    except FileNotFoundError as error:
        raise CheckpointError(f"{path}: there is no such file") from error
    except (OSError, ValueError, RecursionError, zipfile.BadZipFile, EOFError, RuntimeError) as error:
        message = " ".join(str(error).split())[:500]
        raise CheckpointError(f"{path} is no model of Stable-Baselines3 or is damaged: {message}") from error
    if not all(np.isfinite(array).all() for array in weights.values()):
        raise CheckpointError(f"{path}: some weights are not finite; train it again")
    return Saved(data, weights)
