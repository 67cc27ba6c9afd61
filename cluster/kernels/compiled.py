"""How Longshore's kernels are compiled, and where compiled code is kept between runs."""

import hashlib
import os
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TypeVar

import numba
from numba.core.dispatcher import Dispatcher
from numba.core.types import Type, unliteral

from ..files.plugins import is_ours, registered

PACKAGE = Path(__file__).absolute().parents[2]
COMPILED_SEAMS = ("heuristics", "orders", "rewards")  # whose kernels are called by ours, which are compiled with them


def _strangers() -> Iterator[bytes]:
    """Return what tells apart the kernels that other packages add to ours: their names, and the text of the packages.

    An editable install changes without a new version. Nothing is imported for that.
    """
    for seam in COMPILED_SEAMS:
        for name, point in registered(seam).items():
            if is_ours(point):
                continue
            yield f"{seam} {name} {point.value} {point.dist and point.dist.version}".encode()
            with suppress(Exception):  # whoever uses it is told
                yield from _texts_of(point.module.partition(".")[0])


def _texts_of(package: str) -> Iterator[bytes]:
    spec = find_spec(package)
    if spec is None:
        return
    folders = [Path(folder) for folder in spec.submodule_search_locations or ()]
    files = [path for folder in folders for path in folder.rglob("*.py")] or [Path(spec.origin or "")]
    for path in sorted(files):
        yield path.read_bytes()


def _cache_folder() -> Path:
    """Return a folder for this exact state of the sources, which Numba's own cache does not tell apart."""
    digest = hashlib.sha256(numba.__version__.encode())
    for room in ("agents", "cluster", "envs"):  # the rooms with kernels
        for path in sorted((PACKAGE / room).rglob("*.py")):
            digest.update(path.read_bytes())
    for text in _strangers():
        digest.update(text)
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "longshore" / "kernels"
    folder = Path(os.environ.get("NUMBA_CACHE_DIR") or base) / digest.hexdigest()[:16]
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError:
        return Path(tempfile.mkdtemp(prefix="longshore-kernels-"))
    return folder


# Not through the environment: a child started after an upgrade must find its own folder.
numba.config.CACHE_DIR = str(_cache_folder())  # type: ignore[attr-defined]

Function = TypeVar("Function", bound=Callable[..., object])


def kernel(function: Function) -> Function:
    """Compile a function on its first call, and keep the code for later runs."""
    # _nrt: nothing is allocated in a kernel, so nothing need be counted (docs/decisions/0001)
    compiled: Function = numba.njit(cache=True, error_model="numpy", _nrt=False, nogil=True)(function)  # type: ignore[call-overload]
    if isinstance(compiled, Dispatcher):  # and not plain Python, as NUMBA_DISABLE_JIT asks for
        _take_literals_as_numbers(compiled)
    return compiled


def _take_literals_as_numbers(compiled: Any) -> None:
    """Let a call with a number written in the source use the code that serves every number of its type.

    Numba compiles a function anew for each number that a kernel passes to it. That nearly doubles the time of a first
    use, and no kernel ran slower without it: LLVM folds such numbers by itself where it inlines the function.
    """
    call_template = compiled.get_call_template

    def of_types(args: Sequence[Type], kws: Mapping[str, Type]) -> object:
        return call_template([unliteral(it) for it in args], {name: unliteral(it) for name, it in kws.items()})

    compiled.get_call_template = of_types
