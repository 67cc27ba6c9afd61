"""The five stored policies of `hetero64` against EFT, greedy, on held-out workloads with their fault seeds.

`RETRAIN=1` trains them again first, by the commands in their cards, into checkpoints/.
"""

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from longshore.agents.checkpoint import load_policy
from longshore.agents.heuristics import EFT
from longshore.envs.problems import Regime, hetero64_problem
from longshore.eval.play import play_all
from longshore.eval.statistics import ratio_estimates

from .harness import ROOT, Row, main

CHECKPOINTS = ROOT / "checkpoints"
SEEDS = range(5)
HELD_OUT, SEED = 500, 2026  # scenarios of a seed that neither training nor validation draws from
MOST_PERCENT = -3.0
STEPS = "2e6"


def checkpoint(seed: int) -> Path:
    """Return the stored policy of a training seed; seed 0 is the one that the demo uses."""
    return CHECKPOINTS / ("hetero64.zip" if seed == 0 else f"hetero64-{seed}.zip")


def retrain(seed: int) -> None:
    """Train a policy by the command line and store it."""
    with tempfile.TemporaryDirectory() as folder:
        command = ["train", "--preset", "hetero64", "--algo", "ppo", "--steps", STEPS, "--seed", str(seed),
                   "--threads", "1", "--logdir", folder]  # fmt: skip
        subprocess.run([sys.executable, "-m", "longshore", *command], check=True, stdout=sys.stderr)
        shutil.copyfile(Path(folder) / f"hetero64-ppo-{seed}" / "best.zip", checkpoint(seed))


def measure() -> Iterator[Row]:
    """Yield each policy's paired difference in mean makespan, and the upper end of its 95 % interval."""
    problem = hetero64_problem(HELD_OUT, SEED, Regime())
    rival = play_all(problem, [EFT])[EFT.name].makespan_s
    for seed in SEEDS:
        if os.environ.get("RETRAIN") == "1":
            retrain(seed)
        policy = load_policy(checkpoint(seed))
        difference = play_all(problem, [policy])[policy.name].makespan_s - rival
        percent = ratio_estimates(100.0 * difference[None], rival[None], confidence=0.95)
        yield Row(f"training seed {seed}: makespan against eft", float(percent.value[0]), "%", most=MOST_PERCENT)
        yield Row(f"training seed {seed}: upper end of the 95 % interval", float(percent.high[0]), "%", most=0.0)
        yield Row(f"training seed {seed}: workloads where it is worse", 100.0 * float(np.mean(difference > 0)), "%")


if __name__ == "__main__":
    main(measure)
