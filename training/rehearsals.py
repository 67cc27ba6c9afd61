"""What `longshore compile` runs once ahead of training, so that its kernels are compiled (agents/rehearsals.py)."""

from concurrent.futures import ThreadPoolExecutor

import numpy as np

from ..agents.learned.checkpoint import layout_of, schema_of
from ..agents.networks.candidates import CandidateNetwork, candidate_weights
from ..agents.networks.sampled_runs import sample_runs
from ..agents.rehearsals import POLICY_GROUPS
from ..cluster.kernels.ahead import Rehearsal
from ..cluster.kernels.structures import uniform
from ..cluster.presets.drawn import hetero64
from ..cluster.simulator.engine import advance, reset
from ..cluster.simulator.simulation import simulation_of
from ..envs.features import list_and_write_candidates
from .config import BY_CANDIDATES
from .credit import credits_of, feature_gaps_of, write_credits, write_feature_gaps
from .group import SHARDS, STATE_FEATURES, RunCollector
from .history import OBSERVATION_SIZE

REHEARSED_RUNS = 2  # of a group
_MODULE = "longshore.training.rehearsals"
REHEARSAL_GROUPS = {
    **POLICY_GROUPS,
    "training": [f"{_MODULE}:group_rehearsal", f"{_MODULE}:distil_rehearsal"],
}  # by the names of `longshore compile`


def rehearsals_for(algorithm: str) -> list[str]:
    """Return what `compile_ahead` compiles for training by an algorithm; only some use environments."""
    used = ("candidates", "training") if algorithm in BY_CANDIDATES else ("networks", "environments")
    return [name for group in ("heuristics", *used) for name in REHEARSAL_GROUPS[group]]


def group_rehearsal() -> Rehearsal:
    """Groups of runs by sampled candidates, and what their decisions are worth."""
    problem = hetero64(1, 0, jobs=4)
    schema = schema_of(
        algorithm="group", network="candidates", action="candidate", observation="full", waiting=False,
        node_gpus=(8,) * 8,
    )  # fmt: skip
    network = CandidateNetwork(layout_of(schema))
    rows = SHARDS * REHEARSED_RUNS

    def play() -> None:
        with ThreadPoolExecutor(1) as pool:
            found = RunCollector([problem], [rows], pool).collect(network, np.zeros(rows, np.int64), 0)
        credits_of(found.record, found.times, REHEARSED_RUNS, np.ones(rows), 1.0)
        feature_gaps_of(found.record, REHEARSED_RUNS, STATE_FEATURES)

    return Rehearsal(
        [sample_runs, write_credits, write_feature_gaps], [simulation_of(problem), candidate_weights(network)], play
    )


def distil_rehearsal() -> Rehearsal:
    """Decisions that distillation learns from; rollouts label them."""
    sim = simulation_of(hetero64(1, 0, jobs=4))

    def play() -> None:
        reset(sim, 0, 0)
        advance(sim, 0)
        uniform(0, 0, 0)
        list_and_write_candidates(sim, 0, np.zeros((1, OBSERVATION_SIZE), np.float32), 0)

    return Rehearsal([uniform, list_and_write_candidates], [sim], play)
