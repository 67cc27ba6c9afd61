"""Detectors of slow steps on synthetic step times, the hang rule, and what following 4,000 ranks costs.

Source: SPEC K5; docs/steps.md.
"""

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import NamedTuple

import numpy as np

from longshore.cluster.model.placement import Share
from longshore.scheduler.backends.local.backend import LocalBackend
from longshore.scheduler.backends.local.ranks import steps_name
from longshore.scheduler.health.step_monitor import STEPS_POLL_S, RunningAttempt, StepMonitor
from longshore.scheduler.health.step_watch import DETECTORS, Begun, Detector, StepKind, StepWatch, mad_rule, median_rule
from longshore.scheduler.model.job_spec import Watching

from .harness import Row, main, progress
from .step_times import NOISES, Noise, step_times

RULES: dict[str, Callable[[], Detector]] = {
    **DETECTORS,
    "in_a_row, three": lambda: median_rule(1.2, 3),
    "mad, three": lambda: mad_rule(3),
}
RUNS, STEPS, WITHIN = 40, 10_000, 200
BARS = {0.05: 10, 0.15: 15, 0.3: 70}  # median delay in steps, by noise without correlation
CORRELATED_BAR, MISSED_BAR, FALSE_BAR = 60, 2, 0.2
HANG_STEPS_S = (0.2, 1.0, 10.0)
DAY_S = 24 * 3600.0
JOBS, RANKS, LOOKS = 500, 8, 60  # of the cost; a rank ends a step each second


class Figures(NamedTuple):
    """How a rule does on one kind of noise."""

    false_alarms: float  # episodes in 10,000 steps
    delay: float  # median, in steps; inf if it always missed
    missed: int  # of 40


def figures_of(make: Callable[[], Detector], noise: Noise, runs: int = RUNS) -> Figures:
    """Return how a rule does: steps as they should be, and steps that a slow node makes longer at some moment."""
    alarms, delays = 0, list[int]()
    for run in range(runs):
        rng = np.random.default_rng([run, int(100 * noise.sigma), int(10 * noise.rho)])
        alarms += _alarms(make(), step_times(STEPS, noise, rng).tolist())
        slow_from = int(rng.integers(1500, 3000))
        took_s = step_times(slow_from + WITHIN, noise, rng, slow_from=slow_from).tolist()
        delays += _delay(make(), took_s, slow_from)
    return Figures(alarms / runs, statistics.median(delays) if delays else np.inf, runs - len(delays))


def _alarms(detector: Detector, took_s: list[float]) -> int:
    slow = [False, *(detector.update(step_s) for step_s in took_s)]
    return sum(now and not was for was, now in pairwise(slow))


def _delay(detector: Detector, took_s: list[float], slow_from: int) -> list[int]:
    """Return how many slow steps it took, nothing if a detector missed them all."""
    slow = [detector.update(step_s) for step_s in took_s]
    return [at + 1 for at, is_slow in enumerate(slow[slow_from:]) if is_slow][:1]


def false_hangs(step_s: float, seed: int) -> int:
    """Return how often a day of steps, with its checkpoints and evaluations reported as such, is taken for a hang."""
    rng = np.random.default_rng(seed)
    steps = int(DAY_S / step_s)
    took_s = (step_s * step_times(steps, Noise(0.15), rng, labelled=True)).tolist()
    watch, at_s, hangs = StepWatch(1, None, None, 0.0), 0.0, 0
    for step in range(steps):
        parts = [(StepKind.TRAIN, took_s[step])]
        if step % 200 == 199:
            parts.append((StepKind.CHECKPOINT, rng.uniform(3.0, 6.0)))
        if step % 1000 == 999:
            parts.append((StepKind.EVALUATE, rng.uniform(15.0, 30.0)))
        for kind, part_s in parts:
            watch.add_steps([[Begun(kind, step, at_s, None)]], at_s)
            at_s += part_s
            hangs += watch.find_hang(at_s) is not None
    return hangs


def hang_delay_s(step_s: float) -> float:
    """Return how long after its begin a step that never ends is taken for a hang, with a check each 4 s."""
    watch, now_s = StepWatch(1, None, None, 0.0), 0.0
    for step in range(500):
        watch.add_steps([[Begun(StepKind.TRAIN, step, now_s, None)]], now_s)
        now_s += step_s
    began_s = now_s - step_s
    while watch.find_hang(now_s) is None:
        now_s += STEPS_POLL_S
        watch.add_steps([[]], now_s)
    return now_s - began_s


def cost(folder: Path, *, reports: bool) -> float:
    """Return the share of a core that it takes to follow 500 jobs of 8 ranks which end a step each second."""
    backend = LocalBackend(folder, {"n": JOBS * RANKS})
    monitor = StepMonitor(backend, {})
    running = [RunningAttempt(f"j{job}", f"ls-j{job}-1", (Share("n", tuple(range(RANKS))),)) for job in range(JOBS)]
    for it in running:
        (folder / "attempts" / it.name).mkdir(parents=True)
    names, spent_s, now_s = {it.name for it in running}, 0.0, 1e9
    for look in range(LOOKS):
        for second in range(int(STEPS_POLL_S)):
            if reports:
                _write_steps(folder, running, look * int(STEPS_POLL_S) + second, now_s)
            began = time.process_time()
            monitor.poll(running, names, lambda _: Watching(), now_s, lambda _: nullcontext())
            spent_s += time.process_time() - began
            now_s += 1.0
        progress(f"look {look + 1} of {LOOKS}")
    return spent_s / (LOOKS * STEPS_POLL_S)


def _write_steps(folder: Path, running: list[RunningAttempt], step: int, now_s: float) -> None:
    for it in running:
        for rank in range(RANKS):
            with (folder / "attempts" / it.name / steps_name(rank)).open("a") as log:
                log.write(f"train {step} {now_s:.6f} 0.812345\n")


def measure() -> Iterator[Row]:
    """Yield false alarms and delays by rule and noise, hangs, and the cost."""
    for name, make in RULES.items():
        is_default = name == "cusum"
        for noise in NOISES:
            found = figures_of(make, noise)
            most = (CORRELATED_BAR if noise.rho else BARS[noise.sigma]) if is_default else None
            missed, alarms = (MISSED_BAR, FALSE_BAR) if is_default else (None, None)
            yield Row(f"{name}: false alarms, {noise}", found.false_alarms, "in 10,000", most=alarms)
            if found.missed < RUNS:
                yield Row(f"{name}: delay, {noise}", found.delay, "steps", most=most)
            yield Row(f"{name}: missed, {noise}", found.missed, f"of {RUNS}", most=missed)
    for step_s in HANG_STEPS_S:
        yield Row(f"false hangs in a day, steps of {step_s} s", false_hangs(step_s, 7), "hangs", most=0)
        latest_s = max(60.0, 10.0 * step_s) + 5.0
        yield Row(f"hang noticed, steps of {step_s} s", hang_delay_s(step_s), "s", most=latest_s, timed=False)
    for reports, name in ((True, "a step a second"), (False, "nothing")):
        with TemporaryDirectory() as folder:
            share = cost(Path(folder), reports=reports)
        percent = 5.0 if reports else 0.5
        yield Row(f"500 jobs of 8 ranks that report {name}", 100.0 * share, "% of a core", most=percent, timed=True)


if __name__ == "__main__":
    main(measure)
