"""Make `checkpoints/traces.zip`: three runs of one command by different seeds, and the mean of what they came to.

`python -m benchmarks.traces_checkpoint FOLDER` keeps the runs in the folder, and goes on where it was stopped. Two run
at once, each on one core for about 15 minutes.
"""

import sys
from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import replace
from functools import partial
from multiprocessing import get_context
from pathlib import Path

from longshore.agents.learned.checkpoint import load_policy, save_policy
from longshore.agents.networks.candidates import CandidateNetwork, CandidatePolicy, mean_network
from longshore.training.config import TrainingConfig, problem_request
from longshore.training.distil import mean_log_cost, with_best_margin
from longshore.training.problems import DEFAULT_SIZES, OVER_TIME, PRESETS, TRACES
from longshore.training.run import train
from longshore.training.run_folder import Progress

from .harness import progress
from .real import CHECKPOINT, SEEDS, STEPS
from .real_windows import traces

AT_ONCE = 2
VALIDATIONS = 3  # of each run: they take longer than the steps between them


def config_of(seed: int, paths: Iterable[Path]) -> TrainingConfig:
    """Return what the command of the card asks for, with a seed and on some traces."""
    return TrainingConfig(
        preset=TRACES, algorithm="group", steps=STEPS, seed=seed, network="candidates", action="candidate",
        reward="jct", waiting=True, oracle=False, orders=("fifo", "easy", "easy-shortest", "shortest"), ageing_h=168,
        traces=tuple(map(str, paths)), group=OVER_TIME, threads=1,
    )  # fmt: skip


def network_of(policy: CandidatePolicy) -> CandidateNetwork:
    """Return the network of a run's policy."""
    network = policy.network
    assert isinstance(network, CandidateNetwork)
    return network


def trained(folder: Path, paths: Iterable[Path], seed: int) -> Path:
    """Train by one seed, or continue that training, and return the checkpoint of the best validation."""
    sizes = replace(DEFAULT_SIZES, validations=VALIDATIONS)
    show = partial(_show, f"{folder.name}, seed {seed}")
    return train(config_of(seed, paths), folder, show, sizes=sizes, compares=False).best


def _show(run: str, made: Progress) -> None:
    score = "" if made.score is None else f", validated {made.score.text}"
    progress(f"{run}: {made.steps:,} of {STEPS:,} steps{score}")


def main(folder: Path) -> None:
    """Train, join, and choose the margin on the scenarios of validation."""
    paths = list(traces().values())
    with ProcessPoolExecutor(AT_ONCE, get_context("spawn")) as pool:
        policies = [load_policy(best) for best in pool.map(partial(trained, folder, paths), SEEDS)]
    networks = [network_of(it) for it in policies if isinstance(it, CandidatePolicy)]
    config = config_of(SEEDS[0], paths)
    joined = CandidatePolicy(CHECKPOINT.stem, policies[0].schema, mean_network(networks))
    validated = PRESETS[TRACES].build(problem_request(config, DEFAULT_SIZES))[1]
    policy = with_best_margin(joined, lambda it: mean_log_cost(it, validated, config.group.group_tail))
    save_policy(CHECKPOINT, policy.schema, policy.network)
    progress(f"{CHECKPOINT}: the mean of {len(policies)} networks, margin {policy.schema.margin:g}")


if __name__ == "__main__":
    main(Path(sys.argv[1]))
