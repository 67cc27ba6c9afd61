"""Stored policies that place whole jobs and may wait, against `patient` on held-out workloads with their fault seeds.

Also with rollouts, and in settings that they were not trained for. `RETRAIN=1` first trains what is not stored, two
policies at a time, by the commands in their cards, and stores each with its card as soon as it is there: the same
command goes on after a stop. To train a policy again, delete its checkpoint and its folder under runs/.
"""

import json
import os
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshore.agents.heuristics import PATIENT
from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.protocol import Policy
from longshore.agents.rollouts import rollout_of
from longshore.cluster.model.problem import Problem
from longshore.cluster.presets.named import STREAM_JOBS, STREAM_LOAD
from longshore.cluster.presets.problems import Regime, hetero64_problem
from longshore.cluster.simulator.simulation import outcome_of, simulation_of
from longshore.cluster.workloads.estimates import with_scenario_estimates
from longshore.eval.comparison import run_all
from longshore.training.problems import VALIDATION_SCENARIOS
from longshore.training.run_folder import BEST, SCORE, SPENT

from . import bound
from .against import difference_of_means
from .card import HeldOut, Training, candidates_card, core_minutes, machine_text
from .harness import ROOT, Row, call_longshore, main, progress, seconds, stamp_of_run

CHECKPOINTS = ROOT / "checkpoints"
SEED, TUNING_SEED = 2026, 2027  # of scenarios that neither training nor validation draws from
HELD_OUT, TUNED_ON, BOUND_ON = 500, 300, 100
PATIENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
WAITING = Regime(waiting=True, oracle=True)
MOST_MINUTES = 30.0  # of training, on one core
AT_ONCE = 2


class Found(NamedTuple):
    """A policy against another, paired."""

    percent: float
    high: float  # upper end of the 95 % interval
    worse: float  # per cent of the scenarios on which it is worse


class Target(NamedTuple):
    """A policy that is stored, or will be."""

    seed: int

    @property
    def path(self) -> Path:
        """Where it is stored."""
        return CHECKPOINTS / ("hetero64-wait.zip" if self.seed == 0 else f"hetero64-wait-{self.seed}.zip")

    @property
    def run(self) -> str:
        """Name of the run's folder."""
        return f"hetero64-distil-wait-{self.seed}"

    @property
    def command(self) -> str:
        """Arguments of `longshore` that train it."""
        return (
            f"train --preset hetero64 --oracle --waiting --seed {self.seed} --threads 1 --logdir runs "
            "--algo distil --steps 1.75e5"
        )


TARGETS = [Target(seed) for seed in range(5)]
FIRST = TARGETS[0]


def train(target: Target) -> None:
    """Train a policy by the command line, or go on with that, and store it with its card."""
    run = ROOT / "runs" / target.run
    run.parent.mkdir(exist_ok=True)
    call_longshore(target.command, ROOT, run.with_suffix(".log"))
    score, spent = (json.loads((run / name).read_text()) for name in (SCORE, SPENT))
    training = Training(spent["wall_s"], "patient", VALIDATION_SCENARIOS, score["percent"], score["half_width"],
                        spent["core_s"])  # fmt: skip
    found = compare(hetero64_problem(HELD_OUT, SEED, WAITING), load_policy(run / BEST), PATIENT)
    text = candidates_card(
        target.path.stem, target.command, training, HeldOut(HELD_OUT, *found),
        machine_text(stamp_of_run(), version("torch")),
    )  # fmt: skip
    target.path.with_suffix(".md").write_text(text, encoding="utf-8")
    shutil.copyfile(run / BEST, target.path)


def retrain() -> None:
    """Train what is not stored."""
    missing = [target for target in TARGETS if not target.path.exists()]
    with ProcessPoolExecutor(AT_ONCE, get_context("spawn")) as pool:
        for target, _ in zip(missing, pool.map(train, missing), strict=True):
            progress(f"{target.path.name} is stored")


def compare(problem: Problem, policy: Policy, rival: Policy) -> Found:
    """Return a policy's difference in mean makespan, or mean JCT where jobs arrive over time, from a rival's."""
    return difference(cost_s(problem, policy), cost_s(problem, rival))


def difference(ours_s: NDArray[np.float64], theirs_s: NDArray[np.float64]) -> Found:
    """Return by how much the mean of paired costs differs."""
    found = difference_of_means(ours_s, theirs_s)
    return Found(found.percent, found.high, 100.0 * float(np.mean(ours_s > theirs_s)))


def cost_s(problem: Problem, policy: Policy) -> NDArray[np.float64]:
    """Return what each scenario costs under a policy, shape (scenarios,)."""
    outcome = run_all(problem, [policy])[policy.name]
    jct_s: NDArray[np.float64] = (outcome.finish_s - problem.scenarios.submit_s).mean(axis=1)
    return jct_s if problem.scenarios.submit_s.any() else outcome.makespan_s


def tuned_patient(problem: Problem) -> Policy:
    """Return `patient` with the factor that does best on a problem."""
    tried = [replace(PATIENT, name="patient-tuned", patience=patience) for patience in PATIENCES]
    return min(tried, key=lambda policy: float(cost_s(problem, policy).mean()))


def us_per_decision(problem: Problem, policy: Policy, scenarios: int) -> float:
    """Return how long a policy takes for a decision, the simulation included, on one core, in microseconds."""
    sim = simulation_of(problem, rows=scenarios)
    policy.run(sim, np.arange(1))  # compiles
    took_s = seconds(lambda: policy.run(sim, np.arange(scenarios)))
    return 1e6 * took_s / float(sim.state.decisions.sum())


def rows_of(name: str, found: Found, most: float) -> Iterator[Row]:
    """Yield what a comparison found."""
    yield Row(f"{name}: against patient", found.percent, "%", most=most)
    yield Row(f"{name}: upper end of the 95 % interval", found.high, "%", most=0.0)
    yield Row(f"{name}: workloads where it is worse", found.worse, "%")


def one_pass() -> Iterator[Row]:
    """Yield the rows of the five policies, and how long they take."""
    problem = hetero64_problem(HELD_OUT, SEED, WAITING)
    stored = [target for target in TARGETS if target.path.exists()]
    yield Row("policies that are stored", len(stored), "policies", least=len(TARGETS))
    reached = []
    for target in stored:
        found = compare(problem, load_policy(target.path), PATIENT)
        reached.append(found.percent)
        minutes = core_minutes(target.path.with_suffix(".md").read_text(encoding="utf-8"))
        yield Row(f"training seed {target.seed}: training", minutes, "core-min", most=MOST_MINUTES)
        yield from rows_of(f"training seed {target.seed}", found, -8.0)
    yield Row("mean of these: against patient", float(np.mean(reached)), "%", most=-9.0)
    yield Row("one pass", us_per_decision(problem, load_policy(FIRST.path), 200), "us/decision", most=100.0)


def run_with_rollouts(part: NDArray[np.int64]) -> tuple[NDArray[np.float64], float, int]:
    """Run some of the held-out workloads; return makespans, CPU seconds and the number of decisions."""
    problem = hetero64_problem(HELD_OUT, SEED, WAITING)
    policy = rollout_of(load_policy(FIRST.path))
    sim = simulation_of(problem, rows=part.size)
    policy.run(sim, part[:1])  # compiles
    began = time.process_time()
    policy.run(sim, part)
    used_s = time.process_time() - began
    return outcome_of(sim).makespan_s, used_s, int(sim.state.decisions.sum())


def with_rollouts() -> Iterator[Row]:
    """Yield the rows of rollouts with the first policy as base."""
    parts = np.array_split(np.arange(HELD_OUT), 20)
    with ProcessPoolExecutor(AT_ONCE, get_context("spawn")) as pool:
        parts_done = []
        for it in pool.map(run_with_rollouts, parts):
            parts_done.append(it)
            progress(f"with rollouts: {len(parts_done)} of {len(parts)} parts")
    makespan_s = np.concatenate([it[0] for it in parts_done])
    theirs_s = cost_s(hetero64_problem(HELD_OUT, SEED, WAITING), PATIENT)
    yield from rows_of("with rollouts", difference(makespan_s, theirs_s), -11.0)
    per_decision_s = sum(it[1] for it in parts_done) / sum(it[2] for it in parts_done)
    yield Row("with rollouts", 1e3 * per_decision_s, "ms/decision", most=20.0)


def elsewhere() -> Iterator[Row]:
    """Yield the rows of what they were not trained for: a larger cluster, and estimates with errors."""
    policy = load_policy(FIRST.path)
    large = hetero64_problem(200, SEED, WAITING, nodes=64, jobs=512)
    yield from rows_of("64 nodes x 8 GPUs", compare(large, policy, PATIENT), -4.0)
    yield Row("64 nodes x 8 GPUs", us_per_decision(large, policy, 4), "us/decision", most=1000.0)
    wrong, tuning = (
        guessed(hetero64_problem(count, seed, WAITING), seed)
        for count, seed in ((HELD_OUT, SEED), (TUNED_ON, TUNING_SEED))
    )
    yield from rows_of("estimates with errors", compare(wrong, policy, tuned_patient(tuning)), -4.0)


def guessed(problem: Problem, seed: int) -> Problem:
    """Return a problem whose work is known only within a log-normal error of sigma 0.5."""
    rng = np.random.default_rng(seed)
    return problem._replace(scenarios=with_scenario_estimates(problem.scenarios, "log-normal", sigma=0.5, rng=rng))


def arrivals() -> Iterator[Row]:
    """Yield the rows of jobs that arrive over time, which it was not trained for either, by mean JCT."""
    problem, tuning = (
        hetero64_problem(count, seed, WAITING, jobs=STREAM_JOBS, load=STREAM_LOAD)
        for count, seed in ((HELD_OUT, SEED), (TUNED_ON, TUNING_SEED))
    )
    yield from rows_of("arrivals, mean JCT", compare(problem, load_policy(FIRST.path), tuned_patient(tuning)), -9.0)


def measure() -> Iterator[Row]:
    """Yield all rows."""
    if os.environ.get("RETRAIN") == "1":
        retrain()
    yield from one_pass()
    yield from with_rollouts()
    yield from bound.rows(load_policy(FIRST.path), hetero64_problem(HELD_OUT, SEED, WAITING), BOUND_ON)
    yield from elsewhere()
    yield from arrivals()


if __name__ == "__main__":
    main(measure)
