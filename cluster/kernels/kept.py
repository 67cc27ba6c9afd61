"""Where compiled code is kept between runs, and that no two processes compile the same."""

import fcntl
import hashlib
import inspect
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, ClassVar, Self

import numba
from numba.core import caching
from numba.core.registry import cpu_target

from ..files.plugins import is_ours, registered

PACKAGE = Path(__file__).absolute().parents[2]
COMPILED_SEAMS = ("rewards",)  # whose kernels are called by ours, which are compiled with them
MAX_WAIT_S, POLL_S = 300.0, 0.01  # for another process that compiles the same; then it is taken to be stopped


def _plugin_kernel_texts() -> Iterator[bytes]:
    """Yield what identifies the kernels that other packages add to ours: their names, and the text of the packages.

    An editable install changes without a new version. Nothing is imported for that.
    """
    for seam in COMPILED_SEAMS:
        for name, point in registered(seam).items():
            if is_ours(point):
                continue
            yield f"{seam} {name} {point.value} {point.dist and point.dist.version}".encode()
            with suppress(Exception):  # the error is raised where the package is used
                yield from _source_texts_of(point.module.partition(".")[0])


def _source_texts_of(package: str) -> Iterator[bytes]:
    spec = find_spec(package)
    if spec is None:
        return
    folders = [Path(cache_folder) for cache_folder in spec.submodule_search_locations or ()]
    files = [path for cache_folder in folders for path in cache_folder.rglob("*.py")] or [Path(spec.origin or "")]
    for path in sorted(files):
        yield path.read_bytes()


def _cache_home() -> Path:
    if named := os.environ.get("XDG_CACHE_HOME"):
        return Path(named)
    try:
        return Path.home() / ".cache"
    except RuntimeError:  # neither $HOME nor a passwd entry: nothing is kept, least of all where others can write
        return Path("/nonexistent")


@cache
def cache_folder() -> Path:
    """Return the folder for this exact state of the sources, which is no part of the key of Numba's own cache.

    It need not exist. Not through the environment: a child started after an upgrade must find its own folder.
    """
    digest = hashlib.sha256(numba.__version__.encode())
    for room in ("agents", "cluster", "envs"):  # the rooms with kernels
        for path in sorted((PACKAGE / room).rglob("*.py")):
            digest.update(path.read_bytes())
    for text in _plugin_kernel_texts():
        digest.update(text)
    base = os.environ.get("NUMBA_CACHE_DIR") or Path(_cache_home(), "longshore", "kernels")
    return Path(base).absolute() / digest.hexdigest()[:16]


@cache
def can_be_kept() -> bool:
    """Return whether code that is compiled now can be kept for later runs; what was kept before is used in any case."""
    with suppress(OSError):
        cache_folder().mkdir(parents=True, exist_ok=True)
    return os.access(cache_folder(), os.W_OK | os.X_OK)


@cache
def processor_id() -> str:
    """Return an id of the processor, for which compiled code may differ."""
    return hashlib.sha256(repr(cpu_target.target_context.codegen().magic_tuple()).encode()).hexdigest()[:16]


@cache
def _digest_of(path: str) -> bytes:
    return hashlib.sha256(Path(path).read_bytes()).digest()


class Locator(caching._CacheLocator):
    """Keeps the code of a function in the folder, which need not be writable for reading."""

    def __init__(self, function: Any, path: str) -> None:
        self._py_file = path  # Numba's own messages name it
        self._line = function.__code__.co_firstlineno

    @classmethod
    def from_function(cls, function: Any, path: str) -> Self:
        """Return the place for the code of a function of a file."""
        return cls(function, path)

    def get_cache_path(self) -> str:
        """Return the folder for all functions of the file's folder; of ours, the same wherever we are installed."""
        parent = Path(self._py_file).absolute().parent
        if parent.is_relative_to(PACKAGE):
            return str(cache_folder() / "longshore" / parent.relative_to(PACKAGE))
        return str(cache_folder() / self.get_suitable_cache_subpath(self._py_file))  # type: ignore[no-untyped-call]

    def get_source_stamp(self) -> bytes:
        """Return an id of the file's content, not its time, which an image for containers does not keep."""
        return _digest_of(self._py_file)

    def get_disambiguator(self) -> str:
        """Return the line, by which functions of one name in a file differ."""
        return str(self._line)


class ErrorTolerantCache:
    """Mixin for caches of Numba: what cannot be read or written is not kept, and no error."""

    def load_overload(self, signature: Any, context: Any) -> Any:
        """Return the code for a signature, None if there is none that can be used."""
        with suppress(OSError, EOFError, UnpicklingError):
            return super().load_overload(signature, context)  # type: ignore[misc]
        return None

    def save_overload(self, signature: Any, data: Any) -> None:
        """Keep the code for a signature."""
        if can_be_kept():
            with suppress(OSError):  # a full disk
                super().save_overload(signature, data)  # type: ignore[misc]


class _EntryImplementation(caching.CompileResultCacheImpl):
    _locator_classes: ClassVar = [Locator]  # type: ignore[misc]


class EntryCache(ErrorTolerantCache, caching.FunctionCache):
    """Keeps the machine code of what Python calls."""

    _impl_class = _EntryImplementation


def has_source(function: Any) -> bool:
    """Return whether a function is of a file, so that it can be known again."""
    return Path(inspect.getfile(function)).is_file()


@contextmanager
def by_one_process(work_name: str, *, waits: bool = True) -> Iterator[bool]:
    """Let one process at a time do something; yields False, without waiting, where another one does it.

    Where nothing can be kept, or the file system has no locks, all do it.

    Args:
        work_name: Name of the work.
        waits: Whether to wait until no other process does it.
    """
    descriptor = _open_lock_file(work_name)
    if descriptor is None:
        yield True
        return
    try:
        yield _take_lock(descriptor, MAX_WAIT_S if waits else 0.0) or waits
    finally:
        os.close(descriptor)  # which gives the lock back, as the end of a process does


def _open_lock_file(work_name: str) -> int | None:
    if not can_be_kept():
        return None
    path = cache_folder() / "locks" / hashlib.sha256(work_name.encode()).hexdigest()[:24]
    try:
        path.parent.mkdir(exist_ok=True)
        return os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    except OSError:
        return None


def _take_lock(descriptor: int, wait_s: float) -> bool:
    until = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
            time.sleep(POLL_S)
        except OSError:  # there are no locks here
            return True
        else:
            return True
