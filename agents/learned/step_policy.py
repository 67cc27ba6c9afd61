"""A trained network under the policy protocol."""

import numpy as np
import torch
from numpy.typing import NDArray

from ...cluster.files.errors import CheckpointError
from ...cluster.state.border import rows_to_run
from ...cluster.state.state import Simulation
from ...envs.batch import ACTIONS, OBSERVATIONS
from ...envs.features import NODE_COUNT
from ...envs.layout import observation_size
from ...envs.stepping import begin_rows, choose, continue_rows, show
from ..networks.networks import LARGEST, Network
from .decision_record import DecisionRecord, joined, log_softmax
from .schema import Schema

# Nodes in the same state have the same logit but for rounding, which differs with the size of a batch.
TIE = 1e-4


class LearnedPolicy:
    """Takes the most probable open action at every pick (SPEC R4, R8).

    Args:
        name: Its name in tables.
        schema: What the network was made for.
        network: The trained network.
    """

    def __init__(self, name: str, schema: Schema, network: Network) -> None:
        self.name, self.schema, self.network = name, schema, network.eval()
        self._choices: list[DecisionRecord] = []  # of the last decision

    @property
    def about(self) -> str:
        """One line of description."""
        return f"learned: {self.schema.algorithm}, {self.schema.network} network, {self.schema.action} actions"

    @property
    def waits(self) -> bool:
        """Whether waiting is one of its actions."""
        return self.schema.waiting

    def check(self, sim: Simulation) -> None:
        """Refuse a cluster that the network cannot read.

        Raises:
            CheckpointError: If the network is tied to another number of GPUs or nodes.
        """
        sizes = tuple(int(gpus) for gpus in np.diff(sim.cluster.first_gpu))
        if self.schema.network == "mlp" and sizes != self.schema.node_gpus:
            raise CheckpointError(
                f"{self.name} was trained for {self.schema.gpus} GPUs on {len(self.schema.node_gpus)} nodes, this "
                f"cluster has {sum(sizes)} on {len(sizes)}, or other numbers on a node; use a policy with a `set` "
                "network, or train one for this cluster"
            )

    def _items(self, sim: Simulation) -> int:
        return int(sim.cluster.speed.size if self.schema.action == "node" else sim.cluster.gpu_node.size)

    def choose(self, observations: NDArray[np.float32], masks: NDArray[np.bool_]) -> NDArray[np.int64]:
        """Return the most probable open action of each row, shape (rows,); ties go to the first."""
        return _first_of_largest(self._open_logits(observations, masks))

    def _open_logits(self, observations: NDArray[np.float32], masks: NDArray[np.bool_]) -> NDArray[np.float32]:
        """Return the logits of all actions, shape (rows, actions): finite for those that are open, else -inf.

        Weights that are finite can still overflow; an open action must stay open, or a placement would never be whole.
        """
        with torch.inference_mode():
            logits = self.network(torch.from_numpy(observations))[0].numpy()
        # A policy that never learned to wait has no logit for it, and one that did may not be allowed to.
        actions = min(logits.shape[1], masks.shape[1])
        finite = np.nan_to_num(logits[:, :actions], nan=-LARGEST).clip(-LARGEST, LARGEST)
        open_logits: NDArray[np.float32] = np.where(masks[:, :actions], finite, np.float32(-np.inf))
        return open_logits

    def _arrays(self, sim: Simulation, rows: int) -> tuple[NDArray[np.float32], NDArray[np.bool_], NDArray[np.float32]]:
        nodes, gpus = sim.cluster.speed.size, sim.cluster.gpu_node.size
        size = observation_size(self.schema.observation, self.schema.action, gpus, nodes)
        masks = np.zeros((rows, self._items(sim) + int(sim.rules.waiting)), dtype=np.bool_)
        return np.zeros((rows, size), np.float32), masks, np.zeros((rows, nodes * NODE_COUNT), np.float32)

    def place(self, sim: Simulation, row: int) -> bool:
        """Pick the GPUs of the job that is due in a row; False, with nothing picked, to wait."""
        self.check(sim)
        observations, masks, table = self._arrays(sim, 1)
        action, observation = ACTIONS[self.schema.action], OBSERVATIONS[self.schema.observation]
        self._choices = []
        while sim.state.need[row] > 0:
            show(sim, row, action, observation, observations, masks, table, 0)
            logits = self._open_logits(observations, masks)
            actions = _first_of_largest(logits)
            self._choices.append(
                DecisionRecord(observations.copy(), np.isfinite(logits), logits, actions.astype(np.int32))
            )
            chosen = int(actions[0])
            if chosen == self._items(sim):
                return False
            choose(sim, row, action, chosen)
        return True

    def last_decision(self) -> DecisionRecord:
        """Return its record of the last `place`, one row for each pick."""
        record = joined(self._choices)
        return record._replace(log_probabilities=log_softmax(record.log_probabilities))

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        """Run one scenario in each row side by side, all decisions of a step in one forward pass."""
        self.check(sim)
        scenarios = rows_to_run(sim, scenarios)
        observations, masks, table = self._arrays(sim, scenarios.size)
        kinds = ACTIONS[self.schema.action], OBSERVATIONS[self.schema.observation]
        ended = np.zeros(scenarios.size, dtype=np.bool_)
        begin_rows(sim, *kinds, np.arange(scenarios.size), scenarios, observations, masks, table, ended)
        while not ended.all():
            rows = np.flatnonzero(~ended)
            chosen = self.choose(observations[rows], masks[rows])
            continue_rows(sim, *kinds, rows, chosen, observations, masks, table, ended)


def _first_of_largest(logits: NDArray[np.float32]) -> NDArray[np.int64]:
    chosen: NDArray[np.int64] = (logits >= logits.max(axis=1, keepdims=True) - TIE).argmax(axis=1)
    return chosen
