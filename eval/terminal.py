"""What the terminal shows besides a comparison: progress, one run, and the statistics of a trace."""

import math
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, TypeAlias

from ..cluster.model.outcome import Outcome, metrics
from ..cluster.model.scenarios import Scenarios
from ..cluster.traces.statistics import TraceStatistics
from ..cluster.workloads.estimates import EstimateErrors
from .table import time_unit

if TYPE_CHECKING:
    from rich.console import Console

Tell: TypeAlias = Callable[[str], None]  # shows what is being done
Progress: TypeAlias = Callable[[str], AbstractContextManager[Tell]]  # begins with what is done first

CompileFirst: TypeAlias = Callable[[list[str]], None]  # is given what `compile_ahead` takes


def compile_as_called(rehearsals: list[str]) -> None:
    """Let each kernel be compiled when it is called."""


def print_run(
    console: "Console", outcome: Outcome, scenarios: Scenarios, cluster_gpus: int, ageing_s: float = math.inf
) -> None:
    """Print the figures of one scenario's run; with an ageing bound, also how many jobs waited longer."""
    figures = metrics(outcome, scenarios.jobs, scenarios.gpus, scenarios.submit_s, cluster_gpus, scenarios.work_s)
    unit, scale = time_unit(float(figures.makespan_s[0]))
    rows = {
        "makespan": f"{figures.makespan_s[0] * scale:.2f} {unit}",
        "mean JCT": f"{figures.mean_jct_s[0] * scale:.2f} {unit}",
        "p99 JCT": f"{figures.p99_jct_s[0] * scale:.2f} {unit}",
        "useful utilisation": f"{100 * figures.useful_utilisation[0]:.1f} %",
        "GPU-hours lost to faults": f"{figures.lost_gpu_s[0] / 3600:.1f}",
        "restarts": f"{figures.restarts[0]:.0f}",
        "longest wait": f"{figures.longest_wait_s[0] * scale:.2f} {unit}",
    }
    if outcome.slowed[0]:
        rows["slow nodes met by running jobs"] = f"{outcome.slowed[0]}"
        rows["backups"] = f"{outcome.backups[0]} ({outcome.backup_gpu_s[0] / 3600:.1f} GPU-hours)"
    if ageing_s < math.inf:
        # 1e-9: a job that starts when it reaches the bound may by rounding have waited a little more.
        longer = int((outcome.wait_s[0] > ageing_s * (1 + 1e-9)).sum())
        rows["waited over the bound"] = f"{longer} of {scenarios.jobs[0]} jobs (bound: {ageing_s / 3600:g} h)"
    _print(console, rows)


def print_trace(console: "Console", name: str, statistics: TraceStatistics, gpus: int | None) -> None:
    """Print what a trace holds; with `gpus`, also the load that it offers to so many."""
    sizes = "  ".join(f"{size}: {count}" for size, count in statistics.sizes[:16])
    rows = {
        "format": name,
        "jobs": f"{statistics.jobs} ({statistics.left_out} rows left out)",
        "span": f"{statistics.span_s / 86400:.1f} days",
        "work": f"{statistics.gpu_hours:,.0f} GPU-hours",
        "run time": f"mean {statistics.mean_work_s / 3600:.2f} h; "
        + ", ".join(f"{100 * at:.0f} %: {work_s / 3600:.2f} h" for at, work_s in statistics.work_s),
        "arrivals": _arrivals(statistics),
        "GPUs: jobs": sizes + ("  ..." if len(statistics.sizes) > 16 else ""),
    }
    if gpus:
        load = statistics.offered_load(gpus)
        rows["load"] = f"{load:.2f} on {gpus} GPUs" if math.isfinite(load) else "none over time, as all come at once"
    _print(console, rows)


def print_errors(console: "Console", errors: dict[str, EstimateErrors]) -> None:
    """Print how far each kind of estimate is off, as |ln(estimate / run time)| and as a factor."""
    rows = {"estimates": "median    90 %   (of |ln(estimate / run time)|; as a factor in brackets)"} | {
        f"  {kind}": "  ".join(f"{off:.2f} ({math.exp(off):.3g} x)" for off in each) for kind, each in errors.items()
    }
    _print(console, rows)


def _arrivals(statistics: TraceStatistics) -> str:
    if math.isnan(statistics.gap_variation):
        return "all at once"
    return f"coefficient of variation of gaps {statistics.gap_variation:.1f} (1 is Poisson)"


def _print(console: "Console", rows: dict[str, str]) -> None:
    width = max(map(len, rows))
    for title, text in rows.items():
        console.print(f"{title:{width}}  {text}", soft_wrap=True)
