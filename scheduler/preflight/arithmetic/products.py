"""Products of matrices on a GPU, or on a processor where slots stand for GPUs, judged against references.

Source: SPEC C2.
"""

from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from .inputs import factors
from .references import Maker, Product, Provenance, References
from .rule import Wrong, first_difference, furthest_off, limits

if TYPE_CHECKING:
    from torch import Tensor

SIZE, SEED = 384, 1
_FREIVALDS = 1e-11  # relative error of a float64 product that is made in two ways; 1e-14 is usual


@dataclass(frozen=True, slots=True)
class Verdict:
    """What is wrong with an output; nothing if both are None."""

    wrong: Wrong | None = None
    bit: tuple[int, int, int] | None = None  # row and column of the first element with another bit, and how many
    is_golden: bool = False  # it was compared bit by bit

    @property
    def is_clean(self) -> bool:
        """Whether nothing is wrong."""
        return self.wrong is None and self.bit is None


class Products:
    """One product with its references, ready to be asked for again and again.

    Args:
        product: Which.
        references: Where they are stored, and made on the first use.
        node: Who makes them then.

    Raises:
        InputError: If a stored reference is damaged, or cannot be written.
        ArithmeticError: If this machine makes a reference that does not agree with itself.
    """

    def __init__(self, product: Product, references: References, node: str) -> None:
        self.product, self._references, self._node = product, references, node
        left, right = (_rounded(matrix, product.dtype) for matrix in factors(product.seed, product.size))
        self.left, self.right = left, right
        stored = references.exact(product)
        if stored is None:
            made = _exact(left.double().numpy(), right.double().numpy())
            references.store_exact(product, *made, _provenance(node, Maker("float64", "", f"numpy {np.__version__}")))
            stored = references.exact(product) or made
        self.exact, absolute = stored
        self.limit = limits(product.dtype, self.exact, absolute)
        self._on: dict[str, tuple[Tensor, Tensor]] = {}
        self._golden: dict[Maker, NDArray[np.signedinteger]] = {}

    def multiply(self, where: str) -> "Tensor":
        """Return the product as a GPU makes it, on the processor's side.

        Args:
            where: A device of PyTorch, such as cpu or cuda:0.
        """
        if where not in self._on:
            self._on[where] = (self.left.to(where), self.right.to(where))
        left, right = self._on[where]
        return (left @ right).cpu()

    def judge(self, output: "Tensor", maker: Maker) -> Verdict:
        """Return what is wrong with an output.

        A clean output is stored as the golden one of its maker if there is none yet.

        Args:
            output: Of `multiply`.
            maker: What made it.
        """
        bits = bits_of(output)
        golden = self._golden.get(maker)
        if golden is None:
            golden = self._references.golden(self.product, maker)
        if golden is not None:
            self._golden[maker] = golden
            bit = first_difference(bits, golden)
            return Verdict(self._furthest(output) if bit else None, bit, is_golden=True)
        verdict = Verdict(self._furthest(output))
        if verdict.is_clean:
            self._references.store_golden(self.product, maker, bits, _provenance(self._node, maker))
        return verdict

    def _furthest(self, output: "Tensor") -> Wrong | None:
        return furthest_off(output.double().numpy(), self.exact, self.limit)


def bits_of(output: "Tensor") -> NDArray[np.signedinteger]:
    """Return the bits of each element as a whole number."""
    import torch

    kind = torch.int32 if output.element_size() == 4 else torch.int16
    bits: NDArray[np.signedinteger] = output.contiguous().view(kind).numpy()
    return bits


def opened(folder: Path, dtype: str, node: str, size: int = SIZE, seed: int = SEED) -> Products:
    """Return the product that a node is checked by."""
    return Products(Product(dtype, size, seed), References(folder), node)


def _rounded(matrix: NDArray[np.float32], dtype: str) -> "Tensor":
    import torch

    kinds = {"fp32": torch.float32, "bf16": torch.bfloat16, "fp16": torch.float16}
    return torch.from_numpy(matrix).to(kinds[dtype])


def _exact(left: NDArray[np.float64], right: NDArray[np.float64]) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return a product and that of the absolute values.

    Raises:
        ArithmeticError: If a product does not agree with the same one made in another way.
    """
    exact, absolute = left @ right, np.abs(left) @ np.abs(right)
    ones = np.ones(right.shape[1])
    for made, (first, second) in ((exact, (left, right)), (absolute, (np.abs(left), np.abs(right)))):
        off = np.abs(made @ ones - first @ (second @ ones)) / (np.abs(first) @ (np.abs(second) @ ones))
        if not off.max() < _FREIVALDS:
            raise ArithmeticError(f"two ways to make a reference differ by {off.max():.3g}")
    return exact, absolute


def _provenance(node: str, maker: Maker) -> Provenance:
    return Provenance(datetime.now(UTC).isoformat(timespec="seconds"), node, asdict(maker))
