"""How much memory is reckoned with, beside what is taken."""

import numpy as np
import pytest

from longshore.cluster.files.errors import InputError
from longshore.cluster.model.problem import Problem, fault_sources, stack
from longshore.cluster.model.topology import grid_cluster
from longshore.cluster.model.workload import workload_of
from longshore.cluster.presets.drawn import fault_process, rules
from longshore.cluster.presets.problems import check_memory, memory_bytes
from longshore.cluster.simulator.simulation import simulation_of

SCENARIOS = 5


def taken_bytes(nodes: int, gpus_per_node: int, jobs: int) -> int:
    """Return what the arrays of scenarios and of their state take."""
    cluster = grid_cluster(nodes, gpus_per_node)
    ones = np.ones(jobs)
    workload = workload_of(("a",) * jobs, ones.astype(np.int32), ones, ones)
    rates = np.zeros(fault_sources(cluster))
    scenarios = stack(cluster, [workload] * SCENARIOS, fault_seed=np.arange(SCENARIOS), source_rate_per_s=rates)
    sim = simulation_of(Problem(cluster, scenarios, fault_process(), rules()), rows=SCENARIOS)
    return sum(array.nbytes for part in (sim.scenarios, sim.traits, sim.state, sim.scratch) for array in part)


@pytest.mark.parametrize(
    ("nodes", "gpus_per_node"), [(1, 1), (8, 8), (1, 512), (512, 1), (2000, 1), (300, 8), (40, 16)]
)
def test_what_a_cluster_takes_is_what_is_reckoned_with_whatever_the_size_of_nodes(
    nodes: int, gpus_per_node: int
) -> None:
    reckoned_bytes = memory_bytes(SCENARIOS, 0, nodes * gpus_per_node, nodes)
    assert reckoned_bytes == pytest.approx(taken_bytes(nodes, gpus_per_node, 1), rel=0.2)


def test_jobs_are_reckoned_with_as_they_are_compared_under_all_heuristics() -> None:
    assert memory_bytes(SCENARIOS, 500, 64, 8) > 2 * taken_bytes(8, 8, 500)


def test_a_cluster_of_small_nodes_that_would_fill_the_memory_is_refused() -> None:
    check_memory(1000, 1, 8 * 2000, 2000)
    with pytest.raises(InputError, match=r"1,000 scenarios of 1 jobs on 20,000 nodes would take 11 GiB"):
        check_memory(1000, 1, 20_000, 20_000)
