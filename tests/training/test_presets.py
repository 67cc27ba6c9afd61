"""Problems of the presets."""

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from longshore.cluster.model.problem import Scenarios
from longshore.cluster.presets.problems import HETERO64_CAPACITY, Regime
from longshore.training.problems import PRESETS, ProblemRequest


def small_trace(path: Path) -> Path:
    rng = np.random.default_rng(7)
    submit_s, work_s = np.cumsum(rng.exponential(300.0, 1000)), rng.uniform(600.0, 9e4, 1000)
    rows = [f"j{job},{submit_s[job]:.3f},{work_s[job]:.3f},{rng.integers(1, 9)}" for job in range(1000)]
    path.write_text("\n".join(["job_id,submission_time,duration,num_gpu", *rows]) + "\n")
    return path


def loads(scenarios: Scenarios) -> NDArray[np.float64]:
    found: NDArray[np.float64] = (scenarios.gpus * scenarios.work_s).sum(axis=1) / scenarios.submit_s.max(axis=1)
    return found / HETERO64_CAPACITY


def test_a_trace_is_trained_on_at_its_load_and_validated_on_later_jobs_under_many_draws(tmp_path: Path) -> None:
    windows = ProblemRequest(0, (Regime(waiting=True),), traces=(small_trace(tmp_path / "trace.csv"),))
    (trained,), (validated,) = PRESETS["philly"].build(windows)
    for problem in (trained, validated):
        assert np.allclose(loads(problem.scenarios), 0.85)
    assert not np.isin(validated.scenarios.work_s, trained.scenarios.work_s).any()
    assert len(np.unique(validated.scenarios.work_s, axis=0)) == 1
    assert validated.scenarios.jobs.size == 64
