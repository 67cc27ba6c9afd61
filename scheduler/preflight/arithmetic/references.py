"""Stored references of products, each in a file with where it is from.

Two kinds: the exact product, which no machine's own arithmetic enters but that of float64, and the *golden* output of
one type of GPU with one driver and one library, which has to come again bit by bit.
"""

import hashlib
import io
import json
import os
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from ....cluster.files.errors import InputError
from ...files.durable import open_folder, read_whole, write_first

FORMAT = 1
MOST_BYTES = 256 << 20


@dataclass(frozen=True, slots=True)
class Product:
    """Which product is meant."""

    dtype: str
    size: int
    seed: int

    @property
    def name(self) -> str:
        """Of its files."""
        return f"product-{self.dtype}-{self.size}-{self.seed}"


@dataclass(frozen=True, slots=True)
class Maker:
    """What has to be the same for two outputs to be the same bit by bit."""

    gpu_type: str
    driver: str
    library: str

    @property
    def digest(self) -> str:
        """For the name of a file."""
        return hashlib.sha256(json.dumps(asdict(self)).encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Provenance:
    """Where a reference is from."""

    made_at: str
    node: str
    maker: Mapping[str, str]


class References:
    """The references in a folder. Several processes may use it at once: the first to write one is obeyed by all.

    Args:
        folder: Made if need be.

    Raises:
        InputError: If it cannot be made.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot be made: {error.strerror}", "give another folder", path=folder) from error

    def exact(self, product: Product) -> tuple[NDArray[np.float64], NDArray[np.float64]] | None:
        """Return the product in float64 and that of the absolute values, each (size, size); None if not yet stored.

        Raises:
            InputError: If the file is damaged.
        """
        found = self._read(f"{product.name}-exact.npz", product.size, {"exact": "f8", "absolute": "f8"})
        return None if found is None else (found["exact"], found["absolute"])

    def store_exact(
        self, product: Product, exact: NDArray[np.float64], absolute: NDArray[np.float64], source: Provenance
    ) -> None:
        """Store a product in float64, unless one is stored.

        Raises:
            InputError: If it cannot be written.
        """
        self._write(f"{product.name}-exact.npz", {"exact": exact, "absolute": absolute}, source)

    def golden(self, product: Product, maker: Maker) -> NDArray[np.signedinteger] | None:
        """Return the bits of a clean output, shape (size, size); None if none is stored of such a maker.

        Raises:
            InputError: If the file is damaged.
        """
        kind = "i4" if product.dtype == "fp32" else "i2"
        found = self._read(f"{product.name}-{maker.digest}.npz", product.size, {"bits": kind})
        return None if found is None else found["bits"]

    def store_golden(self, product: Product, maker: Maker, bits: NDArray[np.signedinteger], source: Provenance) -> None:
        """Store the bits of a clean output, unless some are stored.

        Raises:
            InputError: If they cannot be written.
        """
        self._write(f"{product.name}-{maker.digest}.npz", {"bits": bits}, source)

    def _write(self, name: str, arrays: Mapping[str, NDArray[Any]], source: Provenance) -> None:
        told = json.dumps({"format": FORMAT, "sha256": _digest(arrays), **asdict(source)})
        content = io.BytesIO()
        np.savez(content, provenance=np.array(told), **arrays)  # type: ignore[arg-type]
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
                content = read_whole(folder, name, MOST_BYTES)
            finally:
                os.close(folder)
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InputError(f"cannot be read: {error.strerror}", "check its rights", path=path) from error
        arrays = _arrays(content, size, kinds)
        if arrays is None:
            raise InputError("the stored reference is damaged", "remove the file; it is made again", path=path)
        return arrays


def _arrays(content: bytes, size: int, kinds: Mapping[str, str]) -> dict[str, NDArray[Any]] | None:
    """Return the arrays of a file, None if they are not what was written there."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as file:
            told = json.loads(str(file["provenance"]))
            arrays = {name: file[name] for name in kinds}
    except Exception:  # what is wrong with a damaged archive is told in a dozen ways
        return None
    fits = all(arrays[name].shape == (size, size) and arrays[name].dtype == kind for name, kind in kinds.items())
    known = isinstance(told, dict) and told.get("format") == FORMAT
    return arrays if fits and known and told.get("sha256") == _digest(arrays) else None


def _digest(arrays: Mapping[str, NDArray[Any]]) -> str:
    found = hashlib.sha256()
    for name in sorted(arrays):
        found.update(name.encode() + np.ascontiguousarray(arrays[name]).tobytes())
    return found.hexdigest()
