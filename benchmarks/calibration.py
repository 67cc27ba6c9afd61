"""How fast the machine is while a benchmark runs, by two fixed compiled loops: bars of time are those of a machine.

Neither loop is changed when Longshore is: figures of two commits, machines or hours compare by theirs.
"""

import statistics
import time
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numba
import numpy as np
from numpy.typing import NDArray

STEPS = 4_000_000  # of the loop in registers
READS = 400_000
WORDS = 1 << 23  # 64 MiB: more than a core's own caches hold
ROUNDS = 7


class Speed(NamedTuple):
    """What a machine does in a second."""

    steps_per_s: float  # compute-bound
    reads_per_s: float  # memory-bound


REFERENCE = Speed(215e6, 6.6e6)  # 2 cores of an Intel Xeon (family 6, model 207), 2026-11-23


Function = TypeVar("Function", bound=Callable[..., object])


def _compiled(function: Function) -> Function:
    compiled: Function = numba.njit(function)
    return compiled


@_compiled
def _compute(steps: int, seed: int) -> int:
    """Draw from splitmix64, each number from the one before: multiplications and shifts, all in registers."""
    x = np.uint64(seed)
    for _ in range(steps):
        x += np.uint64(0x9E3779B97F4A7C15)
        z = x
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        x ^= z ^ (z >> np.uint64(31))
    return int(x)


@_compiled
def _read(words: NDArray[np.int64], reads: int, at: int) -> int:
    """Read words here and there, none before the one before it has come: each place hangs on what was read."""
    for _ in range(reads):
        at = (at * 1_664_525 + 1_013_904_223 + words[at]) & (words.size - 1)
    return at


def machine_speed() -> Speed:
    """Return how fast the machine is at present: medians of several rounds, which take turns."""
    words = np.full(WORDS, 0, dtype=np.int64)
    _compute(1, 1), _read(words, 1, 1)  # compiles
    taken_s: list[tuple[float, float]] = []
    for number in range(ROUNDS):
        began = time.perf_counter()
        _compute(STEPS, number)
        between = time.perf_counter()
        _read(words, READS, number)
        taken_s.append((between - began, time.perf_counter() - between))
    compute_s, read_s = (statistics.median(part) for part in zip(*taken_s, strict=True))
    return Speed(STEPS / compute_s, READS / read_s)
