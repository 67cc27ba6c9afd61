"""Ways to learn, side by side with one budget, and how much rollouts gain for their time; writes docs/results.md.

It shows what benchmarks/learning.json holds. `RETRAIN=1` first does what is missing there, two runs at a time, each of
which is stored as soon as it is finished: the same command continues after a stop. To begin again, delete the file.
`SEEDS` (5) and `STEPS` (1, a share of the full number) make it shorter.
"""

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Executor, ProcessPoolExecutor, as_completed
from functools import partial
from importlib.metadata import version
from multiprocessing import get_context
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from longshore.agents.heuristics import HEURISTICS, Heuristic
from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.protocol import Policy
from longshore.agents.rollouts import Rollout, Search, rollout_of
from longshore.cluster.model.problem import Problem
from longshore.cluster.presets.named import NAMED
from longshore.cluster.presets.problems import Regime, hetero64_problem
from longshore.cluster.simulator.simulation import simulation_of
from longshore.envs.rewards import least_random_makespan_s
from longshore.eval.comparison import run_all
from longshore.training.problems import PRESETS, ProblemRequest
from longshore.training.run_folder import BEST

from .card import machine_text
from .harness import ROOT, Row, call_longshore, main, progress, stamp_of_run
from .learning_figures import draw_pictures
from .learning_pages import PAGE, points, standings, write_page
from .learning_ways import (
    BEST_RANDOM,
    HELD_OUT,
    SEARCHED,
    SEARCHES,
    SECTIONS,
    SEED,
    STORE,
    TIMED,
    Run,
    Runs,
    Settings,
    Trial,
    key,
    preset_of,
    read_runs,
    rival_key,
    trainings,
    write_runs,
)  # fmt: skip

CHECKPOINTS = ROOT / "checkpoints"
AT_ONCE = 2
MAKESPAN_H = "validation/makespan_h"


class Job(NamedTuple):
    """Something to do that leaves runs."""

    name: str
    keys: tuple[str, ...]  # of these runs
    work: Callable[[], Runs]


def whole(seconds: NDArray[np.float64]) -> tuple[int, ...]:
    """Return times in whole seconds."""
    return tuple(int(each) for each in np.rint(seconds))


def here() -> str:
    """Return machine and date in words."""
    return machine_text(stamp_of_run(), version("torch"))


def problem_of(preset: str, scenarios: int, seed: int, *, waiting: bool) -> Problem:
    """Return workloads of a preset that is compared on."""
    draw = NAMED[preset].draw
    assert draw is not None
    return draw(scenarios, seed, Regime(waiting=waiting, oracle=True))


def rivals_on(preset: str) -> list[Heuristic]:
    """Return the heuristics that are run on a preset; on the patent's no job waits."""
    return [policy for policy in HEURISTICS.values() if preset == "hetero64" or not policy.waits]


def run_rivals(preset: str) -> Runs:
    """Run all heuristics of a preset; those that never wait run the same whether waiting is allowed or not."""
    waiting, found = preset == "hetero64", {}
    held_out = problem_of(preset, HELD_OUT, SEED, waiting=waiting)
    regime = Regime(waiting=waiting, oracle=True)
    (validated,) = PRESETS[preset].build(ProblemRequest(0, (regime,))).validated  # which no training seed changes
    curves = run_all(validated, rivals_on(preset))
    for name, outcome in run_all(held_out, rivals_on(preset)).items():
        curve = ((0, float(curves[name].makespan_s.mean()) / 3600.0),)
        found[rival_key(preset, name)] = Run(makespan_s=whole(outcome.makespan_s), validation=curve, machine=here())
    sim = simulation_of(held_out)
    best_s = whole(least_random_makespan_s(sim))
    return found | {rival_key(preset, BEST_RANDOM): Run(makespan_s=best_s, machine=here())}


def validations(run: Path) -> tuple[tuple[int, float], ...]:
    """Return steps and mean makespan in hours of each validation, from a run's TensorBoard file."""
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    events = EventAccumulator(str(run), size_guidance={"scalars": 0})
    events.Reload()
    return tuple((int(event.step), round(float(event.value), 5)) for event in events.Scalars(MAKESPAN_H))


def train(lines: Sequence[str]) -> Runs:
    """Train a policy by one command after the other in one folder, and run what each leaves."""
    found: Runs = {}
    wall_s = core_s = 0.0
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        (runs := folder / "runs").mkdir()
        for count, line in enumerate(lines, 1):
            before = set(runs.iterdir())
            took_s, used_s = call_longshore(line, folder, folder / "log.txt")
            wall_s, core_s = wall_s + took_s, core_s + used_s
            run = (set(runs.iterdir()) - before).pop()
            policy = load_policy(run / BEST)
            problem = problem_of(preset_of(line), HELD_OUT, SEED, waiting=policy.waits)
            found[key(lines[:count])] = Run(
                makespan_s=whole(run_all(problem, [policy])[policy.name].makespan_s),
                validation=validations(run), wall_s=round(wall_s, 1), core_s=round(core_s, 1), machine=here(),
            )  # fmt: skip
    return found


def base_policy(name: str) -> Policy:
    """Return a base of rollouts."""
    return HEURISTICS[name] if name in HEURISTICS else load_policy(CHECKPOINTS / f"{name}.zip")


def search_key(base: str, search: Settings) -> str:
    """Return what rollouts are stored under, or their base alone; a checkpoint of other weights is another base."""
    path = CHECKPOINTS / f"{base}.zip"
    weights = f" {hashlib.sha256(path.read_bytes()).hexdigest()[:8]}" if path.exists() else ""
    return f"{base}{weights}: " + (", ".join(f"{name} {value}" for name, value in search.items()) or "alone")


def trials() -> list[Trial]:
    """Return the searches of all bases, none twice, with the defaults of each; the first of a base is it alone."""
    found: dict[str, Trial] = {}
    for base, searches in SEARCHES.items():
        usual = rollout_of(base_policy(base)).search
        defaults = {"futures": usual.futures, "width": usual.width} | (
            {"least_value": usual.least_value} if usual.least_value else {}
        )
        for search in ({}, *({**defaults, **settings} for settings in searches)):
            name = search_key(base, search)
            found[name] = Trial(base, search, name)
    return list(found.values())


def searching(trial: Trial) -> Policy:
    """Return rollouts with the settings of a trial, or their base alone."""
    policy = base_policy(trial.base)
    return Rollout(rollout_of(policy).base, Search(**trial.search)) if trial.search else policy  # type: ignore[arg-type]


def search(trial: Trial) -> Runs:
    """Run rollouts, or their base alone."""
    problem = hetero64_problem(SEARCHED, SEED, Regime(waiting=True, oracle=True))
    outcome = run_all(problem, [searching(trial)]).popitem()[1]
    return {trial.key: Run(makespan_s=whole(outcome.makespan_s), machine=here())}


def timed(trial: Trial, run: Run) -> Run:
    """Return a run of rollouts with the time that its decisions take; nothing else may be going on."""
    policy, problem = searching(trial), hetero64_problem(TIMED, SEED, Regime(waiting=True, oracle=True))
    sim = simulation_of(problem, rows=TIMED)
    policy.run(sim, np.arange(1))  # compiles
    began = time.process_time()
    policy.run(sim, np.arange(TIMED))
    core_s = time.process_time() - began
    decisions = int(sim.state.decisions.sum())
    return run.model_copy(update={"core_s": round(core_s, 4), "decisions": decisions, "machine": here()})


def time_searches(path: Path, runs: Runs) -> None:
    """Take the times that are missing, one after the other, and store each."""
    for trial in trials():
        if trial.key in runs and runs[trial.key].decisions == 0:
            runs[trial.key] = timed(trial, runs[trial.key])
            write_runs(path, runs)
            progress(f"timed: {trial.key}")


def jobs(seeds: int, share: float) -> Iterator[Job]:
    """Yield all that there is to do."""
    for preset in dict.fromkeys(section.preset for section in SECTIONS):
        names = (*(policy.name for policy in rivals_on(preset)), BEST_RANDOM)
        keys = tuple(rival_key(preset, name) for name in names)
        yield Job(f"{preset}: heuristics", keys, partial(run_rivals, preset))
    for name, lines in trainings(seeds, share):
        keys = tuple(key(lines[:count]) for count in range(1, len(lines) + 1))
        yield Job(name, keys, partial(train, lines))
    for trial in trials():
        yield Job(f"rollouts, {trial.key}", (trial.key,), partial(search, trial))


def done(work: Callable[[], Runs]) -> Runs:
    """Do the work of a job in a process of its own, which Ctrl-C ends: a pool would give it the next job."""
    try:
        return work()
    except KeyboardInterrupt:
        os._exit(130)


def complete(pool: Executor, path: Path, runs: Runs, todo: Sequence[Job]) -> None:
    """Do missing runs and store each that is finished; one that fails is reported and does not stop the others."""
    missing, began = [job for job in todo if not set(job.keys) <= runs.keys()], time.monotonic()
    progress(f"{len(todo) - len(missing)} of {len(todo)} runs are stored")
    waiting = {pool.submit(done, job.work): job.name for job in missing}
    try:
        for count, future in enumerate(as_completed(waiting), 1):
            if (error := future.exception()) is not None:
                progress(f"failed: {waiting[future]}: {error}")
                continue
            runs |= future.result()
            write_runs(path, runs)
            left = (time.monotonic() - began) / count * (len(missing) - count) / 60.0
            progress(f"{count} of {len(missing)} runs, about {left:.0f} min left: {waiting[future]}")
    except KeyboardInterrupt:
        pool.shutdown(wait=False, cancel_futures=True)
        raise


def rows_of(runs: Runs, seeds: int, share: float) -> Iterator[Row]:
    """Yield what every way to learn and every search reaches."""
    for section in SECTIONS:
        for it in standings(runs, section, seeds, share):
            yield Row(f"{section.title}: {it.name}, against {it.rival}", float(it.percent.mean()), "%")
    for point in points(runs, trials()):
        yield Row(f"rollouts of {point.trial.key}, against patient", point.against_patient.percent, "%")
        yield Row(f"rollouts of {point.trial.key}", point.decision_ms, "ms/decision")


def measure() -> Iterator[Row]:
    """Yield how many runs are finished, and what they reached; write the pages."""
    seeds, share = int(os.environ.get("SEEDS", "5")), float(os.environ.get("STEPS", "1"))
    runs, todo = read_runs(STORE), list(jobs(seeds, share))
    if os.environ.get("RETRAIN") == "1":
        # Processes, as the compiled simulation holds the interpreter; with PyTorch on one thread each.
        with ProcessPoolExecutor(AT_ONCE, get_context("spawn"), torch.set_num_threads, (1,)) as pool:
            complete(pool, STORE, runs, todo)
        time_searches(STORE, runs)
    keys = {name for job in todo for name in job.keys}
    yield Row("runs that are finished", len(keys & runs.keys()), "runs", least=len(keys))
    if runs:
        yield from rows_of(runs, seeds, share)
        write_page(runs, trials(), seeds, share)
        draw_pictures(PAGE.parent / "pictures", runs, trials(), seeds, share)


if __name__ == "__main__":
    main(measure)
