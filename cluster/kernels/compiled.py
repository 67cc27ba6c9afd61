"""How Longshore's kernels are compiled."""

from collections.abc import Callable, Mapping, Sequence
from dis import get_instructions
from typing import Any, TypeVar, cast

import numba
from numba.core import event
from numba.core.compiler_lock import global_compiler_lock
from numba.core.dispatcher import _FunctionCompiler  # type: ignore[attr-defined]
from numba.core.registry import CPUDispatcher
from numba.core.sigutils import normalize_signature
from numba.core.types import Type, int8, int16, int32, int64, unliteral
from numba.core.typing.templates import make_concrete_template

from .kept import EntryCache, alone, has_source
from .parts import KERNELS, Part, PartCache, PartCompiler, part_of

# _nrt: nothing is allocated in a kernel, so nothing need be counted (docs/decisions/0001)
OPTIONS = {"nopython": True, "error_model": "numpy", "_nrt": False, "nogil": True}
PART_OPTIONS = OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
PART = "part"  # among what an event tells: what kernels call is compiled, not what Python calls
COMPILES = "numba:compile"  # what Numba calls it, in `numba.core.event`
NARROW = (int8, int16, int32)
Function = TypeVar("Function", bound=Callable[..., object])


def kernel(function: Function) -> Function:
    """Compile a function on its first call, and keep the code for later runs."""
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return function
    return cast("Function", Kernel(function))


_Dispatcher: Any = CPUDispatcher  # whose types tell only half of what it has


class Kernel(_Dispatcher):  # type: ignore[misc]
    """A compiled function. What Python calls is a program of its own; what kernels call is a part of theirs.

    Whole numbers are taken as int64, and numbers written in the source as any number of their type: Numba would compile
    a function anew for each, which nearly doubled the time of a first use, and no kernel ran slower without it.

    Args:
        function: What is compiled.
    """

    def __init__(
        self, function: Callable[..., object], *_: object
    ) -> None:  # Numba's own has more, of which we use none
        super().__init__(function, {}, OPTIONS)
        self.key = f"{function.__module__}:{function.__qualname__}:{function.__code__.co_firstlineno}"
        self._parts: dict[tuple[Type, ...], Part] = {}
        self._compiler_of_parts = _FunctionCompiler(function, self.targetdescr, PART_OPTIONS, {}, PartCompiler)
        self._cache_of_parts: Any = None  # a PartCache
        if has_source(function):
            self._cache = EntryCache(function)  # type: ignore[no-untyped-call]
            self._cache_of_parts = PartCache(function)  # type: ignore[no-untyped-call]
        KERNELS[self.key] = self

    def compile(self, sig: Any) -> Any:
        """Return what Python calls with arguments of such types."""
        types = tuple(normalize_signature(sig)[0])
        wide = tuple(map(_widened, types))
        entry = self._entry(wide)
        if wide != types and types not in self.overloads:
            self._insert([it._code for it in types], entry, objectmode=False)  # which converts what it is given
        return entry

    def _entry(self, types: tuple[Type, ...]) -> Any:
        if types in self.overloads:
            return self.overloads[types].entry_point
        with global_compiler_lock:
            kept: Any = self._cache.load_overload(types, self.targetctx)
            if kept is not None:
                self.add_overload(kept)
                return kept.entry_point
            with alone(f"{self.key} {types}"):
                return super().compile(types)

    def get_call_template(
        self, args: Sequence[Type], kws: Mapping[str, Type]
    ) -> tuple[Any, Any, tuple[Type, ...], Any]:
        """Return how a kernel calls this one, as Numba asks for it."""
        signature, args = self._compiler.fold_argument_types(args, kws)
        types = tuple(map(_widened, args))
        name = self.py_func.__name__
        return make_concrete_template(f"part {name}", name, [self.part(types).signature]), signature, types, {}

    def get_overload(self, sig: Any) -> Part:
        """Return what Numba knows the code by that a kernel calls."""
        return self.part(tuple(normalize_signature(sig)[0]))

    def part(self, types: tuple[Type, ...]) -> Part:
        """Return what kernels call with arguments of such types, which are wide."""
        part = self._part(types, waits=True)
        assert part is not None
        return part

    def part_if_free(self, types: tuple[Type, ...]) -> bool:
        """Compile what kernels call with arguments of such types, which are wide, unless another process is at it.

        Returns:
            Whether it is compiled now.
        """
        return self._part(types, waits=False) is not None

    def callees(self) -> list["Kernel"]:
        """Return the kernels that it names, and so may call."""
        names = dict.fromkeys(it.argval for it in get_instructions(self.py_func) if it.opname == "LOAD_GLOBAL")
        return [found for name in names if isinstance(found := self.py_func.__globals__.get(name), Kernel)]

    def _part(self, types: tuple[Type, ...], *, waits: bool) -> Part | None:
        if types in self._parts:
            return self._parts[types]
        with global_compiler_lock:
            part = self._kept_part(types)
            if part is None:
                with alone(f"part {self.key} {types}", waits=waits) as free:
                    if not free:
                        return None
                    part = self._kept_part(types) or self._compiled_part(types)
            self._parts[types] = part
            self.targetctx.insert_user_function(part, part.descriptor, part.libraries)
        return part

    def _kept_part(self, types: tuple[Type, ...]) -> Part | None:
        cache = self._cache_of_parts
        return None if cache is None else cast("Part | None", cache.load_overload(types, self.targetctx))

    def _compiled_part(self, types: tuple[Type, ...]) -> Part:
        data = {"dispatcher": self, "args": types, "return_type": None, PART: True}
        with self._compiling_counter, event.trigger_event(COMPILES, data=data):
            part = part_of(self.key, self._compiler_of_parts.compile(types, None))
        if self._cache_of_parts is not None:
            self._cache_of_parts.save_overload(types, part)
        return part


def _widened(type_: Type) -> Type:
    """Return the type that a kernel takes an argument as."""
    plain = unliteral(type_)
    return int64 if plain in NARROW else plain
