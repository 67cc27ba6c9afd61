"""Hardware profiles: fitted to measured runs, written to files, read back, and judged by runs outside of the fit.

Constants fitted to measured runs, near to what datasheets say where the runs say nothing.

In logarithms, as a constant may be off by a factor: the mean of |log(predicted / measured)| and a small share of the
squared distance to the prior. Without that, a constant that no run depends on would run away.

A hardware profile from measured runs: constants, which of them the runs tell, and how far predictions are off.

How far is judged by runs that a fit did not know: each is predicted by a fit to the others. The upper bound comes from
the same predictions. Bounds from how well a fit meets its own runs cover too few others.

Source: SPEC P1.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from math import ceil, log
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from ..cluster.files.errors import InputError
from ..cluster.files.input_problems import read_head
from ..cluster.files.output_file import readable
from ..cluster.traces.read import Rows, columns_of, read_rows
from .model import (
    FULL,
    NONE,
    PRIOR,
    SELECTIVE,
    Accuracy,
    Array,
    Constants,
    DecoderWork,
    FittedConstants,
    HardwareProfile,
    Machine,
    Measured,
    Runs,
    fitted,
    predicted_s,
    select,
    work_of,
)

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
    from scipy.optimize import minimize

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


MOST_RUNS = 100_000
# What a column may be called: our name, and that of vTrain's published runs.
WHOLE = {
    "gpus": ("gpus", "GPUs", "# GPUs"),
    "batch": ("batch", "global batch"),
    "micro_batch": ("micro_batch", "micro batch"),
    "hidden": ("hidden", "hidden size"),
    "layers": ("layers", "# layers"),
    "sequence": ("sequence", "sequence length"),
    "tensor": ("tensor", "tensor parallelism"),
    "pipeline": ("pipeline", "pipeline parallelism"),
    "data": ("data", "data parallelism"),
}
TIMES = {"iteration_s": 1.0, "iteration_ms": 1e-3, "iteration time (ms)": 1e-3}  # in seconds
DEFAULTS = {"vocabulary": 51_200.0, "interleave": 1.0, "zero": 0.0}  # GPT-2's vocabulary, as Megatron fills it up
RECOMPUTE = {"full": FULL, "selective": SELECTIVE, "none": NONE}


def read_runs(path: Path) -> Runs:
    """Return the runs of a file; docs/planner.md has the columns.

    Raises:
        InputError: If a column is missing, or a row makes no sense, with its line.
    """
    names = columns_of(read_head(path))
    called = {ours: next((it for it in known if it in names), known[0]) for ours, known in WHOLE.items()}
    time = next((it for it in TIMES if it in names), "iteration_s")
    parts = []
    with closing(read_rows(path, (*called.values(), time), optional=(*DEFAULTS, "recompute"))) as chunks:
        for rows in chunks:
            parts.append(_runs(rows, called, time))
            if sum(part.gpus.size for part in parts) > MOST_RUNS:
                raise InputError(f"there are more than {MOST_RUNS:,} runs", "give a sample of them", path=path)
    if not parts:
        raise InputError("the file has no runs", "add a row for each", path=path)
    return Runs(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _runs(rows: Rows, called: Mapping[str, str], time: str) -> Runs:
    whole = {
        ours: rows.whole_numbers(theirs, least=1, most=10**9).astype(np.float64) for ours, theirs in called.items()
    }
    count = len(rows.lines)
    others = {
        name: rows.whole_numbers(name, least=0 if name == "zero" else 1, most=10**9).astype(np.float64)
        if rows.has(name)
        else np.full(count, default)
        for name, default in DEFAULTS.items()
    }
    measured = rows.numbers(time, least=1e-9, most=1e9) * TIMES[time]
    runs = Runs(
        **whole, vocabulary=others["vocabulary"], interleave=others["interleave"], recompute=_recompute(rows),
        zero3=(others["zero"] == 3).astype(np.float64), iteration_s=measured,
    )  # fmt: skip
    _check(rows, runs, called, others["zero"])
    return runs


def _recompute(rows: Rows) -> NDArray[np.float64]:
    given: Sequence[str] = rows.texts("recompute") or ("full",) * len(rows.lines)
    for row, word in enumerate(given):
        if word.strip() not in RECOMPUTE:
            raise rows.error("recompute", row, "is not full, selective or none", "write one of these")
    return np.array([RECOMPUTE[word.strip()] for word in given])


def _check(rows: Rows, runs: Runs, called: Mapping[str, str], zero: NDArray[np.float64]) -> None:
    """Refuse the first row whose numbers contradict each other."""
    degrees = runs.tensor * runs.pipeline * runs.data
    wrong = (
        ("gpus", degrees != runs.gpus, "GPUs are not tensor x pipeline x data", "correct one of the four"),
        ("batch", runs.batch % (runs.data * runs.micro_batch) != 0, "is not made of whole micro-batches on each member",
         "it should be a multiple of data x micro_batch"),
        ("pipeline", runs.pipeline > runs.layers, "stages are more than the layers", "correct one of the two"),
    )  # fmt: skip
    for name, rows_wrong, problem, fix in wrong:
        if rows_wrong.any():
            raise rows.error(called[name], int(np.flatnonzero(rows_wrong)[0]), problem, fix)
    odd = np.flatnonzero(~np.isin(zero, (0.0, 1.0, 3.0)))
    if odd.size:
        raise rows.error(
            "zero", int(odd[0]), "is no stage of ZeRO that is modelled", "write 0, 1 or 3, or drop the row"
        )
