"""The part of docs/results.md on real traces: the shipped policy for them, on windows that no training met.

`python -m benchmarks.real_page` writes it again from benchmarks/real.json, and runs nothing.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from longshore.eval.setting import TESTED_PART, WINDOWS
from longshore.training.problems import TRAINED_PART, VALIDATED_PART

from .harness import ROOT
from .markdown import wrapped, write_part
from .real_profile import draw_profiles, profile
from .real_splits import split_lines
from .real_stored import (
    EFT,
    LEARNED,
    PACK,
    PATIENT,
    RUN,
    Cell,
    Stored,
    orders_of,
    picked,
    picks_of,
    played,
    stored,
)
from .real_tables import BETTER, WORSE, Compared, Line, compared, over_traces, shares, table
from .real_windows import TIMES, Everywhere, Time, differences

PAGE = ROOT / "docs" / "results.md"
PART = "real traces"  # of the page, by its markers
PICTURES = ROOT / "docs" / "pictures"
SAME_ORDER, ALL_ORDERS = "traces-profile.svg", "traces-profile-orders.svg"
WITHIN = (0.0, 1.0, 2.0, 5.0, 10.0, 20.0, 50.0)  # per cent, of a profile's table
HEAD = """\
## Policies on real traces

`make bench-real` runs `checkpoints/traces.zip` ([card](../checkpoints/traces.md)) in one pass, without rollouts, and \
stores the figures of each window in benchmarks/real.json. `python -m benchmarks.real_page` writes this section from \
that file.

- **Measured on**: {machine}; SHA-256 of the checkpoint {checkpoint}.
- **Split**: the first {trained:.0f} % of the jobs of each trace train the policy and tune `patient` and the best \
heuristic; the next {validated:.0f} % choose the network and its margin; the last {later:.0f} % test. The benchmark \
fails if a tested window holds an earlier job.
- **Windows**: {windows} of {traces} traces, each of 96 consecutive jobs (fewer in a short trace), without overlap, at \
a load of 0.85 and at the recorded one. Figures are means of {draws} draws of speeds and faults.
- **Cluster**: that of `hetero64`, 64 GPUs of two speeds with a lemon node. Policies know estimated fault rates, and \
run times with log-normal errors of sigma 0.5.
- **Difference**: per cent of the rival's figure, below 0 is better: geometric mean of the windows' ratios and 95 % \
interval ([evaluation.md](evaluation.md#intervals)), none for one window. Each time counts a minute more, as a wait of \
0 has no ratio.
- **Mark**: {better} (better) or {worse} (worse) where p is below 5 % after Holm's correction over the table \
(Student's t over windows). An unmarked difference may be chance, even if its interval excludes 0.
- **Better/worse**: share of windows with a shorter/longer mean JCT than the rival's.
- **Hours**: means over windows, so long windows weigh most. In the per cents all weigh alike.
"""
SAME = """\
`patient` is tuned for the same load and order. A window counts once, with the mean of both loads.

- *All, alike*: geometric mean over the traces, which weigh alike. Its interval resamples windows within traces, so it \
holds for these traces. A trace of one window counts as certain.
- *Traces as units*: the same mean; its interval covers differences between traces, so it holds for others of this \
kind, and is wider.
"""
OTHERS = """\
The rival is the heuristic and order that did best on the first {trained:.0f} % of each trace, at each load: {picks}. \
Traces weigh alike.
"""
IN_SAMPLE = """\
Mean JCT against `patient` (%), on up to {most} windows of training jobs, with other draws of speeds, faults and \
estimates, and on later jobs. A policy that had memorised jobs would gain far more on the former. The columns are \
comparable only roughly: windows differ, and in the first `patient` is tuned on the same windows.
"""
PROFILES = """\
A profile shows the share of the windows (%, at each load) in which a policy's mean JCT is at most X % above that of \
the best policy there. Higher is better. (Dolan and More, Benchmarking optimization software with performance \
profiles, 2002.)
"""


def write_page(found: Stored, page: Path = PAGE, pictures: Path = PICTURES) -> None:
    """Write the part of the page and its pictures."""
    same = {order: costs_of(found.cells, order) for order in orders_of(found.cells)}
    draw_profiles(pictures / SAME_ORDER, same)
    draw_profiles(pictures / ALL_ORDERS, {"policies of all orders": costs_of_orders(found.cells)})
    write_part(page, PART, wrapped(lines_of(found)))


def lines_of(found: Stored) -> Iterator[str]:
    """Yield the paragraphs and rows of the part."""
    cells = found.cells
    later = played(cells, orders_of(cells)[0], PATIENT)
    words = {
        "machine": found.machine, "checkpoint": found.checkpoint[:16], "draws": found.draws, "better": BETTER,
        "worse": WORSE, "trained": _percent(TRAINED_PART), "validated": _percent(VALIDATED_PART),
        "later": _percent(TESTED_PART), "traces": len({trace for trace, _ in later}),
        "windows": sum(len(windows) for windows in _by_trace(later).values()), "picks": picks_text(cells),
        "most": WINDOWS,
    }  # fmt: skip
    yield from HEAD.format(**words).split("\n")
    yield from ("### Against patient under the same order", "", *SAME.format(**words).split("\n"))
    for order in orders_of(cells):
        yield from (f"#### {order[0].upper()}{order[1:]}", "", *same_order(cells, order), "")
    yield from ("### Against the best order and heuristic", "", *OTHERS.format(**words).split("\n"))
    yield from ("Mean JCT (%):", "", *against_best(cells, "mean_s"), "")
    yield from ("p99 JCT (%):", "", *against_best(cells, "p99_s"), "")
    yield from ("### On the jobs that it was trained on", "", *IN_SAMPLE.format(**words).split("\n"))
    yield from (*in_sample_lines(cells), "")
    yield from (
        "### Where it gains", "",
        "Against `patient` under the same order. Windows weigh alike at each load, so long traces weigh more. "
        "Intervals take the loads of a window together.", "", *split_lines(cells), "",
    )  # fmt: skip
    yield from ("### How far from the best", "", *PROFILES.split("\n"), *profile_lines(cells), "")
    yield from ("### Training seeds", "", *seed_lines(cells))


def _percent(part: tuple[float, float]) -> float:
    return 100.0 * (part[1] - part[0])


def _by_trace(figures: Everywhere, time: Time = "mean_s") -> dict[str, NDArray[np.float64]]:
    """Return a time of each window of each trace, mean over loads, in hours."""
    parts: dict[str, list[list[float]]] = {}
    for (trace, _), it in figures.items():
        parts.setdefault(trace, []).append(getattr(it, time))
    return {trace: np.mean(values, axis=0) / 3600.0 for trace, values in parts.items()}


def _mean_h(figures: Everywhere, time: Time) -> dict[str, float]:
    """Return the mean of a time over the windows of each trace, in hours."""
    return {trace: float(windows.mean()) for trace, windows in _by_trace(figures, time).items()}


def same_order(cells: Sequence[Cell], order: str) -> Iterator[str]:
    """Yield the table of an order regime: the learned policy against `patient` on each trace."""
    mine, rival = played(cells, order, LEARNED), played(cells, order, PATIENT)
    logs = {time: differences(mine, rival, time) for time in TIMES}
    jct_h, wait_h, my_wait_h = _mean_h(rival, "mean_s"), _mean_h(rival, "wait_s"), _mean_h(mine, "wait_s")
    lines: list[Line] = [
        _line(
            trace,
            logs["mean_s"][trace],
            (jct_h[trace], wait_h[trace], my_wait_h[trace]),
            [compared(logs[time][trace]) for time in TIMES],
        )
        for trace in jct_h
    ]
    together = {time: list(parts.values()) for time, parts in logs.items()}
    units = [compared(units_of(together[time])) for time in TIMES]
    every = np.concatenate(together["mean_s"])
    hours = [float(np.mean(list(it.values()))) for it in (jct_h, wait_h, my_wait_h)]
    lines.append(_line("*all, alike*", every, hours, [over_traces(together[time]) for time in TIMES]))
    lines.append(("*traces as units*", "", "", units[0], shares(units_of(together["mean_s"])), *units[1:], ""))
    header = (
        "trace", "windows", "mean JCT of `patient` (h)", "mean JCT (%)", "better/worse (%)", "p99 JCT (%)",
        "longest wait (%)", "longest wait of `patient`/learned (h)",
    )  # fmt: skip
    yield from table(header, lines)


def _line(name: str, logs: NDArray[np.float64], hours: Sequence[float], found: list[Compared]) -> Line:
    jct_h, wait_h, my_wait_h = hours
    waits = f"{wait_h:.2f}/{my_wait_h:.2f}"
    return (name, str(logs.size), f"{jct_h:.2f}", found[0], shares(logs), *found[1:], waits)


def units_of(logs: list[NDArray[np.float64]]) -> NDArray[np.float64]:
    """Return the mean of each trace, shape (traces,)."""
    return np.array([values.mean() for values in logs])


def against_best(cells: Sequence[Cell], time: Time) -> Iterator[str]:
    """Yield a table of policies and orders against the best order and heuristic of each trace's past."""
    rival, policies = picked(cells), (LEARNED, PATIENT, EFT, PACK)
    lines: list[Line] = [
        (order, *(over_traces(list(differences(played(cells, order, it), rival, time).values())) for it in policies))
        for order in orders_of(cells)
    ]
    yield from table(("order", LEARNED, *(f"`{name}`" for name in policies[1:])), lines)


def in_sample_lines(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield what the learned policy gains where it was trained, and later, under each order."""
    lines: list[Line] = []
    for order in orders_of(cells):
        past: dict[str, list[list[float]]] = {}
        for cell in cells:
            if cell.order == order:
                past.setdefault(cell.trace, []).append(cell.trained)
        trained = [np.mean(loads, axis=0) for loads in past.values()]
        later = differences(played(cells, order, LEARNED), played(cells, order, PATIENT), "mean_s")
        lines.append((order, over_traces(trained), over_traces(list(later.values()))))
    yield from table(("order", "trained on", "later"), lines)


def picks_text(cells: Sequence[Cell]) -> str:
    """Return which order and heuristic are chosen, and how often."""
    picks = Counter(picks_of(cells).values())
    every = picks.total()
    return ", ".join(f"`{it.policy}` under {it.order} ({count} of {every})" for it, count in picks.most_common())


def _costs(figures: Everywhere) -> list[float]:
    return [value for it in figures.values() for value in it.mean_s]


def costs_of(cells: Sequence[Cell], order: str) -> dict[str, list[float]]:
    """Return the mean JCT of policies of one order in each window at each load."""
    return {name: _costs(played(cells, order, name)) for name in (PATIENT, LEARNED, EFT, PACK)}


def costs_of_orders(cells: Sequence[Cell]) -> dict[str, list[float]]:
    """Return the mean JCT of the learned policy under each order, and of the best heuristic, in the same windows."""
    keys = list(played(cells, orders_of(cells)[0], LEARNED))  # traces and loads in one order for all
    best = picked(cells)
    learned = {order: played(cells, order, LEARNED) for order in orders_of(cells)}
    return {
        "best order and heuristic": _costs({key: best[key] for key in keys}),
        **{f"{LEARNED}, {order}": _costs({key: it[key] for key in keys}) for order, it in learned.items()},
    }


def profile_lines(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield the pictures and the tables of the profiles."""
    yield from (
        "Policies of the same order:",
        "",
        f"![Profiles of the policies of each order](pictures/{SAME_ORDER})",
        "",
    )
    rows = [(order, *row) for order in orders_of(cells) for row in _shares(costs_of(cells, order))]
    yield from (*_within(("order", "policy"), rows), "")
    yield from (
        "The learned policy under each order, and the best order and heuristic of each trace's past:", "",
        f"![Profiles of policies of all orders](pictures/{ALL_ORDERS})", "",
        *_within(("policy",), _shares(costs_of_orders(cells))),
    )  # fmt: skip


def _shares(costs: dict[str, list[float]]) -> list[tuple[str, ...]]:
    found = profile(np.array(list(costs.values())), WITHIN)
    return [(name, *(f"{100.0 * share:.0f}" for share in row)) for name, row in zip(costs, found, strict=True)]


def _within(names: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> Iterator[str]:
    yield from table((*names, *(f"{percent:g} %" for percent in WITHIN)), rows)


def seed_lines(cells: Sequence[Cell]) -> Iterator[str]:
    """Yield how much the runs differ of which the policy is the mean, if they were scored."""
    about = "The shipped policy is the mean of the networks of three runs, with seeds 0, 1 and 2."
    runs = [name for name in cells[0].later if name.startswith(RUN)]
    if not runs:
        yield (
            f"{about} These were not scored; `MEMBERS=FOLDER make bench-real` scores those in a folder of "
            "`python -m benchmarks.traces_checkpoint FOLDER`. No interval covers differences between trainings."
        )
        return
    yield from (about, "")
    yield from ("Mean JCT against `patient` under the same order (%):", "")
    lines: list[Line] = [
        (order, *(_against_patient(cells, order, name) for name in (LEARNED, *runs))) for order in orders_of(cells)
    ]
    yield from table(("order", "their mean", *runs), lines)


def _against_patient(cells: Sequence[Cell], order: str, policy: str) -> Compared:
    logs = differences(played(cells, order, policy), played(cells, order, PATIENT), "mean_s")
    return over_traces(list(logs.values()))


if __name__ == "__main__":
    write_page(stored())
