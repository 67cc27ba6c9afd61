"""What replay costs in training: steps a second against the same run without it, and memory.

`RETRAIN=1` also trains the source's method, with its replay and without, and writes docs/results-source.md.
`SEEDS` (5) and `STEPS` (1, a share of the full number) make that shorter.
"""

import itertools
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshore.agents.checkpoint import load_policy, schema_of
from longshore.agents.heuristics import RANDOM, rivals
from longshore.cluster.simulation import simulation_of
from longshore.envs.batch import Problem
from longshore.envs.layout import observation_size
from longshore.envs.problems import Regime, hetero64_problem, source_problem
from longshore.envs.rewards import RANDOM_RUNS, random_makespan_s
from longshore.eval.play import play_all
from longshore.eval.statistics import ratio_estimates
from longshore.training.config import TrainingConfig
from longshore.training.keeper import BEST, Keeper, Progress
from longshore.training.ppo import learn_by_ppo
from longshore.training.presets import Hyperparameters
from longshore.training.rollouts import sample_bytes
from longshore.training.snapshot import SNAPSHOT
from longshore.training.validation import Validation

from .card import machine_text
from .harness import ROOT, Row, main, medians, progress, stamp_of_run

SIZE = Hyperparameters(rows=128, steps=64, minibatch=2048)
UPDATES, ROUNDS = 9, 3
LEAST_RATIO, MOST_OVER = 0.7, 1.05
RESULTS = ROOT / "docs" / "results-source.md"
STEPS = {4: 100_000, 64: 100_000}  # of a run, by the GPUs: about 20 s
METHODS = [("ppo", "dynamic"), ("ppo", "off"), ("a2c", "dynamic"), ("a2c", "off")]
HELD_OUT, SEED = 500, 2026  # scenarios of a seed that neither training nor validation draws from

Seconds = NDArray[np.float64]
Kind = Literal["off", "dynamic", "geppo"]


class Trained(NamedTuple):
    """What the policies of a method reach."""

    method: str
    makespan_s: Seconds  # (seeds, scenarios)


def learn(problem: Problem, replay: Kind, folder: Path) -> float:
    """Train for some updates; return the steps a second of the median one, collecting and learning."""
    marks: list[tuple[int, float]] = []

    def tell(state: Progress) -> None:
        marks.append((state.steps, time.perf_counter()))

    steps = UPDATES * SIZE.rows * SIZE.steps
    config = TrainingConfig(
        preset="hetero64", steps=steps, seed=SEED, reward="potential", replay=replay, hyperparameters=SIZE, threads=1
    )
    schema = schema_of(
        algorithm="ppo", network="set", action="node", observation="full", waiting=False, node_gpus=(8,) * 8
    )
    validation = Validation(hetero64_problem(8, SEED, Regime()))
    learn_by_ppo(problem, Keeper(folder, schema, validation, config, tell))
    later = marks[SIZE.kept :]  # when the replay is full
    return statistics.median((b[0] - a[0]) / (b[1] - a[1]) for a, b in itertools.pairwise(later))


def kept_bytes(folder: Path) -> int:
    """Return the size of the rollouts in a run's snapshot."""
    with np.load(folder / SNAPSHOT) as file:
        return sum(file[name].nbytes for name in file.files if name.startswith("replay/"))


def measure_replay() -> Iterator[Row]:
    """Yield steps a second with replay over those without, and kept bytes over those that are told."""
    problem = hetero64_problem(512, 1_000_000, Regime())
    rates: dict[str, float] = {}

    def one(replay: Kind) -> float:
        with tempfile.TemporaryDirectory() as folder:
            rate = learn(problem, replay, Path(folder))
            if replay != "off":
                rates["bytes"] = kept_bytes(Path(folder))
        return rate

    kinds: tuple[Kind, ...] = ("off", "dynamic", "geppo")
    found = medians({kind: partial(one, kind) for kind in kinds}, ROUNDS)
    yield Row("updates without replay", found["off"], "steps/s")
    for kind in kinds[1:]:
        yield Row(f"the same with replay {kind}, over that", found[kind] / found["off"], "", least=LEAST_RATIO)
    told = SIZE.kept * SIZE.rows * SIZE.steps * sample_bytes(observation_size("full", "node", 64, 8), 8)
    yield Row("memory that replay keeps", rates["bytes"] / 2**20, "MiB")
    yield Row("the same over what is documented", rates["bytes"] / told, "", least=1.0, most=MOST_OVER)


def command(gpus: int, algorithm: str, replay: str, seed: int, share: float) -> list[str]:
    """Return the arguments of `longshore` that train one policy."""
    line = f"train --preset source{gpus} --algo {algorithm} --replay {replay} --steps {share * STEPS[gpus]:.0f}"
    return [*line.split(), "--seed", str(seed), "--threads", "1"]


def trained(gpus: int, algorithm: str, replay: str, seeds: int, share: float, problem: Problem) -> Trained:
    """Train a method with some seeds by the command line, and play the policies on a problem."""
    method, makespans = f"{algorithm}, {'replay' if replay == 'dynamic' else 'no replay'}", []
    for seed in range(seeds):
        progress(f"source{gpus}: {method}, seed {seed}")
        with tempfile.TemporaryDirectory() as folder:
            line = [*command(gpus, algorithm, replay, seed, share), "--logdir", folder]
            subprocess.run([sys.executable, "-m", "longshore", *line], check=True, stdout=subprocess.DEVNULL)
            policy = load_policy(next(Path(folder).glob(f"*/{BEST}")))
        makespans.append(play_all(problem, [policy])[policy.name].makespan_s)
    return Trained(method, np.stack(makespans))


def rivals_s(problem: Problem) -> dict[str, Seconds]:
    """Return the makespans of all heuristics and of the best of some random runs, shape (scenarios,) each."""
    sim = simulation_of(problem.cluster, problem.scenarios, problem.process, problem.rules)
    played = play_all(problem, rivals(problem.rules))
    found = {f"best of {RANDOM_RUNS} random runs": random_makespan_s(sim), RANDOM.name: played[RANDOM.name].makespan_s}
    return found | {name: outcome.makespan_s for name, outcome in played.items()}


def cell(mine_s: Seconds, rival_s: Seconds) -> str:
    """Return the paired difference of mean makespans in per cent, with its 95 % interval."""
    found = ratio_estimates(100.0 * (mine_s - rival_s)[None], rival_s[None], confidence=0.95)
    return f"{found.value[0]:+.2f} [{found.low[0]:+.2f}, {found.high[0]:+.2f}]"


def table(gpus: int, methods: list[Trained], others: dict[str, Seconds]) -> list[str]:
    """Return the lines of one cluster's table."""
    lines = [
        f"## source{gpus}", "", "| against | its makespan (h) | " + " | ".join(it.method for it in methods) + " |",
        "| --- |" + " --- |" * (1 + len(methods)),
    ]  # fmt: skip
    for name, rival_s in others.items():
        cells = [cell(it.makespan_s.mean(axis=0), rival_s) for it in methods]
        lines.append(f"| {name} | {rival_s.mean() / 3600:.2f} | {' | '.join(cells)} |")
    hours = [it.makespan_s.mean(axis=1) / 3600 for it in methods]
    lines.append("| makespan (h), mean | | " + " | ".join(f"{one.mean():.2f}" for one in hours) + " |")
    seeds = [f"{one.min():.2f} to {one.max():.2f}" for one in hours]
    return [*lines, f"| makespan (h), seeds | | {' | '.join(seeds)} |", ""]


def write_results(seeds: int, share: float) -> Iterator[Row]:
    """Train everything, write the tables, and yield each method against the best heuristic."""
    from importlib.metadata import version

    steps = " and ".join(f"{share * STEPS[gpus]:,.0f}" for gpus in STEPS)
    lines = [
        "# The source's method: results", "",
        f"Made by `RETRAIN=1 SEEDS={seeds} STEPS={share:g} make bench-source`: {seeds} training seeds of {steps} steps "
        f"on 4 and 64 GPUs, {HELD_OUT} held-out workloads of each cluster.",
        "Cells are differences of the mean makespan (of all seeds) in per cent with 95 % intervals, paired by workload "
        "and faults; below 0 the trained policies are better.",
        f"{machine_text(stamp_of_run(), version('torch'))}", "",
    ]  # fmt: skip
    for gpus in STEPS:
        problem = source_problem(gpus, HELD_OUT, SEED, Regime())
        others = rivals_s(problem)
        best = min((policy.name for policy in rivals(problem.rules)), key=lambda name: float(others[name].mean()))
        methods = [trained(gpus, *method, seeds, share, problem) for method in METHODS]
        lines += table(gpus, methods, others)
        for it in methods:
            percent = 100.0 * (it.makespan_s.mean() / others[best].mean() - 1.0)
            yield Row(f"source{gpus}: {it.method}, against {best}", float(percent), "%")
    RESULTS.write_text("\n".join(lines).rstrip() + "\n", encoding="utf-8")


def measure() -> Iterator[Row]:
    """Yield what replay costs, and where asked what the source's method reaches."""
    yield from measure_replay()
    if os.environ.get("RETRAIN") == "1":
        yield from write_results(int(os.environ.get("SEEDS", "5")), float(os.environ.get("STEPS", "1")))


if __name__ == "__main__":
    main(measure)
