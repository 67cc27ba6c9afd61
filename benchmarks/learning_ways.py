"""The ways to learn that are compared, the settings of rollouts, and the figures of every finished run.

A run is known by its commands, so what is finished is never done again, and a change of a command asks for new runs.
After a change of what a command does, delete the lines of its runs from the file.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, TypeAdapter

from longshore.envs.rewards import RANDOM_RUNS

from .harness import ROOT

STORE = ROOT / "benchmarks" / "learning.json"
ENDINGS = ROOT / "benchmarks" / "last_update.json"  # of runs whose last update had a rate below 0
# Environment steps of a run, more where they pick a node and cost a quarter; decisions that distillation labels.
STEPS, NODE_STEPS, LABELS = 500_000, 1_000_000, 12_000
TIMED = 12  # workloads on which the time of rollouts is taken
HELD_OUT, SEARCHED, SEED = 500, 120, 2026  # workloads of a seed that neither training nor validation draws from

Options = tuple[str, ...]  # of `longshore train`, call by call

NODE: Options = ("--algo ppo",)
CANDIDATE: Options = ("--algo ppo --action candidate",)
CANDIDATE_WAITING: Options = ("--algo ppo --action candidate --waiting",)
GROUP_WAITING: Options = ("--algo group --waiting",)
DISTILLED: Options = ("--algo distil --waiting",)
GROUP_LONGER: Options = ("--algo group --waiting --steps 1250000",)  # nearer to what distillation costs
TAUGHT: Options = (*DISTILLED, "--algo group --waiting --init runs/hetero64-distil-wait-{seed}/best.zip")


class Section(NamedTuple):
    """Ways to learn that are compared with each other, the first with all others."""

    title: str
    about: str
    ways: Mapping[str, Options]  # by name
    preset: str = "hetero64"


BEST_RANDOM = f"best of {RANDOM_RUNS} random runs"
PATENT_WAYS: Mapping[str, Options] = {
    "PPO, replay": ("--algo ppo --replay dynamic",),
    "PPO, no replay": ("--algo ppo --replay off",),
    "A2C, replay": ("--algo a2c --replay dynamic",),
    "A2C, no replay": ("--algo a2c --replay off",),
}
# What the section shows, by the number of GPUs.
PATENT_ABOUT = {
    4: "Preset `patent4-ours`, our variant of the source's method ([training.md](training.md#the-sources-method)): one "
    "GPU a step, one network over all GPUs, a reward against the best of some random runs, replay `dynamic`. The "
    "presets without `-ours`, which follow the source to the letter, are not compared. GPUs differ only in their fault "
    "rates. In the second table, equal policies share a row, and *best of 5 random runs* is the shortest run of each "
    "workload in hindsight. On four GPUs a job mostly takes what is free: trained policies are level with the best "
    "heuristics, which are 0.2 % ahead of a random choice.",
    64: "Preset `patent64-ours`. Heuristics that do not know fault rates are as good as random picks. Knowing the "
    "fault rate of each GPU is worth up to 1.3 %. The trained policies show no sign of having learned it in 500,000 "
    "steps (about 1,200 workloads), with or without replay. The reason was not tested further.",
}

SECTIONS = (
    Section(
        "Rewards",
        "All policies choose among whole placements and may wait. `potential` pays a placement at once for the "
        "GPU-time that it commits. `dt` subtracts the time that has passed, `jct` the time that jobs spend in the "
        "system. `best_of_random` pays once, at the end, against the best of 5 random runs. The group-relative policy "
        "gradient (`group`) has no reward for single steps: it compares 8 runs of one workload.",
        {
            "PPO, potential": CANDIDATE_WAITING,
            "PPO, dt": ("--algo ppo --action candidate --waiting --reward dt",),
            "PPO, jct": ("--algo ppo --action candidate --waiting --reward jct",),
            "PPO, best_of_random": ("--algo ppo --action candidate --waiting --reward best_of_random",),
            "group": GROUP_WAITING,
        },
    ),
    Section(
        "Replay",
        "With replay, updates also learn from earlier rounds ([training.md](training.md#replay)). All policies pick "
        "node by node and may not wait. `dynamic` is the source's replay. `geppo` and `vtrace` correct for the age of "
        "the samples.",
        {
            "PPO, no replay": NODE,
            "PPO, dynamic": ("--algo ppo --replay dynamic",),
            "PPO, geppo": ("--algo ppo --replay geppo",),
            "A2C, no replay": ("--algo a2c",),
            "A2C, vtrace": ("--algo a2c --replay vtrace",),
        },
    ),
    Section(
        "Warm start",
        "Distillation learns from what rollouts find at labelled decisions: they try each candidate in 4 futures. In "
        "the last row, `group` continues with these weights instead of random ones; it makes only a few updates, "
        "because each takes 2,048 runs. Compare core-minutes here, not steps. Those of the last row include the "
        "distillation.",
        {
            "group, random weights": GROUP_WAITING,
            "group, longer": GROUP_LONGER,
            "distilled only": DISTILLED,
            "distilled, then group": TAUGHT,
        },
    ),
    Section(
        "Actions",
        "One step picks a node for the job that is due, a single GPU, or a whole placement from a short list. All "
        "policies learn by PPO and may not wait. A workload takes about 425 picks of single GPUs but only 64 of whole "
        "placements, so `gpu` met about a sixth of the workloads of `candidate`. The action is not the only "
        "difference: `candidate` also has the prediction of a look-ahead for each placement, and its list begins with "
        "the heuristic's choice. With the 2,000,000 steps of the shipped policies, `node` is at -4.3 to -4.6 % "
        "(`make bench-policy`).",
        {"node": NODE, "gpu": ("--algo ppo --action gpu",), "candidate": CANDIDATE},
    ),
    Section(
        "Networks",
        "`set` is one small network that scores every node, so it serves clusters of any size. `mlp` is the source's "
        "five layers over all nodes at once. Both pick node by node and may not wait. `mlp` was still improving at its "
        "last validations.",
        {"set": NODE, "mlp": ("--algo ppo --network mlp",)},
    ),
    Section(
        "Waiting",
        "With waiting, the policy may let a job wait for better GPUs although some are free. The rivals with and "
        "without waiting differ, so compare the figures against `eft-hazard`, which never waits. Against it, "
        "`patient`, the best heuristic that waits, is at {patient} %.",
        {
            "node, PPO, off": NODE,
            "node, PPO, on": ("--algo ppo --waiting",),
            "candidate, PPO, off": CANDIDATE,
            "candidate, PPO, on": CANDIDATE_WAITING,
            "group, off": ("--algo group",),
            "group, on": GROUP_WAITING,
        },
    ),
    *(
        Section(f"The patent on {gpus} GPUs", about, PATENT_WAYS, f"patent{gpus}-ours")
        for gpus, about in PATENT_ABOUT.items()
    ),
)

Settings = Mapping[str, float]  # fields of Search
# Of rollouts, by base: a heuristic, and a policy of checkpoints/. Each is a difference from the defaults; others are
# compared with the first.
SEARCHES: Mapping[str, tuple[Settings, ...]] = {
    "patient": ({}, {"futures": 3}, {"futures": 16}, {"width": 1}, {"width": 4}),
    "hetero64-wait": (
        {"futures": 16}, {"futures": 4}, {}, {"futures": 32},
        *({"futures": 16, **others} for others in (
            {"width": 1}, {"width": 6}, {"least_value": 0.007}, {"least_value": 0.03}, {"horizon": 8}, {"horizon": 16},
            {"horizon": 24},
        )),
    ),
}  # fmt: skip


class Trial(NamedTuple):
    """Rollouts that are tried."""

    base: str
    search: Settings  # none for the base alone
    key: str  # that their run is stored under


class Run(BaseModel):
    """What a finished run leaves: a policy that was trained, a heuristic, or rollouts."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    makespan_s: tuple[int, ...]  # of the held-out workloads; whole seconds are exact to 1e-5
    validation: tuple[tuple[int, float], ...] = ()  # steps and mean makespan in hours; heuristics: once, at 0
    wall_s: float = 0.0  # of training, with all validations
    core_s: float = 0.0  # CPU time of the same; of rollouts: of the decisions that were timed
    decisions: int = 0  # of rollouts: that were timed
    machine: str  # and date


Runs = dict[str, Run]  # by key


def commands(options: Options, seed: int | str, share: float, preset: str = "hetero64") -> tuple[str, ...]:
    """Return the arguments of `longshore`, call by call, that train one policy with a share of the full steps."""
    return tuple(
        f"train --preset {preset} --oracle {each} --seed {seed} --threads 1 --logdir runs"
        for each in with_steps(options, seed, share, preset)
    )


def with_steps(options: Options, seed: int | str, share: float, preset: str = "hetero64") -> tuple[str, ...]:
    """Return the options of each of these calls that are its own, with its number of steps."""
    return tuple(_with_steps(each.format(seed=seed), share, preset) for each in options)


def _with_steps(options: str, share: float, preset: str) -> str:
    kept, named, steps = options.partition(" --steps ")
    return f"{kept} --steps {share * (float(steps) if named else _steps(options, preset)):.0f}"


def preset_of(line: str) -> str:
    """Return the preset of a command."""
    words = line.split()
    return words[words.index("--preset") + 1]


def _steps(options: str, preset: str) -> int:
    if options.startswith("--algo distil"):
        return LABELS
    others = preset != "hetero64" or "--action" in options or "--algo group" in options
    return STEPS if others else NODE_STEPS


def key(lines: Sequence[str]) -> str:
    """Return what a trained policy is stored under."""
    return "; ".join(lines)


def rival_key(preset: str, name: str) -> str:
    """Return what a heuristic is stored under, or another rival on the workloads of a preset."""
    return f"{preset}: {name}"


def trainings(seeds: int, share: float) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Yield name and commands of all trainings, seed by seed; those that only begin another are not named."""
    every = {(section.preset, options): name for section in SECTIONS for name, options in section.ways.items()}

    def begins_another(preset: str, options: Options) -> bool:
        return any(it == preset and other[: len(options)] == options != other for it, other in every)

    for seed in range(seeds):
        for (preset, options), name in every.items():
            if not begins_another(preset, options):
                yield f"{preset}: {name}, seed {seed}", commands(options, seed, share, preset)


def read_runs(path: Path) -> Runs:
    """Return the runs that a file holds; none if there is no file."""
    return TypeAdapter(Runs).validate_json(path.read_bytes()) if path.exists() else {}


class Measured(BaseModel):
    """Runs whose last update had a rate below 0: what they come to without that update."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    machine: str  # and date
    longer_percent: dict[str, float]  # by how much the mean held-out makespan is longer without it, by key of the run


def read_endings(path: Path) -> Measured:
    """Return what a file holds."""
    return Measured.model_validate_json(path.read_bytes())


def write_runs(path: Path, runs: Runs) -> None:
    """Write all runs, a line for each; a process that is cut off leaves the file as it was."""
    lines = [f"{json.dumps(name)}: {run.model_dump_json(exclude_defaults=True)}" for name, run in runs.items()]
    part = path.with_suffix(".part")
    part.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")
    part.replace(path)
