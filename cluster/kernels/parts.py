"""Kernels that other kernels call: typed and turned into LLVM's language, but not into machine code.

Numba by itself optimises every kernel with all that it calls linked into it, and makes machine code of it, although the
kernel that calls it does so once more: three quarters of the time of a first use went there. A part waits for that.
The kernel that Python calls is linked with all its parts, optimised as one program, and kept as machine code.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple
from weakref import WeakKeyDictionary, WeakValueDictionary

import llvmlite.binding as llvm
from numba.core import caching, compiler
from numba.core.codegen import JITCodeLibrary
from numba.core.compiler_machinery import LoweringPass, register_pass
from numba.core.errors import UnsupportedError
from numba.core.typed_passes import AnnotateTypes
from numba.core.types import Type

from .kept import Keeping, Locator


class PartLibrary(JITCodeLibrary):
    """The code of one part, without the parts that it calls, before it is optimised."""

    def _optimize_functions(self, module: Any) -> None:
        module.data_layout = self._codegen._data_layout

    def finalize(self) -> None:
        """Take in what it calls that is no part, and let many programs have a copy of it."""
        for library in dict.fromkeys(it for it in self._linking_libraries if not isinstance(it, PartLibrary)):
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
class Part:
    """A kernel for some types of arguments, as others call it."""

    kernel: str  # its key
    signature: Any
    descriptor: Any  # Numba's, of the function in the library
    library: PartLibrary
    called: "tuple[Part, ...]"  # all that it calls, and what those call

    @property
    def libraries(self) -> tuple[PartLibrary, ...]:
        """What a program that calls it is linked with."""
        return (self.library, *(part.library for part in self.called))

    @property
    def codegen(self) -> Any:
        """Numba's, for the key of the cache."""
        return self.library.codegen


class Called(NamedTuple):
    """How a part that is kept names one that it calls."""

    kernel: str
    types: tuple[Type, ...]
    symbol: str  # of its code


def part_of(kernel: str, result: Any) -> Part:
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
    called = (_PARTS[it] for it in dict.fromkeys(library._linking_libraries) if isinstance(it, PartLibrary))
    return _noted(Part(kernel, result.signature, result.fndesc, library, tuple(called)))


def _noted(part: Part) -> Part:
    _PARTS[part.library] = part
    return part


_PARTS: WeakKeyDictionary[PartLibrary, Part] = WeakKeyDictionary()
KERNELS: WeakValueDictionary[str, Any] = WeakValueDictionary()  # by key; each finds a part of its own by types


class _Implementation(caching.CacheImpl):
    """How parts are written and read."""

    _locator_classes: ClassVar = [Locator]  # type: ignore[misc]

    def get_filename_base(self, name: str, flags: str) -> str:
        """Return the beginning of the names of its files, other ones than for its machine code."""
        return f"part-{super().get_filename_base(name, flags)}"  # type: ignore[no-untyped-call]

    def check_cachable(self, part: Part) -> bool:
        """Say whether other processes can use it: they know what it calls by name, and addresses are not the same."""
        names = (it.kernel for it in (part, *part.called))
        return not part.library.has_dynamic_globals and not any("<locals>" in name for name in names)

    def reduce(self, part: Part) -> tuple[Any, ...]:
        """Return what is written."""
        part.descriptor.typemap = part.descriptor.calltypes = None  # only lowering needs them
        called = [Called(it.kernel, tuple(it.signature.args), it.descriptor.mangled_name) for it in part.called]
        code = part.library._get_module_for_linking().as_bitcode()
        return part.kernel, part.signature, part.descriptor, part.library.name, code, called

    def rebuild(self, context: Any, written: tuple[Any, ...]) -> Part | None:
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
        return _noted(Part(kernel, signature, descriptor, library, tuple(called)))


class PartCache(Keeping, caching.FunctionCache):
    """Keeps parts for other programs, and other processes."""

    _impl_class = _Implementation  # type: ignore[assignment]
