"""Run-time estimates that differ from the truth, as users' and profilers' do."""

import dataclasses
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from .workload import Workload

EstimateKind = Literal["exact", "log-normal", "class-mean"]
ESTIMATE_KINDS: tuple[EstimateKind, ...] = get_args(EstimateKind)


def with_estimates(
    workload: Workload, kind: EstimateKind, *, sigma: float = 0.0, rng: np.random.Generator | None = None
) -> Workload:
    """Return the workload with other estimates; the work stays as it is.

    - `exact`: the work itself.
    - `log-normal`: the work times a log-normal error of median 1, so that over- and underestimates are equally likely.
    - `class-mean`: the geometric mean of the work of all the workload's jobs that ask as many GPUs.

    Args:
        workload: The jobs.
        kind: One of the above.
        sigma: Standard deviation of the error's logarithm, for `log-normal`; 0.5 means a factor of 1.65.
        rng: Draws the errors, for `log-normal`.

    Raises:
        ValueError: If the kind is not known, sigma is negative or not finite, or `log-normal` has no rng.
    """
    if kind == "exact":
        return dataclasses.replace(workload, estimate_s=workload.work_s.copy())
    if kind == "class-mean":
        return dataclasses.replace(workload, estimate_s=_class_means_s(workload))
    if kind != "log-normal":
        raise ValueError(f"{kind!r} is not a kind of estimate; known: {', '.join(ESTIMATE_KINDS)}")
    if rng is None or not 0 <= sigma < np.inf:
        raise ValueError(f"log-normal estimates need an rng and a sigma of at least 0; got {sigma}")
    error = np.exp(sigma * rng.standard_normal(workload.jobs))
    return dataclasses.replace(workload, estimate_s=workload.work_s * error)


def _class_means_s(workload: Workload) -> NDArray[np.float64]:
    _, size = np.unique(workload.gpus, return_inverse=True)
    log_sum = np.bincount(size, weights=np.log(workload.work_s))
    means_s: NDArray[np.float64] = np.exp(log_sum / np.bincount(size))[size]
    return means_s
