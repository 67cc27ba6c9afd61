"""How a simulation is handed to kernels: as the address of one table of pointers, shapes and numbers.

Numba passes a named tuple by value: each of a simulation's hundred arrays as nine words, on every call, and counts
references to each. docs/decisions/0001 has the figures. Inside a kernel `sim.state.free` is the same array as outside;
in plain Python (NUMBA_DISABLE_JIT=1) nothing here is used.
"""

import hashlib
import struct
from collections.abc import Mapping
from functools import cache
from typing import Any, NamedTuple

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.core.typing.templates import AttributeTemplate
from numba.extending import NativeValue, infer_getattr, lower_getattr_generic, models, register_model, unbox
from numba.np.arrayobj import make_array, populate_array
from numba.np.numpy_support import from_dtype
from numpy.typing import NDArray

LLVM_WORD = ir.IntType(64)


class Field(NamedTuple):
    """Where a field stands in the table, and what kernels take it for."""

    word: int
    type: Any  # Numba's types lack what their subclasses have


class Struct(types.Type):
    """Kernel type of a simulation (no part) or of one of its named tuples (that part).

    The name holds a digest of the layout, so that code compiled for another one is never taken from a cache.
    """

    def __init__(self, part: str = "") -> None:
        self.part = part
        super().__init__(name=f"longshore.Simulation({part}, {_layout_digest()})")


_LAYOUT: dict[str, dict[str, Field]] = {}  # part -> field; the same for every simulation


@cache
def _layout_digest() -> str:
    assert _LAYOUT, "no simulation has set the layout yet"
    return hashlib.sha256(repr(_LAYOUT).encode()).hexdigest()[:16]


def pack_table(parts: Mapping[str, tuple[Any, ...]]) -> NDArray[np.int64]:
    """Return the table of a simulation: what kernels read its named tuples through.

    The arrays must be C-contiguous and outlive the table.

    Raises:
        TypeError: If a field is neither a number nor a contiguous array of one or two dimensions, or has another type
            than in the first simulation of this process.
    """
    table: list[int] = []
    layout: dict[str, dict[str, Field]] = {}
    for part, values in parts.items():
        layout[part] = {}
        for name, value in zip(type(values).__annotations__, values, strict=True):
            words, kind = _field_words(f"{part}.{name}", value)
            layout[part][name] = Field(len(table), kind)
            table += words
    if not _LAYOUT:
        _LAYOUT.update(layout)
    for part, fields in layout.items():
        for name, field in fields.items():
            if _LAYOUT[part][name] != field:
                raise TypeError(f"{part}.{name} is of type {field.type}, expected {_LAYOUT[part][name].type}")
    return np.array(table, dtype=np.int64)


def _field_words(name: str, value: Any) -> tuple[list[int], types.Type]:
    if isinstance(value, np.ndarray) and value.flags.c_contiguous and value.ndim in (1, 2):
        extents = list(value.shape) + [1] * (2 - value.ndim)
        return [value.__array_interface__["data"][0], *extents], _array_type(value.dtype, value.ndim)
    if isinstance(value, bool):
        return [int(value), 0, 0], types.boolean
    if isinstance(value, int):
        return [value, 0, 0], types.int64
    if isinstance(value, float):
        return [*struct.unpack("q", struct.pack("d", value)), 0, 0], types.float64
    raise TypeError(f"{name} is {value!r:.80}, expected a number or a contiguous array")


@cache
def _array_type(dtype: np.dtype[Any], ndim: int) -> types.Array:
    return types.Array(from_dtype(dtype), ndim, "C")


@register_model(Struct)
class _StructModel(models.PrimitiveModel):
    """A word: the address of the table."""

    def __init__(self, dmm: Any, fe_type: Struct) -> None:
        super().__init__(dmm, fe_type, LLVM_WORD)  # type: ignore[no-untyped-call]


@unbox(Struct)  # type: ignore[untyped-decorator]
def _unbox(typ: Struct, obj: Any, c: Any) -> NativeValue:
    address = c.pyapi.object_getattr_string(obj, "address")
    word = c.pyapi.long_as_longlong(address)
    c.pyapi.decref(address)
    return NativeValue(word)


@infer_getattr
class _StructAttributes(AttributeTemplate):
    key = Struct

    def generic_resolve(self, typ: Struct, attr: str) -> Any:  # type: ignore[override]
        if not typ.part:
            return Struct(attr) if attr in _LAYOUT else None
        field = _LAYOUT[typ.part].get(attr)
        return field.type if field else None


@lower_getattr_generic(Struct)  # type: ignore[untyped-decorator]
def _read_field(context: Any, builder: Any, typ: Struct, value: Any, attr: str) -> Any:
    if not typ.part:
        return value
    field = _LAYOUT[typ.part][attr]
    table = builder.inttoptr(value, LLVM_WORD.as_pointer())

    def word(offset: int) -> Any:
        loaded = builder.load(builder.gep(table, [LLVM_WORD(field.word + offset)]))
        # The table never changes, so the compiler may read it once where it is used often.
        loaded.set_metadata("invariant.load", builder.module.add_metadata([]))
        return loaded

    if field.type == types.boolean:
        return builder.trunc(word(0), ir.IntType(1))
    if field.type == types.int64:
        return word(0)
    if field.type == types.float64:
        return builder.bitcast(word(0), ir.DoubleType())
    array = make_array(field.type)(context, builder)
    itemsize = context.get_abi_sizeof(context.get_data_type(field.type.dtype))
    shape = [word(1 + axis) for axis in range(field.type.ndim)]
    strides = [LLVM_WORD(itemsize)]
    if field.type.ndim == 2:
        strides = [builder.mul(shape[1], LLVM_WORD(itemsize)), LLVM_WORD(itemsize)]
    data = builder.inttoptr(word(0), context.get_data_type(field.type.dtype).as_pointer())
    populate_array(array, data, shape, strides, context.get_constant(types.intp, itemsize), meminfo=None)
    return array._getvalue()
