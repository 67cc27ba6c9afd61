"""Independent random numbers for the parts of one run, all from the seed that a user gives."""

from enum import IntEnum

import numpy as np


class Stream(IntEnum):
    """What random numbers are for; each purpose has a stream of its own, whatever else is drawn."""

    JOBS = 0  # workloads that are generated
    WINDOWS = 1  # where windows of a trace begin
    ESTIMATES = 2  # errors of estimates
    FAULTS = 3  # fault seeds of scenarios
    OUTAGES = 4  # nodes of a fault trace


def stream(seed: int, purpose: Stream) -> np.random.Generator:
    """Return the random numbers of a seed for one purpose, the same at every call.

    These are the generators that `np.random.default_rng(seed).spawn` gives, in the order of Stream.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(purpose,)))
