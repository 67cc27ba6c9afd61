"""Smaller runs of the usual commands, for what does not depend on their size."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from longshore.cluster.presets import problems
from longshore.training import problems as training_problems
from longshore.training.problems import HISTORY, PRESETS, TRACES


def with_small_groups(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let an update learn from 16 runs, not from 512."""
    for name in (TRACES, HISTORY):
        small = replace(PRESETS[name].group, groups=4, runs=4, group_minibatch=256)
        monkeypatch.setitem(PRESETS, name, replace(PRESETS[name], group=small))


def with_few_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let faults be drawn 8 times for a window, not as often as gives 64 scenarios."""
    monkeypatch.setattr(problems, "LEAST_SCENARIOS", problems.RUNS)


def with_few_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let 256 windows of a trace be trained on, not 4096, and 64 on each other cluster."""
    monkeypatch.setattr(training_problems, "TRAINED_WINDOWS", 256)
    monkeypatch.setattr(training_problems, "OTHER_WINDOWS", 64)


def with_short_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let windows have 48 jobs, not 96: a past of half as many jobs has as many of them."""
    monkeypatch.setattr(problems, "WINDOW_JOBS", problems.WINDOW_JOBS // 2)


def trace(path: Path, seed: int, jobs: int = 400) -> Path:
    rng = np.random.default_rng(seed)
    submit_s, work_s = np.cumsum(rng.exponential(900.0, jobs)), rng.lognormal(8.0, 1.5, jobs) + 60.0
    rows = [f"j{job},{submit_s[job]:.3f},{work_s[job]:.3f},{rng.integers(1, 9)}" for job in range(jobs)]
    path.write_text("\n".join(["job_id,submission_time,duration,num_gpu", *rows]) + "\n")
    return path
