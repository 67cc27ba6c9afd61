"""What compiled code training calls: compiled ahead of it, `longshore compile`."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..agents.rehearsals import GROUPS as OF_POLICIES
from ..cluster.kernels.ahead import Rehearsal
from ..cluster.presets.hetero64 import hetero64
from ..cluster.simulator.engine import advance, reset
from ..cluster.simulator.simulation import simulation_of

RUNS = 2  # of a group
_HERE = "longshore.training.rehearsals"
GROUPS = {**OF_POLICIES, "training": [f"{_HERE}:groups", f"{_HERE}:labels"]}  # what belongs together for a user


def rehearsals_for(algorithm: str) -> list[str]:
    """Return what `compile_ahead` compiles for training by an algorithm; only some use environments."""
    used = ("candidates", "training") if algorithm in ("group", "distil") else ("networks", "environments")
    return [name for group in ("heuristics", *used) for name in GROUPS[group]]


def groups() -> Rehearsal:
    """Groups of runs by sampled candidates, and what their decisions are worth."""
    from ..agents.learned.checkpoint import layout_of, schema_of
    from ..agents.networks.candidate_run import sample_runs
    from ..agents.networks.candidates import CandidateNetwork, candidate_weights
    from .candidates.collecting import PARTS, Runs
    from .candidates.credit import credits_of, gaps_of, write_credits, write_gaps
    from .candidates.group import STATE

    problem = hetero64(1, 0, jobs=4)
    schema = schema_of(
        algorithm="group", network="candidates", action="candidate", observation="full", waiting=False,
        node_gpus=(8,) * 8,
    )  # fmt: skip
    network = CandidateNetwork(layout_of(schema))
    rows = PARTS * RUNS

    def play() -> None:
        with ThreadPoolExecutor(1) as pool:
            found = Runs([problem], [rows], pool).collect(network, np.zeros(rows, np.int64), 0)
        credits_of(found.record, found.ran, RUNS, np.ones(rows), 1.0)
        gaps_of(found.record, RUNS, STATE)

    return Rehearsal(
        [sample_runs, write_credits, write_gaps], [simulation_of(problem), candidate_weights(network)], play
    )


def labels() -> Rehearsal:
    """Decisions that distillation learns from; what they are worth is for rollouts to say."""
    from ..cluster.kernels.counter_random import uniform
    from ..envs.candidate_features import write_candidates
    from .candidates.labels import SIZE

    sim = simulation_of(hetero64(1, 0, jobs=4))

    def play() -> None:
        reset(sim, 0, 0)
        advance(sim, 0)
        uniform(0, 0, 0)
        write_candidates(sim, 0, np.zeros((1, SIZE), np.float32), 0)

    return Rehearsal([uniform, write_candidates], [sim], play)
