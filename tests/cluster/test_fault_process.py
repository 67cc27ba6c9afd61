"""Up and repair times of fault sources against their closed forms, and fault models through whole runs."""

import math

import numpy as np
import pytest

from longshore.cluster.faults.models import Correlated, Lemon
from longshore.cluster.model.outcome import Event
from longshore.cluster.model.problem import FaultProcess
from longshore.cluster.model.topology import Cluster, grid_cluster
from longshore.cluster.simulator.faults import repair_time_s, up_time_s
from tests.cases_by_hand import hand_case
from tests.compiled_runs import run_heuristic

DRAWS = 20_000
CLUSTER = grid_cluster(6, 4, nodes_per_rack=4)  # two racks, of 4 and of 2 nodes
HAZARD_PER_S = 1e-5
RUN_S = 2e7  # 200 faults of each GPU


@pytest.mark.parametrize("shape", [0.62, 1.0, 1.5])
def test_up_times_are_weibull_of_the_mean_that_was_asked_for(shape: float) -> None:
    up_s = np.array([up_time_s(3, 17, k, 0.01, shape) for k in range(DRAWS)])
    spread = math.sqrt(math.gamma(1 + 2 / shape) / math.gamma(1 + 1 / shape) ** 2 - 1)
    assert up_s.mean() == pytest.approx(100.0, rel=4 * spread / math.sqrt(DRAWS))
    assert up_s.std() == pytest.approx(100.0 * spread, rel=0.06)
    scale_s = 100.0 / math.gamma(1 + 1 / shape)
    assert (up_s < scale_s).mean() == pytest.approx(1 - math.exp(-1), abs=0.015)  # whatever the shape


@pytest.mark.parametrize(("sigma", "spread"), [(0.0, 1.0), (0.5, math.sqrt(math.exp(0.25) - 1))])
def test_repair_times_have_the_mean_and_the_spread_that_were_asked_for(sigma: float, spread: float) -> None:
    repair_s = np.array([repair_time_s(3, 17, k, 60.0, sigma, 0.0) for k in range(DRAWS)])
    assert repair_s.mean() == pytest.approx(60.0, rel=4 * spread / math.sqrt(DRAWS))
    assert repair_s.std() == pytest.approx(60.0 * spread, rel=0.05)


def test_a_share_of_faults_is_transient() -> None:
    repair_s = np.array([repair_time_s(3, 17, k, 60.0, 1.0, 0.73) for k in range(DRAWS)])
    assert (repair_s == 0.0).mean() == pytest.approx(0.73, abs=4 * math.sqrt(0.73 * 0.27 / DRAWS))


def faults(cluster: Cluster, rates: np.ndarray, process: FaultProcess) -> list[Event]:
    """Return all faults in a long time, each transient, while a job tries to run."""
    case = hand_case(cluster, [(1, 1e30, 0.0)], checkpoint_s=math.inf, limit_s=RUN_S)
    case = case._replace(process=process, scenarios=case.scenarios._replace(source_rate_per_s=rates[None]))
    return [event for event in run_heuristic(case, "first-fit")[0] if event.kind == "fault"]


def as_many(count: int, expected: float) -> bool:
    return abs(count - expected) < 4 * math.sqrt(expected)


def test_correlated_faults_hit_gpus_nodes_and_racks_as_often_as_their_shares_say() -> None:
    configuration = Correlated(node_share=0.5, rack_share=0.25, transient_probability=1.0)
    hits = faults(CLUSTER, *configuration.draw(CLUSTER, np.full(24, HAZARD_PER_S), 0))
    total = 24 * HAZARD_PER_S * RUN_S
    of_size = {size: sum(len(hit.gpus) == size for hit in hits) for size in (1, 4, 8, 16)}
    assert as_many(of_size[1], 0.25 * total)
    assert as_many(of_size[4], 0.5 * total)
    assert as_many(of_size[8], 0.25 * total / 3)  # the rack of two nodes
    assert as_many(of_size[16], 0.25 * total * 2 / 3)
    assert sum(of_size.values()) == len(hits)


def test_a_lemon_fails_as_much_more_often_as_its_factor_says() -> None:
    configuration = Lemon(lemon_share=0.3, lemon_factor=5.0, transient_probability=1.0)
    rates, process = configuration.draw(CLUSTER, np.full(24, HAZARD_PER_S), 2)
    bad = rates[:24] > HAZARD_PER_S
    assert 0 < bad.sum() < 24
    hits = faults(CLUSTER, rates, process)
    healthy = HAZARD_PER_S * RUN_S / (1 + 0.3 * 4)
    assert as_many(sum(bool(bad[hit.gpus[0]]) for hit in hits), 5 * healthy * bad.sum())
    assert as_many(sum(not bad[hit.gpus[0]] for hit in hits), healthy * (~bad).sum())
