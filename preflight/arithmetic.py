"""Matrix products on a GPU or a processor, compared with stored references.

A reference is a file with its provenance. There are two kinds: the exact product, in float64, and the *golden* output
of one type of GPU with one driver and one library, which has to be equal bit by bit.

Source: SPEC C2. The bounds are those of rounding: a sum of products in fp32, and for the halves one rounding
of it.
"""

import hashlib
import io
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from ..cluster.files.durable import open_folder, read_whole, write_first
from ..cluster.files.errors import InputError

if TYPE_CHECKING:
    import torch
    from torch import Tensor

_GOLDEN = np.uint64(0x9E3779B97F4A7C15)
_MIX_1, _MIX_2 = np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
# Share of factors that are positive. A product's terms then cancel out only in part: it stays large against the sum of
# their absolute values, so that no flipped bit from bit 10 up hides in the tolerance.
_POSITIVE = 0.775


def splitmix64(seed: int, count: int) -> NDArray[np.uint64]:
    """Return numbers of SplitMix64, shape (count,)."""
    with np.errstate(over="ignore"):
        state = (np.uint64(seed) + np.uint64(1)) * _MIX_1 + np.arange(1, count + 1, dtype=np.uint64) * _GOLDEN
        state = (state ^ (state >> np.uint64(30))) * _MIX_1
        state = (state ^ (state >> np.uint64(27))) * _MIX_2
        return state ^ (state >> np.uint64(31))


def factor_matrices(seed: int, size: int) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Return two matrices, each of shape (size, size); absolute values are in [0.5, 1), and each row has a sign."""
    left = _random_matrix(2 * seed, size)
    right = _random_matrix(2 * seed + 1, size)
    signs = np.where(splitmix64(3 * seed + 7, 2 * size) >> np.uint64(63), -1.0, 1.0).astype(np.float32)
    return left * signs[:size, None], right * signs[None, size:]


def _random_matrix(seed: int, size: int) -> NDArray[np.float32]:
    drawn = splitmix64(seed, size * size)
    magnitude = 0.5 + (drawn >> np.uint64(41)).astype(np.float64) * 2.0**-24  # 23 bits
    positive = (drawn & np.uint64(0xFFFF)).astype(np.float64) < _POSITIVE * 65536.0
    return np.where(positive, magnitude, -magnitude).astype(np.float32).reshape(size, size)


FORMAT = 1
MAX_REFERENCE_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class ProductKey:
    """The identity of a product."""

    dtype: str
    size: int
    seed: int

    @property
    def name(self) -> str:
        """Prefix of its files."""
        return f"product-{self.dtype}-{self.size}-{self.seed}"


@dataclass(frozen=True, slots=True)
class ComputeStack:
    """GPU type, driver and library of a product: its bits are equal wherever all three are."""

    gpu_type: str
    driver: str
    library: str

    @property
    def digest(self) -> str:
        """For the name of a file."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]


class References:
    """The references in a folder. Several processes may use it at once: the first to write a reference wins.

    Raises:
        InputError: If the folder cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot be made: {error.strerror}", "give another folder", path=folder) from error

    def read_exact(self, product: ProductKey) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Return the product in float64 and that of the absolute values, each (size, size); None if not yet stored.

        Raises:
            InputError: If the file is damaged.
        """
        found = self._read(f"{product.name}-exact.npz", product.size, {"exact": "f8", "absolute": "f8"})
        return None if found is None else (found["exact"], found["absolute"])

    def store_exact(
        self, product: ProductKey, exact: NDArray[np.float64], absolute: NDArray[np.float64], node: str
    ) -> None:
        """Store a product in float64, as a node computed it, unless one is stored.

        Raises:
            InputError: If it cannot be written.
        """
        stack = ComputeStack("float64", "", f"numpy {np.__version__}")
        self._write(f"{product.name}-exact.npz", {"exact": exact, "absolute": absolute}, node, stack)

    def read_golden(self, product: ProductKey, stack: ComputeStack) -> NDArray[np.signedinteger] | None:
        """Return the bits of a clean output, shape (size, size); None if none of this stack is stored.

        Raises:
            InputError: If the file is damaged.
        """
        kind = "i4" if product.dtype == "fp32" else "i2"
        found = self._read(f"{product.name}-{stack.digest}.npz", product.size, {"bits": kind})
        return None if found is None else found["bits"]

    def store_golden(
        self, product: ProductKey, stack: ComputeStack, bits: NDArray[np.signedinteger], node: str
    ) -> None:
        """Store the bits of a clean output, unless some are stored.

        Raises:
            InputError: If they cannot be written.
        """
        self._write(f"{product.name}-{stack.digest}.npz", {"bits": bits}, node, stack)

    def _write(self, name: str, arrays: Mapping[str, NDArray[Any]], node: str, stack: ComputeStack) -> None:
        made_at = datetime.now(UTC).isoformat(timespec="seconds")
        origin = {"made_at": made_at, "node": node, "stack": asdict(stack)}
        provenance = json.dumps({"format": FORMAT, "sha256": _digest(arrays), **origin})
        content = io.BytesIO()
        np.savez(content, provenance=np.array(provenance), **arrays)  # type: ignore[arg-type]
        try:
            folder = open_folder(str(self.folder))
            try:
                write_first(folder, name, content.getvalue())
            finally:
                os.close(folder)
        except OSError as error:
            path = self.folder / name
            raise InputError(f"cannot be written: {error.strerror}", "give another folder", path=path) from error

    def _read(self, name: str, size: int, kinds: Mapping[str, str]) -> dict[str, NDArray[Any]] | None:
        path = self.folder / name
        try:
            folder = open_folder(str(self.folder))
            try:
                content = read_whole(folder, name, MAX_REFERENCE_BYTES)
            finally:
                os.close(folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", "check its permissions", path=path) from error
        arrays = _parse_arrays(content, size, kinds)
        if arrays is None:
            raise InputError("the stored reference is damaged", "remove the file; it is created again", path=path)
        return arrays


def _parse_arrays(content: bytes, size: int, dtypes: Mapping[str, str]) -> dict[str, NDArray[Any]] | None:
    """Return the arrays of a file, None if they are damaged."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            provenance = json.loads(str(file["provenance"]))
            arrays = {name: file[name] for name in dtypes}
    except Exception:  # a damaged archive raises a dozen types
        return None
    fits = all(arrays[name].shape == (size, size) and arrays[name].dtype == kind for name, kind in dtypes.items())
    known = isinstance(provenance, dict) and provenance.get("format") == FORMAT
    return arrays if fits and known and provenance.get("sha256") == _digest(arrays) else None


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()


UNIT = {"fp32": 2.0**-24, "bf16": 2.0**-8, "fp16": 2.0**-11}  # largest relative error of one rounding
FP32_UNITS = 12.0  # of the sum of absolute values; 3.6 were measured
HALF_UNITS, HALF_ROUNDING = 8.0, 1.01


class WrongElement(NamedTuple):
    """The element that is furthest off."""

    row: int
    column: int
    got: float
    wanted: float
    limit: float  # how far off it may be
    elements: int  # that are wrong


def error_limits(dtype: str, exact: NDArray[np.float64], absolute: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return how far off each element may be.

    Args:
        dtype: fp32, bf16 or fp16.
        exact: Product of the rounded inputs in float64, shape (rows, columns).
        absolute: Product of their absolute values, the same shape.
    """
    if dtype == "fp32":
        return FP32_UNITS * UNIT["fp32"] * absolute
    return HALF_ROUNDING * UNIT[dtype] * np.abs(exact) + HALF_UNITS * UNIT["fp32"] * absolute


def furthest_beyond_limit(
    got: NDArray[np.float64], exact: NDArray[np.float64], limit: NDArray[np.float64]
) -> WrongElement | None:
    """Return the element that is furthest beyond its limit, None if none is; a NaN is beyond it."""
    off = np.abs(got - exact)
    wrong = ~(off <= limit)  # not `>`: a NaN is wrong
    if not wrong.any():
        return None
    excess = np.where(wrong, np.nan_to_num(off / limit, nan=np.inf, posinf=np.inf), -1.0)
    row, column = (int(at) for at in np.unravel_index(int(excess.argmax()), excess.shape))
    return WrongElement(row, column, float(got[row, column]), float(exact[row, column]), float(limit[row, column]),
                 int(wrong.sum()))  # fmt: skip


def first_difference_and_count(
    got: NDArray[np.signedinteger], wanted: NDArray[np.signedinteger]
) -> tuple[int, int, int] | None:
    """Return row and column of the first element with another bit, and their number; None if all are equal.

    Args:
        got: The bits of each element as a whole number, shape (rows, columns).
        wanted: The same.
    """
    differs = got != wanted
    if not differs.any():
        return None
    row, column = (int(at) for at in np.argwhere(differs)[0])
    return row, column, int(differs.sum())


SIZE, SEED = 384, 1
_FREIVALDS = 1e-11  # relative error of a float64 product computed in two ways; 1e-14 is usual


@dataclass(frozen=True, slots=True)
class ProductErrors:
    """The errors of a product; none if both are None."""

    wrong: WrongElement | None = None
    bit: tuple[int, int, int] | None = None  # row and column of the first element with another bit, and their number
    is_golden: bool = False  # it was compared bit by bit

    @property
    def is_clean(self) -> bool:
        """Whether there is no error."""
        return self.wrong is None and self.bit is None


class ReferencedProduct:
    """One product, ready to be computed repeatedly, with its references, which are created on the first use.

    Raises:
        InputError: If a stored reference is damaged, or cannot be written.
        ArithmeticError: If two computations of a reference on this machine differ.
    """

    def __init__(self, product: ProductKey, references: References, node: str) -> None:
        self.product, self._references, self._node = product, references, node
        left, right = (_rounded(matrix, product.dtype) for matrix in factor_matrices(product.seed, product.size))
        self.left, self.right = left, right
        stored = references.read_exact(product)
        if stored is None:
            made = _exact_products(left.double().numpy(), right.double().numpy())
            references.store_exact(product, *made, node)
            stored = references.read_exact(product) or made
        self.exact, absolute = stored
        self.limit = error_limits(product.dtype, self.exact, absolute)
        self._on: dict[str, tuple[Tensor, Tensor]] = {}
        self._golden: dict[ComputeStack, NDArray[np.signedinteger]] = {}

    def multiply(self, torch_device: str) -> "Tensor":
        """Compute the product on a device, and return it in host memory."""
        if torch_device not in self._on:
            self._on[torch_device] = (self.left.to(torch_device), self.right.to(torch_device))
        left, right = self._on[torch_device]
        return (left @ right).cpu()

    def judge(self, output: "Tensor", stack: ComputeStack) -> ProductErrors:
        """Return the errors of an output.

        A correct output is stored as the golden one of its stack if there is none yet.
        """
        bits = bits_of(output)
        golden = self._golden.get(stack)
        if golden is None:
            golden = self._references.read_golden(self.product, stack)
        if golden is not None:
            self._golden[stack] = golden
            bit = first_difference_and_count(bits, golden)
            return ProductErrors(self._furthest_element(output) if bit else None, bit, is_golden=True)
        verdict = ProductErrors(self._furthest_element(output))
        if verdict.is_clean:
            self._references.store_golden(self.product, stack, bits, self._node)
        return verdict

    def _furthest_element(self, output: "Tensor") -> WrongElement | None:
        return furthest_beyond_limit(output.double().numpy(), self.exact, self.limit)


def bits_of(output: "Tensor") -> NDArray[np.signedinteger]:
    """Return the bits of each element as a whole number."""
    import torch

    kind = torch.int32 if output.element_size() == 4 else torch.int16
    bits: NDArray[np.signedinteger] = output.contiguous().view(kind).numpy()
    return bits


def open_product(folder: Path, dtype: str, node: str, size: int = SIZE, seed: int = SEED) -> ReferencedProduct:
    """Return the product that a node is checked by."""
    return ReferencedProduct(ProductKey(dtype, size, seed), References(folder), node)


def _rounded(matrix: NDArray[np.float32], dtype: str) -> "Tensor":
    import torch

    return torch.from_numpy(matrix).to(torch_dtype(dtype))


def torch_dtype(dtype: str) -> "torch.dtype":
    """Return PyTorch's type for fp32, bf16 or fp16."""
    import torch

    return {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}[dtype]


def _exact_products(
    left: NDArray[np.float64], right: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a product and that of the absolute values.

    Raises:
        ArithmeticError: If a product differs from the same one computed in another way.
    """
    exact, absolute = left @ right, np.abs(left) @ np.abs(right)
    ones = np.ones(right.shape[1])
    for made, (first, second) in ((exact, (left, right)), (absolute, (np.abs(left), np.abs(right)))):
        off = np.abs(made @ ones - first @ (second @ ones)) / (np.abs(first) @ (np.abs(second) @ ones))
        if not off.max() < _FREIVALDS:
            raise ArithmeticError(f"two computations of a reference differ by {off.max():.3g}")
    return exact, absolute
