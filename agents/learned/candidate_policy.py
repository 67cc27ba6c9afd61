"""A trained network over whole moves under the policy protocol."""

import math
from copy import copy
from typing import Self

import numpy as np
from numpy.typing import NDArray

from ...cluster.candidates.candidates import pick_move
from ...cluster.state.border import rows_to_play
from ...cluster.state.state import MOVES, Simulation
from ...envs.candidate_features import MOVE_COUNT, MOVE_GLOBAL_COUNT
from ..networks.networks import MovesNetwork, member_of, members_of
from ..parts import ALL, Look, decisions_of_a_part
from .candidate_run import (
    BEGINNING,
    GOES_ON,
    IS_DUE,
    decide_by_network,
    first_of_largest,
    play_by_network,
    play_for_by_network,
    play_on_by_network,
    score_by_network,
    value_by_network,
)
from .decision_record import Seen, log_softmax
from .forward import moves_weights
from .schema import Goal, Schema
from .step_policy import LearnedPolicy

PART_NODES = 64  # looked at by a network in some milliseconds
TEMPERATURE = 0.02  # of the softmax over gains, in their unit, by which policies sample that do not tell gains


class MovesPolicy(LearnedPolicy):
    """Takes the move of the largest logit, in one compiled pass for clusters of any size.

    Where the network is the mean of several, the first of them is the base of rollouts, for it takes less time.

    Args:
        name: Its name in tables.
        schema: What the network was made for.
        network: The trained network; later changes to it do not reach the policy.
    """

    def __init__(self, name: str, schema: Schema, network: MovesNetwork) -> None:
        super().__init__(name, schema, network)
        self.weights = moves_weights(network)
        self._stand_in = None if members_of(network) == 1 else MovesPolicy(name, schema, member_of(network, 0))
        self._seen = np.zeros((1, MOVE_GLOBAL_COUNT + MOVES * MOVE_COUNT), dtype=np.float32)
        self._logits = np.zeros((1, MOVES), dtype=np.float32)
        self._look: Look | None = None
        self._chosen = -1  # move of the last decision, -1 before the first

    def place(self, sim: Simulation, row: int) -> bool:
        """Pick the GPUs of the job that is due in a row, or of one turned to; False, with nothing picked, to wait."""
        self._chosen = decide_by_network(sim, row, self.weights, int(self.waits), self._seen, self._logits)
        return bool(pick_move(sim, row, self._chosen))

    def last_seen(self) -> Seen:
        """Return what it saw at its last `place`; nothing else may have been asked of it since."""
        if self._chosen < 0:
            raise ValueError("the policy has not decided yet")
        listed = self._seen[:, MOVE_GLOBAL_COUNT::MOVE_COUNT] > 0.0  # the first feature of a move says that it is there
        logits = np.where(listed, self._logits, np.float32(-np.inf))
        actions = np.array([self._chosen], dtype=np.int32)
        return Seen(self._seen.copy(), np.isfinite(logits), log_softmax(logits), actions)

    def told(self, sim: Simulation, row: int) -> NDArray[np.float64]:
        """List the moves of the decision that is due and return what each gains, but for a constant, shape (moves,).

        In units of `goal_unit_s`. -inf for the moves that the policy never takes, as it never learned to wait. The
        first of those that gain most is its own choice.
        """
        moves = score_by_network(sim, row, self.weights, int(self.waits), self._seen, self._logits)
        told = self._logits[0, :moves].astype(np.float64)
        told[first_of_largest(self._logits, moves)] = told.max()  # they differ by less than rounding
        return told if self.schema.algorithm == "distil" else told * TEMPERATURE

    @property
    def stand_in(self) -> "MovesPolicy":
        """Who is the base of rollouts in its place."""
        return self._stand_in or self

    def play_on(self, sim: Simulation, row: int) -> None:
        """Play a row from where it stands to its end."""
        waits, decisions = int(self.waits), self._decisions_of_a_part(sim)
        while play_on_by_network(sim, row, self.weights, waits, decisions, self._seen, self._logits):
            self._looked()

    def watched(self, look: Look) -> Self:
        """Return the same policy, which calls `look` every few decisions while it plays on."""
        watched = copy(self)
        watched._look = look
        return watched

    def _decisions_of_a_part(self, sim: Simulation) -> int:
        return ALL if self._look is None else decisions_of_a_part(sim, PART_NODES)

    def _looked(self) -> None:
        if self._look is not None:
            self._look()

    @property
    def time_to_go(self) -> Goal | None:
        """Goal of which its value tells what is still to come, None if it tells something else."""
        return self.schema.time_to_go

    def play_for(self, sim: Simulation, row: int, starts: int, foresee_from: int) -> tuple[bool, float]:
        """Play a row until so many jobs are started and a decision is due, or to its end.

        Return whether one is due, and what the run was foreseen to come to on the way, in seconds: the mean over the
        first decisions after each start from number `foresee_from` on, nan if there were none.
        """
        jct = int(self.time_to_go == "jct")
        way, told = BEGINNING, (int(self.waits), starts, foresee_from, jct)
        decisions = self._decisions_of_a_part(sim)
        while True:
            way = play_for_by_network(sim, row, self.weights, *told, way, decisions, self._seen, self._logits)
            if way.stage != GOES_ON:
                return way.stage == IS_DUE, way.foreseen_s / way.times if way.times else math.nan
            self._looked()

    def value(self, sim: Simulation, row: int) -> float:
        """Return the network's value of the decision that is due."""
        return float(value_by_network(sim, row, self.weights, self._seen))

    def play(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        """Play one scenario in each row, from its beginning to its end."""
        scenarios = rows_to_play(sim, scenarios)
        play_by_network(sim, scenarios, self.weights, int(self.waits), self._seen, self._logits)
