"""The Ray backend: a launcher in the cluster starts attempts with the exact nodes and GPUs that were decided."""

import hashlib
import json
import logging
import os
import re
import shlex
import time
from collections.abc import Mapping
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Annotated, NamedTuple

import httpx
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ....cluster.files.durable import is_there, open_folder, write_first
from ....cluster.files.errors import BackendError, InputError
from ....cluster.model.placement import Placement
from ...model.gpu_index import Layout
from ...model.states import Run, Status
from ..local.folders import as_backend_error
from ..protocol import Attempt, CannotHonourError, Capabilities, GpuView, NodeView
from ..shared_folder.backend import SharedFolderBackend
from ..shared_folder.node import CANCELLED, python_line, revoke
from ..shared_folder.records import ALIVE_S, Records, status_of, status_of_running
from .launcher import ALIVE, LABEL, QUEUE, gpu_resource

DEADLINE_S = 5.0  # of a call; one takes 0.01 s
REST_S = 5.0  # after a missed deadline, in which the next calls fail at once: the scheduler has other work
_MOST_BYTES = 64 << 20


class AnswerError(BackendError):
    """An answer of Ray that is an error.

    Args:
        code: HTTP status.
        message: What it said.
    """

    def __init__(self, code: int, message: str) -> None:
        super().__init__(message)
        self.code = code


class Api:
    """Asks Ray's dashboard.

    Args:
        address: Of the dashboard, such as `http://head:8265`.
        token: File with the token of a cluster that asks for one.
        deadline_s: Of a call.

    Raises:
        InputError: If there is no such file.
    """

    def __init__(self, address: str, token: Path | None, *, deadline_s: float = DEADLINE_S) -> None:
        headers = {} if token is None else {"Authorization": f"Bearer {_read_token(token)}"}
        # A call every few seconds needs no connection that stays open. Of the caller's environment, where a proxy could
        # be set, nothing counts.
        limits = httpx.Limits(max_keepalive_connections=0)
        self._client = httpx.Client(base_url=address, headers=headers, limits=limits, trust_env=False)
        self._address, self._deadline_s, self._rest_until_s = address, deadline_s, 0.0

    def get(self, path: str) -> object:
        """Return what is answered to a question.

        Raises:
            AnswerError: If the answer is an error.
            BackendError: If there is none.
        """
        return self._call("GET", path, None)

    def post(self, path: str, content: object) -> object:
        """Return what is answered to a wish, which may be fulfilled even if there is no answer.

        Raises:
            AnswerError: If the answer is an error.
            BackendError: If there is none.
        """
        return self._call("POST", path, content)

    def _call(self, method: str, path: str, content: object) -> object:
        rest_s = self._rest_until_s - time.monotonic()
        if rest_s > 0.0:
            raise BackendError(f"Ray at {self._address} did not answer; it is asked again in {rest_s:.0f} s")
        try:
            status, answer = self._ask(method, path, content)
        except httpx.HTTPError as error:
            self._rest_until_s = time.monotonic() + REST_S
            raise BackendError(f"Ray at {self._address} does not answer: {error or type(error).__name__}") from error
        if status != httpx.codes.OK:
            said = answer.decode(errors="replace").strip().rpartition("\n")[2]
            raise AnswerError(status, f"Ray at {self._address} answered {status} to {path}: {said[:300]}")
        try:
            return json.loads(answer)
        except ValueError as error:
            raise BackendError(f"Ray at {self._address} answered no JSON to {path}: {answer[:80]!r}") from error

    def _ask(self, method: str, path: str, content: object) -> tuple[int, bytes]:
        until_s, answer = time.monotonic() + self._deadline_s, b""
        with self._client.stream(method, path, json=content, timeout=self._deadline_s) as response:
            for piece in response.iter_bytes():
                answer += piece
                if time.monotonic() > until_s or len(answer) > _MOST_BYTES:
                    raise httpx.ReadTimeout(f"no whole answer within {self._deadline_s:g} s")
            return response.status_code, answer


def _read_token(path: Path) -> str:
    try:
        return path.read_text().strip()
    except (OSError, ValueError) as error:
        raise InputError(f"the token of Ray cannot be read: {error}", "name a file that holds it", path=path) from error


log = logging.getLogger(__name__)

_SEEN_FOR_S = 5.0  # between two looks at it
_HUNG_S = 60.0  # after its last sign of life, of which there are ten a second
_MOST_DOUBLINGS = 6  # of the time between two looks while it does not come to run
_LIVING = ("PENDING", "RUNNING")


class _Job(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)

    submission_id: str | None
    status: str


class Launcher:
    """Sees to it that a launcher runs on a Ray cluster.

    Args:
        api: Ray's.
        folder: Of the scheduler.
        packages: Folder that Ray's own Python package is in.
    """

    def __init__(self, api: Api, folder: Path, *, packages: str) -> None:
        self._api, self._alive = api, folder / ALIVE
        if not self._alive.exists():
            self._alive.touch()
        self._line = shlex.join(python_line("ray.launcher", "launch_all", str(folder), packages=packages))
        # Two schedulers of one folder mean the same launcher, and those of two folders never do.
        self._prefix = f"longshore-{hashlib.sha256(str(folder).encode()).hexdigest()[:12]}-"
        self._job, self._look_at_s, self._tries = "", 0.0, 0

    def see(self) -> None:
        """Submit it unless it runs; one that does not come to run is submitted less and less often.

        Raises:
            BackendError: If it is not known whether it runs.
        """
        if time.monotonic() < self._look_at_s:
            return
        with as_backend_error("the launcher"):
            if self._job and self._status(self._job) in _LIVING and not self._is_hung():
                self._tries = 0
            else:
                self._submit()
        self._look_at_s = time.monotonic() + _SEEN_FOR_S * 2.0 ** min(self._tries, _MOST_DOUBLINGS)

    def _status(self, job: str) -> str:
        try:
            return _validated(self._api.get(f"/api/jobs/{job}")).status
        except AnswerError as error:
            if error.code == httpx.codes.NOT_FOUND:  # Ray was started anew.
                return ""
            raise

    def _submit(self) -> None:
        found = self._api.get("/api/jobs/")
        jobs = [_validated(job) for job in (found if isinstance(found, list) else [])]
        own = [job for job in jobs if self._number(job)]
        living = [job.submission_id or "" for job in own if job.status in _LIVING]
        if living and not self._is_hung():
            self._job = living[0]
            return
        for job in living:
            self._api.post(f"/api/jobs/{job}/stop", None)
        if self._job:
            log.warning("Ray's job %s ended or hangs: a new one is submitted; its log tells why", self._job)
        numbers = [int(digits) for job in own if (digits := self._number(job))]
        self._job = f"{self._prefix}{max(numbers, default=0) + 1}"
        self._tries += 1
        self._alive.touch()  # It has as long as a hung one to show that it lives.
        self._api.post("/api/jobs/", {"entrypoint": f"exec {self._line}", "submission_id": self._job})

    def _number(self, job: _Job) -> str:
        """Return the digits that a launcher of this scheduler has behind its name; "" of any other job."""
        name = job.submission_id or ""
        digits = name.removeprefix(self._prefix)
        return digits if name != digits and re.fullmatch(r"[0-9]{1,18}", digits) else ""

    def _is_hung(self) -> bool:
        return time.time() - self._alive.stat().st_mtime > _HUNG_S


def _validated(job: object) -> _Job:
    try:
        return _Job.model_validate(job)
    except ValidationError as error:
        first = error.errors()[0]
        raise BackendError(f"Ray tells of its jobs in unknown words: {first['loc']}: {first['msg']}") from error


_OLD_S = 1.0  # Ray is asked no more often than this
_NODES = "/api/v0/nodes?detail=1&limit=10000"  # the most that it tells at once, of dead ones too


class _Foreign(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", strict=True)


class _Node(_Foreign):
    state: str
    labels: dict[str, str] | None = None
    resources_total: dict[str, float] | None = None


class _Nodes(_Foreign):
    result: list[_Node]
    total: int


class _Data(_Foreign):
    result: _Nodes


class _Answer(_Foreign):
    result: bool
    msg: str
    data: _Data


class Node(NamedTuple):
    """Nodes of Ray with one label."""

    living: int  # one, where all is well
    resources: Mapping[str, float]  # of one that lives

    def gives(self, name: str, gpu: int) -> bool:
        """Return whether it has a GPU, once, as a resource of its own.

        Args:
            name: Of the node.
            gpu: Index of the GPU on it.
        """
        return self.resources.get(gpu_resource(name, gpu)) == 1.0


class View:
    """Ray's nodes by their label, as they were a second ago at most.

    Args:
        api: Ray's.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self._read_s = -_OLD_S
        self._nodes: Mapping[str, Node] = {}

    def look(self) -> Mapping[str, Node]:
        """Return Ray's nodes by their label.

        Raises:
            BackendError: If it does not answer, or not all.
        """
        now_s = time.monotonic()
        if now_s >= self._read_s + _OLD_S:
            self._nodes, self._read_s = _by_label(_read(self._api)), now_s
        return self._nodes


def _read(api: Api) -> list[_Node]:
    answer = api.get(_NODES)
    try:
        told = _Answer.model_validate(answer)
    except ValidationError as error:
        first = error.errors()[0]
        raise BackendError(f"Ray tells of its nodes in unknown words: {first['loc']}: {first['msg']}") from error
    nodes = told.data.result
    if not told.result or len(nodes.result) != nodes.total:
        raise BackendError(f"Ray told of {len(nodes.result)} of its {nodes.total} nodes: {told.msg}")
    return nodes.result


def _by_label(nodes: list[_Node]) -> dict[str, Node]:
    found: dict[str, Node] = {}
    for node in nodes:
        label = (node.labels or {}).get(LABEL)
        if label is None:
            continue
        before = found.get(label, Node(0, {}))
        lives = node.state == "ALIVE"
        found[label] = Node(before.living + lives, (node.resources_total or {}) if lives else before.resources)
    return found


class RaySettings(BaseModel):
    """Which Ray cluster."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    address: Annotated[
        str, Field(pattern=r"^https?://[^/\s]+$", description="A URL such as http://127.0.0.1:8265.")
    ] = "http://127.0.0.1:8265"  # of Ray's dashboard
    token: Path | None = None  # file with the token of a cluster that asks for one


class RayBackend(SharedFolderBackend):
    """Leaves what is to be run in a folder that the whole cluster sees, and sees to it that a launcher runs there.

    Args:
        folder: Where the attempts' folders are, under the same path on all nodes; created if missing.
        nodes: GPUs of each node, in cluster-file order, under the names that label Ray's nodes.
        address: Of Ray's dashboard.
        token: File with the token of a cluster that asks for one.
        deadline_s: Of a call to Ray.

    Raises:
        BackendError: If Ray is not installed.
        InputError: If the token cannot be read.
    """

    capabilities = Capabilities(
        exact_gpus=True, atomic_gang=True, enforced=False, lists_attempts=True, reads_steps=True
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
        """Leave an attempt to the launcher, with exactly these GPUs; again, or after its end, this does nothing.

        Raises:
            CannotHonourError: If there are no such GPUs, or Ray does not have them by their index.
            RefusedError: If its program or folder does not exist.
            BackendError: If it is not known whether it starts, or another attempt has this name.
        """
        if self._write_down(attempt, placement) is None:
            return
        self._refuse(placement)
        with as_backend_error(attempt.name):
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
            BackendError: If the request could not be stored.
        """
        with self._request_stop(name, reason) as folder:
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
