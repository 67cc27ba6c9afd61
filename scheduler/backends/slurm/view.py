"""The scheduler's view of Slurm: one look serves many questions, and nothing is concluded from half of one."""

import time
from collections.abc import Collection

from ....cluster.files.errors import BackendError
from .commands import Commands
from .snapshot import Snapshot, read_snapshot

_OLD_S = 1.0  # Slurm is asked no more often than this, unless by a launch


class View:
    """What Slurm says, a second old at most.

    Args:
        commands: Slurm's.
        nodes: Names of the cluster's nodes.
    """

    def __init__(self, commands: Commands, nodes: Collection[str]) -> None:
        self._commands, self._nodes = commands, nodes
        self._snapshot: Snapshot | None = None

    def look(self) -> Snapshot:
        """Return what Slurm says.

        Raises:
            BackendError: If it does not answer.
        """
        if self._snapshot is None or time.monotonic() > self._snapshot.read_s + _OLD_S:
            self._snapshot = read_snapshot(self._commands)
        return self._snapshot

    def forget(self) -> None:
        """Look anew next time: something was changed."""
        self._snapshot = None

    def is_complete(self, snapshot: Snapshot) -> bool:
        """Say whether what a snapshot lacks does not exist.

        In the first seconds after its start Slurm's controller waits for its nodes, and a job that it does not know
        may still turn up.
        """
        return all(snapshot.nodes[name].is_known for name in self._nodes if name in snapshot.nodes)

    def look_complete(self) -> Snapshot:
        """Return what Slurm says, and all of it.

        Raises:
            BackendError: If it does not answer, or does not know all nodes yet.
        """
        snapshot = self.look()
        if not self.is_complete(snapshot):
            raise BackendError("Slurm was started a short while ago and has not heard of all its nodes yet")
        return snapshot
