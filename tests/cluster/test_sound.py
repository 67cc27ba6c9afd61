"""The border of the kernels: what must not enter them is refused by name."""

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.registry import find_policy
from longshore.cluster.candidates.futures import imagination_of
from longshore.cluster.model.problem import EVERY_JOB, Problem
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.simulator.engine import advance, reset
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from longshore.cluster.state.border import checked_scenario_indices
from longshore.cluster.state.state import Simulation, State, allocate_state
from tests.strategies import Case, cases
from tests.support.budgets import examples

SCENARIOS, ROWS = 3, 2
CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"


@dataclass
class Parts:
    """What a simulation is made of, each field an array or number that a test may spoil."""

    cluster: Any = field(default_factory=lambda: hetero64(SCENARIOS, 0, jobs=8)[0])
    scenarios: Any = field(default_factory=lambda: hetero64(SCENARIOS, 0, jobs=8)[1])
    process: Any = field(default_factory=lambda: hetero64(SCENARIOS, 0, jobs=8)[2])
    rules: Any = field(default_factory=lambda: hetero64(SCENARIOS, 0, jobs=8)[3])

    def spoil(self, part: str, name: str, value: Any) -> None:
        """Put a value at the second scenario's fifth job, or whatever the array has there; or in place of a number."""
        old = getattr(getattr(self, part), name)
        if callable(value):
            value = value(old)
        elif isinstance(old, np.ndarray):
            value, wrong = old.copy(), value
            value[(1, 4) if old.ndim == 2 else 1] = wrong
        setattr(self, part, getattr(self, part)._replace(**{name: value}))

    def simulation(self) -> Simulation:
        return simulation_of(Problem(self.cluster, self.scenarios, self.process, self.rules), rows=ROWS)


NO_TIMES = (0.0, -1.0, math.nan, math.inf, -math.inf)
HOSTILE: list[tuple[str, str, Any]] = [
    *[("scenarios", name, value) for name in ("work_s", "estimate_s", "compute_s", "speed") for value in NO_TIMES],
    *[
        ("scenarios", name, value)
        for name in ("submit_s", "parameter_bytes", "hazard_per_s", "source_rate_per_s")
        for value in NO_TIMES[1:]
    ],
    ("scenarios", "gpus", 0),
    ("scenarios", "gpus", -1),
    ("scenarios", "gpus", 65),
    ("scenarios", "jobs", -1),
    ("scenarios", "jobs", 9),
    ("scenarios", "submit_s", lambda old: np.linspace(8.0, 1.0, 8) + 0 * old),
    ("scenarios", "work_s", lambda old: old[:, :4]),
    ("scenarios", "work_s", lambda old: old[:2]),
    ("scenarios", "work_s", lambda old: old[0]),
    ("scenarios", "speed", lambda old: old[:, :7]),
    ("scenarios", "hazard_per_s", lambda old: old[:, :63]),
    ("scenarios", "source_rate_per_s", lambda old: old[:, :64]),
    ("scenarios", "fault_seed", lambda old: old[:1]),
    ("scenarios", "gpus", lambda old: old + 0.5),
    ("scenarios", "gpus", lambda old: old.astype(np.int64) + 2**32),
    ("scenarios", "work_s", lambda old: old.astype(str)),
    ("scenarios", "work_s", lambda old: None),
    ("scenarios", "jobs", lambda old: old[:, None]),
    ("cluster", "gpu_node", 99),
    ("cluster", "gpu_node", -1),
    ("cluster", "gpu_node", lambda old: old[::-1]),
    ("cluster", "gpu_node", lambda old: old[:0]),
    ("cluster", "first_gpu", 1000),
    ("cluster", "first_gpu", lambda old: old[:-1]),
    ("cluster", "first_gpu", lambda old: old[:0]),
    ("cluster", "node_rack", 7),
    ("cluster", "first_node", 5),
    ("cluster", "speed", lambda old: old[:3]),
    ("cluster", "node_type", lambda old: old[:3]),
    *[("cluster", name, value) for name in ("speed", "nic_bytes_per_s") for value in (0.0, -1.0, math.nan)],
    ("process", "shape", 0.0),
    ("process", "shape", math.nan),
    ("process", "repair_mean_s", -1.0),
    ("process", "repair_sigma", math.inf),
    ("process", "transient_probability", 1.5),
    ("process", "outage_first", lambda old: np.array([0, 1])),
    ("process", "outage_first", lambda old: np.array([0] * 70)),
    ("process", "outage_first", lambda old: old[:0]),
    ("process", "outage_start_s", lambda old: np.ones(3)),
    ("rules", "order", 4),
    ("rules", "order", -1),
    ("rules", "checkpoint_s", 0.0),
    ("rules", "checkpoint_s", math.nan),
    ("rules", "restart_s", math.inf),
    ("rules", "restart_s", 1e8),
    ("rules", "ageing_s", math.nan),
    ("rules", "limit_s", math.nan),
    ("rules", "backfill_depth", -1),
    ("rules", "reference_gpus", 0),
    ("rules", "reference_nic_bytes_per_s", 0.0),
    ("rules", "waiting", "yes"),
]


@pytest.mark.parametrize(("part", "name", "value"), HOSTILE)
def test_what_could_not_be_run_is_refused_by_name(part: str, name: str, value: Any) -> None:
    parts = Parts()
    parts.simulation()
    parts.spoil(part, name, value)
    with pytest.raises(ValueError, match=r"expected|follow|cannot|asks 65") as caught:
        parts.simulation()
    assert "\n" not in str(caught.value)
    assert name in str(caught.value) or part == "cluster" or name in ("gpus", "outage_start_s")


def test_values_of_padded_jobs_and_outages_in_order_are_no_matter() -> None:
    parts = Parts()
    parts.spoil("scenarios", "jobs", 4)
    parts.spoil("scenarios", "estimate_s", math.nan)  # of a job that is none
    sources = parts.scenarios.source_rate_per_s.shape[1]
    first = np.array([0, 2] + [3] * (sources - 1))
    times = {"outage_start_s": np.array([0.0, 5.0, 1.0]), "outage_end_s": np.array([5.0, 6.0, math.inf])}
    parts.process = parts.process._replace(outage_first=first, **times)
    parts.simulation()
    parts.process = parts.process._replace(outage_start_s=np.array([0.0, 4.0, 1.0]))
    with pytest.raises(ValueError, match=r"outage_start_s\[1\] is 4, expected no time before the end"):
        parts.simulation()


AS_GIVEN: list[Callable[[Any], Any]] = [
    lambda array: array.astype(np.float32) if array.dtype.kind == "f" else array.astype(np.int64),
    lambda array: array.astype(array.dtype.newbyteorder()),
    np.asfortranarray,
    lambda array: np.repeat(array, 2, axis=-1)[..., ::2],
    lambda array: array.tolist(),
]


@pytest.mark.parametrize("given_as", AS_GIVEN)
def test_other_types_and_layouts_of_the_same_values_run_the_same(given_as: Callable[[Any], Any]) -> None:
    parts, others = Parts(), Parts()
    # Values that every type holds.
    rounded = {name: np.ceil(getattr(parts.scenarios, name)) for name in ("work_s", "estimate_s")}
    rates = {
        name: np.full_like(getattr(parts.scenarios, name), 2.0**-25) for name in ("hazard_per_s", "source_rate_per_s")
    }
    parts.scenarios = parts.scenarios._replace(**rounded, **rates)
    others.scenarios = type(parts.scenarios)(*map(given_as, parts.scenarios))
    ends = [outcome_of(run(each.simulation(), [2, 0])).finish_s for each in (parts, others)]
    assert np.array_equal(ends[0], ends[1])


def run(sim: Simulation, scenarios: Any) -> Simulation:
    HEURISTICS["pack"].run(sim, scenarios)
    return sim


@pytest.mark.parametrize(
    "wrong",
    [
        [0, 1, 2], [-1], [SCENARIOS], [2**31], [2**40], [0, 10**18], [0.0, 1.0], [math.nan], [[0], [1]], 0, None, ["a"],
        [True, False],
    ],
)  # fmt: skip
@pytest.mark.parametrize("policy", ["pack", "patient", "hetero64.zip", "hetero64-wait.zip", "rollout:pack"])
def test_rows_and_scenarios_that_do_not_exist_are_refused(policy: str, wrong: Any) -> None:
    name = str(CHECKPOINTS / policy) if policy.endswith(".zip") else policy
    sim = Parts().simulation()
    given: Any = wrong if isinstance(wrong, int | None) else np.array(wrong)
    with pytest.raises(ValueError, match=r"scenario"):
        find_policy(name).run(sim, given)
    assert not sim.state.decisions.any()


@given(st.lists(st.integers(-(2**63), 2**63 - 1) | st.integers(-2, SCENARIOS + 1), max_size=4))
def test_scenarios_pass_only_if_all_can_be_run(scenarios: list[int]) -> None:
    sim = Parts().simulation()
    if len(scenarios) <= ROWS and all(0 <= each < SCENARIOS for each in scenarios):
        assert checked_scenario_indices(sim, np.array(scenarios, dtype=np.int64)).tolist() == scenarios
    else:
        with pytest.raises(ValueError, match="scenario"):
            checked_scenario_indices(sim, np.array(scenarios, dtype=np.int64))


@pytest.mark.parametrize(
    ("row", "scenario"), [(-1, 0), (ROWS, 0), (10**12, 0), (0, -1), (0, SCENARIOS), (0, -(10**12))]
)
def test_a_reset_of_what_does_not_exist_is_refused(row: int, scenario: int) -> None:
    with pytest.raises(ValueError, match="no such row"):
        reset(Parts().simulation(), row, scenario)


@pytest.mark.parametrize("row", [-1, 0, ROWS])
def test_rows_that_do_not_exist_or_were_never_reset_do_not_advance(row: int) -> None:
    parts = Parts()
    parts.rules = parts.rules._replace(ageing_s=100.0)
    with pytest.raises(ValueError, match="no such row"):
        advance(parts.simulation(), row)


@pytest.mark.parametrize(
    ("name", "value", "problem"),
    [
        ("head", np.zeros(ROWS, np.int64), r"state.head is of type int64, expected an array of int32"),
        ("head", np.zeros(ROWS + 1, np.int32), r"state.head has shape \(3,\), expected \(2,\)"),
        ("free", np.zeros((ROWS, 7), np.int32), r"state.free has shape \(2, 7\), expected \(2, 8\)"),
        ("free", np.zeros((8, ROWS), np.int32).T, r"state.free is not contiguous"),
        ("head", [0, 0], r"state.head is of type list"),
    ],
)
def test_state_of_another_shape_is_refused(name: str, value: Any, problem: str) -> None:
    sim = Parts().simulation()
    state = sim.state._replace(**{name: value})
    with pytest.raises(ValueError, match=problem):
        Simulation(sim.cluster, sim.scenarios, sim.traits, sim.process, sim.rules, state, sim.log)
    run(Parts().simulation(), np.array([0]))  # nothing of it was kept


def test_state_that_cannot_be_written_is_refused() -> None:
    sim = Parts().simulation()
    state: State = allocate_state(sim.cluster, sim.scenarios, ROWS, EVERY_JOB)
    state.busy.flags.writeable = False
    with pytest.raises(ValueError, match=r"state\.busy cannot be written"):
        Simulation(sim.cluster, sim.scenarios, sim.traits, sim.process, sim.rules, state, sim.log)


@settings(max_examples=examples(30))
@given(cases())
def test_cases_that_can_be_run_pass(case: Case) -> None:
    sim = simulation_of(Problem(case.cluster, case.scenarios, case.process, case.rules))
    imagination_of(sim)
    assert sim.scenarios.work_s is case.scenarios.work_s  # what is right is not copied
