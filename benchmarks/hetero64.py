"""Stored policies that place whole jobs and may wait, against `patient` on held-out workloads with their fault seeds.

Also with rollouts, and in settings that they were not trained for. `RETRAIN=1` trains them again first, by the commands
in their cards, into checkpoints/, and writes the cards.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshore.agents.checkpoint import load_policy
from longshore.agents.heuristics import PATIENT
from longshore.agents.protocol import Policy
from longshore.agents.rollout import rollout_of
from longshore.cluster.estimates import with_scenario_estimates
from longshore.cluster.simulation import simulation_of
from longshore.envs.batch import Problem
from longshore.envs.problems import Regime, hetero64_problem
from longshore.eval.play import play_all
from longshore.eval.statistics import ratio_estimates
from longshore.training.keeper import BEST, SCORE
from longshore.training.presets import STREAM_JOBS, STREAM_LOAD, VALIDATION_SCENARIOS
from longshore.training.validation import Score

from .card import HeldOut, Training, machine_text, moves_card
from .harness import ROOT, Row, main, seconds, stamp_of_run

CHECKPOINTS = ROOT / "checkpoints"
SEEDS = range(5)
SEED, TUNING_SEED = 2026, 2027  # of scenarios that neither training nor validation draws from
HELD_OUT, WITH_ROLLOUTS, TUNED_ON = 500, 120, 300
PATIENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0)
WAITING = Regime(waiting=True)
STREAM = "hetero64-stream"
MOST_MINUTES = 15.0  # of training, on two cores


class Found(NamedTuple):
    """A policy against another, paired."""

    percent: float
    high: float  # upper end of the 95 % interval
    worse: float  # per cent of the scenarios on which it is worse


def checkpoint(seed: int) -> Path:
    """Return the stored policy of a training seed."""
    return CHECKPOINTS / ("hetero64-wait.zip" if seed == 0 else f"hetero64-wait-{seed}.zip")


def commands(preset: str, seed: int) -> list[list[str]]:
    """Return the arguments of `longshore`, call by call, that train a policy: taught by rollouts, then by groups."""
    common = f"--preset {preset} --waiting --seed {seed}"
    taught = f"runs/{preset}-distil-wait-{seed}/best.zip"
    return [
        f"train {common} --algo distil --steps 3e4 --logdir runs".split(),
        f"train {common} --algo group --steps 6e6 --init {taught} --logdir runs".split(),
    ]


def retrain(preset: str, seed: int, target: Path) -> Training:
    """Train a policy by the command line and store it."""
    with tempfile.TemporaryDirectory() as folder:
        took_s = 0.0
        for line in commands(preset, seed):
            call = [sys.executable, "-m", "longshore", *line]
            took_s += seconds(lambda call=call: subprocess.run(call, check=True, stdout=sys.stderr, cwd=folder))  # type: ignore[misc]
        run = Path(folder) / "runs" / f"{preset}-group-init-wait-{seed}"
        score = Score(**json.loads((run / SCORE).read_text()))
        shutil.copyfile(run / BEST, target)
    return Training(took_s, "patient", VALIDATION_SCENARIOS, score.percent, score.half_width)


def compare(problem: Problem, policy: Policy, rival: Policy) -> Found:
    """Return a policy's difference in mean makespan, or mean JCT where jobs arrive over time, from a rival's."""
    ours_s, theirs_s = (cost_s(problem, each) for each in (policy, rival))
    percent = ratio_estimates(100.0 * (ours_s - theirs_s)[None], theirs_s[None], confidence=0.95)
    return Found(float(percent.value[0]), float(percent.high[0]), 100.0 * float(np.mean(ours_s > theirs_s)))


def cost_s(problem: Problem, policy: Policy) -> NDArray[np.float64]:
    """Return what each scenario costs under a policy, shape (scenarios,)."""
    outcome = play_all(problem, [policy])[policy.name]
    jct_s: NDArray[np.float64] = (outcome.finish_s - problem.scenarios.submit_s).mean(axis=1)
    return jct_s if problem.scenarios.submit_s.any() else outcome.makespan_s


def tuned_patient(problem: Problem) -> Policy:
    """Return `patient` with the factor that does best on a problem."""
    tried = [replace(PATIENT, name="patient-tuned", patience=patience) for patience in PATIENCES]
    return min(tried, key=lambda policy: float(cost_s(problem, policy).mean()))


def us_per_decision(problem: Problem, policy: Policy, scenarios: int) -> float:
    """Return how long a policy takes for a decision, the simulation included, on one core, in microseconds."""
    sim = simulation_of(problem.cluster, problem.scenarios, problem.process, problem.rules, rows=scenarios)
    policy.play(sim, np.arange(1))  # compiles
    took_s = seconds(lambda: policy.play(sim, np.arange(scenarios)))
    return 1e6 * took_s / float(sim.state.decisions.sum())


def rows_of(name: str, found: Found, most: float) -> Iterator[Row]:
    """Yield what a comparison found."""
    yield Row(f"{name}: against patient", found.percent, "%", most=most)
    yield Row(f"{name}: upper end of the 95 % interval", found.high, "%", most=0.0)
    yield Row(f"{name}: workloads where it is worse", found.worse, "%")


def one_pass() -> Iterator[Row]:
    """Yield the rows of the five policies, and how long they take."""
    problem, again = hetero64_problem(HELD_OUT, SEED, WAITING), os.environ.get("RETRAIN") == "1"
    reached = []
    stored = [seed for seed in SEEDS if again or checkpoint(seed).exists()]
    yield Row("policies that are stored", len(stored), "policies", least=len(SEEDS))
    for seed in stored:
        training = retrain("hetero64", seed, checkpoint(seed)) if again else None
        found = compare(problem, load_policy(checkpoint(seed)), PATIENT)
        reached.append(found.percent)
        if training is not None:
            yield Row(f"training seed {seed}: training", training.seconds / 60.0, "min", most=MOST_MINUTES)
            write_card(checkpoint(seed), commands("hetero64", seed), training, found)
        yield from rows_of(f"training seed {seed}", found, -8.0)
    yield Row("mean of these: against patient", float(np.mean(reached)), "%", most=-9.0)
    yield Row("one pass", us_per_decision(problem, load_policy(checkpoint(0)), 200), "us/decision", most=100.0)


def write_card(path: Path, lines: list[list[str]], training: Training, found: Found) -> None:
    """Write the card of a policy that was just trained."""
    held_out = HeldOut(HELD_OUT, *found)
    text = moves_card(path.stem, lines, training, held_out, machine_text(stamp_of_run(), version("torch")))
    path.with_suffix(".md").write_text(text, encoding="utf-8")


def with_rollouts() -> Iterator[Row]:
    """Yield the rows of rollouts with the first policy as base."""
    problem = hetero64_problem(WITH_ROLLOUTS, SEED, WAITING)
    policy = rollout_of(load_policy(checkpoint(0)))
    began = time.perf_counter()
    found = compare(problem, policy, PATIENT)
    took_s = time.perf_counter() - began
    yield from rows_of("with rollouts", found, -11.0)
    sim = simulation_of(problem.cluster, problem.scenarios, problem.process, problem.rules, rows=WITH_ROLLOUTS)
    policy.base.play(sim, np.arange(WITH_ROLLOUTS))
    yield Row("with rollouts", 1e3 * took_s / float(sim.state.decisions.sum()), "ms/decision", most=20.0)


def elsewhere() -> Iterator[Row]:
    """Yield the rows of what they were not trained for: a larger cluster, and estimates with errors."""
    policy = load_policy(checkpoint(0))
    large = hetero64_problem(60, SEED, WAITING, nodes=64, jobs=512)
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
    return replace(problem, scenarios=with_scenario_estimates(problem.scenarios, "log-normal", sigma=0.5, rng=rng))


def stream() -> Iterator[Row]:
    """Yield the rows of jobs that arrive over time, by mean JCT."""
    held_out, tuning = (
        hetero64_problem(count, seed, WAITING, jobs=STREAM_JOBS, load=STREAM_LOAD)
        for count, seed in ((HELD_OUT, SEED), (TUNED_ON, TUNING_SEED))
    )
    path = CHECKPOINTS / f"{STREAM}.zip"
    training = retrain(STREAM, 0, path) if os.environ.get("RETRAIN") == "1" else None
    yield Row("arrivals: policies that are stored", int(path.exists()), "policies", least=1)
    if not path.exists():
        return
    found = compare(held_out, load_policy(path), tuned_patient(tuning))
    if training is not None:
        yield Row("arrivals: training", training.seconds / 60.0, "min", most=MOST_MINUTES)
        write_card(path, commands(STREAM, 0), training, found)
    yield from rows_of("arrivals, mean JCT", found, -9.0)


def measure() -> Iterator[Row]:
    """Yield all rows."""
    yield from one_pass()
    yield from with_rollouts()
    yield from elsewhere()
    yield from stream()


if __name__ == "__main__":
    main(measure)
