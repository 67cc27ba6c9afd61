"""Calls to a Kubernetes API server, each with a deadline, and copies of objects kept up to date by watches.

Source: SPEC R8; a copy that may be old raises an error, and nothing is started or freed by it.
"""

import json
import logging
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any, Generic, TypeVar

from ....cluster.files.errors import BackendError, InputError
from ...logs import Repeats
from .objects import KubernetesObject

MANAGER = "longshore"  # of the fields that we write
JSON_PATCH = "application/json-patch+json"
APPLY = "application/apply-patch+yaml"  # JSON is YAML

_PAGE = 500  # objects of a page of a list
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 0.1, 5.0  # after a failure, doubled each time
_VERSION_GONE = 410  # the version is too old to watch from
_MAX_LINE_BYTES = 16 << 20

log = logging.getLogger(__name__)

Json = dict[str, Any]
Method = Callable[..., Any]  # of the official client


class ApiStatusError(BackendError):
    """An answer of the API server that is an error."""

    def __init__(self, code: int, message: str) -> None:
        super().__init__(f"the API server answered {code}: {message}")
        self.code = code


class KubernetesApi:
    """The official client, with plain JSON as answers and a deadline on each call.

    Args:
        kubeconfig: How to reach the cluster; the one that this runs in if None.
        deadline_s: Of a call.

    Raises:
        InputError: If the client is not installed, or the cluster does not exist.
    """

    def __init__(self, kubeconfig: Path | None, deadline_s: float) -> None:
        try:
            from kubernetes import client, config
        except ImportError as error:
            raise InputError(
                "the Kubernetes client is missing", "pip install '.[kubernetes]' in a clone of Longshore"
            ) from error
        configuration = client.Configuration()
        try:
            if kubeconfig is None:
                config.load_incluster_config(configuration)
            else:
                config.load_kube_config(str(kubeconfig), client_configuration=configuration)
        except config.ConfigException as error:
            raise InputError(str(error), "name a kubeconfig, or run it in a pod", path=kubeconfig) from error
        configuration.retries = False  # The deadline is for the call, not for each of several tries.
        configuration.connection_pool_maxsize = 16
        self.deadline_s = deadline_s
        self._client = client.ApiClient(configuration)
        self.core = client.CoreV1Api(self._client)
        self.resource = client.ResourceV1Api(self._client)
        self.coordination = client.CoordinationV1Api(self._client)

    def call(self, method: Method, *args: object, **options: object) -> Json:
        """Make a call and return the object in the answer.

        Raises:
            ApiStatusError: If the answer is an error.
            BackendError: If there is no answer before the deadline, so that nothing is known.
        """
        content, whole = self.read_until_deadline(method, *args, **options)
        if not whole:
            raise BackendError(f"the API server did not answer in full within {self.deadline_s:g} s")
        try:
            found = json.loads(content)
        except ValueError as error:
            raise BackendError(f"the API server answered no JSON: {content[:80]!r}") from error
        if not isinstance(found, dict):
            raise BackendError(f"the API server answered no object: {content[:80]!r}")
        return found

    def read_until_deadline(self, method: Method, *args: object, **options: object) -> tuple[bytes, bool]:
        """Make a call and return what came before the deadline, and whether that is all.

        Raises:
            ApiStatusError: If the answer is an error.
            BackendError: If there is none.
        """
        until_s = time.monotonic() + self.deadline_s
        pieces = []
        with self.stream(method, *args, read_s=self.deadline_s, **options) as response:
            for piece in response.stream(1 << 16):
                pieces.append(piece)
                if time.monotonic() > until_s:
                    return b"".join(pieces), False
        return b"".join(pieces), True

    @contextmanager
    def stream(self, method: Method, *args: object, read_s: float, **options: object) -> Iterator[Any]:
        """Make a call whose answer comes piece by piece, each within `read_s`.

        Raises:
            ApiStatusError: If the answer is an error.
            BackendError: If no answer comes, or it breaks off.
        """
        import urllib3
        from kubernetes.client.exceptions import ApiException

        response = None
        timeout = (self.deadline_s, read_s)
        try:
            response = method(*args, **options, _preload_content=False, _request_timeout=timeout)
            yield response
        except ApiException as error:
            if not error.status:
                raise BackendError(f"the API server cannot be reached: {error.reason}") from error
            raise ApiStatusError(error.status, _error_message(error)) from error
        except (urllib3.exceptions.HTTPError, OSError) as error:
            raise BackendError(f"no answer of the API server: {error}") from error
        finally:
            if response is not None:
                response.close()

    def close(self) -> None:
        """End all connections."""
        self._client.close()


def _error_message(error: Any) -> str:
    """Return the message of an error answer, in one line."""
    try:
        text = json.loads(error.body)["message"]
    except (KeyError, TypeError, ValueError):
        text = error.reason
    return " ".join(str(text).split())


ObjectT = TypeVar("ObjectT", bound=KubernetesObject)


class ObjectView(Generic[ObjectT]):
    """Follows the objects of one kind in a thread of its own.

    Args:
        api: Where they are.
        kind: Their name, for messages.
        lister: Method of the client that lists and watches them.
        model: What they are read as.
        args: For the lister.
        selector: Of labels.
    """

    def __init__(
        self,
        api: KubernetesApi,
        kind: str,
        lister: Method,
        model: type[ObjectT],
        args: Iterable[str] = (),
        selector: str = "",
    ) -> None:
        self._api, self._kind, self._lister, self._model = api, kind, lister, model
        self._args, self._selector = tuple(args), selector
        self._lock = threading.Lock()
        self._objects: dict[str, ObjectT] = {}
        self._learned: list[ObjectT] = []  # since the request for the list in progress
        self._version = ""  # of the whole copy
        self._stale_reason = "they are being listed"  # why it is not up to date, if so
        self._repeats = Repeats()
        self._fresh, self._ends = threading.Event(), threading.Event()
        self._response: Any = None
        self._thread = threading.Thread(target=self._run_thread, name=f"kubernetes {kind}", daemon=True)

    def start(self) -> None:
        """Start to follow."""
        self._thread.start()

    def close(self) -> None:
        """Stop to follow."""
        self._ends.set()
        response = self._response
        if response is not None:
            with suppress(Exception):  # It may be ending by itself at this moment.
                response.shutdown()
        self._thread.join()

    def wait_until_fresh(self, limit_s: float) -> None:
        """Wait until it is up to date, or until the limit."""
        self._fresh.wait(limit_s)

    def objects(self) -> dict[str, ObjectT]:
        """Return all objects by name.

        Raises:
            BackendError: If they may be out of date.
        """
        with self._lock:
            if not self._fresh.is_set():
                raise BackendError(f"{self._kind} of the cluster cannot be read at the moment: {self._stale_reason}")
            return dict(self._objects)

    def apply_written(self, value: Json) -> None:
        """Apply the answer to a write, which the stream of changes may have only later."""
        read = self._model.model_validate(value)
        with self._lock:
            self._store_newer(read)
            if not self._fresh.is_set():
                self._learned.append(read)

    def _run_thread(self) -> None:
        pause_s = _FIRST_PAUSE_S
        while not self._ends.is_set():
            try:
                self._list()
                self._repeats.forget()
                pause_s = _FIRST_PAUSE_S
                while not self._ends.is_set():
                    self._watch()
            except Exception as error:
                # After any error: without this thread the copy would never be up to date again.
                self._stale_reason = str(error) or type(error).__name__
                self._fresh.clear()
                if self._ends.is_set():
                    return
                is_usual = isinstance(error, ApiStatusError) and error.code == _VERSION_GONE
                level = logging.INFO if is_usual else logging.WARNING
                is_bug = not isinstance(error, BackendError)
                if message := self._repeats.message_to_log(self._stale_reason, time.monotonic()):
                    log.log(level, "%s are listed anew: %s", self._kind, message, exc_info=is_bug)
                self._ends.wait(pause_s)
                pause_s = min(pause_s * 2.0, _LONGEST_PAUSE_S)

    def _list(self) -> None:
        """Read all objects anew, without a version: the state of a restored server counts."""
        with self._lock:
            self._learned.clear()
        found: dict[str, ObjectT] = {}
        token: str | None = None
        while True:
            page = self._call_lister(limit=_PAGE, _continue=token)
            for value in page["items"]:
                read = self._model.model_validate(value)
                found[read.name] = read
            version, token = page["metadata"]["resourceVersion"], page["metadata"].get("continue")
            if not token:
                break
        with self._lock:
            self._objects, self._version = found, version
            for one in self._learned:
                self._store_newer(one)
            self._fresh.set()

    def _watch(self) -> None:
        """Follow the changes for a while; the end after that time proves that the server lives."""
        while_s, before = max(round(2.0 * self._api.deadline_s), 1), self._version
        with self._api.stream(
            self._lister, *self._args, watch=True, resource_version=before, allow_watch_bookmarks=True,
            timeout_seconds=while_s, read_s=while_s + self._api.deadline_s, **self._selector_options(),
        ) as response:  # fmt: skip
            self._response = response
            if self._ends.is_set():  # `close` may have come too early to see this response.
                return
            for line in _whole_lines(response):
                self._apply_event(json.loads(line))
        if self._version == before and not self._ends.is_set():
            # A restored server sends nothing about a version that it has not reached, but refuses a request for it.
            self._call_lister(limit=1, resource_version=before)

    def _apply_event(self, event: Json) -> None:
        kind, value = event["type"], event["object"]
        if kind == "ERROR":
            raise ApiStatusError(int(value.get("code", 500)), str(value.get("message", "")))
        with self._lock:
            self._version = value["metadata"]["resourceVersion"]
            if kind == "BOOKMARK":
                return
            read = self._model.model_validate(value)
            if kind == "DELETED":
                known = self._objects.get(read.name)
                if known is not None and known.uid == read.uid:
                    del self._objects[read.name]
            else:
                self._store_newer(read)

    def _store_newer(self, read: ObjectT) -> None:
        known = self._objects.get(read.name)
        if known is None or _version_number(known) < _version_number(read):
            self._objects[read.name] = read

    def _call_lister(self, **options: Any) -> Json:
        return self._api.call(self._lister, *self._args, **options, **self._selector_options())

    def _selector_options(self) -> dict[str, str]:
        return {"label_selector": self._selector} if self._selector else {}


def _version_number(read: KubernetesObject) -> int:
    """Return an object's version as a number: of one kind they grow (Kubernetes 1.35 promises it, etcd always did)."""
    return int(read.resource_version)


def _whole_lines(response: Any) -> Iterator[bytes]:
    """Return the whole lines of a stream; half a line at its end is none."""
    rest = b""
    for piece in response.stream(1 << 16):
        *whole, rest = (rest + piece).split(b"\n")
        yield from (line for line in whole if line)
        if len(rest) > _MAX_LINE_BYTES:
            raise BackendError(f"the API server sent a line of over {_MAX_LINE_BYTES} bytes")
    if rest:
        raise BackendError("the stream of changes was cut in the middle of a line")
