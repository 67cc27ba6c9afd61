"""Many runs at once by sampled candidates: all their decisions, and what they came to."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from ...agents.networks.candidate_run import Record, sample_runs
from ...agents.networks.candidates import CandidateNetwork, candidate_weights
from ...cluster.model.objective import objective_of
from ...cluster.model.outcome import Metrics, metrics
from ...cluster.model.problem import Problem
from ...cluster.simulator.simulation import outcome_of, simulation_of
from ...cluster.state.state import CANDIDATES, Simulation
from ...envs.candidate_features import CANDIDATE_FEATURE_COUNT, CANDIDATE_GLOBAL_COUNT
from .credit import Ran, joined_runs, ran_of

PARTS = 4  # simulations that collect; not the threads, so that their number changes nothing


class Collected(NamedTuple):
    """What runs were like."""

    record: Record  # all decisions
    figures: Metrics  # of shape (runs,)
    ran: Ran  # the times of their jobs


class Part(NamedTuple):
    """A simulation that collects, and what it holds."""

    problem: Problem
    sim: Simulation
    scenarios: slice  # of all that are run
    jct: int  # 1 if the objective is the mean JCT, 0 for the makespan


class Runs:
    """A number of runs collected at once, of one problem or of several.

    Args:
        problems: What is run.
        rows: Runs of each problem, a multiple of PARTS if there is one problem.
        pool: Threads.
    """

    def __init__(self, problems: Sequence[Problem], rows: Sequence[int], pool: ThreadPoolExecutor) -> None:
        self.pool = pool
        self._parts, first = [], 0
        for problem, count in zip(problems, rows, strict=True):
            parts = max(1, PARTS // len(problems))
            jct = int(objective_of(problem.scenarios.submit_s) == "jct")
            for size in [count // parts] * parts:
                self._parts.append(Part(problem, simulation_of(problem, rows=size), slice(first, first + size), jct))
                first += size
        self._records = [_record(2 * sim.state.first_gpu.size) for _, sim, _, _ in self._parts]

    def collect(self, network: CandidateNetwork, scenarios: NDArray[np.int64], seed: int) -> Collected:
        """Run a scenario in each row by sampled candidates; return all decisions, the runs' figures and their times."""

        def one(index: int) -> tuple[Record, Metrics, Ran]:
            part, record = self._parts[index], self._records[index]
            mine = scenarios[part.scenarios]
            record.size[0] = 0
            weights = candidate_weights(network)
            while not sample_runs(part.sim, mine, weights, seed, part.scenarios.start, part.jct, record):
                record = self._records[index] = _record(2 * record.chosen.size)
            return record, *_figures(part, mine)

        records, figures, ran = zip(*self.pool.map(one, range(len(self._parts))), strict=True)
        together = Metrics(*(np.concatenate(values) for values in zip(*figures, strict=True)))
        return Collected(_joined(records), together, joined_runs(ran))


def _figures(part: Part, run: NDArray[np.int64]) -> tuple[Metrics, Ran]:
    scenarios, gpus = part.problem.scenarios, part.problem.cluster.gpu_node.size
    outcome, jobs, submit_s = outcome_of(part.sim), scenarios.jobs[run], scenarios.submit_s[run]
    work_s = scenarios.work_s[run]
    return metrics(outcome, jobs, scenarios.gpus[run], submit_s, gpus, work_s), ran_of(outcome, jobs, submit_s, work_s)


def _record(decisions: int) -> Record:
    return Record(
        observations=np.zeros((decisions, CANDIDATE_GLOBAL_COUNT + CANDIDATES * CANDIDATE_FEATURE_COUNT), np.float32),
        logits=np.zeros((decisions, CANDIDATES), np.float32),
        candidates=np.zeros(decisions, np.int32),
        chosen=np.zeros(decisions, np.int64),
        log_probability=np.zeros(decisions, np.float32),
        row=np.zeros(decisions, np.int32),
        now_s=np.zeros(decisions),
        unit_s=np.zeros(decisions),
        submitted=np.zeros(decisions, np.int32),
        to_go=np.zeros(decisions, np.float32),
        size=np.zeros(1, np.int64),
    )


def _joined(records: tuple[Record, ...]) -> Record:
    """Return the decisions of several records in one."""
    fields = {
        name: np.concatenate([getattr(record, name)[: record.size[0]] for record in records])
        for name in Record._fields[:-1]
    }
    return Record(**fields, size=np.array([fields["row"].size]))
