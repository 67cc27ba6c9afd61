"""The Ray backend: a launcher in the cluster starts attempts with the exact nodes and GPUs that were decided."""

import hashlib
import json
import logging
import re
import shlex
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NamedTuple, TypeVar

import httpx
from pydantic import AliasPath, BaseModel, ConfigDict, Field, ValidationError

from ....cluster.files.durable import is_there, write_first
from ....cluster.files.errors import BackendError, InputError
from ....cluster.model.placement import Placement
from ...model.gpu_index import Layout
from ...model.states import Run, Status
from ..local.folders import as_backend_error, opened_folder
from ..local.supervision import CANCELLED, python_command
from ..protocol import Attempt, CannotHonourError, Capabilities, GpuView, NodeView
from ..shared_folder.backend import ALIVE_S, AttemptRecords, SharedFolderBackend, proven_status, status_of_running
from ..shared_folder.node import revoke_unclaimed
from .launcher import ALIVE, LABEL, QUEUE, gpu_resource

DEADLINE_S = 5.0  # of a call; one takes 0.01 s
PAUSE_AFTER_MISS_S = 5.0  # after a missed deadline, in which the next calls fail at once: the scheduler has other work
_MAX_ANSWER_BYTES = 64 << 20
_LAUNCHER_CHECK_S = 5.0  # between two checks that it runs
_HUNG_S = 60.0  # after the last touch of its file, of which there are ten a second
_MAX_DOUBLINGS = 6  # of the time between two checks while it does not start
_LIVING = ("PENDING", "RUNNING")
_NODES_POLL_S = 1.0  # minimum between two polls
_NODES_PATH = "/api/v0/nodes?detail=1&limit=10000"  # the maximum of an answer, dead nodes included

log = logging.getLogger(__name__)


class RayAnswerError(BackendError):
    """An answer of Ray that is an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class RayApi:
    """Calls Ray's dashboard.

    Args:
        address: Of the dashboard, such as `http://head:8265`.
        token: File with the token, for a cluster that requires one.
        deadline_s: Of a call.

    Raises:
        InputError: If there is no such file.
    """

    def __init__(self, address: str, token: Path | None, *, deadline_s: float = DEADLINE_S) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {_read_token(token)}"}
        # A call every few seconds needs no connection that stays open. The caller's environment, where a proxy could
        # be set, is ignored.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(base_url=address, headers=headers, limits=limits, trust_env=False)
        self._address, self._deadline_s, self._pause_until_s = address, deadline_s, 0.0

    def get(self, path: str) -> object:
        """Return the answer to a GET.

        Raises:
            RayAnswerError: If the answer is an error.
            BackendError: If there is none.
        """
        return self._call("GET", path, None)

    def post(self, path: str, content: object) -> object:
        """Return the answer to a POST, which may have had its effect even without an answer.

        Raises:
            RayAnswerError: If the answer is an error.
            BackendError: If there is none.
        """
        return self._call("POST", path, content)

    def _call(self, method: str, path: str, content: object) -> object:
        pause_s = self._pause_until_s - time.monotonic()
        if pause_s > 0.0:
            raise BackendError(f"Ray at {self._address} did not answer; it is called again in {pause_s:.0f} s")
        try:
            status, answer = self._request(method, path, content)
        except httpx.HTTPError as error:
            self._pause_until_s = time.monotonic() + PAUSE_AFTER_MISS_S
            raise BackendError(f"Ray at {self._address} does not answer: {error or type(error).__name__}") from error
        if status != httpx.codes.OK:
            message = answer.decode(errors="replace").strip().rpartition("\n")[2]
            raise RayAnswerError(status, f"Ray at {self._address} answered {status} to {path}: {message[:300]}")
        try:
            return json.loads(answer)
        except ValueError as error:
            raise BackendError(f"Ray at {self._address} answered no JSON to {path}: {answer[:80]!r}") from error

    def _request(self, method: str, path: str, content: object) -> tuple[int, bytes]:
        until_s, answer = time.monotonic() + self._deadline_s, b""
        with self._client.stream(method, path, json=content, timeout=self._deadline_s) as response:
            for piece in response.iter_bytes():
                answer += piece
                if time.monotonic() > until_s or len(answer) > _MAX_ANSWER_BYTES:
                    raise httpx.ReadTimeout(f"no whole answer within {self._deadline_s:g} s")
            return response.status_code, answer


def _read_token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError) as error:
        raise InputError(f"the token of Ray cannot be read: {error}", "name a file that holds it", path=path) from error


class _RayModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


_AnswerT = TypeVar("_AnswerT", bound=_RayModel)


class _Job(_RayModel):
    submission_id: str | None
    status: str


class LauncherJob:
    """Keeps a launcher running on a Ray cluster."""

    def __init__(self, api: RayApi, folder: Path, *, packages: str) -> None:
        self._api, self._alive = api, folder / ALIVE
        if not self._alive.exists():
            self._alive.touch()
        self._line = shlex.join(python_command("ray.launcher", "launch_all", str(folder), packages=packages))
        # Two schedulers of one folder share a launcher, those of two folders do not.
        self._prefix = f"longshore-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}-"
        self._job, self._check_at_s, self._tries = "", 0.0, 0

    def ensure_running(self) -> None:
        """Submit it unless it runs; one that does not start is submitted less and less often.

        Raises:
            BackendError: If it is not known whether it runs.
        """
        if time.monotonic() < self._check_at_s:
            return
        with as_backend_error("the launcher"):
            if self._job and self._job_status(self._job) in _LIVING and not self._is_hung():
                self._tries = 0
            else:
                self._find_or_submit()
        self._check_at_s = time.monotonic() + _LAUNCHER_CHECK_S * 2.0 ** min(self._tries, _MAX_DOUBLINGS)

    def _job_status(self, job: str) -> str:
        try:
            return _validated(_Job, self._api.get(f"/api/jobs/{job}"), "jobs").status
        except RayAnswerError as error:
            if error.code == httpx.codes.NOT_FOUND:  # Ray was started anew.
                return ""
            raise

    def _find_or_submit(self) -> None:
        found = self._api.get("/api/jobs/")
        jobs = [_validated(_Job, job, "jobs") for job in (found if isinstance(found, list) else [])]
        own = [job for job in jobs if self._own_job_digits(job)]
        living = [job.submission_id or "" for job in own if job.status in _LIVING]
        if living and not self._is_hung():
            self._job = living[0]
            return
        for job in living:
            self._api.post(f"/api/jobs/{job}/stop", None)
        if self._job:
            log.warning("Ray's job %s ended or hangs: a new one is submitted; its log has the reason", self._job)
        numbers = [int(digits) for job in own if (digits := self._own_job_digits(job))]
        self._job = f"{self._prefix}{max(numbers, default=0) + 1}"
        self._tries += 1
        self._alive.touch()  # A new launcher has as much time as a hung one to touch its file.
        self._api.post("/api/jobs/", {"entrypoint": f"exec {self._line}", "submission_id": self._job})

    def _own_job_digits(self, job: _Job) -> str:
        """Return the digits that a launcher of this scheduler has behind its name; "" of any other job."""
        name = job.submission_id or ""
        digits = name.removeprefix(self._prefix)
        return digits if name != digits and re.fullmatch(r"[0-9]{1,18}", digits) else ""

    def _is_hung(self) -> bool:
        return time.time() - self._alive.stat().st_mtime > _HUNG_S


def _validated(model: type[_AnswerT], answer: object, subject: str) -> _AnswerT:
    try:
        return model.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        raise BackendError(f"Ray reports its {subject} in an unknown format: {first['loc']}: {first['msg']}") from error


class _Node(_RayModel):
    state: str
    node_ip: str | None = None
    labels: dict[str, str] | None = None
    resources_total: dict[str, float] | None = None


class _NodesAnswer(_RayModel):
    result: bool
    msg: str
    nodes: list[_Node] = Field(validation_alias=AliasPath("data", "result", "result"))
    total: int = Field(validation_alias=AliasPath("data", "result", "total"))


class RayNode(NamedTuple):
    """Nodes of Ray with one label."""

    living: int  # one, where all is well
    resources: Mapping[str, float]  # of one that lives
    addresses: frozenset[str] = frozenset()  # of those that live

    def gives_gpu(self, name: str, gpu: int) -> bool:
        """Return whether it has a GPU, once, as a resource of its own."""
        return self.resources.get(gpu_resource(name, gpu)) == 1.0


def _read_nodes(api: RayApi) -> Mapping[str, RayNode]:
    """Return Ray's nodes by their label."""
    answer = _validated(_NodesAnswer, api.get(_NODES_PATH), "nodes")
    if not answer.result or len(answer.nodes) != answer.total:
        raise BackendError(f"Ray reported {len(answer.nodes)} of its {answer.total} nodes: {answer.msg}")
    return _nodes_by_label(answer.nodes)


def _nodes_by_label(nodes: list[_Node]) -> dict[str, RayNode]:
    found: dict[str, RayNode] = {}
    for node in nodes:
        label = (node.labels or {}).get(LABEL)
        if label is None:
            continue
        before = found.get(label, RayNode(0, {}))
        lives = node.state == "ALIVE"
        resources = (node.resources_total or {}) if lives else before.resources
        addresses = before.addresses | ({node.node_ip} if lives and node.node_ip else set())
        found[label] = RayNode(before.living + lives, resources, addresses)
    return found


class RaySettings(BaseModel):
    """Which Ray cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: Annotated[
        str, Field(pattern=r"^https?://[^/\s]+$", description="A URL such as http://127.0.0.1:8265.")
    ] = "http://127.0.0.1:8265"  # of Ray's dashboard
    token: Path | None = None  # file with the token, for a cluster that requires one


class RayBackend(SharedFolderBackend):
    """Writes what is to be run to a folder that the whole cluster shares, and keeps a launcher running there.

    Args:
        folder: Where the attempts' folders are, under the same path on all nodes; created if missing.
        nodes: GPUs of each node, in cluster-file order, under the names that label Ray's nodes.
        address: Of Ray's dashboard.
        token: File with the token, for a cluster that requires one.
        deadline_s: Of a call to Ray.

    Raises:
        BackendError: If Ray is not installed.
        InputError: If the token cannot be read.
    """

    capabilities = Capabilities(
        exact_gpus=True,
        atomic_gang=True,
        enforced=False,
        lists_attempts=True,
        reads_steps=True,
        runs_rings=True,
        moves_coordinators=True,
    )

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
            raise BackendError("Ray is not installed; pip install '.[ray]' in a clone of Longshore")
        super().__init__(folder, nodes)
        self._api = RayApi(address, token, deadline_s=deadline_s)
        self._ray_nodes: Mapping[str, RayNode] = {}  # by label
        self._read_s = -_NODES_POLL_S
        self._queue = folder.absolute() / QUEUE
        self._queue.mkdir(parents=True, exist_ok=True)
        self._launcher = LauncherJob(self._api, folder.absolute(), packages=str(Path(found.origin).parents[1]))
        self._answered_s: dict[str, float] = {}  # last answer of each node
        self._addresses: frozenset[str] = frozenset()  # of all nodes

    def observe(self) -> tuple[NodeView, ...]:
        """Return all nodes; one that Ray has lost takes no jobs, and a GPU that Ray does not have once is faulty."""
        nodes = self._nodes_of_ray()
        try:
            self._launcher.ensure_running()
        except BackendError as error:  # Nodes can be read, and running jobs continue, without a launcher.
            log.warning("the launcher cannot be checked: %s", error)
        return tuple(self._node_view(name, gpus, nodes.get(name, RayNode(0, {}))) for name, gpus in self._nodes.items())

    def _nodes_of_ray(self) -> Mapping[str, RayNode]:
        """Return Ray's nodes by their label, at most a second old."""
        now_s = time.monotonic()
        if now_s >= self._read_s + _NODES_POLL_S:
            self._ray_nodes, self._read_s = _read_nodes(self._api), now_s
            self._addresses |= {address for node in self._ray_nodes.values() for address in node.addresses}
        return self._ray_nodes

    def _node_view(self, name: str, gpus: int, node: RayNode) -> NodeView:
        if node.living:
            self._answered_s[name] = time.time()
        # The resources of a lost node are no evidence of its GPUs' health.
        found = tuple(GpuView(gpu, healthy=not node.living or node.gives_gpu(name, gpu)) for gpu in range(gpus))
        return NodeView(name, found, self._answered_s.get(name, 0.0), takes_jobs=node.living == 1)

    def launch(self, attempt: Attempt, placement: Placement) -> None:
        """Put an attempt into the launcher's queue; again, or after its end, this does nothing."""
        if self._write_spec(attempt, placement) is None:
            return
        self._refuse_missing_gpus(placement)
        with as_backend_error(attempt.name):
            _put_in_queue(self._queue, attempt.name)
        self._launcher.ensure_running()

    def _start_added(self, name: str, rank: int) -> None:
        """Let the launcher look at a ring again, unless it follows it."""
        with as_backend_error(name):
            _put_in_queue(self._queue, name)
        self._launcher.ensure_running()

    def _ring_hosts(self) -> Collection[str]:
        """Return the addresses of all nodes that were ever seen: a ring goes on without its node's raylet."""
        return self._addresses

    def _refuse_missing_gpus(self, placement: Placement) -> None:
        nodes = self._nodes_of_ray()
        for share in placement:
            node = nodes.get(share.node, RayNode(0, {}))
            if node.living != 1:
                raise CannotHonourError(f"Ray has {node.living} living nodes with the label of node {share.node}")
            if missing := [gpu for gpu in share.gpus if not node.gives_gpu(share.node, gpu)]:
                raise CannotHonourError(f"Ray cannot give GPUs {missing} of node {share.node} by their index")

    def statuses(self, names: tuple[str, ...]) -> dict[str, Status]:
        """Return what is known of many attempts."""
        proven, unclear = self._read_proven_statuses(names)
        return proven | {name: self._status_of_unproven(name, records) for name, records in unclear.items()}

    def cancel(self, name: str, reason: str) -> None:
        """Ask an attempt to stop, now or before it starts."""
        with self._store_stop_request(name, reason) as folder:
            if folder is not None:
                revoke_unclaimed(folder, name, CANCELLED)

    def _status_of_unproven(self, name: str, records: AttemptRecords) -> Status:
        """Return the status of an attempt that was launched and has no proven end."""
        if records.claim is not None:
            return self._status_of_claimed(name, records)
        if (self._queue / name).exists():
            return Status(Run.PENDING)
        try:  # The launcher may have started it, found its end and removed it since the records were read.
            again = self._read_records(name)
        except (OSError, ValueError) as error:
            return Status(Run.UNREACHABLE, words=str(error))
        if again is None or again.claim is None:
            return Status(Run.ABSENT)
        return proven_status(again) or self._status_of_claimed(name, again)

    def _status_of_claimed(self, name: str, records: AttemptRecords) -> Status:
        silent = [number for number, part in enumerate(records.parts) if not part.is_over and not part.is_alive]
        if not silent or self._was_claimed_just_now(name):
            return status_of_running(records)
        with suppress(OSError):  # The launcher has to follow it until it is over.
            _put_in_queue(self._queue, name)
        if records.is_ring and any(part.is_alive and not part.is_over for part in records.parts):
            return status_of_running(records)
        return Status(
            Run.UNREACHABLE, words=f"its supervisor on node number {silent[0]} of it does not update its marker"
        )

    def _was_claimed_just_now(self, name: str) -> bool:
        path = self._folders.path(name) / "claim.json"
        try:
            return time.time() - path.stat().st_mtime < ALIVE_S
        except OSError:
            return False


def _put_in_queue(queue: Path, name: str) -> None:
    """Put an attempt into the launcher's queue, unless it is there."""
    with opened_folder(str(queue)) as folder:
        if not is_there(folder, name):
            write_first(folder, name, b"")
