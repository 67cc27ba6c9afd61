"""Constants fitted to measured runs, near to what datasheets say where the runs say nothing.

In logarithms, as a constant may be off by a factor: the mean of |log(predicted / measured)| and a small share of the
squared distance to the prior. Without that, a constant that no run depends on would run away.

Source: SPEC P1.
"""

from functools import partial

import numpy as np
from scipy.optimize import minimize

from ..model.constants import PRIOR, Constants
from ..model.decoder import DecoderWork, Runs, predicted_s, work_of
from ..model.hardware import Measured
from ..model.step_time import Array, Machine

WEIGHT = 0.003  # of the distance to the prior: a factor of 2 weighs as much as an error of 0.14 %
STARTS, SPREAD, SEED = 4, 0.5, 0  # where the search begins: at the prior, and at random about it
MOST_FAR = 14.0  # a constant is at most a million times off the prior: numbers stay finite on the way
SEARCH = {"maxfev": 4000, "xatol": 1e-4, "fatol": 1e-7, "adaptive": True}
SHORT_SEARCH = {"maxfev": 1500, "xatol": 1e-3, "fatol": 1e-6, "adaptive": True}  # from where most of the runs lead


def machine_of(measured: Measured) -> Machine:
    """Return the figures of the hardware that runs were measured on."""
    return Machine(measured.peak_flops, measured.memory_bytes_per_s, measured.nic_bytes_per_s)


def prior_of(measured: Measured) -> Constants:
    """Return where constants are sought: for an A100, carried over to other bandwidths."""
    inside, across = (
        measured.intra_bytes_per_s / Measured().intra_bytes_per_s,
        measured.nic_bytes_per_s / Measured().nic_bytes_per_s,
    )
    return PRIOR._replace(
        tensor_bytes_per_s=PRIOR.tensor_bytes_per_s * inside,
        inside_bytes_per_s=PRIOR.inside_bytes_per_s * inside,
        across_bytes_per_s=PRIOR.across_bytes_per_s * across,
    )


def fit(runs: Runs, measured: Measured, start: Constants | None = None) -> Constants:
    """Return the constants that fit runs best.

    Args:
        runs: One at least.
        measured: The hardware that they ran on.
        start: Where to begin, if that is known well; else several starts are tried.
    """
    prior = np.log(prior_of(measured))
    work = work_of(runs, machine_of(measured), measured.gpus_per_node)
    loss = partial(_loss, work=work, measured_log=np.log(runs.iteration_s), prior_log=prior)
    if start is not None:
        return Constants(*np.exp(minimize(loss, np.log(start), method="Nelder-Mead", options=SHORT_SEARCH).x).tolist())
    rng = np.random.default_rng(SEED)
    starts = [prior, *(prior + rng.normal(0.0, SPREAD, prior.size) for _ in range(STARTS - 1))]
    found = [minimize(loss, it, method="Nelder-Mead", options=SEARCH) for it in starts]
    best = min(found, key=lambda it: float(it.fun))
    return Constants(*np.exp(best.x).tolist())


def _loss(logs: Array, work: DecoderWork, measured_log: Array, prior_log: Array) -> float:
    if np.abs(logs - prior_log).max() > MOST_FAR:
        return 1e9
    predicted = predicted_s(work, Constants(*np.exp(logs).tolist()))
    return float(np.abs(np.log(predicted) - measured_log).mean() + WEIGHT * ((logs - prior_log) ** 2).sum())


def ratios(runs: Runs, measured: Measured, constants: Constants) -> Array:
    """Return predicted over measured time of each run, shape (runs,)."""
    found: Array = (
        predicted_s(work_of(runs, machine_of(measured), measured.gpus_per_node), constants) / runs.iteration_s
    )
    return found
