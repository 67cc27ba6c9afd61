"""GPUs of Ray that are held for one attempt, from before its claim until nothing of it is left.

Standard library and Ray only.
"""

import json
import os
import time
from typing import TYPE_CHECKING

from ...files.durable import is_there, open_folder, read_whole
from ..shared_folder.claiming import claim
from ..shared_folder.node import gpus_on, nodes_of, read_spec, write_stop
from ..shared_folder.python import python_line
from .cluster import Bundle, RayCluster

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.util.placement_group import PlacementGroup

_LOOK_AGAIN_S = 1.0  # at an attempt that runs
_SWEEP_AGAIN_S = 5.0
_SILENT_S = 30.0  # a supervisor shows every 2 s that it lives; a file system may hold that back for a while
_MOST_BYTES = 1 << 16
_NODE_FAULT = "node fault: "  # as the scheduler calls what the cluster did (rules/retry_policy.py)


class Holding:
    """An attempt, with what Ray has been asked for.

    Args:
        cluster: Ray.
        path: The attempt's folder.

    Raises:
        OSError: If it cannot be read what is to be run.
        ValueError: If that makes no sense.
    """

    def __init__(self, cluster: RayCluster, path: str) -> None:
        self._cluster, self._path = cluster, path
        self._folder = open_folder(path)
        try:
            spec = read_spec(self._folder)
            self._bundles = [Bundle(node, gpus_on(spec, node)) for node in nodes_of(spec)]
            # One that may not start any more gets none, and one that runs has them held for it.
            self._group = None if self._is_revoked() else cluster.reserve(spec.attempt, self._bundles)
        except BaseException:
            os.close(self._folder)
            raise
        self._attempt, self._ranks = spec.attempt, len(spec.ranks)
        self._tasks: dict[int, ObjectRef[None]] = {}  # what started a part and has not been seen to end
        self._sweeps: dict[int, ObjectRef[None]] = {}
        self._sweep_at_s = dict.fromkeys(range(len(self._bundles)), 0.0)
        self._numbers: dict[str, str] = {}  # of the lives of the nodes on which it was started
        self._look_at_s, self._done = 0.0, 0

    def tend(self) -> bool:
        """Take the attempt as far as it goes, and say whether nothing is left of it.

        Raises:
            OSError: If its folder cannot be used.
            ValueError: If a marker makes no sense.
        """
        # What Ray tells at once saves waiting for the next look.
        done = sum(map(self._cluster.is_done, self._tasks.values()))
        if time.monotonic() < self._look_at_s and done == self._done:
            return False
        if not is_there(self._folder, "claim.json"):
            if self._group is not None and self._cluster.is_given(self._group):
                self._start(self._group)
            return False
        self._look_at_s, self._done = time.monotonic() + _LOOK_AGAIN_S, done
        if self._is_revoked():
            return True
        # All are looked at: one that is over may be the reason why others have to stop.
        over = [self._is_over(part) for part in range(len(self._bundles))]
        return all(over)

    def free(self) -> bool:
        """Give back what Ray was asked for, and say whether that is done."""
        if self._group is not None and not self._cluster.free(self._group):
            return False
        os.close(self._folder)
        return True

    def _is_revoked(self) -> bool:
        if not is_there(self._folder, "claim.json"):
            return False
        return bool(json.loads(read_whole(self._folder, "claim.json", _MOST_BYTES))["revoked"])

    def _start(self, group: "PlacementGroup") -> None:
        nodes = self._cluster.nodes()
        first = nodes.get(self._bundles[0].node)
        if first is None:
            return  # It has just gone; Ray takes the GPUs back.
        token = claim(
            self._folder, self._attempt, job=self._cluster.job, parts=len(self._bundles), ranks=self._ranks,
            address=first.address,
        )  # fmt: skip
        if not token:
            return
        for part, bundle in enumerate(self._bundles):
            line = python_line("ray.node", "start_part", self._path, token, bundle.node)
            self._tasks[part] = self._cluster.run(group, part, bundle, line, self._log)
        self._numbers = {name: node.number for name, node in nodes.items()}

    def _is_over(self, part: int) -> bool:
        """Say whether nothing is left of a part, and see to the proof where nobody writes it."""
        where, task = f"part-{part}/", self._tasks.get(part)
        # Before its marker is looked for: a supervisor writes that, and ends.
        is_done = task is not None and self._cluster.is_done(task)
        if is_there(self._folder, f"{where}exit.json"):
            return True
        if is_there(self._folder, f"{where}gone.json"):
            self._stop_others(part)
            return True
        has_ended = is_done and task is not None and self._cluster.has_ended(task)
        if not has_ended and self._is_fresh(f"{where}started.json"):
            return False
        if self._bundles[part].node not in self._cluster.nodes():
            self._stop_others(part)
        elif is_done or task is None:
            self._sweep(part)
        return False

    def _is_fresh(self, marker: str) -> bool:
        try:
            return time.time() - os.stat(marker, dir_fd=self._folder, follow_symlinks=False).st_mtime < _SILENT_S
        except FileNotFoundError:
            return False

    def _sweep(self, part: int) -> None:
        """Have what is left of a part ended on its node, if it lives and nobody there sees to the part."""
        sweep, node = self._sweeps.get(part), self._cluster.nodes().get(self._bundles[part].node)
        is_busy = sweep is not None and not self._cluster.is_done(sweep)
        if node is None or is_busy or time.monotonic() < self._sweep_at_s[part]:
            return
        self._sweep_at_s[part] = time.monotonic() + _SWEEP_AGAIN_S
        line = python_line("shared_folder.sweep", "sweep_unless_alive", self._path, str(part))
        self._sweeps[part] = self._cluster.run_on(node, line, self._log)

    def _stop_others(self, part: int) -> None:
        name = self._bundles[part].node
        node = self._cluster.nodes().get(name)
        is_lost = node is None or self._numbers.get(name, node.number) != node.number
        reason = f"{_NODE_FAULT}Ray lost node {name}" if is_lost else f"a supervisor was lost on node {name}"
        write_stop(self._folder, self._attempt, reason)

    @property
    def _log(self) -> str:
        return f"{self._path}/ray.log"
