"""What every order regime must do (longshore.cluster.queue.orders)."""

import numpy as np

from ..agents.heuristics import PACK
from ..cluster.files.plugins import load
from ..cluster.model.outcome import Outcome
from ..cluster.model.problem import EVERY_JOB, ORDERS, Problem
from ..cluster.presets.drawn import hetero64
from ..cluster.queue.order_table import order_of
from ..cluster.simulator.simulation import outcome_of, simulation_of

SCENARIOS, JOBS, NODES = 8, 40, 4


def check_order(name: str) -> None:
    """Check a registered order regime on small scenarios with faults, as compiled code runs it.

    Its key must be a number that hangs on nothing but its arguments. All jobs must end. A long queue is searched by an
    index: the jobs must start as without one. Where no job passes the one that goes first, jobs must start as that
    says.

    Args:
        name: Its name.

    Raises:
        AssertionError: With what is broken.
        PluginError: If nothing of that name is registered, or what is registered is no order regime.
    """
    load("orders", name)  # raises an error for an unknown name
    order = order_of(ORDERS[name])
    assert order.about, "it has no description"
    assert "\n" not in order.about, "`about` has more than one line"
    assert order.key is not None or not order.goes_first, "the job of smallest key goes first, and it has no key"
    if order.key is not None:
        for gpus, work_s in ((1, 1e-3), (8, 3600.0), (4096, 1e12)):
            key = order.key(gpus, work_s)
            assert np.isfinite(key), f"its key of {gpus} GPUs and {work_s:g} s is {key}"
            assert order.key(gpus, work_s) == key, "a second call gives another key"
    by_walk, by_index = (_run(name, index_from=index_from) for index_from in (EVERY_JOB, 2))
    assert (by_walk.finished == JOBS).all(), "some jobs never end"
    assert np.array_equal(by_walk.first_start_s, by_index.first_start_s), "jobs start otherwise where the queue is long"
    if not order.passes:
        started = _run(name, index_from=EVERY_JOB, faults=False).first_start_s
        assert (np.diff(started, axis=1) >= 0.0).all(), "a job started before one that goes first"


def _run(name: str, *, index_from: int, faults: bool = True) -> Outcome:
    drawn = hetero64(SCENARIOS, 0, nodes=NODES, jobs=JOBS, load=2.0)
    rate = drawn.scenarios.source_rate_per_s * (3.0 if faults else 0.0)
    problem: Problem = drawn._replace(
        scenarios=drawn.scenarios._replace(source_rate_per_s=rate), rules=drawn.rules._replace(order=ORDERS[name])
    )
    sim = simulation_of(problem, rows=SCENARIOS, index_from=index_from)
    PACK.run(sim, np.arange(SCENARIOS))
    return outcome_of(sim)
