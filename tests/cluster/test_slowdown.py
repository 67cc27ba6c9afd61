"""How long a job takes on a placement is a number that times can be multiplied and divided by, whatever it asks for."""

import math
from functools import cache

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.cluster.placing import MAX_SLOWDOWN, MIN_SLOWDOWN, slowdown_of
from longshore.cluster.presets.cluster_file import LEAST_SPEED, MOST_SPEED
from longshore.cluster.state.state import Simulation
from longshore.scheduler.model.job_spec import (
    MAX_COMPUTE_S,
    MAX_PARAMETER_BYTES,
    MIN_COMPUTE_S,
    MIN_JOB_ESTIMATE_S,
    YEAR_S,
)
from tests.compiled_runs import compiled
from tests.plain_run import busy_case

BANDWIDTHS = st.floats(1.0, 1e18)  # of a cluster file
ANY = st.floats(allow_nan=True, allow_infinity=True)


@cache
def compiled_case() -> Simulation:
    return compiled(busy_case(ring=True))


def slowdown(
    ring: bool, compute_s: float, parameter_bytes: float, gpus: int, nodes: int, speed: float, link: float,  # noqa: FBT001
    reference: float, node_penalty: float,
) -> float:  # fmt: skip
    number = np.float64  # by which also plain Python divides by 0
    sim = compiled_case()
    sim.scenarios.compute_s[0, 0], sim.scenarios.parameter_bytes[0, 0] = compute_s, parameter_bytes
    sim.scenarios.gpus[0, 0] = gpus
    rules = sim.rules._replace(
        ring=ring, node_penalty=node_penalty, reference_gpus=8, reference_intra_bytes_per_s=reference,
        reference_nic_bytes_per_s=reference,
    )  # fmt: skip
    links = (number(link), number(link), number(link))
    with np.errstate(all="ignore"):
        sim = Simulation(sim.cluster, sim.scenarios, sim.traits, sim.process, rules, sim.state, sim.log)
        return float(slowdown_of(sim, 0, 0, nodes, number(speed), *links, 0))


@given(
    st.booleans(), st.floats(MIN_COMPUTE_S, MAX_COMPUTE_S), st.floats(0.0, MAX_PARAMETER_BYTES),
    st.integers(1, 1_000_000), st.integers(1, 1_000_000), st.floats(LEAST_SPEED, MOST_SPEED), BANDWIDTHS, BANDWIDTHS,
    st.floats(0.0, 1e30), st.floats(MIN_JOB_ESTIMATE_S, YEAR_S),
)  # fmt: skip
def test_no_job_file_on_any_cluster_file_gives_a_run_time_that_is_none(
    ring: bool, compute_s: float, parameter_bytes: float, gpus: int, nodes: int, speed: float, link: float,  # noqa: FBT001
    reference: float, node_penalty: float, time_s: float,
) -> None:  # fmt: skip
    found = slowdown(ring, compute_s, parameter_bytes, gpus, nodes, speed, link, reference, node_penalty)

    assert MIN_SLOWDOWN < found < MAX_SLOWDOWN  # no bound was needed
    assert 0.0 < time_s * found < math.inf
    assert 0.0 < time_s / found < math.inf


@given(st.booleans(), ANY, ANY, st.integers(1, 1000), st.integers(1, 1000), ANY, ANY, ANY, ANY)
def test_whatever_stands_in_the_arrays_a_slowdown_is_finite_and_above_zero(
    ring: bool, compute_s: float, parameter_bytes: float, gpus: int, nodes: int, speed: float, link: float,  # noqa: FBT001
    reference: float, node_penalty: float,
) -> None:  # fmt: skip
    found = slowdown(ring, compute_s, parameter_bytes, gpus, nodes, speed or 1.0, link or 1.0, reference or 1.0,
                     node_penalty)  # fmt: skip

    assert 0.0 < found < math.inf


@pytest.mark.parametrize("compute_s", [5e-324, math.nan, 0.0, math.inf])
def test_a_compiled_slowdown_is_bounded_as_a_plain_one(compute_s: float) -> None:
    sim = compiled(busy_case(ring=True))
    sim.scenarios.compute_s[0, 0], sim.scenarios.parameter_bytes[0, 0], sim.scenarios.gpus[0, 0] = compute_s, 0.0, 4

    found = slowdown_of(sim, 0, 0, 2, 2.0, 1e9, 1e9, 1e9, 0)

    assert 0.0 < found < math.inf
