"""Where the learned policy gains and where it does not: windows split by load, by queue and by faults."""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from .real_stored import LEARNED, PATIENT, Cell, orders_of, played
from .real_tables import Line, compared, shares, table
from .real_windows import log_ratio

QUARTERS = 4


class Cases(NamedTuple):
    """Windows of all traces at each load, under one order regime. All of shape (cases,)."""

    unit: NDArray[np.intp]  # number of the window, the same at each load
    load: NDArray[np.str_]
    mean: NDArray[np.float64]  # logarithm of the ratio of mean JCTs, learned over `patient`
    p99: NDArray[np.float64]  # of p99 JCTs
    queue_h: NDArray[np.float64]  # mean wait of a job under `patient`
    stops: NDArray[np.float64]  # of jobs by faults, there


def cases_of(cells: Sequence[Cell], order: str) -> Cases:
    """Return the windows under an order regime, trace by trace and load by load."""
    mine, rivals = played(cells, order, LEARNED), played(cells, order, PATIENT)
    traces = list(dict.fromkeys(trace for trace, _ in rivals))
    parts = []
    for (trace, load), rival in rivals.items():
        windows = len(rival.mean_s)
        part = Cases(
            unit=traces.index(trace) + len(traces) * np.arange(windows),
            load=np.full(windows, load),
            mean=log_ratio(mine[trace, load], rival, "mean_s"),
            p99=log_ratio(mine[trace, load], rival, "p99_s"),
            queue_h=np.array(rival.queue_s) / 3600.0,
            stops=np.array(rival.stops),
        )
        parts.append(part)
    return Cases(*map(np.concatenate, zip(*parts, strict=True)))


def by_load(cases: Cases) -> dict[str, NDArray[np.bool_]]:
    """Return which windows have each load."""
    return {load: cases.load == load for load in dict.fromkeys(cases.load.tolist())}


def quarters(values: NDArray[np.float64]) -> dict[str, NDArray[np.bool_]]:
    """Return which values are in each quarter of them, by the range of the quarter; equal values stay together."""
    number = np.searchsorted(np.quantile(values, np.arange(1, QUARTERS) / QUARTERS), values)
    groups = (number == quarter for quarter in np.unique(number))
    return {f"{values[group].min():.1f} to {values[group].max():.1f}": group for group in groups}


def split_lines(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield the tables by load, by queue and by faults."""
    found = {order: cases_of(cells, order) for order in orders_of(cells)}
    yield from ("By the offered load:", "")
    yield from _split("load", {order: (cases, by_load(cases)) for order, cases in found.items()})
    yield from (
        "",
        "By the queue (mean wait of a window's jobs under `patient`, in quarters):",
        "",
    )
    yield from _split("mean wait (h)", {order: (cases, quarters(cases.queue_h)) for order, cases in found.items()})
    yield from ("", "By the faults (stops of a window's jobs under `patient`, in quarters):", "")
    yield from _split("stops by faults", {order: (cases, quarters(cases.stops)) for order, cases in found.items()})


def _split(what: str, found: dict[str, tuple[Cases, dict[str, NDArray[np.bool_]]]]) -> Iterator[str]:
    header = ("order", what, "windows", "mean JCT (%)", "better/worse (%)", "p99 JCT (%)")
    lines: list[Line] = [
        (order, name, str(int(group.sum())), compared(cases.mean[group], cases.unit[group]), shares(cases.mean[group]),
         compared(cases.p99[group], cases.unit[group]))
        for order, (cases, groups) in found.items()
        for name, group in groups.items()
    ]  # fmt: skip
    yield from table(header, lines)
