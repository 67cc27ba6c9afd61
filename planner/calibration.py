"""Calibration: the constants of the step-time model, fitted to measured runs and tested with runs outside of the fit.

A fit minimises, in logarithms, the mean of |log(predicted / measured)| and a small share of the squared distance to a
prior from datasheets. Without the prior, a constant that no run depends on would diverge.

The error is that of runs outside of the fit: each run is predicted by a fit to the others. The upper bound comes from
the same predictions. Bounds from the residuals of a fit cover too few other runs.

Source: SPEC P1.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from functools import partial
from math import ceil, log
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import ValidationError

from ..cluster.files.errors import InputError
from ..cluster.files.input_problems import read_head
from ..cluster.files.output_file import encodable_text
from ..cluster.traces.read import TraceRows, columns_of, read_rows
from .hardware import Accuracy, FittedConstants, HardwareProfile, MeasuredHardware, scaled_to_bandwidths
from .step_time import (
    NUMBER_BYTES,
    OPTIMIZER_BYTES,
    Array,
    Constants,
    HardwareRates,
    IterationWork,
    MicroBatchWork,
    all_reduce_bytes,
    iteration_s,
    micro_batch_s,
)

FULL, SELECTIVE, NONE = 2.0, 1.0, 0.0  # how much of a layer is computed twice


class MeasuredRuns(NamedTuple):
    """Runs of decoders, each array of shape (runs,)."""

    gpus: Array
    batch: Array  # global, in samples
    micro_batch: Array
    hidden: Array
    layers: Array
    sequence: Array
    vocabulary: Array
    tensor: Array  # degrees of parallelism
    pipeline: Array
    data: Array
    recompute: Array  # FULL, SELECTIVE or NONE
    interleave: Array  # parts of the model on each stage
    zero3: Array  # 1 where parameters are spread over all members, else 0
    iteration_s: Array  # as measured


def select_runs(runs: MeasuredRuns, rows: NDArray[np.int64]) -> MeasuredRuns:
    """Return some of the runs, by their indices."""
    return MeasuredRuns(*(column[rows] for column in runs))


class DecoderWork(NamedTuple):
    """The work of runs, for predictions with any constants."""

    micro_batch: MicroBatchWork
    iteration: IterationWork
    machine: HardwareRates


def decoder_work_of(runs: MeasuredRuns, measured: MeasuredHardware) -> DecoderWork:
    """Return the work of each run on its slowest stage, arrays of shape (runs,).

    One dense decoder layer has 24 s h^2 + 4 s^2 h forward FLOPs for a sample, and 12 h^2 parameters; the head has
    2 s h V FLOPs. The last stage is the slowest, as it holds the head too.
    """
    t, p, d = runs.tensor, runs.pipeline, runs.data
    local = runs.layers / p
    parameters = 12.0 * runs.hidden**2 * local / t + runs.vocabulary * runs.hidden / t
    micro_batches = runs.batch / (d * runs.micro_batch)
    summed = np.where(runs.zero3 > 0, 0.0, all_reduce_bytes(d, NUMBER_BYTES * parameters))
    gathered = 3.0 * NUMBER_BYTES * parameters * micro_batches * (d - 1.0) / d
    is_inside = runs.gpus <= measured.gpus_per_node
    iteration = IterationWork(
        steps=micro_batches + (p - 1.0) / runs.interleave,
        inside_bytes=np.where(is_inside, summed, 0.0),
        across_bytes=np.where(is_inside, 0.0, summed),
        gathered_bytes=np.where(runs.zero3 > 0, gathered, 0.0),
        optimizer_bytes=OPTIMIZER_BYTES * parameters,
    )
    machine = HardwareRates(measured.peak_flops, measured.memory_bytes_per_s, measured.nic_bytes_per_s)
    return DecoderWork(_micro_batch_work(runs, local), iteration, machine)


def _micro_batch_work(runs: MeasuredRuns, layers_per_stage: Array) -> MicroBatchWork:
    t, b, s, h = runs.tensor, runs.micro_batch, runs.sequence, runs.hidden
    layer = 24.0 * s * h**2 + 4.0 * s**2 * h
    # Selective recomputation does the products of attention a second time, and no others.
    passes = np.where(runs.recompute == FULL, 4.0, 3.0)
    again = np.where(runs.recompute == SELECTIVE, 4.0 * s**2 * h, 0.0)
    reduces = np.where(runs.recompute == FULL, 6.0, 4.0)  # all-reduces of a layer
    head = 3.0 * 2.0 * s * h * runs.vocabulary
    activation = b * s * h
    return MicroBatchWork(
        flops=b / t * ((passes * layer + again) * layers_per_stage + head),
        elements=activation / t,
        tensor_bytes=all_reduce_bytes(t, reduces * layers_per_stage * activation * NUMBER_BYTES),
        layers=layers_per_stage,
        tensor_layers=np.where(t > 1, layers_per_stage, 0.0),
    )


def predicted_iteration_s(work: DecoderWork, constants: Constants) -> Array:
    """Return the iteration time of each run, shape (runs,)."""
    each_s = micro_batch_s(work.micro_batch, work.machine.peak_flops, constants)
    return iteration_s(each_s, work.iteration, work.machine, constants)


# Where a fit starts, and what it is regularised to: from datasheets of the A100.
PRIOR = Constants(0.55, 0.30e6, 150e9, 100e9, 20e9, 1e-3, 0.5e-3, 5e-3)
WEIGHT = 0.003  # of the distance to the prior: a factor of 2 weighs as much as an error of 0.14 %
STARTS, SPREAD, SEED = 4, 0.5, 0  # starts of the search: the prior, and random points around it
MAX_LOG_DISTANCE = 14.0  # a constant is at most a million times off the prior: numbers stay finite
SEARCH = {"maxfev": 4000, "xatol": 1e-4, "fatol": 1e-7, "adaptive": True}
SHORT_SEARCH = {"maxfev": 1500, "xatol": 1e-3, "fatol": 1e-6, "adaptive": True}  # from the fit to all runs


def fit_constants(runs: MeasuredRuns, measured: MeasuredHardware, start: Constants | None = None) -> Constants:
    """Return the constants that fit runs best.

    Args:
        runs: At least one.
        measured: The hardware that they ran on.
        start: A good start; without one, several are tried.
    """
    from scipy.optimize import minimize

    prior = np.log(
        scaled_to_bandwidths(PRIOR, MeasuredHardware(), measured.intra_bytes_per_s, measured.nic_bytes_per_s)
    )
    loss = partial(
        _fit_loss, work=decoder_work_of(runs, measured), log_measured_s=np.log(runs.iteration_s), log_prior=prior
    )
    if start is not None:
        return Constants(*np.exp(minimize(loss, np.log(start), method="Nelder-Mead", options=SHORT_SEARCH).x).tolist())
    rng = np.random.default_rng(SEED)
    starts = [prior, *(prior + rng.normal(0.0, SPREAD, prior.size) for _ in range(STARTS - 1))]
    found = [minimize(loss, start, method="Nelder-Mead", options=SEARCH) for start in starts]
    best = min(found, key=lambda result: float(result.fun))
    return Constants(*np.exp(best.x).tolist())


def _fit_loss(log_constants: Array, work: DecoderWork, log_measured_s: Array, log_prior: Array) -> float:
    if np.abs(log_constants - log_prior).max() > MAX_LOG_DISTANCE:
        return 1e9
    predicted = predicted_iteration_s(work, Constants(*np.exp(log_constants).tolist()))
    return float(np.abs(np.log(predicted) - log_measured_s).mean() + WEIGHT * ((log_constants - log_prior) ** 2).sum())


def predicted_over_measured(runs: MeasuredRuns, measured: MeasuredHardware, constants: Constants) -> Array:
    """Return predicted over measured time of each run, shape (runs,)."""
    found: Array = predicted_iteration_s(decoder_work_of(runs, measured), constants) / runs.iteration_s
    return found


BOUND_SHARE = 0.9
MIN_RUNS = ceil(BOUND_SHARE / (1.0 - BOUND_SHARE) - 1e-9)  # runs: with fewer no bound covers this share
RELIABLE_RUNS = 20  # runs: with fewer the measured error is unreliable
MAX_FOLDS = 40
# The runs determine a constant if doubling or halving it costs more than its distance to the prior would.
IDENTIFIED_BY = WEIGHT * log(2.0) ** 2


def calibrate(runs: MeasuredRuns, measured: MeasuredHardware, name: str) -> HardwareProfile:
    """Return the hardware profile of measured runs.

    Args:
        runs: At least MIN_RUNS with different settings; runs of equal settings are held out together.
        measured: The hardware that they ran on.
        name: Of the profile.

    Raises:
        InputError: If there are too few different runs.
    """
    count, different = runs.gpus.size, int(settings_labels(runs).max(initial=-1)) + 1
    if different < MIN_RUNS:
        fix = f"measure at least {MIN_RUNS}, better {RELIABLE_RUNS}, that differ in micro-batch and degrees"
        of_which = f", of which {different} are different," if different < count else ""
        raise InputError(f"{count} runs{of_which} are too few for a {BOUND_SHARE:.0%} bound", fix)
    constants = fit_constants(runs, measured)
    plausible = _validated_constants(constants)
    held_out = held_out_ratios(runs, measured, constants)
    return HardwareProfile(
        name=encodable_text(name)[:200],
        measured_on=measured,
        constants=plausible,
        not_identified=tuple(undetermined_constants(runs, measured, constants)),
        accuracy=accuracy_of_ratios(held_out),
    )


def _validated_constants(constants: Constants) -> FittedConstants:
    """Return constants as a file has them.

    Raises:
        InputError: If no hardware has them.
    """
    try:
        return FittedConstants(**{name: float(value) for name, value in constants._asdict().items()})
    except ValidationError as error:
        name, got = error.errors()[0]["loc"][0], error.errors()[0]["input"]
        problem = f"the runs give {name} = {got:.3g} on this hardware, which is impossible"
        raise InputError(problem, "check the units of iteration_s, --peak-flops and the bandwidths") from error


def held_out_ratios(runs: MeasuredRuns, measured: MeasuredHardware, constants: Constants) -> Array:
    """Return predicted over measured time of each run, by a fit without it, shape (runs,).

    Args:
        runs: At least two; they are held out one by one, or in MAX_FOLDS groups.
        measured: The hardware that they ran on.
        constants: Of a fit to all, the start of the others.
    """
    found, settings = np.empty(runs.gpus.size), settings_labels(runs)
    different = int(settings.max()) + 1
    for group in random_folds(different, min(MAX_FOLDS, different)):
        fold = np.flatnonzero(np.isin(settings, group))
        others = np.setdiff1d(np.arange(runs.gpus.size), fold)
        found[fold] = predicted_over_measured(
            select_runs(runs, fold), measured, fit_constants(select_runs(runs, others), measured, constants)
        )
    return found


def settings_labels(runs: MeasuredRuns) -> NDArray[np.int64]:
    """Return a number for each run, shape (runs,): the same for those that differ only in their measured time.

    A run is outside of a fit only if all runs of the same settings are.
    """
    columns = np.stack([column for name, column in runs._asdict().items() if name != "iteration_s"], axis=1)
    if not columns.shape[0]:
        return np.empty(0, np.int64)
    _, first, number = np.unique(columns, axis=0, return_index=True, return_inverse=True)
    in_order = np.argsort(np.argsort(first))  # numbered by their first run: folds stay as they are where all differ
    found: NDArray[np.int64] = in_order[number.ravel()]
    return found


def random_folds(count: int, groups: int) -> list[NDArray[np.int64]]:
    """Return the indices of N runs in groups, at random but always the same."""
    return [np.sort(part) for part in np.array_split(np.random.default_rng(0).permutation(count), groups)]


def accuracy_of_ratios(ratios: Array) -> Accuracy:
    """Return the error of predictions, and the factor of the upper bound.

    The bound is the k-th of the n ratios measured / predicted, k = (n + 1) * share rounded up: a further run is no
    longer with that probability.
    """
    count = ratios.size
    longer = np.sort(1.0 / ratios)
    at = min(count, ceil((count + 1) * BOUND_SHARE - 1e-9)) - 1
    return Accuracy(
        runs=count,
        mean_error=float(np.abs(ratios - 1.0).mean()),
        bias=float((ratios - 1.0).mean()),
        bound_share=BOUND_SHARE,
        bound_factor=float(longer[at]),
    )


def undetermined_constants(runs: MeasuredRuns, measured: MeasuredHardware, constants: Constants) -> list[str]:
    """Return the names of the constants that the runs do not determine: to halve or double one costs little."""

    def error(tried: Constants) -> float:
        return float(np.abs(np.log(predicted_over_measured(runs, measured, tried))).mean())

    here = error(constants)
    rises = {
        name: max(error(constants._replace(**{name: value * factor})) for factor in (0.5, 2.0)) - here
        for name, value in constants._asdict().items()
    }
    return [name for name, rise in rises.items() if rise < IDENTIFIED_BY]


MAX_RUNS = 100_000
# Names of a column: ours, and those of vTrain's published runs.
WHOLE_COLUMNS = {
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
TIME_COLUMNS = {"iteration_s": 1.0, "iteration_ms": 1e-3, "iteration time (ms)": 1e-3}  # in seconds
COLUMN_DEFAULTS = {
    "vocabulary": 51_200.0,
    "interleave": 1.0,
    "zero": 0.0,
}  # GPT-2's vocabulary, padded by Megatron
RECOMPUTE = {"full": FULL, "selective": SELECTIVE, "none": NONE}


def read_runs(path: Path) -> MeasuredRuns:
    """Return the runs of a file; docs/planner.md has the columns.

    Raises:
        InputError: If a column is missing, or a row is invalid, with its line.
    """
    names = columns_of(read_head(path))
    called = {ours: next((name for name in known if name in names), known[0]) for ours, known in WHOLE_COLUMNS.items()}
    time = next((name for name in TIME_COLUMNS if name in names), "iteration_s")
    parts = []
    with closing(read_rows(path, (*called.values(), time), optional=(*COLUMN_DEFAULTS, "recompute"))) as chunks:
        for rows in chunks:
            parts.append(_runs_of_rows(rows, called, time))
            if sum(part.gpus.size for part in parts) > MAX_RUNS:
                raise InputError(f"there are more than {MAX_RUNS:,} runs", "use a sample of them", path=path)
    if not parts:
        raise InputError("the file has no runs", "add a row for each", path=path)
    return MeasuredRuns(*(np.concatenate(column) for column in zip(*parts, strict=True)))


def _runs_of_rows(rows: TraceRows, column_names: Mapping[str, str], time_column: str) -> MeasuredRuns:
    whole = {
        ours: rows.whole_numbers(theirs, least=1, most=10**9).astype(np.float64)
        for ours, theirs in column_names.items()
    }
    count = len(rows.lines)
    others = {
        name: rows.whole_numbers(name, least=0 if name == "zero" else 1, most=10**9).astype(np.float64)
        if rows.has(name)
        else np.full(count, default)
        for name, default in COLUMN_DEFAULTS.items()
    }
    measured = rows.numbers(time_column, least=1e-9, most=1e9) * TIME_COLUMNS[time_column]
    runs = MeasuredRuns(
        **whole, vocabulary=others["vocabulary"], interleave=others["interleave"], recompute=_recompute_column(rows),
        zero3=(others["zero"] == 3).astype(np.float64), iteration_s=measured,
    )  # fmt: skip
    _check_runs(rows, runs, column_names, others["zero"])
    return runs


def _recompute_column(rows: TraceRows) -> NDArray[np.float64]:
    given: Sequence[str] = rows.cells.get("recompute") or ("full",) * len(rows.lines)
    for row, word in enumerate(given):
        if word.strip() not in RECOMPUTE:
            raise rows.error("recompute", row, "is not full, selective or none", "write one of these")
    return np.array([RECOMPUTE[word.strip()] for word in given])


def _check_runs(
    rows: TraceRows, runs: MeasuredRuns, column_names: Mapping[str, str], zero_stages: NDArray[np.float64]
) -> None:
    """Reject the first row whose numbers contradict each other."""
    degrees = runs.tensor * runs.pipeline * runs.data
    wrong = (
        ("gpus", degrees != runs.gpus, "GPUs are not tensor x pipeline x data", "correct one of the four"),
        ("batch", runs.batch % (runs.data * runs.micro_batch) != 0, "is not made of whole micro-batches on each member",
         "it should be a multiple of data x micro_batch"),
        ("pipeline", runs.pipeline > runs.layers, "stages are more than the layers", "correct one of the two"),
    )  # fmt: skip
    for name, rows_wrong, problem, fix in wrong:
        if rows_wrong.any():
            raise rows.error(column_names[name], int(np.flatnonzero(rows_wrong)[0]), problem, fix)
    odd = np.flatnonzero(~np.isin(zero_stages, (0.0, 1.0, 3.0)))
    if odd.size:
        raise rows.error(
            "zero", int(odd[0]), "is no stage of ZeRO that is modelled", "write 0, 1 or 3, or drop the row"
        )
