"""What the launcher asks of Ray, as one of its drivers. Standard library and Ray only."""

import json
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple

from .names import LABEL, gpu_resource

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.util.placement_group import PlacementGroup

_OLD_S = 1.0
_FAILED = ("NO_RESOURCES", "INFEASIBLE", "FAILED_TO_COMMIT_RESOURCES")  # what is known of a group's last try


class Bundle(NamedTuple):
    """GPUs of one node, which an attempt is to get."""

    node: str
    gpus: tuple[int, ...]

    @property
    def resources(self) -> dict[str, float]:
        """What they are in Ray."""
        return {gpu_resource(self.node, gpu): 1.0 for gpu in self.gpus}


class Node(NamedTuple):
    """A living node of Ray."""

    number: str  # of this life of it
    address: str


def run_granted(line: Sequence[str], log: str) -> None:
    """Start a program, tell it what this task of Ray was granted, and wait until it and its daemon have ended.

    Args:
        line: The program and its arguments.
        log: File for what it has to say.

    Raises:
        OSError: If it cannot be started.
    """
    import ray

    granted = json.dumps(ray.get_runtime_context().get_assigned_resources())
    environment = {"LONGSHORE_GRANTED": granted}
    with open(log, "ab") as file:  # noqa: PTH123 - what workers import is known to be there
        program = subprocess.Popen(
            line, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=file, cwd="/", env=environment,
            start_new_session=True,
        )  # fmt: skip
    program.communicate()


class RayCluster:
    """This driver's part in a Ray cluster."""

    def __init__(self) -> None:
        import ray
        from ray import cloudpickle
        from ray.util import scheduling_strategies

        ray.init(address="auto", log_to_driver=False, configure_logging=False)
        cloudpickle.register_pickle_by_value(
            sys.modules[__name__]
        )  # Workers may have another Python, without this package.
        self._ray, self._strategies = ray, scheduling_strategies
        self._task = ray.remote(num_cpus=0, max_retries=0)(run_granted)
        self._nodes: dict[str, Node] = {}
        self._tries: dict[object, int] = {}  # to place a group that is to be given back, at the last look
        self._read_s = -_OLD_S

    @property
    def job(self) -> int:
        """Number of this driver's job."""
        return int(self._ray.get_runtime_context().get_job_id(), 16)

    def nodes(self) -> Mapping[str, Node]:
        """Return the living nodes by label, as they were a second ago at most."""
        if time.monotonic() >= self._read_s + _OLD_S:
            alive = [node for node in self._ray.nodes() if node["Alive"] and LABEL in node["Labels"]]
            self._nodes = {node["Labels"][LABEL]: Node(node["NodeID"], node["NodeManagerAddress"]) for node in alive}
            self._read_s = time.monotonic()
        return self._nodes

    def reserve(self, attempt: str, bundles: Sequence[Bundle]) -> "PlacementGroup":
        """Ask for GPUs of several nodes, all or none.

        Args:
            attempt: Whose they are to be.
            bundles: The GPUs.
        """
        return self._ray.util.placement_group(
            [bundle.resources for bundle in bundles], strategy="STRICT_SPREAD", name=attempt,
            bundle_label_selector=[{LABEL: bundle.node} for bundle in bundles],
        )  # fmt: skip

    def is_given(self, group: "PlacementGroup") -> bool:
        """Say whether Ray has given what was asked for."""
        told = self._ray.util.placement_group_table(group)
        return bool(told["state"] == "CREATED")

    def free(self, group: "PlacementGroup") -> bool:
        """Give back what was asked for; False while Ray may be just giving it: ask again a little later.

        Ray 2.60 can keep what it was about to give to a group that is removed at that moment (ray#64693). It does not
        tell that it tries again, but counts its tries: a group that waits is removed if the last one failed and there
        was none since the look before. That one begins in between remains possible, for milliseconds.
        """
        told, last = self._ray.util.placement_group_table(group), self._tries.pop(group.id, None)
        if told.get("state") in ("PENDING", "PREPARED", "RESCHEDULING"):
            tries = told["stats"]["scheduling_attempt"]
            failed = told["state"] != "PREPARED" and told["stats"]["scheduling_state"] in _FAILED
            if not failed or tries != last:
                self._tries[group.id] = tries
                return False
        self._ray.util.remove_placement_group(group)
        return True

    def run(
        self, group: "PlacementGroup", number: int, bundle: Bundle, line: Sequence[str], log: str
    ) -> "ObjectRef[None]":
        """Start a program that gets the GPUs of a bundle.

        Args:
            group: Of bundles, which was given.
            number: Of the bundle in it.
            bundle: That bundle.
            line: The program, which finds what it got in its environment.
            log: File for what it has to say.
        """
        where = self._strategies.PlacementGroupSchedulingStrategy(group, number)
        own = self._task.options(resources=bundle.resources, scheduling_strategy=where)
        return own.remote(list(line), log)

    def run_on(self, node: Node, line: Sequence[str], log: str) -> "ObjectRef[None]":
        """Start a program on a node, without any GPU; the arguments are those of `run`."""
        where = self._strategies.NodeAffinitySchedulingStrategy(node.number, soft=False)
        return self._task.options(scheduling_strategy=where).remote(list(line), log)

    def is_done(self, task: "ObjectRef[None]") -> bool:
        """Say whether a program has ended, or can no longer be seen."""
        done, _ = self._ray.wait([task], timeout=0)
        return bool(done)

    def has_ended(self, task: "ObjectRef[None]") -> bool:
        """Say whether a program that is done has certainly ended, and not just its worker."""
        try:
            self._ray.get(task)
        except self._ray.exceptions.RayError:
            return False
        return True
