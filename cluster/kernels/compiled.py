"""How Longshore's kernels are compiled: what Python calls as programs, what kernels call as parts of these.

Numba by itself optimises every kernel with all that it calls linked into it, and makes machine code of it, although the
kernel that calls it does so once more: three quarters of the time of a first use went there. A part is typed and turned
into LLVM's language, but not into machine code. The kernel that Python calls is linked with all its parts, optimised as
one program, and kept as machine code.
"""

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from dis import get_instructions
from types import FunctionType
from typing import Any, ClassVar, NamedTuple, TypeVar, cast
from weakref import WeakKeyDictionary, WeakValueDictionary

import llvmlite.binding as llvm
import numba
from numba.core import caching, compiler, event
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_lock import global_compiler_lock
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.dispatcher import Dispatcher, _FunctionCompiler  # type: ignore[attr-defined]
from numba.core.errors import UnsupportedError
from numba.core.registry import CPUDispatcher
from numba.core.sigutils import normalize_signature
from numba.core.typed_passes import AnnotateTypes
from numba.core.types import Type, int8, int16, int32, int64, unliteral
from numba.core.typing.templates import make_concrete_template

from ..files.errors import PluginError
from .kept import EntryCache, ErrorTolerantCache, Locator, by_one_process, has_source


class PartLibrary(JITCodeLibrary):
    """The code of one part, without the parts that it calls, before it is optimised."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        """Take in what it calls that is no part, and let many programs have a copy of it."""
        for library in dict.fromkeys(
            library for library in self._linking_libraries if not isinstance(library, PartLibrary)
        ):
            self._final_module.link_in(library._get_module_for_linking(), preserve=True)
        self._drop_unused()
        for function in self._final_module.functions:
            if not function.is_declaration and function.linkage == llvm.Linkage.external:
                function.linkage = "linkonce_odr"
        self._finalize_dynamic_globals()  # type: ignore[no-untyped-call]
        self._finalized = True

    def _drop_unused(self) -> None:
        """Drop what would bind the code to this process, such as the addresses of the kernels that it calls."""
        passes = llvm.create_new_module_pass_manager()
        passes.add_sroa_pass()
        passes.add_dead_code_elimination_pass()
        passes.add_global_dead_code_eliminate_pass()
        options = llvm.create_pipeline_tuning_options(speed_level=1)
        passes.run(self._final_module, llvm.create_pass_builder(self._codegen._tm, options))

    def _get_module_for_linking(self) -> Any:
        self._ensure_finalized()  # type: ignore[no-untyped-call]
        return self._final_module

    @classmethod
    def of_bitcode(cls, codegen: Any, name: str, code: bytes) -> "PartLibrary":
        """Return a library that was kept."""
        library = cls(codegen, name)
        library._final_module = llvm.parse_bitcode(code)
        library._finalized = True
        return library


@register_pass(mutates_CFG=True, analysis_only=False)
class _IntoPart(LoweringPass):
    """Lets the pass that follows write into the library of a part, and make no machine code of it."""

    _name = "longshore_into_part"

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # which is abstract  # type: ignore[no-untyped-call]

    def run_pass(self, state: Any) -> bool:
        """Prepare the state."""
        if "<locals>" not in state.func_id.func_qualname:  # else it counts how many functions this process compiled
            state.func_id.unique_id = state.func_id.firstlineno
        state.library = PartLibrary(state.targetctx.codegen(), state.func_id.func_qualname)  # type: ignore[no-untyped-call]
        state.flags.no_compile = True
        return False


class PartCompiler(compiler.CompilerBase):
    """Numba's own passes, up to the code of a part."""

    def define_pipelines(self) -> list[Any]:
        """Return the one series of passes."""
        passes = compiler.DefaultPassBuilder.define_nopython_pipeline(self.state, "longshore part")
        passes.add_pass_after(_IntoPart, AnnotateTypes)
        passes.finalize()
        return [passes]


@dataclass(frozen=True, eq=False, slots=True)
class KernelPart:
    """A kernel for some types of arguments, as others call it."""

    kernel: str  # its key
    signature: Any
    descriptor: Any  # Numba's, of the function in the library
    library: PartLibrary
    called: "tuple[KernelPart, ...]"  # all that it calls, and what those call

    @property
    def libraries(self) -> tuple[PartLibrary, ...]:
        """What a program that calls it is linked with."""
        return (self.library, *(part.library for part in self.called))

    @property
    def codegen(self) -> Any:
        """Numba's, for the key of the cache."""
        return self.library.codegen


class CalledPart(NamedTuple):
    """How a part that is kept names one that it calls."""

    kernel: str
    types: tuple[Type, ...]
    symbol: str  # of its code


def part_of_result(kernel: str, result: Any) -> KernelPart:
    """Return the part that was compiled.

    Args:
        kernel: Key of its kernel.
        result: Numba's, by `PartCompiler`.

    Raises:
        UnsupportedError: If it needs objects of Python while it runs, which nothing gives to a part.
    """
    if result.environment.consts:
        raise UnsupportedError(f"{kernel} is called by kernels and needs objects of Python, such as in its errors")
    library = result.library
    library._ensure_finalized()
    called = (
        _PARTS[library] for library in dict.fromkeys(library._linking_libraries) if isinstance(library, PartLibrary)
    )
    return _register_part(KernelPart(kernel, result.signature, result.fndesc, library, tuple(called)))


def _register_part(part: KernelPart) -> KernelPart:
    _PARTS[part.library] = part
    return part


_PARTS: WeakKeyDictionary[PartLibrary, KernelPart] = WeakKeyDictionary()
KERNELS: WeakValueDictionary[str, Any] = WeakValueDictionary()  # by key; each finds a part of its own by types


class _PartImplementation(caching.CacheImpl):
    """How parts are written and read."""

    _locator_classes: ClassVar = [Locator]  # type: ignore[misc]

    def get_filename_base(self, name: str, flags: str) -> str:
        """Return the beginning of the names of its files, other ones than for its machine code."""
        return f"part-{super().get_filename_base(name, flags)}"  # type: ignore[no-untyped-call]

    def check_cachable(self, part: KernelPart) -> bool:
        """Return whether other processes can use it: they know its callees by name, and addresses differ."""
        names = (called.kernel for called in (part, *part.called))
        return not part.library.has_dynamic_globals and not any("<locals>" in name for name in names)

    def reduce(self, part: KernelPart) -> tuple[Any, ...]:
        """Return what is written."""
        part.descriptor.typemap = part.descriptor.calltypes = None  # only lowering needs them
        called = [
            CalledPart(callee.kernel, tuple(callee.signature.args), callee.descriptor.mangled_name)
            for callee in part.called
        ]
        code = part.library._get_module_for_linking().as_bitcode()
        return part.kernel, part.signature, part.descriptor, part.library.name, code, called

    def rebuild(self, context: Any, written: tuple[Any, ...]) -> KernelPart | None:
        """Return what was written, None if what it calls is no longer what it was."""
        kernel, signature, descriptor, name, code, names = written
        called = []
        for each in names:
            found = KERNELS.get(each.kernel)
            part = found and found.part(each.types)
            if part is None or part.descriptor.mangled_name != each.symbol:
                return None
            called.append(part)
        library = PartLibrary.of_bitcode(context.codegen(), name, code)
        return _register_part(KernelPart(kernel, signature, descriptor, library, tuple(called)))


class PartCache(ErrorTolerantCache, caching.FunctionCache):
    """Keeps parts for other programs, and other processes."""

    _impl_class = _PartImplementation  # type: ignore[assignment]


# _nrt: nothing is allocated in a kernel, so nothing need be counted (docs/decisions/0001)
KERNEL_OPTIONS = {"nopython": True, "error_model": "numpy", "_nrt": False, "nogil": True}
PART_OPTIONS = KERNEL_OPTIONS | {"no_cpython_wrapper": True, "no_cfunc_wrapper": True}
PART = "part"  # key of an event's data: what kernels call is compiled, not what Python calls
COMPILES = "numba:compile"  # what Numba calls it, in `numba.core.event`
NARROW = (int8, int16, int32)
Function = TypeVar("Function", bound=Callable[..., object])


def kernel(function: Function) -> Function:
    """Compile a function on its first call, and keep the code for later runs."""
    if numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        return function
    return cast("Function", Kernel(function))


_Dispatcher: Any = CPUDispatcher  # whose types have only half of its members


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
        super().__init__(function, {}, KERNEL_OPTIONS)
        self.key = f"{function.__module__}:{function.__qualname__}:{function.__code__.co_firstlineno}"
        self._parts: dict[tuple[Type, ...], KernelPart] = {}
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
        entry = self._compiled_entry(wide)
        if wide != types and types not in self.overloads:
            self._insert(
                [type_._code for type_ in types], entry, objectmode=False
            )  # which converts what type_ is given
        return entry

    def _compiled_entry(self, types: tuple[Type, ...]) -> Any:
        if types in self.overloads:
            return self.overloads[types].entry_point
        with global_compiler_lock:
            kept: Any = self._cache.load_overload(types, self.targetctx)
            if kept is not None:
                self.add_overload(kept)
                return kept.entry_point
            with by_one_process(f"{self.key} {types}"):
                return super().compile(types)

    def get_call_template(
        self, args: Sequence[Type], kws: Mapping[str, Type]
    ) -> tuple[Any, Any, tuple[Type, ...], Any]:
        """Return how a kernel calls this one, as Numba asks for it."""
        signature, args = self._compiler.fold_argument_types(args, kws)
        types = tuple(map(_widened, args))
        name = self.py_func.__name__
        return make_concrete_template(f"part {name}", name, [self.part(types).signature]), signature, types, {}

    def get_overload(self, sig: Any) -> KernelPart:
        """Return what Numba knows the code by that a kernel calls."""
        return self.part(tuple(normalize_signature(sig)[0]))

    def part(self, types: tuple[Type, ...]) -> KernelPart:
        """Return what kernels call with arguments of such types, which are wide."""
        part = self._part(types, waits=True)
        assert part is not None
        return part

    def compile_part_if_free(self, types: tuple[Type, ...]) -> bool:
        """Compile what kernels call with arguments of such types, which are wide, unless another process is at it.

        Returns:
            Whether it is compiled now.
        """
        return self._part(types, waits=False) is not None

    def callees(self) -> list["Kernel"]:
        """Return the kernels that it names, and so may call."""
        names = dict.fromkeys(
            instruction.argval for instruction in get_instructions(self.py_func) if instruction.opname == "LOAD_GLOBAL"
        )
        return [found for name in names if isinstance(found := self.py_func.__globals__.get(name), Kernel)]

    def _part(self, types: tuple[Type, ...], *, waits: bool) -> KernelPart | None:
        if types in self._parts:
            return self._parts[types]
        with global_compiler_lock:
            part = self._kept_part(types)
            if part is None:
                with by_one_process(f"part {self.key} {types}", waits=waits) as free:
                    if not free:
                        return None
                    part = self._kept_part(types) or self._compiled_part(types)
            self._parts[types] = part
            self.targetctx.insert_user_function(part, part.descriptor, part.libraries)
        return part

    def _kept_part(self, types: tuple[Type, ...]) -> KernelPart | None:
        cache = self._cache_of_parts
        return None if cache is None else cast("KernelPart | None", cache.load_overload(types, self.targetctx))

    def _compiled_part(self, types: tuple[Type, ...]) -> KernelPart:
        data = {"dispatcher": self, "args": types, "return_type": None, PART: True}
        with self._compiling_counter, event.trigger_event(COMPILES, data=data):
            part = part_of_result(self.key, self._compiler_of_parts.compile(types, None))
        if self._cache_of_parts is not None:
            self._cache_of_parts.save_overload(types, part)
        return part


def _widened(type_: Type) -> Type:
    """Return the type that a kernel takes an argument as."""
    plain = unliteral(type_)
    return int64 if plain in NARROW else plain


MIDDLE, LOWER, UPPER, CALLED = 0, None, None, None  # each kernel has its own: globals are constants for Numba


def _branch(number: int, *arguments: Any) -> float:
    if number < MIDDLE:
        return LOWER(number, *arguments)  # type: ignore[misc,no-any-return]
    return UPPER(number, *arguments)  # type: ignore[misc,no-any-return]


def _leaf(number: int, *arguments: Any) -> float:  # its number is all that is left
    return 1.0 * CALLED(*arguments)  # type: ignore[misc,no-any-return]


def kernel_of_numbered(choice: str, kernels: Sequence[Callable[..., float]]) -> Callable[..., float]:
    """Return a kernel that calls one of several: by its first argument, the number, with its other arguments.

    Args:
        choice: Name of the choice, another one for each: Numba keeps compiled code by it.
        kernels: At least one. Each returns a number, or a bool, which becomes 0 or 1. A number that is too large calls
            the last one.
    """
    return _dispatch_tree(choice, kernels, 0, len(kernels))


def check_kernel(called: str, function: object, arguments: int) -> None:
    """Refuse what cannot be called from our kernels: a fault would show in all of them.

    Args:
        called: What it is, for messages.
        function: What a package registers as a kernel.
        arguments: How many it must take.

    Raises:
        PluginError: With what is wrong.
    """
    if not numba.config.DISABLE_JIT and not isinstance(function, Dispatcher):  # type: ignore[attr-defined]
        raise PluginError(f"{called} is not compiled; write @kernel (longshore.cluster.kernels.compiled) above it")
    plain = getattr(function, "py_func", function)
    taken = len(inspect.signature(plain).parameters) if callable(plain) else 0
    if taken != arguments:
        raise PluginError(f"{called} takes {taken} arguments, expected {arguments}")


def _dispatch_tree(choice: str, kernels: Sequence[Callable[..., float]], first: int, end: int) -> Callable[..., float]:
    name = f"{choice}_{first}_{end}"
    if end - first == 1:
        return _kernel_with_constants(_leaf, name, CALLED=kernels[first])
    middle = (first + end) // 2
    lower, upper = _dispatch_tree(choice, kernels, first, middle), _dispatch_tree(choice, kernels, middle, end)
    return _kernel_with_constants(_branch, name, MIDDLE=middle, LOWER=lower, UPPER=upper)


def _kernel_with_constants(function: Any, name: str, **constants: object) -> Callable[..., float]:
    """Return a function as a kernel of its own, with other constants."""
    copy = FunctionType(function.__code__, {"__name__": __name__, "__builtins__": __builtins__, **constants}, name)
    copy.__qualname__ = name
    compiled: Callable[..., float] = kernel(copy)
    return compiled
