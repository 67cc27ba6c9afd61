"""Policies trained on a real trace, against `patient` under the same order regime, on later windows of that trace.

`RETRAIN=1` trains those whose figures benchmarks/traces.json lacks, two at a time; without it the page and the rows are
made from that file. Remove it to measure all anew. `SEEDS` (3) and `STEPS` (1, a share of the full number) make it
shorter.
"""

import json
import math
import os
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np

from longshore.agents.heuristics.heuristics import EFT, PATIENT
from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.protocol import Policy
from longshore.cluster.model.outcome import metrics
from longshore.cluster.model.problem import Problem
from longshore.cluster.presets.problems import Regime, window_problem
from longshore.cluster.presets.streams import Stream, stream
from longshore.cluster.traces.detect import read_trace
from longshore.cluster.workloads.estimates import EstimateKind, with_scenario_estimates
from longshore.eval.run import run_all
from longshore.eval.setting import TESTED_PART, WINDOWS
from longshore.training.asked import TRAINED_PART
from longshore.training.run_folder import BEST, SCORE
from longshore.training.validation import Score

from .card import machine_text
from .harness import ROOT, Row, call_longshore, main, progress, stamp_of_run
from .trace_page import Figures, Part, Rivals, Run, Stored, against, cells_of, page

TRACE = "../shared/data/traces/philly_vc_2869ce.muri.csv"
STORED, PAGE = ROOT / "benchmarks" / "traces.json", ROOT / "docs" / "results-trace.md"
STEPS, SEEDS = 4_000_000, 3  # steps that take 2 to 3 min on one core
AT_ONCE = 2
SEED, TUNING_SEED = 2026, 2027  # of test and of training windows: draws that no training meets
DRAWS = 128  # of speeds, lemon and faults for each window: 16 and 32 differ by 3 % in a mean of three windows
PATIENCES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.8, 1.0, 1.25)
LEAST_WORK_S = 600.0  # jobs of a few seconds would alone make the slowdown
WEEK_S = 7 * 24 * 3600.0
REGIMES = {
    "Strict FIFO": Regime("fifo", waiting=True, oracle=True),
    "EASY backfill": Regime("easy", waiting=True, oracle=True),
    "EASY backfill, shortest first": Regime("easy-shortest", waiting=True, oracle=True),
    # Without a bound its longest wait is 20 to 40 % above that of strict FIFO; a week costs 1 % of the mean JCT.
    "Shortest first, aged after a week": Regime("shortest", WEEK_S, waiting=True, oracle=True),
}


class Setting(NamedTuple):
    """Windows, and how well their jobs' work is known."""

    name: str
    part: tuple[float, float]
    seed: int
    estimates: EstimateKind = "exact"


TRAINING = Setting("Training windows", TRAINED_PART, TUNING_SEED)
TEST = Setting("Test windows", TESTED_PART, SEED)
GUESSED = [
    Setting("Test windows, estimates with log-normal errors, sigma 0.5", TESTED_PART, SEED, "log-normal"),
    Setting("Test windows, estimates that are means of jobs that ask as many GPUs", TESTED_PART, SEED, "class-mean"),
]
SIGMA = 0.5


def settings_of(regime: Regime) -> list[Setting]:
    """Return what policies of a regime are scored on; errors of estimates count where the order is by them."""
    return [TEST, TRAINING, *(GUESSED if regime.order == "shortest" else [])]


def command(regime: Regime, seed: int, steps: int) -> str:
    """Return the arguments of `longshore` that train a policy."""
    ageing = "" if math.isinf(regime.ageing_s) else f" --ageing {regime.ageing_s / 3600:g}h"
    return (
        f"train --preset philly --oracle --trace {TRACE} --algo group --waiting --order {regime.order}{ageing} "
        f"--steps {steps} --seed {seed} --threads 1"
    )


def problem_of(setting: Setting, regime: Regime) -> Problem:
    """Return the windows of a setting, each under several draws."""
    problem = window_problem(
        read_trace(ROOT / TRACE), regime, windows=WINDOWS, runs=DRAWS, part=setting.part, seed=setting.seed,
        disjoint=True,
    )  # fmt: skip
    if setting.estimates == "exact":
        return problem
    rng = stream(setting.seed, Stream.ESTIMATES)
    scenarios = with_scenario_estimates(problem.scenarios, setting.estimates, sigma=SIGMA, rng=rng)
    return problem._replace(scenarios=scenarios)


def figures_of(problem: Problem, policy: Policy) -> Figures:
    """Return how a policy does on the windows of a problem."""
    outcome, scenarios = run_all(problem, [policy])[policy.name], problem.scenarios
    found = metrics(outcome, scenarios.jobs, scenarios.gpus, scenarios.submit_s, problem.cluster.gpu_node.size)
    slowdown = (outcome.finish_s - scenarios.submit_s) / np.maximum(scenarios.work_s, LEAST_WORK_S)
    mean_jct_s, p99_jct_s, p99_slowdown, wait_s = (
        values.reshape(-1, DRAWS)
        for values in (
            found.mean_jct_s, found.p99_jct_s, np.percentile(slowdown, 99, axis=1), found.longest_wait_s,
        )
    )  # fmt: skip
    return Figures(
        mean_jct_s=mean_jct_s.mean(axis=1).tolist(),
        p99_jct_s=p99_jct_s.mean(axis=1).tolist(),
        p99_slowdown=p99_slowdown.mean(axis=1).tolist(),
        longest_wait_s=wait_s.max(axis=1).tolist(),
    )


def rivals_of(setting: Setting, regime: Regime) -> Rivals:
    """Return the heuristics on a setting; `patient` has the factor that does best on the training windows."""
    tuning = problem_of(TRAINING._replace(estimates=setting.estimates), regime)
    tried = [replace(PATIENT, name="patient-tuned", patience=patience) for patience in PATIENCES]
    patient = min(tried, key=lambda policy: float(np.mean(figures_of(tuning, policy).mean_jct_s)))
    return Rivals(
        fifo=figures_of(problem_of(setting, Regime(oracle=True)), EFT),
        eft=figures_of(problem_of(setting, replace(regime, waiting=False)), EFT),
        patient=figures_of(problem_of(setting, regime), patient),
        patience=patient.patience,
    )


def train(line: str, folder: Path) -> float:
    """Train a policy by the command line; return how long it took, in seconds."""
    progress(f"longshore {line}")
    return call_longshore(f"{line} --logdir {folder}", ROOT, folder.with_suffix(".log"))[0]


def scored(regime: Regime, folder: Path, took_s: float) -> Run:
    """Return the figures of the run that a folder holds."""
    best = next(folder.glob(f"*/{BEST}"))
    policy = load_policy(best)
    return Run(
        seconds=took_s,
        validation_percent=Score(**json.loads((best.parent / SCORE).read_text())).percent,
        machine=machine_text(stamp_of_run(), version("torch")),
        figures={it.name: figures_of(problem_of(it, regime), policy) for it in settings_of(regime)},
    )


def stored(path: Path = STORED) -> Stored:
    """Return what was measured so far."""
    return Stored.model_validate_json(path.read_text()) if path.exists() else Stored()


def store(found: Stored, path: Path = STORED) -> None:
    """Write what was measured, so that a run that is cut off goes on from there."""
    part = path.with_suffix(".part")
    part.write_text(found.model_dump_json(indent=1) + "\n")
    part.replace(path)


def retrain(seeds: int, steps: int) -> None:
    """Train and score what is not stored."""
    for name in [name for name in REGIMES if name not in stored().rivals]:
        progress(f"{name}: heuristics")
        rivals = {setting.name: rivals_of(setting, REGIMES[name]) for setting in settings_of(REGIMES[name])}
        found = stored()
        store(found.model_copy(update={"rivals": found.rivals | {name: rivals}}))
    asked = [(regime, command(regime, seed, steps)) for seed in range(seeds) for regime in REGIMES.values()]
    missing = [(regime, line) for regime, line in asked if line not in stored().runs]
    with tempfile.TemporaryDirectory() as folder:
        train_all(missing, Path(folder))


def train_all(missing: list[tuple[Regime, str]], folder: Path) -> None:
    """Train by the given command lines, and score and store each policy as soon as it is there."""
    pool = ThreadPoolExecutor(AT_ONCE)
    begun = {
        pool.submit(train, line, folder / str(number)): (number, regime, line)
        for number, (regime, line) in enumerate(missing)
    }
    try:
        for ended in as_completed(begun):
            number, regime, line = begun[ended]
            run = scored(regime, folder / str(number), ended.result())
            found = stored()
            store(found.model_copy(update={"runs": found.runs | {line: run}}))
    finally:
        pool.shutdown(cancel_futures=True)  # after an error or Ctrl-C none of the others begins


def runs_of(found: Stored, regime: Regime, seeds: int, steps: int) -> list[Run]:
    """Return the stored runs of a regime."""
    lines = [command(regime, seed, steps) for seed in range(seeds)]
    return [found.runs[line] for line in lines if line in found.runs]


def parts_of(found: Stored, name: str, runs: list[Run]) -> list[Part]:
    """Return the tables of a regime, none if nothing is stored."""
    if not runs:
        return []
    return [
        Part(it.name, found.rivals[name][it.name], [run.figures[it.name] for run in runs])
        for it in settings_of(REGIMES[name])
    ]


def trained_text(regime: Regime, runs: list[Run], steps: int) -> str:
    """Return how the policies of a regime were trained."""
    if not runs:
        return "Nothing is stored."
    percent = ", ".join(f"{run.validation_percent:+.1f}" for run in runs)
    took = ", ".join(f"{run.seconds:.0f}" for run in runs)
    return (
        f"    longshore {command(regime, 0, steps)}\n\n"
        f"This command trains the first seed, and the others are trained likewise. The trainings took {took} s. In "
        f"validation the policies were at {percent} % against the best heuristic. Machine: {runs[0].machine}."
    )


def title(seeds: int, steps: int) -> list[str]:
    """Return the first lines of the page."""
    return [
        "# Policies trained on a trace: results", "",
        "This page is for people who want to know how well policies do that were trained on a real trace. "
        f"`RETRAIN=1 SEEDS={seeds} STEPS={steps / STEPS:g} make bench-traces` trains them and writes the page.", "",
        f"For each of {seeds} seeds and each order regime, a policy is trained for {steps:,} decisions, on windows of "
        f"the first 60 % of the jobs of `{Path(TRACE).name}`. The policy of the best validation (on the jobs from 60 "
        "to 70 %) is scored on windows of 96 jobs of the last 30 %. The load is 0.85, and the cluster is that of the "
        f"preset (64 GPUs of two speeds, a lemon node), with {DRAWS} draws for each window. Policies know run times "
        "exactly unless a table says otherwise.",
    ]  # fmt: skip


def summary(found: Stored) -> Iterator[str]:
    """Yield the lines of a short table, each regime's policies on the test windows; none if nothing is stored."""
    rows = [
        f"| {name} | {' | '.join(cells_of(part))} |"
        for name, regime in REGIMES.items()
        for part in parts_of(found, name, runs_of(found, regime, SEEDS, STEPS))
        if part.name == TEST.name
    ]
    if rows:
        yield from ("| order | against the same order's `patient` (%) | seeds (%) | against FIFO `eft` (%) |",
                    "| --- |" + " --- |" * 3, *rows)  # fmt: skip


def measure() -> Iterator[Row]:
    """Train where asked, write the page, and yield what each regime gained, by what is stored."""
    seeds, steps = int(os.environ.get("SEEDS", SEEDS)), round(float(os.environ.get("STEPS", "1")) * STEPS)
    if os.environ.get("RETRAIN") == "1":
        retrain(seeds, steps)
    yield from told(stored(), seeds, steps)


def told(found: Stored, seeds: int, steps: int, path: Path = PAGE) -> Iterator[Row]:
    """Write the page, and yield what each regime gained."""
    runs = {name: runs_of(found, regime, seeds, steps) for name, regime in REGIMES.items()}
    parts = {name: parts_of(found, name, runs[name]) for name in REGIMES}
    trained = [trained_text(regime, runs[name], steps) for name, regime in REGIMES.items()]
    if any(runs.values()):
        path.write_text(page(title(seeds, steps), parts, trained), encoding="utf-8")
    for name in REGIMES:
        yield Row(f"{name}: policies that are stored", len(runs[name]), "policies", least=seeds)
        for part in parts[name]:
            yield from rows_of(name, part)


def rows_of(name: str, part: Part) -> Iterator[Row]:
    """Yield what the policies of a regime gain on some windows; later windows with exact estimates have a bar."""
    gain = against(part.learned, part.rivals.patient)
    most = 0.0 if part.name == TEST.name else None
    yield Row(f"{name}: {part.name}, against patient", gain.percent, "%", most=most)
    yield Row(f"{name}: {part.name}, upper end of the 95 % interval", gain.high, "%")
    yield Row(f"{name}: {part.name}, against FIFO eft", against(part.learned, part.rivals.fifo).percent, "%")
    p99_s = np.mean([one.p99_jct_s for one in part.learned]) / np.mean(part.rivals.patient.p99_jct_s)
    yield Row(f"{name}: {part.name}, p99 JCT against patient", float(100.0 * (p99_s - 1.0)), "%")


if __name__ == "__main__":
    main(measure)
