"""A trained network over whole candidates under the policy protocol."""

import math
from copy import copy
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ...cluster.candidates.candidates import pick_candidate
from ...cluster.model.objective import Objective
from ...cluster.state.border import rows_to_run
from ...cluster.state.state import CANDIDATES, Simulation
from ...envs.candidate_features import CANDIDATE_FEATURE_COUNT, CANDIDATE_GLOBAL_COUNT
from ..networks.networks import CandidateNetwork, member_of, members_of
from ..parts import ALL, Look, decisions_of_a_part
from .candidate_run import (
    BEGINNING,
    GOES_ON,
    IS_DUE,
    decide_by_network,
    first_of_largest,
    run_by_network,
    run_for_by_network,
    run_on_by_network,
    score_by_network,
    value_by_network,
)
from .decision_record import DecisionRecord, log_softmax
from .forward import candidate_weights
from .schema import Schema
from .step_policy import LearnedPolicy

PART_NODES = 64  # looked at by a network in some milliseconds
TEMPERATURE = 0.02  # of the softmax over gains, in their unit, by which policies sample that do not tell gains


class CandidatePolicy(LearnedPolicy):
    """Takes the candidate of the largest logit, in one compiled pass for clusters of any size.

    Where the network is the mean of several, the first of them is the base of rollouts, for it takes less time.

    Args:
        name: Its name in tables.
        schema: What the network was made for.
        network: The trained network; later changes to it do not reach the policy.
    """

    def __init__(self, name: str, schema: Schema, network: CandidateNetwork) -> None:
        super().__init__(name, schema, network)
        self.weights = candidate_weights(network)
        self._stand_in = None if members_of(network) == 1 else CandidatePolicy(name, schema, member_of(network, 0))
        self._observations = np.zeros(
            (1, CANDIDATE_GLOBAL_COUNT + CANDIDATES * CANDIDATE_FEATURE_COUNT), dtype=np.float32
        )
        self._logits = np.zeros((1, CANDIDATES), dtype=np.float32)
        self._look: Look | None = None
        self._chosen = -1  # candidate of the last decision, -1 before the first

    def place(self, sim: Simulation, row: int) -> bool:
        """Pick the GPUs of the job that is due in a row, or of one turned to; False, with nothing picked, to wait."""
        self._chosen = decide_by_network(sim, row, self.weights, int(self.waits), self._observations, self._logits)
        return bool(pick_candidate(sim, row, self._chosen))

    def last_decision(self) -> DecisionRecord:
        """Return its record of the last `place`; nothing else may have been asked of it since."""
        if self._chosen < 0:
            raise ValueError("the policy has not decided yet")
        listed = (
            self._observations[:, CANDIDATE_GLOBAL_COUNT::CANDIDATE_FEATURE_COUNT] > 0.0
        )  # the first feature of a candidate says that it is there
        logits = np.where(listed, self._logits, np.float32(-np.inf))
        actions = np.array([self._chosen], dtype=np.int32)
        return DecisionRecord(self._observations.copy(), np.isfinite(logits), log_softmax(logits), actions)

    def predicted_gains(self, sim: Simulation, row: int) -> NDArray[np.float64]:
        """List the candidates of the decision that is due and predict their gains but for a constant, (candidates,).

        In units of `objective_unit_s`. -inf for the candidates that the policy never takes, as it never learned to
        wait. The first of those that gain most is its own choice.
        """
        candidates = score_by_network(sim, row, self.weights, int(self.waits), self._observations, self._logits)
        predicted_gains = self._logits[0, :candidates].astype(np.float64)
        predicted_gains[first_of_largest(self._logits, candidates)] = (
            predicted_gains.max()
        )  # they differ by less than rounding
        return predicted_gains if self.schema.algorithm == "distil" else predicted_gains * TEMPERATURE

    @property
    def stand_in(self) -> "CandidatePolicy":
        """Who is the base of rollouts in its place."""
        return self._stand_in or self

    def run_on(self, sim: Simulation, row: int) -> None:
        """Run a row from where it stands to its end."""
        waits, decisions = int(self.waits), self._decisions_of_a_part(sim)
        while run_on_by_network(sim, row, self.weights, waits, decisions, self._observations, self._logits):
            self._looked()

    def watched(self, look: Look) -> Self:
        """Return the same policy, which calls `look` every few decisions while it runs on."""
        watched = copy(self)
        watched._look = look
        return watched

    def _decisions_of_a_part(self, sim: Simulation) -> int:
        return ALL if self._look is None else decisions_of_a_part(sim, PART_NODES)

    def _looked(self) -> None:
        if self._look is not None:
            self._look()

    @property
    def time_to_go(self) -> Objective | None:
        """Objective of which its value tells what is still to come, None if it tells something else."""
        return self.schema.time_to_go

    def run_for(self, sim: Simulation, row: int, starts: int, foresee_from: int) -> tuple[bool, float]:
        """Run a row until so many jobs are started and a decision is due, or to its end.

        Return whether one is due, and what the run was foreseen to come to on the way, in seconds: the mean over the
        first decisions after each start from number `foresee_from` on, nan if there were none.
        """
        jct = int(self.time_to_go == "jct")
        way, limits = BEGINNING, (int(self.waits), starts, foresee_from, jct)
        decisions = self._decisions_of_a_part(sim)
        while True:
            way = run_for_by_network(sim, row, self.weights, *limits, way, decisions, self._observations, self._logits)
            if way.stage != GOES_ON:
                return way.stage == IS_DUE, way.foreseen_s / way.times if way.times else math.nan
            self._looked()

    def value(self, sim: Simulation, row: int) -> float:
        """Return the network's value of the decision that is due."""
        return float(value_by_network(sim, row, self.weights, self._observations))

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        """Run one scenario in each row, from its beginning to its end."""
        scenarios = rows_to_run(sim, scenarios)
        run_by_network(sim, scenarios, self.weights, int(self.waits), self._observations, self._logits)
