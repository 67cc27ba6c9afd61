"""What the recipe of `checkpoints/traces.zip` gives on traces that it never saw.

The ten traces are parted into five folds of two. For each fold a policy is trained by the same recipe, with one seed,
on the other eight traces, and runs the windows of benchmarks/real_windows.py of the two. The runs are kept in `FOLDER`,
and the command goes on where it was stopped. Two train at once, each on one core.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

from longshore.agents.learned.checkpoint import load_policy

from .harness import ROOT, Row, main, progress
from .real import cell_of, summary_of
from .real_stored import LEARNED, Cell
from .real_windows import loads_of, traces
from .traces_checkpoint import AT_ONCE, trained

FOLDER = ROOT / "runs" / "left-out"
FOLDS = 5
LEAST = {  # by how much the mean JCT is to be lower, in per cent
    "strict FIFO": 1.5, "EASY": 4.0, "EASY, shortest first": 4.0, "shortest first, aged after a week": 1.5,
}  # fmt: skip


def folds() -> list[tuple[str, ...]]:
    """Return the traces that each fold leaves out: the large Philly ones lie in different folds."""
    names = tuple(traces())
    return [names[fold::FOLDS] for fold in range(min(FOLDS, len(names)))]


def trained_without(left_out: tuple[str, ...]) -> Path:
    """Train on all traces but some, or go on with that, and return the checkpoint."""
    kept = [path for name, path in traces().items() if name not in left_out]
    return trained(FOLDER / "-".join(left_out), kept, 0)


def cells_of(order: str, checkpoints: dict[str, Path]) -> list[Cell]:
    """Run each trace under an order regime, with the policy that never saw it."""
    policies = {name: load_policy(path) for name, path in checkpoints.items()}
    return [
        cell_of(order, name, path, load, {LEARNED: policies[name]})
        for name, path in traces().items()
        for load in loads_of(name, path).items()
    ]


def measure() -> Iterator[Row]:
    """Train what is not there, and yield each comparison."""
    if not traces():
        progress("the real traces are not there: nothing to measure")
        return
    with ProcessPoolExecutor(AT_ONCE, get_context("spawn")) as pool:
        trained_on_others = list(pool.map(trained_without, folds()))
    checkpoints = {name: best for names, best in zip(folds(), trained_on_others, strict=True) for name in names}
    for order, least in LEAST.items():
        progress(order)
        found = summary_of(cells_of(order, checkpoints), order)
        yield Row(f"{order}: mean JCT", found.mean.percent, "%", most=-least)
        yield Row(f"{order}: mean JCT, lower end", found.mean.low, "%")
        yield Row(f"{order}: mean JCT, upper end", found.mean.high, "%", most=0.0)
        yield Row(f"{order}: mean JCT, worst trace ({found.worst})", found.worst_percent, "%")
        yield Row(f"{order}: p99 JCT", found.p99.percent, "%")
        yield Row(f"{order}: longest wait", found.wait.percent, "%")


if __name__ == "__main__":
    main(measure)
