"""The driver that starts attempts on a Ray cluster and holds their GPUs there. Standard library and Ray only.

One runs for each scheduler, as a job of Ray. All its state is in files: a new one continues where another was killed,
and if there are two of them for a while, the claim of each attempt lets one start it. `RayAttempt` holds the GPUs of
one attempt in Ray, from before its claim until nothing of it is left. `start_part` is what Ray's workers start on its
nodes: a supervisor that outlives them.
"""

import json
import os
import subprocess
import sys
import time
import traceback
from collections.abc import Mapping, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from ....cluster.files.durable import is_there, open_folder, read_whole
from ....cluster.model.placement import Share
from ..local.ranks import SPEC_FILE, read_spec
from ..local.ring_files import RING, Piece, is_ring_over, pieces_of
from ..local.supervision import python_command
from ..local.supervisor import run_and_exit
from ..shared_folder.node import (
    Grant,
    claim_attempt,
    gpus_on,
    nodes_of,
    prove_never_started,
    run_part,
    run_piece,
    write_stop,
)

if TYPE_CHECKING:
    from ray import ObjectRef
    from ray.util.placement_group import PlacementGroup

LABEL = "longshore/node"  # of a node: its name in the cluster file
QUEUE = "ray/wanted"  # folder of the scheduler; an empty file for each attempt that is to be started or followed
ALIVE = "ray/alive"  # file that the launcher touches

_NODES_POLL_S = 1.0
_FAILED = ("NO_RESOURCES", "INFEASIBLE", "FAILED_TO_COMMIT_RESOURCES")  # results of a group's last try
_TEND_S = 1.0  # between two checks of a running attempt
_SWEEP_AGAIN_S = 5.0
_SILENT_S = 30.0  # a supervisor updates its marker every 2 s; a file system may delay that
_MAX_CLAIM_BYTES = 1 << 16
_NODE_FAULT = "node fault: "  # prefix of reasons that are the cluster's fault (model/states.py)
_CLAIMS_EVERY_S = 0.1
_BEGINS_WITHIN_S = 120.0  # for a piece of a ring to begin; then its GPUs are given up
_ERROR_PAUSE_S = 5.0  # after an error of an attempt


def gpu_resource(node: str, gpu: int) -> str:
    """Return the resource that a GPU is in Ray, of which its node has one."""
    return f"gpu_{node}_{gpu}"


def gpu_indices_in(resources: dict[str, float], node: str) -> list[int]:
    """Return the indices of the GPUs of a node that are among resources of Ray."""
    before = gpu_resource(node, 0)[:-1]
    indices = [name.removeprefix(before) for name, much in resources.items() if name.startswith(before) and much == 1.0]
    return sorted(int(index) for index in indices if index.isdecimal())


def _gpu_resources(share: Share) -> dict[str, float]:
    """Return the resources in Ray that GPUs of a node are."""
    return {gpu_resource(share.node, gpu): 1.0 for gpu in share.gpus}


class LivingNode(NamedTuple):
    """A living node of Ray."""

    number: str  # of this life of it
    address: str


def run_granted(line: Sequence[str], log: str) -> None:
    """Start a program with this Ray task's resources in its environment, and wait until it and its daemon have ended.

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
        # Workers may have another Python, without this package.
        cloudpickle.register_pickle_by_value(sys.modules[__name__])
        self._ray, self._strategies = ray, scheduling_strategies
        self._task = ray.remote(num_cpus=0, max_retries=0)(run_granted)
        self._nodes: dict[str, LivingNode] = {}
        self._tries: dict[object, int] = {}  # to place a group that is to be freed, at the last check
        self._read_s = -_NODES_POLL_S

    @property
    def job_number(self) -> int:
        """Number of this driver's job."""
        return int(self._ray.get_runtime_context().get_job_id(), 16)

    def nodes(self) -> Mapping[str, LivingNode]:
        """Return the living nodes by label, at most a second old."""
        if time.monotonic() >= self._read_s + _NODES_POLL_S:
            alive = [node for node in self._ray.nodes() if node["Alive"] and LABEL in node["Labels"]]
            self._nodes = {
                node["Labels"][LABEL]: LivingNode(node["NodeID"], node["NodeManagerAddress"]) for node in alive
            }
            self._read_s = time.monotonic()
        return self._nodes

    def reserve(self, name: str, shares: Sequence[Share]) -> "PlacementGroup":
        """Request GPUs of several nodes, all or none; of a name there is one request at a time."""
        return self._ray.util.placement_group(
            [_gpu_resources(share) for share in shares], strategy="STRICT_SPREAD", name=name,
            bundle_label_selector=[{LABEL: share.node} for share in shares],
        )  # fmt: skip

    def is_placed(self, group: "PlacementGroup") -> bool:
        """Return whether Ray has granted the request."""
        table = self._ray.util.placement_group_table(group)
        return bool(table["state"] == "CREATED")

    def free(self, group: "PlacementGroup") -> bool:
        """Free what was requested; False while Ray may be just granting it: then call again a little later.

        Ray 2.60 can leak what it was about to grant to a group that is removed at that moment (ray#64693). It does not
        report that it tries again, but counts its tries: a waiting group is removed if the last one failed and there
        was none since the last check. That one begins in between remains possible, for milliseconds.
        """
        table, last = self._ray.util.placement_group_table(group), self._tries.pop(group.id, None)
        if table.get("state") in ("PENDING", "PREPARED", "RESCHEDULING"):
            tries = table["stats"]["scheduling_attempt"]
            failed = table["state"] != "PREPARED" and table["stats"]["scheduling_state"] in _FAILED
            if not failed or tries != last:
                self._tries[group.id] = tries
                return False
        self._ray.util.remove_placement_group(group)
        return True

    def run_on_gpus(
        self, group: "PlacementGroup", part: int, share: Share, line: Sequence[str], log: str
    ) -> "ObjectRef[None]":
        """Start a program that gets the GPUs of an attempt on one of its nodes."""
        where = self._strategies.PlacementGroupSchedulingStrategy(group, part)
        own = self._task.options(resources=_gpu_resources(share), scheduling_strategy=where)
        return own.remote(list(line), log)

    def run_on_node(self, node: LivingNode, line: Sequence[str], log: str) -> "ObjectRef[None]":
        """Start a program on a node, without any GPU; the arguments are those of `run_on_gpus`."""
        where = self._strategies.NodeAffinitySchedulingStrategy(node.number, soft=False)
        return self._task.options(scheduling_strategy=where).remote(list(line), log)

    def is_done(self, task: "ObjectRef[None]") -> bool:
        """Return whether a program has ended, or is lost."""
        done, _ = self._ray.wait([task], timeout=0)
        return bool(done)

    def has_certainly_ended(self, task: "ObjectRef[None]") -> bool:
        """Return whether a program that is done has certainly ended, and not just its worker."""
        try:
            self._ray.get(task)
        except self._ray.exceptions.RayError:
            return False
        return True


class Sweep:
    """Ends what is left of a part of an attempt on its node, if the node lives and no supervisor does."""

    def __init__(self, cluster: RayCluster, path: str, part: int, node: str) -> None:
        self._cluster, self._path, self._node = cluster, path, node
        self._line = python_command("shared_folder.node", "sweep_unless_alive", path, str(part))
        self._task: ObjectRef[None] | None = None
        self._at_s = 0.0

    def begin(self) -> None:
        """Begin, unless one is under way or was a moment ago."""
        node = self._cluster.nodes().get(self._node)
        is_busy = self._task is not None and not self._cluster.is_done(self._task)
        if node is None or is_busy or time.monotonic() < self._at_s:
            return
        self._at_s = time.monotonic() + _SWEEP_AGAIN_S
        self._task = self._cluster.run_on_node(node, self._line, f"{self._path}/ray.log")


class RayAttempt:
    """An attempt without a ring, with its request to Ray.

    Raises:
        OSError: If its spec cannot be read.
        ValueError: If its spec makes no sense.
    """

    def __init__(self, cluster: RayCluster, path: str) -> None:
        self._cluster, self._path = cluster, path
        self._folder = open_folder(path)
        try:
            spec = read_spec(self._folder)
            self._shares = [Share(node, gpus_on(spec, node)) for node in nodes_of(spec)]
            # One that may not start any more gets none, and one that runs has them held for it.
            self._group = None if is_claim_revoked(self._folder) else cluster.reserve(spec.attempt, self._shares)
        except BaseException:
            os.close(self._folder)
            raise
        self._attempt, self._ranks = spec.attempt, len(spec.ranks)
        self._tasks: dict[int, ObjectRef[None]] = {}  # what started a part and is not known to have ended
        self._sweeps = [Sweep(cluster, path, part, share.node) for part, share in enumerate(self._shares)]
        self._numbers: dict[str, str] = {}  # of the lives of the nodes on which it was started
        self._tend_at_s, self._done = 0.0, 0

    def tend(self) -> bool:
        """Advance the attempt as far as possible, and return whether nothing is left of it.

        Raises:
            OSError: If its folder cannot be used.
            ValueError: If a marker makes no sense.
        """
        # A task that is done saves waiting for the next check.
        done = sum(map(self._cluster.is_done, self._tasks.values()))
        if time.monotonic() < self._tend_at_s and done == self._done:
            return False
        if not is_there(self._folder, "claim.json"):
            if self._group is not None and self._cluster.is_placed(self._group):
                self._claim_and_start(self._group)
            return False
        self._tend_at_s, self._done = time.monotonic() + _TEND_S, done
        if is_claim_revoked(self._folder):
            return True
        # Check all: one that is over may be the reason why others have to stop.
        over = [self._is_part_over(part) for part in range(len(self._shares))]
        return all(over)

    def free_gpus(self) -> bool:
        """Free what was requested from Ray, and return whether that is done."""
        if self._group is not None and not self._cluster.free(self._group):
            return False
        os.close(self._folder)
        return True

    def _claim_and_start(self, group: "PlacementGroup") -> None:
        nodes = self._cluster.nodes()
        first = nodes.get(self._shares[0].node)
        if first is None:
            return  # It has just gone; Ray takes the GPUs back.
        token = claim_attempt(
            self._folder, self._attempt, job=self._cluster.job_number, parts=len(self._shares), ranks=self._ranks,
            address=first.address,
        )  # fmt: skip
        if not token:
            return
        for part, share in enumerate(self._shares):
            line = python_command("ray.launcher", "start_part", self._path, token, share.node)
            self._tasks[part] = self._cluster.run_on_gpus(group, part, share, line, self._log_path)
        self._numbers = {name: node.number for name, node in nodes.items()}

    def _is_part_over(self, part: int) -> bool:
        """Return whether nothing is left of a part, and get the proof where no supervisor writes it."""
        where, task = f"part-{part}/", self._tasks.get(part)
        # Before its marker is checked: a supervisor writes that, and ends.
        is_done = task is not None and self._cluster.is_done(task)
        if is_there(self._folder, f"{where}exit.json"):
            return True
        if is_there(self._folder, f"{where}gone.json"):
            self._stop_others(part)
            return True
        has_ended = is_done and task is not None and self._cluster.has_certainly_ended(task)
        if not has_ended and is_marker_fresh(self._folder, f"{where}started.json"):
            return False
        if self._shares[part].node not in self._cluster.nodes():
            self._stop_others(part)
        elif is_done or task is None:
            self._sweeps[part].begin()
        return False

    def _stop_others(self, part: int) -> None:
        name = self._shares[part].node
        node = self._cluster.nodes().get(name)
        is_lost = node is None or self._numbers.get(name, node.number) != node.number
        reason = f"{_NODE_FAULT}Ray lost node {name}" if is_lost else f"a supervisor was lost on node {name}"
        write_stop(self._folder, self._attempt, reason)

    @property
    def _log_path(self) -> str:
        return f"{self._path}/ray.log"


class RayRing:
    """An attempt with a ring: each of its pieces has a request to Ray of its own, and gives back its GPUs by itself.

    Raises:
        OSError: If its spec cannot be read.
        ValueError: If its spec makes no sense.
    """

    def __init__(self, cluster: RayCluster, path: str) -> None:
        self._cluster, self._path = cluster, path
        self._folder = open_folder(path)
        try:
            self._spec = read_spec(self._folder)
        except BaseException:
            os.close(self._folder)
            raise
        self._pieces: list[RayPiece] = []
        self._tend_at_s = 0.0

    def tend(self) -> bool:
        """Advance the attempt as far as possible, and return whether nothing is left of it.

        Raises:
            OSError: If its folder cannot be used.
            ValueError: If a marker makes no sense.
        """
        if time.monotonic() < self._tend_at_s:
            return False
        self._tend_at_s = time.monotonic() + _CLAIMS_EVERY_S
        for piece in pieces_of(self._spec, Path(self._path, RING))[len(self._pieces) :]:
            self._pieces.append(RayPiece(self._cluster, self._path, self._spec.attempt, piece))
        may_start = not is_claim_revoked(self._folder) and not is_ring_over(Path(self._path))
        # All are tended: one that is over has GPUs to give back.
        is_claimed = is_there(self._folder, "claim.json")
        over = [piece.tend(self._folder, may_start=may_start, is_claimed=is_claimed) for piece in self._pieces]
        if all(piece.is_submitted for piece in self._pieces):
            self._tend_at_s = time.monotonic() + _TEND_S
        return all(over) and (is_there(self._folder, "claim.json") or not may_start)

    def free_gpus(self) -> bool:
        """Close the folder: each piece has freed its GPUs before; return True."""
        os.close(self._folder)
        return True


class RayPiece:
    """A piece of a ring, with its request to Ray."""

    def __init__(self, cluster: RayCluster, path: str, attempt: str, piece: Piece) -> None:
        self._cluster, self._path, self._attempt, self._piece = cluster, path, attempt, piece
        self._share = Share(piece.node, tuple(piece.gpus.values()))
        self._request = f"{attempt}/{piece.number}"
        self._group: PlacementGroup | None = None
        self._task: ObjectRef[None] | None = None
        self._sweep = Sweep(cluster, path, piece.number, piece.node)
        self._until_s = float("inf")
        self._is_over = False

    @property
    def is_submitted(self) -> bool:
        """Whether it was given to Ray, or is over."""
        return self._task is not None or self._is_over

    def tend(self, folder: int, *, may_start: bool, is_claimed: bool) -> bool:
        """Advance the piece as far as possible, and return whether nothing is left of it and its GPUs are free.

        Args:
            folder: Descriptor of the attempt's folder.
            may_start: Whether the piece may still be started.
            is_claimed: Whether a piece has begun: from then on the others must follow soon.
        """
        if is_claimed and self._until_s == float("inf"):
            self._until_s = time.monotonic() + _BEGINS_WITHIN_S
        if not self._is_over:
            self._is_over = self._has_ended(folder, may_start=may_start)
        if self._is_over and self._group is not None and self._cluster.free(self._group):
            self._group = None
        return self._is_over and self._group is None

    def _has_ended(self, folder: int, *, may_start: bool) -> bool:
        where = f"part-{self._piece.number}/"
        is_done = self._task is not None and self._cluster.is_done(self._task)  # before its marker is checked
        if any(is_there(folder, f"{where}{marker}") for marker in ("exit.json", "gone.json")):
            return True
        started = f"{where}started.json"
        if not is_there(folder, started):
            if not may_start or time.monotonic() > self._until_s:
                return prove_never_started(folder, self._attempt, self._piece.number)
            if self._task is None:
                self._start_once_granted()
                return False
        if self._group is None:  # an earlier launcher started it: its GPUs are held for it
            self._group = self._cluster.reserve(self._request, [self._share])
        has_ended = is_done and self._task is not None and self._cluster.has_certainly_ended(self._task)
        if (has_ended or not is_marker_fresh(folder, started)) and (is_done or self._task is None):
            self._sweep.begin()
        return False

    def _start_once_granted(self) -> None:
        node = self._cluster.nodes().get(self._piece.node)
        if self._group is None:
            self._group = self._cluster.reserve(self._request, [self._share])
        elif node is not None and self._cluster.is_placed(self._group):
            job, number = str(self._cluster.job_number), str(self._piece.number)
            line = python_command(
                "ray.launcher", "start_piece", self._path, number, job, node.address, self._piece.node
            )
            self._task = self._cluster.run_on_gpus(self._group, 0, self._share, line, f"{self._path}/ray.log")


def is_claim_revoked(folder: int) -> bool:
    """Return whether nothing may run an attempt."""
    if not is_there(folder, "claim.json"):
        return False
    return bool(json.loads(read_whole(folder, "claim.json", _MAX_CLAIM_BYTES))["revoked"])


def is_marker_fresh(folder: int, marker: str) -> bool:
    """Return whether a supervisor has updated its marker lately."""
    try:
        return time.time() - os.stat(marker, dir_fd=folder, follow_symlinks=False).st_mtime < _SILENT_S
    except FileNotFoundError:
        return False


def launch_all(folder: str) -> int:
    """Start the attempts in a scheduler's queue, for as long as Ray lives.

    Raises:
        OSError: If it cannot be used.
    """
    cluster = RayCluster()
    held: dict[str, RayAttempt | RayRing] = {}
    rest_until_s: dict[str, float] = {}
    while True:
        os.utime(f"{folder}/{ALIVE}")
        # Some held attempts may have left the queue: another launcher found their ends first.
        for name in held.keys() | os.listdir(f"{folder}/{QUEUE}"):  # noqa: PTH208 - names are entry
            # What begins with a dot is about to get its name.
            if name.startswith(".") or time.monotonic() < rest_until_s.get(name, 0.0):
                continue
            try:
                _tend_attempt(cluster, folder, name, held)
            except Exception:  # An error of one attempt must not stop the others.
                print(f"{name}: {traceback.format_exc()}", flush=True)  # noqa: T201 - to the log of Ray's job
                rest_until_s[name] = time.monotonic() + _ERROR_PAUSE_S
        time.sleep(_CLAIMS_EVERY_S)


def _tend_attempt(cluster: RayCluster, folder: str, name: str, held: dict[str, RayAttempt | RayRing]) -> None:
    entry, path = Path(folder, QUEUE, name), Path(folder, "attempts", name)
    if name not in held:
        if not (path / SPEC_FILE).exists():  # It is over and was forgotten.
            entry.unlink(missing_ok=True)
            return
        own = open_folder(str(path))
        try:
            has_ring = read_spec(own).seats > 0
        finally:
            os.close(own)
        held[name] = (RayRing if has_ring else RayAttempt)(cluster, str(path))
    # It is removed only once Ray's resources are free: after an error all is tried again.
    if held[name].tend() and held[name].free_gpus():
        del held[name]
        entry.unlink(missing_ok=True)


def start_part(path: str, token: str, node: str) -> int:
    """Start the supervisor of an attempt's part as a daemon, and return at once.

    Call it in a session of its own. Its standard output ends when the daemon has ended.

    Returns:
        0.

    Raises:
        OSError: If there can be no further process.
    """
    if os.fork() == 0:
        run_and_exit(partial(_run_daemon, path, token, node))
    return 0


def start_piece(path: str, number: str, job: str, address: str, node: str) -> int:
    """Start the supervisor of a piece of a ring as a daemon, and return at once, as `start_part` does.

    Returns:
        0.

    Raises:
        OSError: If there can be no further process.
    """
    if os.fork() == 0:
        run_and_exit(lambda: run_piece(path, int(number), int(job), address, _read_grant(node)))
    return 0


def _run_daemon(path: str, token: str, node: str) -> int:
    return run_part(path, token, _read_grant(node))


def _read_grant(node: str) -> Grant:
    """Return what this process was given, which it then uses as any other program would, not as a worker of Ray."""
    _undo_worker_settings()
    # As JSON, from the worker that has started this.
    gpus = gpu_indices_in(json.loads(os.environ["LONGSHORE_GRANTED"]), node)
    return Grant("Ray", node, gpus, [str(gpu) for gpu in gpus])


def _undo_worker_settings() -> None:
    """Undo, where allowed, what Ray sets for its workers: a low priority, and to be killed first for memory."""
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, 0, 0)
    with suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("0")
