"""What `longshore evaluate` answers: the whole command, its request, and its comparison of every order."""

import io
import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np
from rich.console import Console

from longshore.agents.heuristics import HEURISTICS
from longshore.cluster.model.problem import Problem
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.cluster.presets.problems import Regime, cluster_problem
from longshore.cluster.traces.read import read_trace
from longshore.eval.bounds import lower_bounds
from longshore.eval.command import evaluate_request
from longshore.eval.every_order import OrderAdvice, OrderGrid, advice_of, every_order, run_grid
from longshore.eval.setting import EvaluationRequest, JobsRequest
from longshore.eval.table import ShowStatus
from tests.checkout import SMALL
from tests.command_line import Command

ASKED = EvaluationRequest(
    policies=(), trace=None, cluster=None, faults=None, regime=Regime(), workloads=3, runs=None, load=None,
    max_gpus=None, estimates=None, sigma=0.5, drawn=JobsRequest(), seed=1, heuristics=True, report=None,
    pictures=None, json_out=None, command="longshore evaluate", date="2026-11-21",
)  # fmt: skip


def silent(first: str) -> AbstractContextManager[ShowStatus]:
    del first
    return nullcontext(lambda text: None)


def answer(request: EvaluationRequest) -> str:
    console = Console(file=io.StringIO(), width=160, markup=False)
    evaluate_request(request, console, silent)
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


def trace(at: Path, jobs: int) -> Path:
    """Write jobs that arrive over time: most short and small, some long gangs."""
    rng = np.random.default_rng(1)
    gaps, sizes = rng.exponential(300.0, jobs).cumsum(), rng.choice([1, 1, 2, 8, 16], jobs)
    work = rng.lognormal(np.log(3600.0), 1.2, jobs)
    rows = "".join(f"j{i},{sizes[i]},{work[i]:.0f},{gaps[i]:.0f}\n" for i in range(jobs))
    (at / "mine.csv").write_text("id,gpus,work_s,submit_s\n" + rows)
    return at / "mine.csv"


class Answer:
    """What one call printed and wrote; the page only if it is asked for, which takes longest."""

    def __init__(self, longshore: Command, at: Path, *options: object, page: bool = False) -> None:
        report = ("--report", at / "report.html") if page else ()
        done = longshore("evaluate", *options, "--json", at / "figures.json", *report)
        assert done.status == 0, done.err
        self.out, self.err = done.out, done.err
        self.figures: dict[str, Any] = json.loads((at / "figures.json").read_text())
        self.page = (at / "report.html").read_text() if page else ""


def run(at: Path, *, windows: int, policies: tuple[str, ...] = ("eft", "pack", "patient")) -> tuple[OrderGrid, Problem]:
    setup = read_cluster(SMALL)
    whole = read_trace(trace(at, 40 * windows))
    parts = [
        type(whole)(*(getattr(whole, name)[40 * i : 40 * (i + 1)] for name in (
            "ids", "gpus", "work_s", "submit_s", "estimate_s", "compute_s", "parameter_bytes"
        )))
        for i in range(windows)
    ]  # fmt: skip
    regimes = every_order(Regime(waiting=True))
    problem = cluster_problem(setup, parts, regimes[0], runs=2, seed=1)
    return run_grid(problem, regimes, [HEURISTICS[name] for name in policies]), problem


def advice(grid: OrderGrid, problem: Problem) -> OrderAdvice:
    return advice_of(grid, problem, lower_bounds(problem, grid.objective_name, np.flatnonzero(grid.is_reported)))
