"""The Ray backend: a launcher in the cluster starts attempts with the exact nodes and GPUs that were decided."""

import logging
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path

from ....cluster.files.errors import BackendError
from ...files.durable import is_there, open_folder, write_first
from ...model.gpu_index import Layout
from ...model.placement import Placement
from ...model.run import Run, Status
from ..local.folders import told_as_backend_error
from ..protocol import Attempt, CannotHonourError, Capabilities, GpuView, NodeView
from ..shared_folder.backend import SharedFolderBackend
from ..shared_folder.claiming import CANCELLED, revoke
from ..shared_folder.records import ALIVE_S, Records, status_of, status_of_running
from .api import DEADLINE_S, Api
from .jobs import Launcher
from .names import QUEUE
from .settings import RaySettings
from .view import Node, View

log = logging.getLogger(__name__)


class RayBackend(SharedFolderBackend):
    """Leaves what is to be run in a folder that the whole cluster sees, and sees to it that a launcher runs there.

    Args:
        folder: Where the attempts' folders are, under the same path on all nodes; made if need be.
        nodes: GPUs of each node, in cluster-file order, under the names that label Ray's nodes.
        address: Of Ray's dashboard.
        token: File with the token of a cluster that asks for one.
        deadline_s: Of a call to Ray.

    Raises:
        BackendError: If Ray is not installed.
        InputError: If the token cannot be read.
    """

    capabilities = Capabilities(exact_gpus=True, atomic_gang=True, enforced=False)

    Settings = RaySettings

    @classmethod
    def build(cls, settings: RaySettings, folder: Path, layout: Layout) -> "RayBackend":
        """Return the backend of a scheduler.

        Raises:
            BackendError: If Ray is not installed.
            InputError: If the token cannot be read.
        """
        return cls(folder, layout.nodes, address=settings.address, token=settings.token)

    def __init__(
        self, folder: Path, nodes: Mapping[str, int], *, address: str, token: Path | None = None,
        deadline_s: float = DEADLINE_S,
    ) -> None:  # fmt: skip
        found = find_spec("ray")
        if found is None or found.origin is None:
            raise BackendError("Ray is not installed; pip install 'longshore[ray]'")
        super().__init__(folder, nodes)
        api = Api(address, token, deadline_s=deadline_s)
        self._view = View(api)
        self._queue = folder.absolute() / QUEUE
        self._queue.mkdir(parents=True, exist_ok=True)
        self._launcher = Launcher(api, folder.absolute(), packages=str(Path(found.origin).parents[1]))
        self._answered_s: dict[str, float] = {}  # last answer of each node

    def observe(self) -> tuple[NodeView, ...]:
        """Return all nodes; one that Ray has lost takes no jobs, and a GPU that Ray does not have once is faulty.

        Raises:
            BackendError: If Ray does not answer.
        """
        nodes = self._view.look()
        try:
            self._launcher.see()
        except BackendError as error:  # Nodes are what was asked for, and running jobs do without a launcher.
            log.warning("the launcher cannot be seen: %s", error)
        return tuple(self._seen(name, gpus, nodes.get(name, Node(0, {}))) for name, gpus in self._nodes.items())

    def _seen(self, name: str, gpus: int, node: Node) -> NodeView:
        if node.living:
            self._answered_s[name] = time.time()
        # What a node had before it was lost says nothing of its GPUs' health.
        found = tuple(GpuView(gpu, healthy=not node.living or node.gives(name, gpu)) for gpu in range(gpus))
        return NodeView(name, found, self._answered_s.get(name, 0.0), takes_jobs=node.living == 1)

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        """Leave an attempt to the launcher, with exactly these GPUs; again, or after its end, it does nothing.

        Raises:
            CannotHonourError: If there are no such GPUs, or Ray does not have them by their index.
            RefusedError: If its program or folder is not there.
            BackendError: If it is not known whether it starts, or another attempt has this name.
        """
        if self._write_down(attempt, placement) is None:
            return
        self._refuse(placement)
        with told_as_backend_error(attempt.name):
            _put(self._queue, attempt.name)
        self._launcher.see()

    def _refuse(self, placement: Placement) -> None:
        nodes = self._view.look()
        for share in placement:
            node = nodes.get(share.node, Node(0, {}))
            if node.living != 1:
                raise CannotHonourError(f"Ray has {node.living} living nodes with the label of node {share.node}")
            if missing := [gpu for gpu in share.gpus if not node.gives(share.node, gpu)]:
                raise CannotHonourError(f"Ray cannot give GPUs {missing} of node {share.node} by their index")

    def status(self, name: str) -> Status:
        """Return what is known of an attempt.

        Raises:
            BackendError: If that is no name of an attempt.
        """
        return self.statuses((name,))[name]

    def statuses(self, names: tuple[str, ...]) -> dict[str, Status]:
        """Return what is known of many attempts.

        Raises:
            BackendError: If one of these is no name of an attempt.
        """
        told, unclear = self._read_all(names)
        return told | {name: self._unproven(name, records) for name, records in unclear.items()}

    def cancel(self, name: str, reason: str) -> None:
        """Ask an attempt to stop, now or before it starts.

        Raises:
            BackendError: If the wish could not be written down.
        """
        with self._wished_to_end(name, reason) as folder:
            if folder is not None:
                revoke(folder, name, CANCELLED)

    def _unproven(self, name: str, records: Records) -> Status:
        """Return the status of an attempt that was launched and has not ended for certain."""
        if records.claim is not None:
            return self._claimed(name, records)
        if (self._queue / name).exists():
            return Status(Run.PENDING)
        try:  # The launcher may have started it, seen its end and put it away since the records were read.
            again = self._records(name)
        except (OSError, ValueError) as error:
            return Status(Run.UNREACHABLE, words=str(error))
        if again is None or again.claim is None:
            return Status(Run.ABSENT)
        return status_of(again) or self._claimed(name, again)

    def _claimed(self, name: str, records: Records) -> Status:
        silent = [number for number, part in enumerate(records.parts) if not part.is_over and not part.is_alive]
        if not silent or self._was_claimed_just_now(name):
            return status_of_running(records.parts)
        with suppress(OSError):  # Whatever became of its records since, the launcher has to see to it until it is over.
            _put(self._queue, name)
        return Status(Run.UNREACHABLE, words=f"its supervisor on node number {silent[0]} of it says nothing")

    def _was_claimed_just_now(self, name: str) -> bool:
        path = self._folders.path(name) / "claim.json"
        try:
            return time.time() - path.stat().st_mtime < ALIVE_S
        except OSError:
            return False


def _put(queue: Path, name: str) -> None:
    """Put an attempt into the launcher's queue, unless it is there."""
    folder = open_folder(str(queue))
    try:
        if not is_there(folder, name):
            write_first(folder, name, b"")
    finally:
        os.close(folder)
