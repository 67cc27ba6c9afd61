"""Kernels that are called by number."""

import numba
import pytest

from longshore.cluster.files.errors import PluginError
from longshore.cluster.kernels.compiled import check_kernel, kernel, kernel_of_numbered


@kernel
def added(a: int, b: float) -> float:
    return float(a + b)


@kernel
def multiplied(a: int, b: float) -> float:
    return float(a * b)


@kernel
def first(a: int, b: float) -> float:
    return float(a)


KERNELS = [added, multiplied, first]
FEW = [kernel_of_numbered(f"test_{count}", KERNELS[:count]) for count in (1, 2, 3)]


@kernel
def inside(number: int, a: int, b: float) -> float:
    return THREE(number, a, b) + 1.0


THREE = FEW[2]


@pytest.mark.parametrize("count", [1, 2, 3])
def test_each_number_calls_its_kernel(count: int) -> None:
    for number in range(count):
        assert FEW[count - 1](number, 3, 4.0) == KERNELS[number](3, 4.0)
    assert FEW[count - 1](count, 3, 4.0) == KERNELS[count - 1](3, 4.0)


def test_a_kernel_calls_it_with_a_number_that_is_not_known_when_it_is_compiled() -> None:
    assert [inside(number, 3, 4.0) for number in range(3)] == [8.0, 13.0, 4.0]


def test_two_choices_of_as_many_kernels_do_not_share_code() -> None:
    other = kernel_of_numbered("test_other", [first, first, added])
    assert [other(number, 3, 4.0) for number in range(3)] == [3.0, 3.0, 7.0]


def test_what_cannot_be_a_kernel_is_refused_before_it_is_called() -> None:
    check_kernel("it", added, 2)
    with pytest.raises(PluginError, match="it takes 2 arguments, expected 3"):
        check_kernel("it", added, 3)
    if not numba.config.DISABLE_JIT:  # type: ignore[attr-defined]
        with pytest.raises(PluginError, match="it is not compiled; write @kernel"):
            check_kernel("it", lambda a, b: 0.0, 2)
