"""What the recipe of `checkpoints/traces.zip` gives on traces that it never saw.

The ten traces are parted into five folds of two. For each fold a policy is trained by the same recipe, with one seed, on
the other eight traces, and runs the windows of benchmarks/real_windows.py of the two. The runs are kept in `FOLDER`, and
the command goes on where it was stopped. Two train at once, each on one core.
"""

from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from longshore.agents.learned.checkpoint import load_policy

from .harness import ROOT, Row, main, progress
from .real import REGIMES, learned, rival
from .real_windows import differences, pooled, traces
from .traces_checkpoint import AT_ONCE, trained

FOLDER = ROOT / "runs" / "unseen"
FOLDS = 5
LEAST = {  # by how much the mean JCT is to be lower, in per cent
    "strict FIFO": 1.5, "EASY": 4.0, "EASY, shortest first": 4.0, "shortest first, aged after a week": 1.5,
}  # fmt: skip


def folds() -> list[dict[str, Path]]:
    """Return the traces that each fold leaves out: the large Philly ones lie in different folds."""
    found = list(traces().items())
    return [dict(found[fold::FOLDS]) for fold in range(FOLDS)]


def trained_without(left_out: dict[str, Path]) -> Path:
    """Train on all traces but some, or go on with that, and return the checkpoint."""
    kept = [path for name, path in traces().items() if name not in left_out]
    return trained(FOLDER / "-".join(left_out), kept, 0)


def measure() -> Iterator[Row]:
    """Train what is not there, and yield each comparison."""
    with ProcessPoolExecutor(AT_ONCE, get_context("spawn")) as pool:
        checkpoints = list(pool.map(trained_without, folds()))
    policies = {name: load_policy(best) for left_out, best in zip(folds(), checkpoints, strict=True) for name in left_out}
    for name, (regime, _) in REGIMES.items():
        progress(name)
        found = {}
        for trace, policy in policies.items():
            only = {trace: traces()[trace]}
            found |= differences(partial(learned, regime, policy), partial(rival, regime), only)
        mean, p99, _ = (pooled(list(parts)) for parts in zip(*found.values(), strict=True))
        yield Row(f"{name}: mean JCT", mean.percent, "%", most=-LEAST[name])
        yield Row(f"{name}: mean JCT, lower end", mean.low, "%")
        yield Row(f"{name}: mean JCT, upper end", mean.high, "%", most=0.0)
        yield Row(f"{name}: p99 JCT", p99.percent, "%")
        for trace, figures in found.items():
            yield Row(f"{name}: mean JCT, {trace}", pooled([figures.mean_s]).percent, "%")


if __name__ == "__main__":
    main(measure)
