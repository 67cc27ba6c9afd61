"""Python imports this first in what tests start: PyTorch's optimizers do without its compiler there.

Each process that makes an optimizer imports it, to say what it is not to compile. That takes as long as PyTorch itself,
and no test compiles a model. Code that asks the compiler for anything else has it as ever.

Such a process ends once Python has ended: PyTorch's libraries are not taken apart after that, unless WHOLE_END is set.
"""

import ctypes
import os
import sys
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

NAME = "torch._dynamo"
WHOLE_END = "WHOLE_END"  # in the environment: all is as ever at the end
PIPELINES = "torch.distributed.pipelining"  # asks for so much that it has the compiler at once


class _Compiler(ModuleType):
    """Stands for the compiler until it is asked for more than optimizers ask."""

    def graph_break(self, *_: object, **__: object) -> None:
        """Do nothing, as the compiler does where it does not compile."""

    def disable(self, function: Any = None, *_: object, **__: object) -> Any:
        """Return a function as it is."""
        return function or (lambda it: it)

    def __getattr__(self, name: str) -> Any:
        # It is being imported; or `inspect` asks all modules for their files, in the midst of an import of PyTorch's.
        if "stands" not in self.__dict__ or name.startswith("__"):
            raise AttributeError(name)
        return getattr(self.real(), name)

    def real(self) -> ModuleType:
        """Return the compiler, which is imported in place of this."""
        if sys.modules.get(NAME) is self:
            del sys.modules[NAME], sys.modules["torch"]._dynamo
        return import_module(NAME)


class _Finder(MetaPathFinder, Loader):
    def __init__(self) -> None:
        self.has_found = False

    def find_spec(self, name: str, *_: object) -> ModuleSpec | None:
        """Find what stands for the compiler, the first time."""
        if name in (NAME, PIPELINES) and not self.has_found and WHOLE_END not in os.environ:
            _end_with_python()
        if name == PIPELINES:
            self.has_found = True
            if isinstance(it := sys.modules.get(NAME), _Compiler):
                it.real()
        if name != NAME or self.has_found:
            return None
        self.has_found = True
        return ModuleSpec(name, self)

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        return _Compiler(spec.name)

    def exec_module(self, module: ModuleType) -> None:
        """Let it stand for the compiler."""
        module.__dict__["stands"] = True


def _end_with_python() -> None:
    """Leave out the destructors of libraries: in processes that compute little they are much of what these take."""
    libc = ctypes.CDLL(None)
    if hasattr(libc, "on_exit"):  # not in all of them
        libc.on_exit(ctypes.cast(libc._exit, ctypes.c_void_p), None)


sys.meta_path.insert(0, _Finder())
