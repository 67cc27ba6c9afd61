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


TRAINING_SEED, VALIDATION_SEED = 1_000_000, 1  # keys of training seed 0, and of what all training is validated on
MOST_TRAINING_SEEDS = 1_000_000
_APART = 1 << 64


def training_key(seed: int) -> int:
    """Return the key of the scenarios that a run of a seed from 0 to 999,999 trains on."""
    return TRAINING_SEED + seed


def evaluation_key(seed: int) -> int:
    """Return the key of the scenarios that are evaluated by a seed: the seed itself, unless training draws by that."""
    trained_on = TRAINING_SEED <= seed < TRAINING_SEED + MOST_TRAINING_SEEDS
    return seed + _APART if trained_on or seed == VALIDATION_SEED else seed


def own_key(seed: int) -> int:
    """Return the key of scenarios that somebody draws for purposes of their own: nothing is evaluated by such a key."""
    return seed + 2 * _APART


def stream(seed: int, purpose: Stream) -> np.random.Generator:
    """Return the random numbers of a seed for one purpose, the same at every call.

    These are the generators that `np.random.default_rng(seed).spawn` gives, in the order of Stream.
    """
    return np.random.default_rng(np.random.SeedSequence(seed, spawn_key=(purpose,)))
