"""Files of measured runs of decoders: a row for each, in csv.

Source: SPEC P1.
"""

from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from ...cluster.files.errors import InputError
from ...cluster.files.text import read_head
from ...cluster.traces.table import Rows, columns_of, read_rows
from ..model.decoder import FULL, NONE, SELECTIVE, Runs

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
