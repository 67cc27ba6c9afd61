"""Every order regime runs, and a long queue, which has an index, is offered as by a walk along it."""

import numpy as np
import pytest

from longshore.agents.heuristics import PACK
from longshore.cluster.model.orders import ORDER_REGIMES
from longshore.cluster.model.outcome import Outcome
from longshore.cluster.model.problem import EVERY_JOB, ORDERS, Problem
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.simulator.simulation import outcome_of, simulation_of

SCENARIOS, JOBS, NODES = 8, 40, 4


def run(name: str, *, index_from: int, faults: bool = True) -> Outcome:
    drawn = hetero64(SCENARIOS, 0, nodes=NODES, jobs=JOBS, load=2.0)
    rate = drawn.scenarios.source_rate_per_s * (3.0 if faults else 0.0)
    problem: Problem = drawn._replace(
        scenarios=drawn.scenarios._replace(source_rate_per_s=rate), rules=drawn.rules._replace(order=ORDERS[name])
    )
    sim = simulation_of(problem, rows=SCENARIOS, index_from=index_from)
    PACK.run(sim, np.arange(SCENARIOS))
    return outcome_of(sim)


@pytest.mark.parametrize("name", ORDER_REGIMES)
def test_all_jobs_end_and_start_by_an_index_as_by_a_walk(name: str) -> None:
    by_walk, by_index = (run(name, index_from=index_from) for index_from in (EVERY_JOB, 2))
    assert (by_walk.finished == JOBS).all()
    assert np.array_equal(by_walk.first_start_s, by_index.first_start_s)


@pytest.mark.parametrize("name", [name for name, regime in ORDER_REGIMES.items() if not regime.passes])
def test_where_no_job_passes_they_start_in_the_order_of_their_submission(name: str) -> None:
    started_s = run(name, index_from=EVERY_JOB, faults=False).first_start_s
    assert (np.diff(started_s, axis=1) >= 0.0).all()


@pytest.mark.parametrize("name", ORDER_REGIMES)
def test_an_order_regime_has_a_line_about_itself_and_a_number(name: str) -> None:
    regime = ORDER_REGIMES[name]
    assert regime.about
    assert "\n" not in regime.about
    assert regime.by_work or not regime.shortest_leads
    assert list(ORDERS)[ORDERS[name]] == name
