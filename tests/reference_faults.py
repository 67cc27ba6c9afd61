"""Random faults once more, in plain Python: Philox from its paper, up and repair times from docs/simulator.md."""

import math
from collections.abc import Iterator

from longshore.cluster.model.problem import FaultProcess

MASK = 0xFFFFFFFF


def philox(left: int, right: int, key: int) -> tuple[int, int]:
    """Return the two words of Philox 2x32 with ten rounds (Salmon et al., SC 2011, section 3.2)."""
    for turn in range(10):
        product = 0xD256D193 * left
        round_key = (key + turn * 0x9E3779B9) & MASK
        left, right = (product >> 32) ^ round_key ^ right, product & MASK
    return left, right


def plain_uniform(seed: int, source: int, k: int) -> float:
    """Return the same number as the compiled uniform: 26 bits of each word, in the middle of their interval."""
    high, low = philox(k & MASK, source & MASK, seed & MASK)
    return ((high >> 6 << 26 | low >> 6) + 0.5) / 2**52


def random_outages(process: FaultProcess, seed: int, source: int, rate_per_s: float) -> Iterator[tuple[float, float]]:
    """Yield (start, end) of each outage of a source; both are one moment if the fault is transient."""
    up_since_s, k = 0.0, 0
    while rate_per_s > 0:
        fault_s = up_since_s + up_time_s(process, rate_per_s, plain_uniform(seed, source, 4 * k))
        transient = plain_uniform(seed, source, 4 * k + 1) < process.transient_probability
        up_since_s = fault_s if transient else fault_s + repair_time_s(process, seed, source, k)
        yield fault_s, up_since_s
        k += 1


def up_time_s(process: FaultProcess, rate_per_s: float, u: float) -> float:
    spread: float = (-math.log(u)) ** (1 / process.shape)
    return spread / (rate_per_s * math.gamma(1 + 1 / process.shape))


def repair_time_s(process: FaultProcess, seed: int, source: int, k: int) -> float:
    u = plain_uniform(seed, source, 4 * k + 2)
    if process.repair_sigma == 0:
        return -math.log(u) * process.repair_mean_s
    sigma, v = process.repair_sigma, plain_uniform(seed, source, 4 * k + 3)
    z = math.sqrt(-2 * math.log(u)) * math.cos(2 * math.pi * v)
    return math.exp(sigma * z - sigma * sigma / 2) * process.repair_mean_s
