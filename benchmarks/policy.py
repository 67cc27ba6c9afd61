"""The five stored policies of `hetero64` against EFT, greedy, on held-out workloads with their fault seeds.

`RETRAIN=1` trains them again first, by the commands in their cards, into checkpoints/, and writes the cards.
"""

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from importlib.metadata import version
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from longshore.agents.heuristics import EFT
from longshore.agents.learned.checkpoint import load_policy
from longshore.cluster.model.problem import Problem
from longshore.cluster.presets.problems import VALIDATION_SEED, Regime, hetero64_problem
from longshore.eval.comparison import run_all
from longshore.training.problems import VALIDATION_SCENARIOS
from longshore.training.run_folder import BEST, SCORE
from longshore.training.validation import Score, Validation

from .against import difference_of_means
from .card import HeldOut, Training, card, machine_text
from .harness import ROOT, Row, main, seconds, stamp_of_run

CHECKPOINTS = ROOT / "checkpoints"
SEEDS = range(5)
HELD_OUT, SEED = 500, 2026  # scenarios of a seed that neither training nor validation draws from
MOST_PERCENT = -3.0
MOST_MINUTES = 10.0  # of training, on two cores


def checkpoint(seed: int) -> Path:
    """Return the stored policy of a training seed; seed 0 is the one that the demo uses."""
    return CHECKPOINTS / ("hetero64.zip" if seed == 0 else f"hetero64-{seed}.zip")


def command(seed: int) -> list[str]:
    """Return the arguments of `longshore` that train the policy of a seed."""
    return f"train --preset hetero64 --oracle --algo ppo --steps 2e6 --seed {seed}".split()


def retrain(seed: int, rival: str) -> Training:
    """Train a policy by the command line and store it; the rival is the best heuristic of its validation."""
    with tempfile.TemporaryDirectory() as folder:
        line = [sys.executable, "-m", "longshore", *command(seed), "--logdir", folder]
        took_s = seconds(lambda: subprocess.run(line, check=True, stdout=sys.stderr))
        run = Path(folder) / f"hetero64-ppo-{seed}"
        score = Score(**json.loads((run / SCORE).read_text()))
        shutil.copyfile(run / BEST, checkpoint(seed))
    return Training(took_s, rival, VALIDATION_SCENARIOS, score.percent, score.half_width)


def held_out(seed: int, problem: Problem, rival_s: NDArray[np.float64]) -> HeldOut:
    """Return what a stored policy reaches against the rival's makespans, shape (scenarios,)."""
    policy = load_policy(checkpoint(seed))
    mine_s = run_all(problem, [policy])[policy.name].makespan_s
    found, worse = difference_of_means(mine_s, rival_s), 100.0 * float(np.mean(mine_s > rival_s))
    return HeldOut(rival_s.size, found.percent, found.high, worse)


def best_in_validation() -> str:
    """Return the heuristic that training is validated against."""
    return Validation(hetero64_problem(VALIDATION_SCENARIOS, VALIDATION_SEED, Regime(oracle=True))).best


def measure() -> Iterator[Row]:
    """Yield each policy's paired difference in mean makespan, the upper end of its 95 % interval, and its training."""
    problem = hetero64_problem(HELD_OUT, SEED, Regime(oracle=True))
    rival_s = run_all(problem, [EFT])[EFT.name].makespan_s
    again = os.environ.get("RETRAIN") == "1"
    rival, stamp = best_in_validation() if again else "", stamp_of_run()
    for seed in SEEDS:
        training = retrain(seed, rival) if again else None
        found = held_out(seed, problem, rival_s)
        if training is not None:
            yield Row(f"training seed {seed}: training", training.seconds / 60.0, "min", most=MOST_MINUTES)
            text = card(checkpoint(seed).stem, command(seed), training, found, machine_text(stamp, version("torch")))
            checkpoint(seed).with_suffix(".md").write_text(text, encoding="utf-8")
        yield Row(f"training seed {seed}: makespan against eft", found.percent, "%", most=MOST_PERCENT)
        yield Row(f"training seed {seed}: upper end of the 95 % interval", found.high, "%", most=0.0)
        yield Row(f"training seed {seed}: workloads where it is worse", found.worse, "%")


if __name__ == "__main__":
    main(measure)
