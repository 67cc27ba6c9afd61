"""Runs that would never end: an error where faults are too frequent, and otherwise stopped by Ctrl-C."""

import ctypes
import math
import re
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from types import FrameType
from typing import Any

import numba
import numpy as np
import pytest
from typer.testing import CliRunner

from longshore.agents.heuristics import HEURISTICS, pick_by_rule
from longshore.agents.registry import find_policy
from longshore.cli import app
from longshore.cluster.files.errors import EndlessError, InputError
from longshore.cluster.model.problem import ORDERS, Problem, Scenarios
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.simulator import event_log
from longshore.cluster.simulator.engine import advance, move_clock, reset, start, wait
from longshore.cluster.simulator.jobs import stop
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from longshore.cluster.state.state import Simulation
from longshore.envs.batch import AgentView, Batch

CHECKPOINTS = Path(__file__).parents[2] / "checkpoints"
CLUSTER = """
node_types:
  a: {gpus: 4, peak_flops: 1e14, memory_bytes: 1e9, hazard_per_s: HAZARD}
racks: [{nodes: [{type: a, count: 2}]}]
faults: {model: exponential, transient_probability: TRANSIENT, repair_mean_s: REPAIR}
"""


def one_job(gpus: int, work_s: float) -> Scenarios:
    scenarios = hetero64(1, 0, jobs=1)[1]
    work = np.full((1, 1), work_s)
    return scenarios._replace(gpus=np.full((1, 1), gpus), work_s=work, estimate_s=work)


def failing(gpus: int, *, rate_per_s: float, first: int = 0, work_s: float = 1e9, transient: float = 1.0) -> Simulation:
    """Return a simulation of one job on 64 GPUs of which those from `first` on fail at a rate."""
    cluster, _, process, rules = hetero64(1, 0)
    scenarios = one_job(gpus, work_s)
    rates = np.zeros_like(scenarios.source_rate_per_s)
    rates[:, first:64] = rate_per_s
    scenarios = scenarios._replace(source_rate_per_s=rates)
    return simulation_of(Problem(cluster, scenarios, process._replace(transient_probability=transient), rules))


def run(sim: Simulation) -> None:
    HEURISTICS["first-fit"].run(sim, np.array([0]))


@pytest.mark.parametrize(
    ("sim", "problem"),
    [
        (lambda: failing(8, rate_per_s=1e-2), event_log.STOPPED_FOR_EVER),
        (lambda: failing(8, rate_per_s=1e30), event_log.STOPPED_FOR_EVER),
        (lambda: failing(64, rate_per_s=1e-3, transient=0.0), event_log.NOTHING_ELSE),
        (lambda: failing(8, rate_per_s=1e30, first=8), event_log.NOTHING_ELSE),
    ],
)
def test_faults_that_let_no_job_end_are_an_error_with_the_field_to_change(
    sim: Callable[[], Simulation], problem: str
) -> None:
    with pytest.raises(EndlessError, match=re.escape(problem)) as caught:
        run(sim())
    assert str(caught.value).startswith("hazard_per_s: ")
    assert "\n" not in str(caught.value)


def test_faults_that_let_no_time_pass_are_told() -> None:
    sim = failing(8, rate_per_s=1e30, first=8, work_s=1e12)
    reset(sim, 0, 0)
    sim.state.source_s[0, 8:64] = 1e9  # a time at which 1e-30 s more is the same
    with pytest.raises(EndlessError, match=re.escape(event_log.FAILING_AT_ONCE)):
        HEURISTICS["first-fit"].run_on(sim, 0)


def test_a_job_may_be_stopped_as_often_as_that_and_no_more() -> None:
    sim = failing(8, rate_per_s=0.0)
    reset(sim, 0, 0)
    sim.state.stops[0, 0] = event_log.MAX_STOPS - 1
    for _ in range(2):
        assert advance(sim, 0)
        HEURISTICS["pack"].place(sim, 0)
        start(sim, 0)
        move_clock(sim, 0, float(sim.state.now_s[0]) + 1.0)
        if sim.state.stops[0, 0] == event_log.MAX_STOPS:
            with pytest.raises(EndlessError, match="100,000 times"):
                stop(sim, 0, 0, 0.0)
        else:
            stop(sim, 0, 0, 0.0)


@pytest.mark.parametrize("order", ["fifo", "easy"])
def test_decisions_at_every_fault_do_not_keep_an_endless_run_from_being_told(order: str) -> None:
    """One job runs for ever, faults come beside it, and the second job waits at each of them."""
    sim = two_jobs_beside_faults(order)
    reset(sim, 0, 0)
    assert advance(sim, 0)
    HEURISTICS["pack"].place(sim, 0)
    start(sim, 0)
    sim.state.quiet[0] = event_log.MAX_QUIET - 100
    for _ in range(101):  # the first at the moment of the start
        assert advance(sim, 0)
        assert sim.state.current[0] == 1
        wait(sim, 0)
    assert sim.state.quiet[0] == event_log.MAX_QUIET
    with pytest.raises(EndlessError, match=re.escape(event_log.NOTHING_ELSE)):
        advance(sim, 0)


def two_jobs_beside_faults(order: str) -> Simulation:
    """Return a simulation of two jobs of 8 GPUs that come at once, on 64 GPUs of which half fail and come back."""
    cluster, scenarios, process, rules = hetero64(1, 0, jobs=2)
    work = np.full((1, 2), 1e12)
    rates = np.zeros_like(scenarios.source_rate_per_s)
    rates[:, 32:64] = 1e-3
    scenarios = scenarios._replace(
        gpus=np.full((1, 2), 8), work_s=work, estimate_s=work, submit_s=0 * work, source_rate_per_s=rates
    )
    rules = rules._replace(waiting=True, order=ORDERS[order])
    return simulation_of(Problem(cluster, scenarios, process._replace(transient_probability=1.0), rules))


@pytest.mark.parametrize("is_slow", [False, True])
def test_the_error_of_moments_without_jobs_names_what_filled_them(*, is_slow: bool) -> None:
    """Nothing fails where nodes become slow."""
    sim = failing(8, rate_per_s=0.0 if is_slow else 1e-3, first=8, work_s=1e12)
    if is_slow:
        slow = sim.rules._replace(slow_per_s=1e-3, slow_factor=2.0, slow_mean_s=10.0)
        sim = simulation_of(Problem(sim.cluster, sim.scenarios, sim.process, slow))
    reset(sim, 0, 0)
    assert advance(sim, 0)
    HEURISTICS["pack"].place(sim, 0)
    start(sim, 0)
    sim.state.quiet[0] = event_log.MAX_QUIET
    problem = event_log.NOTHING_BUT_SLOW if is_slow else event_log.NOTHING_ELSE
    with pytest.raises(EndlessError, match=re.escape(problem)):
        advance(sim, 0)


def test_a_job_that_comes_starts_or_ends_begins_the_count_of_moments_anew() -> None:
    sim = simulation_of(hetero64(1, 0))
    reset(sim, 0, 0)
    for _ in range(40):
        sim.state.quiet[0] = 7
        was = int(sim.state.submitted[0] + sim.state.finished[0])
        assert advance(sim, 0)
        assert (sim.state.quiet[0] < 7) == (sim.state.submitted[0] + sim.state.finished[0] > was)
        sim.state.quiet[0] = 7
        HEURISTICS["pack"].place(sim, 0)
        assert start(sim, 0)
        assert sim.state.quiet[0] == 0


@pytest.mark.parametrize(
    ("command", "hazard", "transient"),
    [
        ("simulate --jobs 20", "1e-2", "1"),
        ("simulate --jobs 20", "1e20", "0.5"),
        ("evaluate --workloads 2", "1e20", "1"),
    ],
)
def test_a_cluster_file_with_such_faults_is_refused_in_one_line(
    command: str, hazard: str, transient: str, tmp_path: Path
) -> None:
    text = CLUSTER.replace("HAZARD", hazard).replace("TRANSIENT", transient).replace("REPAIR", "1e6")
    (tmp_path / "c.yaml").write_text(text)
    done = CliRunner().invoke(app, [*command.split(), "--cluster", str(tmp_path / "c.yaml")])
    assert isinstance(done.exception, InputError), done.output
    assert ("hazard_per_s: " if transient == "1" else "cut off") in str(done.exception)


class Pressed(Exception):  # noqa: N818 (what a handler of a user raises)
    """Raised by the handler of a signal."""


@contextmanager
def alarm(handler: Callable[[int, FrameType | None], None], after_s: float, every_s: float = 0.0) -> Iterator[None]:
    before = signal.signal(signal.SIGALRM, handler)
    signal.setitimer(signal.ITIMER_REAL, after_s, every_s)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0.0)
        signal.signal(signal.SIGALRM, before)


def press(number: int, frame: FrameType | None) -> None:
    raise Pressed


ENDLESS: dict[str, Any] = {"rate_per_s": 1e3, "first": 8, "work_s": 1e12}  # faults beside a job that runs for ever


@pytest.mark.parametrize("policy", ["pack", "patient", "hetero64.zip", "hetero64-wait.zip", "rollout:pack"])
def test_a_handler_of_a_signal_stops_a_run_that_goes_on_for_ever(policy: str) -> None:
    found = find_policy(str(CHECKPOINTS / policy) if policy.endswith(".zip") else policy)
    found.run(failing(8, rate_per_s=0.0), np.array([0]))  # compiles
    sim = failing(8, **ENDLESS)
    with pytest.raises(Pressed), alarm(press, 0.2):
        found.run(sim, np.array([0]))
    assert sim.state.finished[0] == 0


def test_ctrl_c_stops_a_step_of_an_environment() -> None:
    cluster, _, process, rules = hetero64(1, 0)
    for sim in (failing(8, rate_per_s=0.0), failing(8, **ENDLESS)):
        problem = Problem(cluster, sim.scenarios, process._replace(transient_probability=1.0), rules)
        batch = Batch(problem, AgentView("node", "full", "dt"), 1)
        batch.reset()
        first = batch.masks.argmax(axis=1)
        if not sim.scenarios.source_rate_per_s.any():
            batch.step(first)  # compiles
    with pytest.raises(KeyboardInterrupt), alarm(lambda number, frame: signal.raise_signal(signal.SIGINT), 0.2):
        batch.step(first)


PACK_RULE = HEURISTICS["pack"].rule
RAISE = ctypes.CDLL(None)["raise"]  # of C: at once, also inside compiled code
RAISE.argtypes, RAISE.restype = [ctypes.c_int], ctypes.c_int


def place_and_raise(sim: Simulation, decision: int, number: int) -> None:
    """Run row 0 on; a signal comes at one of its decisions."""
    while advance(sim, 0):
        if sim.state.decisions[0] == decision:
            RAISE(number)
        pick_by_rule(sim, 0, PACK_RULE, 0.0)
        start(sim, 0)


@cache
def compiled_once() -> Callable[[Simulation, int, int], None]:
    jit: Any = numba.njit
    run_on: Callable[[Simulation, int, int], None] = jit(place_and_raise)
    return run_on


@pytest.mark.full
@pytest.mark.parametrize("nodes", [64, 512, 2048, 8192])
def test_on_a_large_cluster_few_decisions_are_taken_before_a_signal_is_handled(nodes: int) -> None:
    sim = simulation_of(hetero64(1, 0, nodes=nodes, jobs=256))
    run_on = place_and_raise if numba.config.DISABLE_JIT else compiled_once()  # type: ignore[attr-defined]
    before = signal.signal(signal.SIGUSR1, press)
    try:
        for decision in (0, 1, 7, 100):
            reset(sim, 0, 0)
            with pytest.raises(Pressed):
                run_on(sim, decision, signal.SIGUSR1.value)
            assert 0 <= sim.state.decisions[0] - decision <= event_log.WORK_PER_POLL / nodes + 1
    finally:
        signal.signal(signal.SIGUSR1, before)


def test_signals_that_raise_nothing_change_nothing() -> None:
    pressed: list[int] = []
    sims = [failing(8, rate_per_s=1e3, first=8, work_s=15.0) for _ in range(2)]
    run(sims[0])
    with alarm(lambda number, frame: pressed.append(number), 0.005, 0.005):
        run(sims[1])
    assert sims[0].state.moment[0] * sims[0].cluster.speed.size > 3 * event_log.WORK_PER_POLL
    assert len(pressed) > 1  # more than the one that Python itself handles after the call
    outcomes = [outcome_of(sim) for sim in sims]
    assert all(np.array_equal(*both) for both in zip(*outcomes, strict=True))


def test_between_short_runs_signals_are_handled_too() -> None:
    problem = hetero64(4096, 0)
    sim = simulation_of(problem, rows=4096)
    with pytest.raises(Pressed), alarm(press, 0.001):
        HEURISTICS["pack"].run(sim, np.arange(4096))
    assert sim.state.scenario[-1] == -1  # the last rows were not even reset
    assert math.isfinite(sim.state.now_s[0])


@pytest.mark.parametrize("base", ["pack", str(CHECKPOINTS / "hetero64-wait.zip")], ids=["pack", "hetero64-wait"])
def test_rollouts_in_which_no_job_would_ever_end_leave_the_choice_to_their_base(base: str) -> None:
    cluster, scenarios, process, rules = hetero64(1, 0, jobs=3)
    believed = np.full_like(scenarios.hazard_per_s, 1e-2)
    scenarios = scenarios._replace(hazard_per_s=believed, source_rate_per_s=0.0 * scenarios.source_rate_per_s)
    outcomes = []
    for policy in (find_policy(f"rollout:{base}"), find_policy(base)):
        sim = simulation_of(Problem(cluster, scenarios, process, rules))
        getattr(policy, "rollout_base", policy).run(sim, np.array([0]))
        outcomes.append(outcome_of(sim))
    assert np.array_equal(outcomes[0].finish_s, outcomes[1].finish_s)
