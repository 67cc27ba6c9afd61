"""How fast a training run is from end to end on two cores: node actions, the network `set`, learning included."""

import itertools
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

from .harness import Row, main, progress

if TYPE_CHECKING:
    from longshore.training.run_folder import Progress

SEED = 2026
UPDATES = 30  # more than twice the validations of a run, so that the median update has none
THREADS = 2
LEAST_PER_S = 20_000


def run(updates: int) -> list[tuple[int, float]]:
    """Train for a number of updates; return steps so far and the time, in seconds, after each and at the end."""
    from longshore.training.config import TrainingConfig
    from longshore.training.problems import Hyperparameters
    from longshore.training.run import train

    size = Hyperparameters()
    marks: list[tuple[int, float]] = []

    def show(state: "Progress") -> None:
        marks.append((state.steps, time.perf_counter()))
        progress(f"update {len(marks)} of {updates}: {state.steps_per_s:.0f} steps/s since the start")

    config = TrainingConfig(
        preset="hetero64", steps=updates * size.rows * size.steps, seed=SEED, reward="potential", threads=THREADS
    )
    with tempfile.TemporaryDirectory() as folder:
        train(config, Path(folder), show)
    return marks


def measure() -> Iterator[Row]:
    """Yield environment steps a second: of the median update, and of the run with all its validations."""
    run(1)
    marks = run(UPDATES)
    rates = [(after - before) / (end_s - begin_s) for (before, begin_s), (after, end_s) in itertools.pairwise(marks)]
    yield Row("collecting and learning, the median update", statistics.median(rates), "steps/s", least=LEAST_PER_S)
    (first, begin_s), (last, end_s) = marks[0], marks[-1]
    overall = (last - first) / (end_s - begin_s)
    yield Row("the same, validations and checkpoints included", overall, "steps/s", least=LEAST_PER_S)


if __name__ == "__main__":
    main(measure)
