"""A hardware profile from measured runs: constants, which of them the runs tell, and how far predictions are off.

How far is judged by runs that a fit did not know: each is predicted by a fit to the others. The upper bound comes from
the same predictions. Bounds from how well a fit meets its own runs cover too few others.

Source: SPEC P1.
"""

from math import ceil, log

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from ...cluster.files.errors import InputError
from ...cluster.files.output_file import readable
from ..model.constants import Constants
from ..model.decoder import Runs, select
from ..model.hardware import Accuracy, FittedConstants, HardwareProfile, Measured, fitted
from ..model.step_time import Array
from .fitting import WEIGHT, fit, ratios

BOUND_SHARE = 0.9
FEWEST = ceil(BOUND_SHARE / (1.0 - BOUND_SHARE) - 1e-9)  # runs: with fewer no bound covers so many
ENOUGH = 20  # runs: with fewer the error of others is a matter of luck
MOST_FOLDS = 40
# A constant counts as told by the runs if doubling or halving it costs more than its distance to the prior then would.
TOLD_BY = WEIGHT * log(2.0) ** 2


def calibrate(runs: Runs, measured: Measured, name: str) -> HardwareProfile:
    """Return the hardware profile of measured runs.

    Args:
        runs: At least FEWEST that are unlike; of those alike all are left out together.
        measured: The hardware that they ran on.
        name: Of the profile.

    Raises:
        InputError: If there are too few runs that differ.
    """
    count, unlike = runs.gpus.size, int(settings_of(runs).max(initial=-1)) + 1
    if unlike < FEWEST:
        fix = f"measure {FEWEST} at least, better {ENOUGH}, that differ in micro-batch and degrees"
        alike = f", of which {unlike} are unlike," if unlike < count else ""
        raise InputError(f"{count} runs{alike} are too few for a {BOUND_SHARE:.0%} bound", fix)
    constants = fit(runs, measured)
    plausible = _plausible(constants)
    left_out = left_out_ratios(runs, measured, constants)
    return HardwareProfile(
        name=readable(name)[:200],
        measured_on=measured,
        constants=plausible,
        not_identified=tuple(not_told(runs, measured, constants)),
        accuracy=accuracy(left_out),
    )


def _plausible(constants: Constants) -> FittedConstants:
    """Return constants as a file has them.

    Raises:
        InputError: If no hardware has such.
    """
    try:
        return fitted(constants)
    except ValidationError as error:
        name, got = error.errors()[0]["loc"][0], error.errors()[0]["input"]
        problem = f"the runs come to {name} = {got:.3g} on this hardware, which nothing has"
        raise InputError(problem, "look at the units of iteration_s, --peak-flops and the bandwidths") from error


def left_out_ratios(runs: Runs, measured: Measured, constants: Constants) -> Array:
    """Return predicted over measured time of each run, by a fit that did not know it, shape (runs,).

    Args:
        runs: Two at least; they are left out one by one, or in MOST_FOLDS groups.
        measured: The hardware that they ran on.
        constants: Of a fit to all, where those to most of them begin.
    """
    found, settings = np.empty(runs.gpus.size), settings_of(runs)
    unlike = int(settings.max()) + 1
    for group in folds(unlike, min(MOST_FOLDS, unlike)):
        fold = np.flatnonzero(np.isin(settings, group))
        others = np.setdiff1d(np.arange(runs.gpus.size), fold)
        found[fold] = ratios(select(runs, fold), measured, fit(select(runs, others), measured, constants))
    return found


def settings_of(runs: Runs) -> NDArray[np.int64]:
    """Return a number for each run, shape (runs,): the same for those that differ in their measured time alone.

    A fit knows a run if it knows another of the same settings.
    """
    told = np.stack([column for name, column in runs._asdict().items() if name != "iteration_s"], axis=1)
    if not told.shape[0]:
        return np.empty(0, np.int64)
    _, first, number = np.unique(told, axis=0, return_index=True, return_inverse=True)
    in_order = np.argsort(np.argsort(first))  # numbered by their first run: folds stay as they are where all differ
    found: NDArray[np.int64] = in_order[number.ravel()]
    return found


def folds(count: int, groups: int) -> list[NDArray[np.int64]]:
    """Return the indices of so many runs in groups, at random but always the same."""
    return [np.sort(it) for it in np.array_split(np.random.default_rng(0).permutation(count), groups)]


def accuracy(left_out: Array) -> Accuracy:
    """Return how far predictions are off, and what bounds times from above.

    The bound is the k-th of the n ratios measured / predicted, k = (n + 1) * share rounded up: so often is a further
    run no longer.
    """
    count = left_out.size
    longer = np.sort(1.0 / left_out)
    at = min(count, ceil((count + 1) * BOUND_SHARE - 1e-9)) - 1
    return Accuracy(
        runs=count,
        mean_error=float(np.abs(left_out - 1.0).mean()),
        bias=float((left_out - 1.0).mean()),
        bound_share=BOUND_SHARE,
        bound_factor=float(longer[at]),
    )


def not_told(runs: Runs, measured: Measured, constants: Constants) -> list[str]:
    """Return the names of the constants that the runs do not tell."""
    return [name for name, rise in rises(runs, measured, constants).items() if rise < TOLD_BY]


def rises(runs: Runs, measured: Measured, constants: Constants) -> dict[str, float]:
    """Return by how much the mean error rises when each constant is doubled or halved, whichever is more."""

    def error(tried: Constants) -> float:
        return float(np.abs(np.log(ratios(runs, measured, tried))).mean())

    here = error(constants)
    return {
        name: max(error(constants._replace(**{name: value * factor})) for factor in (0.5, 2.0)) - here
        for name, value in constants._asdict().items()
    }
