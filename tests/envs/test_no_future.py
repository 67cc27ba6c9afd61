"""Nothing that has not happened yet is seen."""

import numpy as np
import pytest

from longshore.cluster.hetero64 import hetero64
from longshore.envs.batch import Batch, Problem, View

LAST_SUBMIT_S = 200_000.0


def batch(action: str, observation: str, *, last_job: float, fault_seed: int) -> Batch:
    """Return a problem whose last job comes late, and is of another size and length as asked."""
    cluster, scenarios, process, rules = hetero64(1, 3, jobs=24)
    submit = np.append(np.linspace(0, 90_000, 23), LAST_SUBMIT_S)[None]
    scale = np.append(np.ones(23), last_job)
    gpus = scenarios.gpus.copy()
    gpus[0, -1] = 1 if last_job == 1 else 32
    changed = scenarios._replace(
        submit_s=submit, work_s=scenarios.work_s * scale, estimate_s=scenarios.work_s * scale, gpus=gpus,
        fault_seed=np.array([fault_seed]),
    )  # fmt: skip
    made = Batch(Problem(cluster, changed, process, rules), View(action, observation), 1)
    made.reset()
    return made


@pytest.mark.parametrize(("action", "observation"), [("node", "full"), ("gpu", "full"), ("gpu", "source")])
def test_a_job_that_is_not_submitted_changes_no_observation(action: str, observation: str) -> None:
    one = batch(action, observation, last_job=1.0, fault_seed=5)
    other = batch(action, observation, last_job=50.0, fault_seed=5)
    seen = 0
    while one.sim.state.now_s[0] < LAST_SUBMIT_S and not one.ended[0]:
        assert one.sim.state.now_s[0] == other.sim.state.now_s[0]
        assert (one.observations == other.observations).all()
        chosen = one.masks.argmax(axis=1)
        one.step(chosen)
        other.step(chosen)
        seen += 1
    assert seen > 20


def test_a_fault_that_has_not_happened_changes_no_observation() -> None:
    one, other = (batch("node", "full", last_job=1.0, fault_seed=seed) for seed in (5, 6))
    first_fault_s = min(float(made.sim.state.source_s.min()) for made in (one, other))
    seen = 0
    while one.sim.state.now_s[0] < first_fault_s:
        assert (one.observations == other.observations).all()
        chosen = one.masks.argmax(axis=1)
        one.step(chosen)
        other.step(chosen)
        seen += 1
    assert seen > 0
