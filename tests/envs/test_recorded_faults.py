"""What policies know of faults that are replayed."""

from pathlib import Path

import numpy as np
import pytest

from longshore.cluster.faults.recorded import FaultTrace
from longshore.cluster.model.problem import DEFAULT_HAZARD_PER_S, Problem
from longshore.cluster.model.workload import workload_of
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.cluster.presets.problems import Regime, cluster_problem

DAY_S = 86400.0
FILE = """\
node_types:
  a: {gpus: 2, peak_flops: 1e14, memory_bytes: 1e9, hazard_per_s: HAZARD}
  b: {gpus: 4, peak_flops: 1e14, memory_bytes: 1e9, hazard_per_s: 0}
racks:
  - nodes: [{type: a}, {type: b}]
"""


@pytest.mark.parametrize(
    ("hazard", "known_per_day"),
    [
        ("1e-6", [1e-6 * DAY_S] * 2 + [0.0] * 4),
        ("0", [0.1 / 2] * 2 + [0.1 / 4] * 4),  # 2 outages in 10 days of 2 nodes
    ],
)
def test_oracles_know_what_the_cluster_file_says_and_else_the_mean_of_the_fleet(
    hazard: str, known_per_day: list[float], tmp_path: Path
) -> None:
    problem = recorded(tmp_path, hazard, Regime(oracle=True))
    assert problem.scenarios.hazard_per_s[0] * DAY_S == pytest.approx(known_per_day)
    assert not problem.scenarios.source_rate_per_s.any()
    assert not problem.rules.estimated_hazards


@pytest.mark.parametrize(
    ("hazard", "known_per_s"),
    [("1e-6", [1e-6] * 2 + [0.0] * 4), ("0", [DEFAULT_HAZARD_PER_S] * 6)],
)
def test_no_other_policy_knows_anything_of_recorded_faults(
    hazard: str, known_per_s: list[float], tmp_path: Path
) -> None:
    problem = recorded(tmp_path, hazard, Regime())
    assert problem.scenarios.hazard_per_s[0].tolist() == known_per_s
    assert problem.rules.estimated_hazards


def recorded(folder: Path, hazard: str, regime: Regime) -> Problem:
    """Return a cluster with a hazard in its file, under two recorded outages."""
    (folder / "c.yaml").write_text(FILE.replace("HAZARD", hazard))
    one = workload_of(("a",), np.array([1]), np.array([100.0]), np.array([0.0]))
    times_s = np.array([1.0, 5.0]) * DAY_S
    faults = FaultTrace(("x",), np.zeros(2, dtype=np.int32), times_s, times_s + 60.0, span_s=10 * DAY_S, nodes=2)
    setup = read_cluster(folder / "c.yaml")
    return cluster_problem(setup, [one], regime, runs=1, seed=1, faults=faults)
