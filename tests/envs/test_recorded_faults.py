"""What policies know of faults that are replayed."""

from pathlib import Path

import numpy as np
import pytest

from longshore.cluster.faults.recorded import FaultTrace
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
def test_policies_know_what_the_cluster_file_says_and_else_the_mean_of_the_fleet(
    hazard: str, known_per_day: list[float], tmp_path: Path
) -> None:
    (tmp_path / "c.yaml").write_text(FILE.replace("HAZARD", hazard))
    one = workload_of(("a",), np.array([1]), np.array([100.0]), np.array([0.0]))
    times_s = np.array([1.0, 5.0]) * DAY_S
    faults = FaultTrace(("x",), np.zeros(2, dtype=np.int32), times_s, times_s + 60.0, span_s=10 * DAY_S, nodes=2)
    setup = read_cluster(tmp_path / "c.yaml")
    problem = cluster_problem(setup, [one], Regime(), runs=1, seed=1, faults=faults)
    assert problem.scenarios.hazard_per_s[0] * DAY_S == pytest.approx(known_per_day)
    assert not problem.scenarios.source_rate_per_s.any()
