"""No two things that happen to a cluster are drawn from the same random number, or one would follow from the other."""

import json
import os
import sys
from pathlib import Path

from tests.support import processes

ROOT = Path(__file__).parents[3]
CLUSTER = """
node_types:
  a: {gpus: 2, peak_flops: 1e14, memory_bytes: 1e9, hazard_per_s: 1e-4}
racks: [{nodes: [{type: a, count: 3}]}, {nodes: [{type: a, count: 3}]}]
faults: {model: lemon, lemon_share: 0.5, handling: switch, backups: 1,
         slow: {a_node_day: 100, factor: 2.0, lasts_s: 600}}
"""
RUN = """
import json, sys
from pathlib import Path
import numpy as np
from longshore.agents.heuristics import HEURISTICS
from longshore.cluster import placing
from longshore.cluster.faults import models
from longshore.cluster.model.workload import workload_of
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.cluster.presets.problems import Regime, cluster_problem
from longshore.cluster.simulator import faults, slow_nodes
from longshore.cluster.simulator.simulation import simulation_of

uses = {}

def recorded(purpose, uniform):
    def draw(seed, source, k):
        uses.setdefault((int(seed), int(source), int(k)), set()).add(purpose)
        return uniform(seed, source, k)
    return draw

for module in (models, faults, slow_nodes, placing):
    module.uniform = recorded(module.__name__.rpartition(".")[2], module.uniform)
jobs = 12
work_s, gpus = np.full(jobs, 20_000.0), np.full(jobs, 2, np.int32)
workload = workload_of(tuple(map(str, range(jobs))), gpus, work_s, np.arange(jobs) * 1000.0)
problem = cluster_problem(read_cluster(Path(sys.argv[1])), [workload], Regime(), runs=1, seed=3)
HEURISTICS["random"].run(simulation_of(problem), np.array([0]))
shared = [key for key, purposes in uses.items() if len(purposes) > 1]
print(json.dumps([sorted(set().union(*uses.values())), shared]))
"""


def test_lemons_faults_slow_nodes_and_placements_share_no_random_number(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text(CLUSTER)
    done = processes.run(
        [sys.executable, "-c", RUN, str(tmp_path / "c.yaml")],
        cwd=ROOT, env={**os.environ, "NUMBA_DISABLE_JIT": "1"}, capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    purposes, shared = json.loads(done.stdout)
    assert purposes == ["faults", "models", "placing", "slow_nodes"]
    assert shared == []
