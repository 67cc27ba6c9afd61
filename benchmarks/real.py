"""The shipped policy for real traces, one pass, against `patient` tuned on each trace's past, under four order regimes.

The windows are those of benchmarks/real_windows.py. The policy was trained on earlier jobs of the same traces, by
COMMAND. The figures of each window are kept in benchmarks/real.json. From them the card beside the policy and
the section of docs/results.md are written (benchmarks/real_page.py). `MEMBERS` may name the folder that was given to
benchmarks/traces_checkpoint.py: then the runs of which the policy is the mean are scored too.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import NamedTuple

import numpy as np

from longshore.agents import heuristics
from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.protocol import Policy
from longshore.cluster.presets.problems import Regime
from longshore.eval.setting import TESTED_PART
from longshore.training.problems import TRAINED_PART
from longshore.training.run_folder import BEST
from longshore.training.validation import tuned_patient

from . import real_windows
from .against import Difference
from .card import machine_text
from .harness import ROOT, Row, main, progress, stamp_of_run
from .real_page import write_page
from .real_stored import EFT, LEARNED, PACK, PATIENT, RUN, Cell, Stored, played, store
from .real_windows import (
    SEED,
    TIMES,
    check_later,
    differences,
    figures_of,
    loads_of,
    log_ratio,
    pooled,
    problem_of,
    traces,
    workload_of,
)

CHECKPOINT = ROOT / "checkpoints" / "traces.zip"
COMMAND = (
    "train --trace TRACE (each of the ten) --order fifo --order easy --order easy-shortest --order shortest "
    "--ageing 168h --steps 1e7 --no-turns --threads 1"
)
STEPS, SEEDS = 10_000_000, (0, 1, 2)
CARD = """\
# {name}

Takes whole placements, or waits, on clusters of any size, under four order regimes. It was trained on the first 60 % \
of ten real traces at five loads on the cluster of `hetero64`, and in part on clusters of 16 to 256 GPUs, for the mean \
and the p99 of JCT, with estimated fault rates and estimates of run times of several qualities.

| | |
| --- | --- |
| algorithm, network | group-relative policy gradient from random weights, `candidates`; actions `candidate` |
| command | `python -m benchmarks.traces_checkpoint FOLDER`: the mean of the networks of three runs of `longshore \
{command}` with `--seed` 0, 1 and 2, each with three validations |
| scored | {machine} (`make bench-real`) |

Against `patient`, its factor tuned on each trace's past, on the last 30 % of the ten traces (mean JCT, 95 % interval):

| order | mean JCT | p99 JCT | worst trace |
| --- | --- | --- | --- |
{rows}

On traces that it never saw: trained by the same recipe without a trace, it comes to -2.8 %, -5.7 %, -4.4 % and -0.8 % \
on that trace, in the order of the table (`make bench-left_out`, 2026-11-27). It loses there on itp_cluster06 under \
strict FIFO (+1.0 %), on itp_cluster08 under both kinds of EASY (+1.3 and +1.6 %), and on philly_vc_2869ce under the \
last order (+3.7 %).

Weights alone never run code: the zip holds a JSON schema and NumPy arrays.

The traces are {traces}. On a trace of your own, compare it first: `longshore evaluate --trace ... --policy {name}.zip`.
"""
TUNING_SEED = 2027
WEEK_S = 7 * 24 * 3600.0
REGIMES = {  # and by how much the mean JCT is to be lower, in per cent
    "strict FIFO": (Regime("fifo", waiting=True), 2.5),
    "EASY": (Regime("easy", waiting=True), 6.0),
    "EASY, shortest first": (Regime("easy-shortest", waiting=True), 6.0),
    "shortest first, aged after a week": (Regime("shortest", WEEK_S, waiting=True), 3.0),
}


class Summary(NamedTuple):
    """The learned policy against `patient` under one order regime, over all traces."""

    mean: Difference  # of the mean JCT
    p99: Difference  # JCT
    wait: Difference  # the longest
    worst: str  # trace
    worst_percent: float  # there, of the mean JCT


def cell_of(order: str, trace: str, path: Path, loads: tuple[str, float], learned: Mapping[str, Policy]) -> Cell:
    """Run everything on the later windows of a trace under an order regime, at a load that has a name.

    The policy and the heuristics also run windows of the past, which policies were trained on.

    Raises:
        ValueError: If a policy was trained on one of the jobs.
    """
    regime, (load, offered) = REGIMES[order][0], loads
    past = problem_of(path, regime, offered, TRAINED_PART, TUNING_SEED)
    later = problem_of(path, regime, offered, TESTED_PART, SEED)
    check_later(workload_of(path), later.scenarios)
    patient = tuned_patient(past)
    rivals = {PATIENT: patient, EFT: heuristics.EFT, PACK: heuristics.PACK}
    before = {name: figures_of(past, it) for name, it in {**rivals, LEARNED: learned[LEARNED]}.items()}
    return Cell(
        order=order, trace=trace, load=load, offered=offered, patience=patient.patience,
        past={name: float(np.log(before[name].mean_s).mean()) for name in rivals},
        later={name: figures_of(later, it) for name, it in {**rivals, **learned}.items()},
        trained=log_ratio(before[LEARNED], before[PATIENT], "mean_s").round(4).tolist(),
    )  # fmt: skip


def cells_of(order: str, learned: Mapping[str, Policy]) -> list[Cell]:
    """Run everything under an order regime."""
    return [
        cell_of(order, trace, path, load, learned)
        for trace, path in traces().items()
        for load in loads_of(trace, path).items()
    ]


def summary_of(cells: Sequence[Cell], order: str) -> Summary:
    """Return how the learned policy did under an order regime."""
    mine, rival = played(cells, order, LEARNED), played(cells, order, PATIENT)
    means = differences(mine, rival, "mean_s")
    worst = max(means, key=lambda trace: float(means[trace].mean()))
    mean, p99, wait = (pooled(list(differences(mine, rival, time).values())) for time in TIMES)
    return Summary(mean, p99, wait, worst, pooled([means[worst]]).percent)


def rows_of(name: str, found: Summary) -> Iterator[Row]:
    """Yield the figures of an order regime, with their bars."""
    mean = found.mean
    yield Row(f"{name}: mean JCT", mean.percent, "%", most=-REGIMES[name][1])
    yield Row(f"{name}: mean JCT, lower end", mean.low, "%")
    yield Row(f"{name}: mean JCT, upper end", mean.high, "%", most=0.0)
    yield Row(f"{name}: mean JCT, worst trace ({found.worst})", found.worst_percent, "%", most=1.0)
    yield Row(f"{name}: p99 JCT", found.p99.percent, "%", most=2.0)
    yield Row(f"{name}: longest wait", found.wait.percent, "%", most=2.0)


def learned_policies() -> dict[str, Policy]:
    """Return the shipped policy and, if their folder is named, the runs of which it is the mean.

    Raises:
        ValueError: If the folder that is named holds no run.
    """
    folder = os.environ.get("MEMBERS")
    runs = sorted(Path(folder).glob(f"*/{BEST}")) if folder else []
    if folder and not runs:
        raise ValueError(f"MEMBERS={folder}: no folder of it holds a {BEST}")
    members: dict[str, Policy] = {f"{RUN}{number}": load_policy(path) for number, path in enumerate(runs, 1)}
    return {LEARNED: load_policy(CHECKPOINT), **members}


def measure() -> Iterator[Row]:
    """Run, yield each comparison, and write what was found."""
    if not traces():
        progress("the real traces are not there: nothing to measure")
        return
    policies, cells = learned_policies(), list[Cell]()
    for name in REGIMES:
        progress(name)
        cells += cells_of(name, policies)
        yield from rows_of(name, summary_of(cells, name))
    found = Stored(
        machine=machine_text(stamp_of_run(), version("torch")),
        checkpoint=hashlib.sha256(CHECKPOINT.read_bytes()).hexdigest(),
        draws=real_windows.DRAWS,
        cells=cells,
    )
    store(found)
    write_card(found)
    write_page(found)


def card_line(name: str, found: Summary) -> str:
    """Return the card's row of an order regime."""
    mean = found.mean
    return (
        f"| {name} | {mean.percent:+.1f} % [{mean.low:+.1f}, {mean.high:+.1f}] | {found.p99.percent:+.1f} % "
        f"| {found.worst} {found.worst_percent:+.1f} % |"
    )


def write_card(found: Stored) -> None:
    """Write what was measured beside the policy."""
    text = CARD.format(
        name=CHECKPOINT.stem, command=COMMAND, machine=found.machine,
        rows="\n".join(card_line(name, summary_of(found.cells, name)) for name in REGIMES),
        traces=", ".join(dict.fromkeys(cell.trace for cell in found.cells)),
    )  # fmt: skip
    CHECKPOINT.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(measure)
