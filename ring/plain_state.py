"""The state of a training as plain values: what every reader of a checkpoint takes, and every member of a ring.

A state is a tree of dicts, lists, tuples and sets of numbers, strings, bytes, tensors and NumPy's arrays. Its files are
read with `torch.load(weights_only=True)`, which runs no code of a file. What that would refuse is refused here, when it
is written.

Source: SPEC F8, K4.
"""

from collections import Counter, OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor, nn

from ..cluster.files.errors import InputError

MOST_INTEGER_BITS = 2000  # of a number that `weights_only` reads
TENSORS = (Tensor, nn.Parameter)
FIX = "keep numbers, strings, bytes, tensors, arrays of numbers, and dicts, lists, tuples and sets of them"
# What pickled arrays and empty bytes name; none of it runs code of a file.
_GLOBALS: list[Any] = [bytes, np.ndarray, np.dtype, np.zeros(0).__reduce__()[0]]
_GLOBALS += {type(np.dtype(it)) for it in np.typecodes["AllFloat"] + np.typecodes["AllInteger"] + "?"}


def plain(it: Any, where: str = "state") -> Any:
    """Return a state with NumPy's numbers as Python's, and what is derived from dicts, lists and the like as these.

    Args:
        it: The state; its tensors are not copied.
        where: What errors call it.

    Raises:
        InputError: If it holds anything else, naming the place.
    """
    try:
        return _plain(it, where)
    except RecursionError as error:
        raise InputError(f"{where} holds itself, or is nested too deep", FIX) from error


def write_state(state: Any, file: IO[bytes]) -> None:
    """Write a state so that `read_state` takes it.

    Raises:
        InputError: If it holds what could not be read again; nothing is written.
        OSError: If it cannot be written.
        RuntimeError: The same, from PyTorch.
    """
    torch.save(plain(state), file)


def read_state(source: Path | IO[bytes]) -> Any:
    """Return a state, its tensors on the CPU.

    Args:
        source: A file.

    Raises:
        Exception: Whatever PyTorch raises of a file that is none.
    """
    with torch.serialization.safe_globals(_GLOBALS):
        return torch.load(source, map_location="cpu", weights_only=True)


def _plain(it: Any, where: str) -> Any:
    if isinstance(it, Tensor):
        return _tensor(it, where)
    if isinstance(it, np.ndarray):
        return _array(it, where)
    if isinstance(it, dict):
        return _dict(it, where)
    if isinstance(it, list | tuple):
        kind = list if isinstance(it, list) else tuple
        return kind(_plain(one, f"{where}[{at}]") for at, one in enumerate(it))
    if isinstance(it, set):
        return {_key(one, where) for one in it}
    return _value(it, where)


def _key(it: Any, where: str) -> Any:
    """Return a key of a dict, or what is in a set."""
    return tuple(_key(one, where) for one in it) if isinstance(it, tuple) else _value(it, f"a key of {where}")


def _value(it: Any, where: str) -> Any:
    if it is None or isinstance(it, bool | np.bool_):
        return None if it is None else bool(it)
    if isinstance(it, int | np.integer):
        number = int(it)
        if number.bit_length() > MOST_INTEGER_BITS:
            raise InputError(f"{where} is a number of {number.bit_length()} bits, which cannot be read again", FIX)
        return number
    if isinstance(it, str):
        return str(it)
    if isinstance(it, bytes | bytearray):
        return bytes(it) if isinstance(it, bytes) else bytearray(it)
    if isinstance(it, float | np.floating):
        return float(it)
    if isinstance(it, complex | np.complexfloating):
        return complex(it)
    if isinstance(it, torch.dtype | torch.device):
        return it
    raise InputError(f"{where} is of type {type(it).__name__}, which can neither be saved nor sent to others", FIX)


def _tensor(it: Tensor, where: str) -> Tensor:
    odd = None if type(it) in TENSORS else type(it).__name__
    if it.layout is not torch.strided or it.is_quantized or it.is_meta or it.is_nested:
        odd = str(it.device if it.is_meta else it.dtype if it.is_quantized else it.layout)
    if odd is not None:
        raise InputError(f"{where} is a tensor of {odd}, which can neither be saved nor sent to others", FIX)
    return it.detach().resolve_conj().resolve_neg()


def _array(it: np.ndarray[Any, Any], where: str) -> np.ndarray[Any, Any]:
    if type(it) is not np.ndarray or it.dtype.kind not in "biufc":
        problem = f"{where} is a {type(it).__name__} of {it.dtype}, which can neither be saved nor sent to others"
        raise InputError(problem, FIX)
    return it


def _dict(it: Mapping[Any, Any], where: str) -> Any:
    pairs = [(_key(key, where), _plain(value, f"{where}[{key!r}]")) for key, value in it.items()]
    if isinstance(it, Counter):
        return Counter(dict(pairs))
    if not isinstance(it, OrderedDict):
        return dict(pairs)
    found = OrderedDict(pairs)
    if hasattr(it, "_metadata"):  # of a module's state: the versions of its parts
        vars(found)["_metadata"] = _plain(it._metadata, f"{where}._metadata")
    return found
