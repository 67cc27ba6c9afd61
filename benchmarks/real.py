"""The shipped policy for real traces, one pass, against `patient` tuned on each trace's past, under four order regimes.

The windows are those of benchmarks/real_windows.py. The policy was trained on earlier jobs of the same traces, by
COMMAND. The figures are written into the card beside it.
"""

from collections.abc import Iterator, Sequence
from functools import partial
from importlib.metadata import version
from pathlib import Path

from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.protocol import Policy
from longshore.cluster.presets.problems import Regime
from longshore.eval.setting import TESTED_PART
from longshore.training.asked import TRAINED_PART
from longshore.training.later import tuned_patient

from .card import machine_text
from .harness import ROOT, Row, main, progress, stamp_of_run
from .real_windows import SEED, Figures, differences, figures_of, pooled, problem_of, traces

CHECKPOINT = ROOT / "checkpoints" / "traces.zip"
COMMAND = (
    "train --trace TRACE (each of the ten) --order fifo --order easy --order easy-shortest --order shortest "
    "--ageing 168h --steps 1e7 --threads 1"
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


def learned(regime: Regime, policy: Policy, path: Path, load: float) -> Figures:
    """Return how a policy does on later windows of a trace."""
    return figures_of(problem_of(path, regime, load, TESTED_PART, SEED), policy)


def rival(regime: Regime, path: Path, load: float) -> Figures:
    """Return how `patient` does there, tuned on the part of the trace that policies are trained on."""
    past = problem_of(path, regime, load, TRAINED_PART, TUNING_SEED)
    return learned(regime, tuned_patient(past), path, load)


def measure() -> Iterator[Row]:
    """Run, and yield each comparison."""
    if not traces():
        progress("the real traces are not there: nothing to measure")
        return
    policy = load_policy(CHECKPOINT)
    lines = []
    for name, (regime, least) in REGIMES.items():
        progress(name)
        found = differences(partial(learned, regime, policy), partial(rival, regime))
        mean, p99, wait = (pooled(list(parts)) for parts in zip(*found.values(), strict=True))
        worst = max(found, key=lambda trace: float(found[trace].mean_s.mean()))
        yield Row(f"{name}: mean JCT", mean.percent, "%", most=-least)
        yield Row(f"{name}: mean JCT, lower end", mean.low, "%")
        yield Row(f"{name}: mean JCT, upper end", mean.high, "%", most=0.0)
        yield Row(f"{name}: mean JCT, worst trace ({worst})", pooled([found[worst].mean_s]).percent, "%", most=1.0)
        yield Row(f"{name}: p99 JCT", p99.percent, "%", most=2.0)
        yield Row(f"{name}: longest wait", wait.percent, "%", most=2.0)
        worse = pooled([found[worst].mean_s]).percent
        lines.append(
            f"| {name} | {mean.percent:+.1f} % [{mean.low:+.1f}, {mean.high:+.1f}] | {p99.percent:+.1f} % "
            f"| {worst} {worse:+.1f} % |"
        )
    write_card(lines)


def write_card(lines: Sequence[str]) -> None:
    """Write what was measured beside the policy."""
    text = CARD.format(
        name=CHECKPOINT.stem, command=COMMAND, machine=machine_text(stamp_of_run(), version("torch")),
        rows="\n".join(lines), traces=", ".join(traces()),
    )  # fmt: skip
    CHECKPOINT.with_suffix(".md").write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main(measure)
