"""The part of docs/results.md on ways to learn, from finished runs; learning_figures.py draws its pictures."""

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from longshore.agents.heuristics import EFT_HAZARD, HEURISTICS, PATIENT
from longshore.training.config import ACTOR_CRITICS
from longshore.training.problems import PRESETS

from .against import Difference, difference_of_means
from .harness import ROOT
from .learning_ways import (
    BEST_RANDOM,
    ENDINGS,
    HELD_OUT,
    SEARCHED,
    SECTIONS,
    TIMED,
    Options,
    Run,
    Runs,
    Section,
    Trial,
    commands,
    key,
    read_endings,
    rival_key,
    with_steps,
)  # fmt: skip
from .markdown import wrapped, write_part

DOCS = ROOT / "docs"
PAGE = DOCS / "results.md"
PART = "ways to learn"  # of the page, by its markers
SEARCH_FIELDS = ("futures", "width", "least_value", "horizon")
COMMON = EFT_HAZARD.name  # a rival that runs the same whether waiting is allowed or not


class Standing(NamedTuple):
    """How a way to learn fares over its seeds."""

    name: str
    options: Options
    rival: str  # best heuristic of the same actions
    rival_s: NDArray[np.float64]  # its makespans, (workloads,)
    makespan_s: NDArray[np.float64]  # (seeds, workloads)
    core_minutes: float  # of training, median over the seeds: the first may have compiled
    steps: NDArray[np.float64]  # (validations,), mean over the seeds
    validation_h: NDArray[np.float64]  # (seeds, validations) mean makespan

    @property
    def percent(self) -> NDArray[np.float64]:
        """Each seed's difference in mean makespan from the rival's, in per cent, shape (seeds,)."""
        differences: NDArray[np.float64] = 100.0 * (self.makespan_s.mean(axis=1) / self.rival_s.mean() - 1.0)
        return differences


class Point(NamedTuple):
    """What rollouts gain, and for what time."""

    trial: Trial
    against_patient: Difference
    against_base: Difference
    decision_ms: float


def seconds_of(runs: Runs, name: str) -> NDArray[np.float64]:
    """Return the held-out makespans of a run, shape (workloads,)."""
    return np.array(runs[name].makespan_s, dtype=np.float64)


def rival_seconds(runs: Runs, name: str, preset: str = "hetero64") -> NDArray[np.float64]:
    """Return the held-out makespans of a heuristic, or of another rival, on the workloads of a preset."""
    return seconds_of(runs, rival_key(preset, name))


def best_heuristic(runs: Runs, preset: str, *, waiting: bool) -> str:
    """Return the heuristic of the shortest mean makespan, of those that wait only if waiting is allowed."""
    able = [name for name, policy in HEURISTICS.items() if waiting or not policy.waits]
    return min(able, key=lambda name: float(rival_seconds(runs, name, preset).mean()))


def standings(runs: Runs, section: Section, seeds: int, share: float) -> list[Standing]:
    """Return the ways of a section of which at least one seed is finished, and the heuristics."""
    found = []
    for name, options in section.ways.items():
        keys = [key(commands(options, seed, share, section.preset)) for seed in range(seeds)]
        mine = [runs[each] for each in keys if each in runs]
        if not mine or rival_key(section.preset, COMMON) not in runs:
            continue
        length = min(len(run.validation) for run in mine)
        curves = np.array([run.validation[:length] for run in mine], dtype=np.float64)
        makespan_s = np.array([run.makespan_s for run in mine], dtype=np.float64)
        core_minutes = float(np.median([run.core_s for run in mine])) / 60.0
        rival = best_heuristic(runs, section.preset, waiting="--waiting" in options[0])
        rival_s, steps = rival_seconds(runs, rival, section.preset), curves[:, :, 0].mean(axis=0)
        found.append(Standing(name, options, rival, rival_s, makespan_s, core_minutes, steps, curves[:, :, 1]))
    return found


def points(runs: Runs, trials: Sequence[Trial]) -> list[Point]:
    """Return the rollouts that are finished, and whose base is."""
    if rival_key("hetero64", PATIENT.name) not in runs:
        return []
    alone = {trial.base: trial.key for trial in trials if not trial.search}
    patient_s, found = rival_seconds(runs, PATIENT.name)[:SEARCHED], []
    for trial in trials:
        if trial.key in runs and alone[trial.base] in runs:
            run, mine_s = runs[trial.key], seconds_of(runs, trial.key)
            base = difference_of_means(mine_s, seconds_of(runs, alone[trial.base]))
            found.append(Point(trial, difference_of_means(mine_s, patient_s), base, 1e3 * run.core_s / run.decisions))
    return found


def cell(found: Difference) -> str:
    """Return a difference with its interval; a dash where a thing is compared with itself."""
    if found.percent == found.low == found.high == 0.0:
        return "-"
    return f"{found.percent:+.2f} [{found.low:+.2f}, {found.high:+.2f}]"


def section_lines(runs: Runs, section: Section, found: Sequence[Standing], share: float) -> Iterator[str]:
    """Yield the lines of a section, with its table and its picture."""
    yield from (f"### {section.title}", "", about_of(runs, section), "")
    yield (
        f"| way | against its rival (%) | seeds (%) | against {found[0].name} (%) | against `{COMMON}` (%) "
        "| core-min | OPTIONS |"
    )
    yield "| --- |" + " --- |" * 6
    common_s, first_s = rival_seconds(runs, COMMON, section.preset), found[0].makespan_s.mean(axis=0)
    for it in found:
        mine_s = it.makespan_s.mean(axis=0)
        lines = ", then ".join(f"`{each}`" for each in with_steps(it.options, "SEED", share, section.preset))
        yield (
            f"| {it.name} | {cell(difference_of_means(mine_s, it.rival_s))} `{it.rival}` "
            f"| {it.percent.min():+.2f} to {it.percent.max():+.2f} ({it.percent.size}) "
            f"| {cell(difference_of_means(mine_s, first_s))} "
            f"| {cell(difference_of_means(mine_s, common_s))} | {it.core_minutes:.1f} | {lines} |"
        )
    yield from ("", f"![Learning curves: {section.title}](pictures/{picture_name(section.title)})", "")
    if section.preset != "hetero64":
        yield from rival_lines(runs, section.preset, found)


def about_of(runs: Runs, section: Section) -> str:
    """Return the text of a section, with the figure of `patient` if requested."""
    if "{patient}" not in section.about:
        return section.about
    patient = difference_of_means(rival_seconds(runs, PATIENT.name), rival_seconds(runs, COMMON))
    return section.about.replace("{patient}", cell(patient))


def rival_lines(runs: Runs, preset: str, found: Sequence[Standing]) -> Iterator[str]:
    """Yield a table of several ways against all that was run on the workloads of a preset; equals share a row."""
    yield f"| against (%) | its makespan (h) | {' | '.join(it.name for it in found)} |"
    yield "| --- |" + " --- |" * (1 + len(found))
    names = [BEST_RANDOM, *(name for name in HEURISTICS if rival_key(preset, name) in runs)]
    rows = []
    for name in sorted(names, key=lambda name: float(rival_seconds(runs, name, preset).mean())):
        rival_s = rival_seconds(runs, name, preset)
        cells = [cell(difference_of_means(it.makespan_s.mean(axis=0), rival_s)) for it in found]
        rows.append((name, f"{rival_s.mean() / 3600:.2f} | {' | '.join(cells)}"))
    for figures, equals in itertools.groupby(rows, key=lambda row: row[1]):
        yield f"| {', '.join(name for name, _ in equals)} | {figures} |"
    hours = " | ".join(f"{it.makespan_s.mean() / 3600:.2f}" for it in found)
    yield from (f"| their makespan (h) | | {hours} |", "")


def picture_name(title: str) -> str:
    """Return the name of a section's picture."""
    return f"learning-{title.lower().replace(' ', '-')}.svg"


def rollout_lines(found: Sequence[Point]) -> Iterator[str]:
    """Yield the lines of the section on rollouts."""
    yield from (
        "### Rollouts", "",
        "Rollouts try the best candidates of a policy, the *base*, in imagined futures "
        "([policies.md](policies.md#rollouts)). `hetero64-wait` is the first shipped policy, of one training seed. The "
        "first row of each base is the base alone, the dashed line in the picture.", "",
        "- *futures*: at most; *width*: candidates beside the base's own; *horizon*: jobs after which a rollout stops.",
        "- *least_value*: what knowing more has to be worth for further futures, in mean run times of a job.", "",
        "`longshore evaluate --oracle --waiting --policy rollout:checkpoints/hetero64-wait.zip` runs the default. "
        f"Milliseconds are of {TIMED} workloads, on an otherwise idle machine.",
        "", f"| base | {' | '.join(SEARCH_FIELDS)} | against `patient` (%) | against its base (%) | ms a decision |",
        "| --- |" + " --- |" * 7,
    )  # fmt: skip
    for point in found:
        search = point.trial.search
        shown = " | ".join(f"{search[name]:g}" if name in search else "-" for name in SEARCH_FIELDS)
        yield (
            f"| `{point.trial.base}` | {shown} | {cell(point.against_patient)} "
            f"| {cell(point.against_base)} | {point.decision_ms:.3g} |"
        )
    yield from ("", f"![Gain of rollouts by time for a decision](pictures/{picture_name('Rollouts')})", "")


def machines_of(runs: Runs) -> str:
    """Return where and when all runs were made, with the commits of each machine and day together."""
    together: dict[str, str] = {}
    for text in sorted({run.machine for run in runs.values()}):
        machine, _, commit = text.partition(", commit ")
        together[machine] = f"{together[machine]}, {commit}" if machine in together else text
    return "; ".join(together.values())


def head_lines(runs: Runs, seeds: int, share: float) -> Iterator[str]:
    """Yield the beginning of the part."""
    yield from (
        "## Ways to learn", "",
        "All runs are on the preset `hetero64` ([training.md](training.md#presets)) unless a section names another: 64 "
        "jobs, submitted at once, on 64 GPUs of two speeds, with faults. A step is one pick: a GPU, a node, a whole "
        "placement, or a wait. `make bench-learning` writes this section from benchmarks/learning.json.", "",
    )  # fmt: skip
    limits = "" if (seeds, share) == (5, 1.0) else f"SEEDS={seeds} STEPS={share:g} "
    yield from (
        "- **Command** of a row: `longshore train --preset PRESET --oracle OPTIONS... --seed SEED --threads 1 --logdir "
        f"runs`, with seeds 0 to {seeds - 1}. With `--algo distil`, steps are labelled decisions. `RETRAIN=1 "
        f"{limits}make bench-learning` runs what has no figures yet.",
        f"- **Machine**: {machines_of(runs)}.",
        f"- **Per cent**: difference of the mean makespan from a rival's, on {HELD_OUT} held-out workloads with their "
        f"faults (rollouts: the first {SEARCHED}). Below 0 is better. Each run counts with the policy of its best "
        "validation.",
        "- **Brackets**: 95 % interval of the mean of all seeds, paired by workload. It covers other workloads, not "
        "other trainings: for these, *seeds* has the best and the worst (number of seeds).",
        "- **Rival**: the best heuristic, named in each cell; without waiting, the best that never waits.",
        "- **core-min**: CPU minutes of training with validations, median of the seeds. Two runs shared the machine.",
        "- **Curves**: mean of the seeds on the validation workloads, after each twelfth of the steps (or each update, "
        "if fewer), with a band from the best to the worst seed. A curve above the picture is named at its margin. "
        "Distillation counts steps differently, so it is a dashed level.",
        "",
    )  # fmt: skip


class Ending(NamedTuple):
    """How the runs of a way ended while the learning rate could fall below 0."""

    name: str
    asked: int  # steps
    taken: int  # with the last rollout
    stay: int  # seeds whose policy is the same with a rate of 0
    runs: int  # seeds
    longer: Mapping[int, float]  # by how much the mean held-out makespan is longer with that, in per cent, by seed

    @property
    def rate(self) -> float:
        """Rate of the last update over the first, in per cent."""
        return 100.0 * (1.0 - self.taken / self.asked)


def endings_of(runs: Runs, seed: int, share: float) -> Iterator[tuple[str, str, bool]]:
    """Yield name and command of each way by PPO or A2C that is finished, none twice, and if its policy stays the same.

    It does if the last update changes nothing (see `stays`).
    """
    ways = {(section.preset, options): name for section in SECTIONS for name, options in section.ways.items()}
    for (preset, options), name in ways.items():
        line = commands(options, seed, share, preset)[-1]
        if _word(line, "--algo", "") in ACTOR_CRITICS and line in runs:
            yield f"{preset}: {name}", line, stays(runs[line], -(-_steps_of(line) // _rollout_of(line)))


def endings(runs: Runs, longer_percent: Mapping[str, float], seeds: int, share: float) -> Iterator[Ending]:
    """Yield how each way by PPO or A2C ended."""
    found: dict[str, list[tuple[int, str, bool]]] = {}
    for seed in range(seeds):
        for name, line, stay in endings_of(runs, seed, share):
            found.setdefault(name, []).append((seed, line, stay))
    for name, each in found.items():
        asked, rollout = _steps_of(each[0][1]), _rollout_of(each[0][1])
        longer = {seed: longer_percent[line] for seed, line, _ in each if line in longer_percent}
        yield Ending(name, asked, -(-asked // rollout) * rollout, sum(it[2] for it in each), len(each), longer)


def _steps_of(line: str) -> int:
    return int(_word(line, "--steps", ""))


def _rollout_of(line: str) -> int:
    """Return the steps between two updates of a command by PPO or A2C, of all environments together."""
    preset = PRESETS[_word(line, "--preset", "")]
    size = preset.hyperparameters(_word(line, "--algo", ""), _word(line, "--replay", preset.replay))
    return size.rows * size.steps


def _word(line: str, option: str, usual: str) -> str:
    """Return what follows an option in a command."""
    words = line.split()
    return words[words.index(option) + 1] if option in words else usual


def stays(run: Run, updates: int) -> bool:
    """Say whether a last update that changes nothing leaves a run's policy as it is.

    So it is if the policy is of an earlier validation, and every update has one: the last finds what the one before
    found.
    """
    means = [mean for _, mean in run.validation]
    return len(means) == updates and min(means[:-1], default=math.inf) <= means[-1]


def rate_lines(found: Sequence[Ending], machine: str) -> Iterator[str]:
    """Yield the section on the last update."""
    yield from (
        "### The last update", "",
        "Before 2026-11-28, the rate of the last update of PPO and A2C was below 0 where its rollout ended after the "
        "last step. Now it is 0 ([training.md](training.md#how-it-learns)). The figures above have the former rate. "
        "The table shows which of them the change may move; those of `group` and `distil` stay.", "",
        "- *rate*: of that update, in per cent of the first step's.",
        "- *stay*: seeds whose policy is the same without that update.",
        f"- *moves*: of the mean held-out makespan without that update ({machine}); a dash: not measured.",
        "", "| way | steps | last rollout ends | rate (%) | stay | moves (%) |", "| --- |" + " --- |" * 5,
    )  # fmt: skip
    rows: dict[str, list[str]] = {}
    for it in found:
        moves = ", ".join(f"{percent:+.3f} (seed {seed})" for seed, percent in it.longer.items()) or "-"
        figures = f"{it.asked:,} | {it.taken:,} | {it.rate:+.2f} | {it.stay} of {it.runs} | {moves}"
        rows.setdefault(figures, []).append(it.name)
    for figures, names in rows.items():
        yield f"| {'; '.join(names)} | {figures} |"
    yield from (
        "", "The checkpoints `hetero64` and `hetero64-1` to `hetero64-4` (PPO, 2,000,000 steps, last rollout to "
        "2,031,616) had -1.58 %: training one again may give another policy.", "",
    )  # fmt: skip


def common_rival(found: Sequence[Standing]) -> str:
    """Return the rival of all ways if it is one and the same, and else one that runs by any rules."""
    rivals = {it.rival for it in found}
    return rivals.pop() if len(rivals) == 1 else COMMON


def write_page(runs: Runs, trials: Sequence[Trial], seeds: int, share: float, *, path: Path = PAGE) -> None:
    """Write the part of docs/results.md; sections without any finished run are left out."""
    lines = list(head_lines(runs, seeds, share))
    for section in SECTIONS:
        if found := standings(runs, section, seeds, share):
            lines += section_lines(runs, section, found, share)
    measured = read_endings(ENDINGS)
    if ended := list(endings(runs, measured.longer_percent, seeds, share)):
        lines += rate_lines(ended, measured.machine)
    if tried := points(runs, trials):
        lines += rollout_lines(tried)
    write_part(path, PART, wrapped(lines))
