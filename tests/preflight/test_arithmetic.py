"""Products against references: no false alarm, no flipped bit overlooked, no damaged file believed."""

import json
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.files.errors import InputError
from longshore.preflight.arithmetic import (
    ComputeStack,
    ProductKey,
    ReferencedProduct,
    References,
    bits_of,
    error_limits,
    factor_matrices,
    furthest_beyond_limit,
    open_product,
    splitmix64,
)
from longshore.preflight.warm_worker import set_product_precision
from tests.support.budgets import examples

DTYPES = ("fp32", "bf16", "fp16")
SIZE = 64
STACK = ComputeStack("a type", "a driver", "a library")
MASK = (1 << 64) - 1


def split_mix(state: int, count: int) -> list[int]:
    """SplitMix64 in whole numbers of Python, from its definition."""
    found = []
    for _ in range(count):
        state = (state + 0x9E3779B97F4A7C15) & MASK
        mixed = ((state ^ (state >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        found.append(mixed ^ (mixed >> 31))
    return found


@given(st.integers(0, 2**40), st.integers(1, 50))
def test_draws_are_those_of_a_published_generator(seed: int, count: int) -> None:
    start = ((seed + 1) * 0xBF58476D1CE4E5B9) & MASK
    assert splitmix64(seed, count).tolist() == split_mix(start, count)


@given(st.integers(0, 1000))
def test_factors_are_exact_in_fp32_and_never_small(seed: int) -> None:
    for matrix in factor_matrices(seed, SIZE):
        assert matrix.dtype == np.float32
        assert (np.abs(matrix) >= 0.5).all()
        assert (np.abs(matrix) < 1.0).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("seed", range(10))
def test_a_clean_product_is_never_called_wrong(dtype: str, seed: int, tmp_path: Path) -> None:
    products = open_product(tmp_path, dtype, "n", SIZE, seed)
    first, second = (products.judge(products.multiply("cpu"), STACK) for _ in range(2))
    assert first.is_clean
    assert not first.is_golden
    assert second.is_clean
    assert second.is_golden


@pytest.fixture(scope="module", params=DTYPES)
def products(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ReferencedProduct:
    found = open_product(tmp_path_factory.mktemp("references"), request.param, "n", SIZE)
    found.judge(found.multiply("cpu"), STACK)
    return found


AT = st.integers(0, SIZE - 1)


@settings(max_examples=examples(60))
@given(row=AT, column=AT, share=st.floats(0.0, 1.0, exclude_max=True))
def test_any_flipped_bit_is_found_against_the_output_of_the_same_type(
    products: ReferencedProduct, row: int, column: int, share: float
) -> None:
    output = products.multiply("cpu")
    bits = output.view(torch.int32 if products.product.dtype == "fp32" else torch.int16)
    width = 8 * output.element_size()
    bit = int(share * width)
    bits[row, column] ^= -(1 << bit) if bit == width - 1 else 1 << bit
    verdict = products.judge(output, STACK)
    assert verdict.bit == (row, column, 1)


@settings(max_examples=examples(60))
@given(row=AT, column=AT, bit=st.integers(10, 31))
def test_any_bit_from_10_up_is_found_by_the_tolerance_in_fp32(
    tmp_path_factory: pytest.TempPathFactory, row: int, column: int, bit: int
) -> None:
    fresh = open_product(tmp_path_factory.getbasetemp() / "own", "fp32", "n", 384)
    output = fresh.multiply("cpu")
    output.view(torch.int32)[row, column] ^= -(1 << 31) if bit == 31 else 1 << bit
    wrong = furthest_beyond_limit(output.double().numpy(), fresh.exact, fresh.limit)
    assert wrong is not None
    assert (wrong.row, wrong.column, wrong.elements) == (row, column, 1)


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("dtype", DTYPES)
def test_what_is_no_number_is_wrong(value: float, dtype: str) -> None:
    exact = np.ones((4, 4))
    got = exact.copy()
    got[2, 1] = value
    wrong = furthest_beyond_limit(got, exact, error_limits(dtype, exact, exact))
    assert wrong is not None
    assert (wrong.row, wrong.column) == (2, 1)


def test_a_wrong_output_never_becomes_the_golden_one(tmp_path: Path) -> None:
    products = open_product(tmp_path, "fp32", "n", SIZE)
    output = products.multiply("cpu")
    output[3, 4] *= 1.001
    assert not products.judge(output, STACK).is_clean
    assert References(tmp_path).read_golden(products.product, STACK) is None


def test_the_golden_output_of_another_driver_is_not_asked_for(tmp_path: Path) -> None:
    products = open_product(tmp_path, "fp32", "n", SIZE)
    output = products.multiply("cpu")
    products.judge(output, STACK)
    output.view(torch.int32)[0, 0] ^= 1  # another order of summing may do that
    assert not products.judge(output, STACK).is_clean
    assert products.judge(output, ComputeStack("a type", "another driver", "a library")).is_clean


def test_the_first_that_stores_a_reference_is_obeyed(tmp_path: Path) -> None:
    products = open_product(tmp_path, "fp32", "n", SIZE)
    bits = bits_of(products.multiply("cpu"))
    references = References(tmp_path)
    references.store_golden(products.product, STACK, bits, "n")
    references.store_golden(products.product, STACK, bits + 1, "n")
    stored = references.read_golden(products.product, STACK)
    assert stored is not None
    assert (stored == bits).all()


def test_a_reference_has_its_provenance(tmp_path: Path) -> None:
    open_product(tmp_path, "fp32", "node7", SIZE)
    (path,) = tmp_path.glob("*-exact.npz")
    with np.load(path) as file:
        reported = json.loads(str(file["provenance"]))
    assert reported["node"] == "node7"
    assert reported["stack"]["gpu_type"] == "float64"
    assert len(reported["sha256"]) == 64


def other_arrays(path: Path) -> None:
    np.savez(path, exact=np.ones((SIZE, SIZE)), absolute=np.ones((SIZE, SIZE)), provenance=np.array("{}"))


def pickled(path: Path) -> None:
    np.savez(path, exact=np.array([{}], dtype=object), absolute=np.ones(1), provenance=np.array("{}"))


def one_bit_off(path: Path) -> None:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    arrays["exact"].view(np.int64)[1, 1] ^= 1
    np.savez(path, **arrays)


DAMAGES: list[Callable[[Path], object]] = [
    lambda path: path.write_bytes(b""),
    lambda path: path.write_bytes(path.read_bytes()[:1000]),
    lambda path: path.write_bytes(b"PK\x03\x04 no archive"),
    lambda path: path.write_bytes(bytes(1 << 16)),
    other_arrays,
    pickled,
    one_bit_off,
]


@pytest.mark.parametrize("damage", DAMAGES)
def test_a_damaged_reference_is_reported_with_its_path_and_not_believed(
    damage: Callable[[Path], object], tmp_path: Path
) -> None:
    open_product(tmp_path, "fp32", "n", SIZE)
    (path,) = tmp_path.glob("*-exact.npz")
    damage(path)
    with pytest.raises(InputError, match="damaged; remove the file"):
        open_product(tmp_path, "fp32", "n", SIZE)


def test_a_link_in_place_of_a_reference_is_not_followed(tmp_path: Path) -> None:
    open_product(tmp_path, "fp32", "n", SIZE)
    (path,) = tmp_path.glob("*-exact.npz")
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InputError):
        References(tmp_path).read_exact(ProductKey("fp32", SIZE, 1))


def test_a_folder_that_cannot_be_made_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        References(tmp_path / "file" / "below")


def test_products_on_gpus_are_rounded_as_the_tolerance_takes_them_to_be(monkeypatch: pytest.MonkeyPatch) -> None:
    kinds = SimpleNamespace(allow_tf32=True, allow_bf16_reduced_precision_reduction=True,
                            allow_fp16_reduced_precision_reduction=True)  # fmt: skip
    monkeypatch.setattr(torch.backends.cuda, "matmul", kinds)
    set_product_precision()
    assert not any(vars(kinds).values())
