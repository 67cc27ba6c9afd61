"""Random numbers as a function of counters, so that every policy meets the same faults."""

from .compiled import kernel

MASK = 0xFFFFFFFF
INVERSE = 1.0 / 4503599627370496.0  # 2 ** -52


@kernel
def uniform(seed: int, source: int, k: int) -> float:
    """Return a number in (0, 1) that depends on the three counters only.

    Philox 2x32 with ten rounds; 26 bits of each word of output are used, so that the half
    that is added keeps the result off 0 and 1 without rounding. Plain integers with masks, so that compiled
    code (which wraps at 64 bits) and plain Python (which does not) agree to the bit.

    Args:
        seed: Key, of which 32 bits count.
        source: First counter, of which 32 bits count.
        k: Second counter, of which 32 bits count.

    Source: Salmon et al., Parallel random numbers: as easy as 1, 2, 3 (SC 2011).
    """
    key = int(seed) & MASK
    left = int(k) & MASK
    right = int(source) & MASK
    for _ in range(10):
        product = 0xD256D193 * left
        high = (product >> 32) & MASK
        left, right = high ^ key ^ right, product & MASK
        key = (key + 0x9E3779B9) & MASK
    return (float((left >> 6) * 67108864 + (right >> 6)) + 0.5) * INVERSE
