"""How fast the batched environment steps on one core: 64 GPUs, `full` observations, random allowed actions."""

import time
from collections.abc import Iterator
from functools import partial

import numpy as np

from longshore.cluster.presets.drawn import hetero64
from longshore.envs.batch import AgentView, Batch

from .harness import Row, main, medians

SEED = 2026
SCENARIOS = 4096
ROWS = 512
STEPS = 100  # of all rows, in one measurement
ROUNDS = 9
MIXING_STEPS = 800  # after these, rows stand at all stages of their episodes
LEAST_PER_S = 500_000


def mixed_batch(view: AgentView) -> Batch:
    """Return environments that are somewhere in their episodes."""
    batch = Batch(hetero64(SCENARIOS, SEED), view, ROWS)
    batch.reset()
    steps_per_s(batch, np.random.default_rng(SEED), MIXING_STEPS)
    return batch


def steps_per_s(batch: Batch, rng: np.random.Generator, steps: int = STEPS) -> float:
    """Return environment steps a second, resets included; drawing the actions is not counted."""
    taken_s = 0.0
    for _ in range(steps):
        chosen = (rng.random(batch.masks.shape) * batch.masks).argmax(axis=1)
        begin_s = time.perf_counter()
        batch.step(chosen)
        batch.reset_rows(np.flatnonzero(batch.ended))
        taken_s += time.perf_counter() - begin_s
    return batch.rows * steps / taken_s


def measure() -> Iterator[Row]:
    """Yield environment steps a second for both kinds of action, and for the smaller observation."""
    views = {
        "a node a step, full observations": AgentView("node", "full"),
        "a GPU a step, full observations": AgentView("gpu", "full"),
        "a GPU a step, the patent's observations": AgentView("gpu", "patent"),
    }
    rng = np.random.default_rng(SEED)
    parts = {name: partial(steps_per_s, mixed_batch(view), rng) for name, view in views.items()}
    for name, value in medians(parts, ROUNDS).items():
        yield Row(name, value, "steps/s", least=LEAST_PER_S)


if __name__ == "__main__":
    main(measure)
