"""Runs by candidates that the network `candidates` samples, with a record of their decisions, for training."""

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...cluster.kernels.compiled import kernel
from ...cluster.kernels.structures import uniform
from ...cluster.simulator.engine import advance, reset
from ...cluster.state.state import Simulation
from ...envs.features import list_and_write_candidates, time_unit_s
from .candidates import CandidateWeights, score_candidates, take_candidate


class SampledRuns(NamedTuple):
    """Decisions of sampled runs, in their order; `size` counts them."""

    observations: NDArray[np.float32]  # (decisions, size) observations
    logits: NDArray[np.float32]  # (decisions, candidates) of the listed candidates
    candidates: NDArray[np.int32]  # (decisions,) their number
    chosen: NDArray[np.int64]  # (decisions,)
    log_probability: NDArray[np.float32]  # (decisions,)
    row: NDArray[np.int32]  # (decisions,)
    now_s: NDArray[np.float64]  # (decisions,)
    unit_s: NDArray[np.float64]  # (decisions,) of the features' times
    submitted: NDArray[np.int32]  # (decisions,) jobs submitted so far
    to_go: NDArray[np.float32]  # (decisions,) remaining cost by the objective, as the value predicts it
    size: NDArray[np.int64]  # (1,)


@kernel
def _sample_candidate(record: SampledRuns, at: int, candidates: int, draw: float) -> int:
    """Draw a candidate by its probability; write it and its log-probability."""
    logits = record.logits
    most = logits[at, 0]
    for candidate in range(1, candidates):
        most = max(most, logits[at, candidate])
    total = 0.0
    for candidate in range(candidates):
        total += math.exp(logits[at, candidate] - most)
    chosen, left = 0, draw * total
    for candidate in range(candidates):
        left -= math.exp(logits[at, candidate] - most)
        chosen = candidate
        if left <= 0.0:
            break
    record.chosen[at] = chosen
    record.log_probability[at] = logits[at, chosen] - most - math.log(total)
    return chosen


@kernel
def _write_remaining_costs(sim: Simulation, row: int, jct: int, first: int, record: SampledRuns) -> None:
    """Write the remaining cost at the decisions of a run that has ended, which begin at `first` of the record.

    That is the time until the end of the run; or, if `jct` is 1, the mean over the jobs then in the system of the time
    that each still spends there. Unfinished jobs of a run that was cut off count until then.
    """
    state = sim.state
    for at in range(first, record.size[0]):
        now_s = record.now_s[at]
        total_s, jobs = state.now_s[row] - now_s, 1
        if jct:
            total_s, jobs = 0.0, 0
            for job in range(record.submitted[at]):
                ended_s = state.finish_s[row, job]
                left_s = (ended_s if ended_s > 0.0 else state.now_s[row]) - now_s
                total_s += max(left_s, 0.0)
                jobs += left_s > 0.0
        record.to_go[at] = total_s / max(jobs, 1) / record.unit_s[at]


@kernel
def sample_runs(
    sim: Simulation, scenarios: NDArray[np.int64], weights: CandidateWeights, seed: int, first_row: int, jct: int,
    record: SampledRuns,
) -> bool:  # fmt: skip
    """Run one scenario in each row by sampled candidates and record every decision; False if the record is too small.

    The draws depend on the seed, the row's number `first_row` + row and the decision alone. The remaining cost is that
    of the makespan, or of the jobs' times in the system if `jct` is 1.
    """
    for row in range(scenarios.size):
        reset(sim, row, scenarios[row])
        decision, first = 0, record.size[0]
        while advance(sim, row):
            at = record.size[0]
            if at == record.chosen.size:
                return False
            candidates = list_and_write_candidates(sim, row, record.observations, at)
            score_candidates(weights, record.observations, at, candidates, record.logits)
            record.candidates[at] = candidates
            record.row[at] = first_row + row
            record.now_s[at] = sim.state.now_s[row]
            record.unit_s[at] = time_unit_s(sim, row)
            record.submitted[at] = sim.state.submitted[row]
            record.size[0] += 1
            take_candidate(
                sim, row, _sample_candidate(record, at, candidates, uniform(seed, first_row + row, decision))
            )
            decision += 1
        _write_remaining_costs(sim, row, jct, first, record)
    return True
