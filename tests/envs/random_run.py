"""Small problems and random masked run for the tests of environments."""

import hashlib
from collections.abc import Iterator
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from longshore.cluster.model.problem import ORDERS, Problem
from longshore.cluster.presets.drawn import hetero64
from longshore.envs.batch import AgentView, Batch
from tests.strategies import Case

SEEN = (
    ("node", "full"),
    ("node", "patent"),
    ("gpu", "full"),
    ("gpu", "patent"),
    ("gpu", "patent-literal"),
    ("candidate", "full"),
)


def small_problem(
    scenarios: int = 8, *, nodes: int = 4, jobs: int = 12, order: str = "fifo", waiting: bool = False, faults: float = 1
) -> Problem:
    """Return a smaller `hetero64` with `faults` times the fault rates."""
    cluster, drawn, process, rules = hetero64(scenarios, 5, nodes=nodes, jobs=jobs)
    drawn = drawn._replace(source_rate_per_s=drawn.source_rate_per_s * faults)
    return Problem(cluster, drawn, process, rules._replace(order=ORDERS[order], waiting=waiting))


def problem_of(case: Case) -> Problem:
    return Problem(case.cluster, case.scenarios, case.process, case.rules)


def open_actions(masks: NDArray[np.bool_], rng: np.random.Generator) -> NDArray[np.int64]:
    """Return a random open action of each row; 0 where none is open."""
    drawn: NDArray[np.int64] = (rng.random(masks.shape, dtype=np.float32) * masks).argmax(axis=1)
    return drawn


def steps_of_episode(batch: Batch, scenario: int, rng: np.random.Generator) -> Iterator[None]:
    """Run row 0 of a batch of one at random; yields at every decision and after the last step."""
    batch.reset(scenario)
    yield
    while batch.masks[0].any():
        batch.step(open_actions(batch.masks, rng))
        yield


def episode_digest(action: str) -> str:
    """Return a digest of all that short random episodes show, to the bit."""
    digest = hashlib.sha256()
    for order, ring in (("fifo", True), ("shortest", False)):
        problem = small_problem(2, jobs=6, order=order, waiting=True, faults=4)
        rules = problem.rules._replace(ring=ring)
        batch = Batch(
            type(problem)(problem.cluster, problem.scenarios, problem.process, rules), AgentView(action=action), 1
        )
        for _ in steps_of_episode(batch, 1, np.random.default_rng(1)):
            for array in (batch.observations, batch.rewards, batch.masks, batch.ended, batch.sim.state.now_s):
                digest.update(array.tobytes())
    return digest.hexdigest()


def trace_in(folder: Path, jobs: int = 400) -> Path:
    """Write a trace of short jobs of up to 8 GPUs."""
    rng, path = np.random.default_rng(0), folder / "jobs.csv"
    rows = zip(rng.integers(1, 9, jobs), rng.uniform(600, 7200, jobs), np.sort(rng.uniform(0, 1e6, jobs)), strict=True)
    path.write_text("gpus,work_s,submit_s\n" + "".join(f"{gpus},{work:.6f},{at:.1f}\n" for gpus, work, at in rows))
    return path
