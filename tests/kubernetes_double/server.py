"""The HTTP side of the API server's double, with a fault switch for each verb."""

import json
import re
import threading
import time
from collections import deque
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple
from urllib.parse import parse_qs, urlsplit

from tests.kubernetes_double.admission import Admission
from tests.kubernetes_double.objects import ApiError, Key, Object, Objects, now
from tests.kubernetes_double.patching import APPLY, applied, patched
from tests.kubernetes_double.rules import check_changed, check_new

_PATH = re.compile(
    r"/(?:api|apis/(?P<group>[a-z0-9.]+))/v1(?:/namespaces/(?P<namespace>[a-z0-9-]+))?"
    r"/(?P<plural>[a-z]+)(?:/(?P<name>[a-z0-9.-]+)(?:/(?P<part>[a-z]+))?)?"
)
_KINDS = {
    "pods": "Pod", "nodes": "Node", "leases": "Lease", "resourceclaims": "ResourceClaim",
    "resourceslices": "ResourceSlice",
}  # fmt: skip
_BOOKMARK_S = 0.5  # real ones come once a minute, and shortly before a watch ends

HANG = "hang"  # accept, and never answer
CUT = "cut"  # of a watch: end in the middle of a line
LOSE = "lose"  # do it, and end the connection without an answer


class Call(NamedTuple):
    """A call as RBAC names it."""

    verb: str
    group: str
    resource: str


class Faults:
    """What goes wrong: by verb and resource, such as "create pods", for so many calls."""

    def __init__(self) -> None:
        self._planned: dict[str, deque[int | str | None]] = {}
        self._always: dict[str, int | str] = {}
        self.lifted = threading.Event()

    def once(self, call: str, *faults: int | str | None) -> None:
        """Let the next calls fail: with an HTTP status, HANG, CUT or LOSE; None lets one through."""
        self._planned.setdefault(call, deque()).extend(faults)

    def always(self, call: str, fault: int | str) -> None:
        """Let all calls fail from here on; "*" stands for every verb and resource."""
        self.lifted.clear()
        self._always[call] = fault

    def lift(self) -> None:
        """Let everything work again; what hangs ends."""
        self._planned.clear()
        self._always.clear()
        self.lifted.set()

    def of(self, call: Call) -> int | str | None:
        """Return what goes wrong with a call."""
        name = f"{call.verb} {call.resource}"
        planned = self._planned.get(name)
        return planned.popleft() if planned else self._always.get(name, self._always.get("*"))


class ApiServer:
    """Serves objects on loopback, with streams of changes.

    Args:
        objects: What is served.
        log_of: Returns the output of a pod, with a time before each line.
    """

    def __init__(self, objects: Objects, log_of: Callable[[Object], bytes]) -> None:
        self.objects, self.log_of = objects, log_of
        self.faults = Faults()
        self.admission = Admission(objects)
        self.calls: list[Call] = []
        self.ends = threading.Event()
        server = self

        class Connection(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def handle_one_request(self) -> None:
                try:
                    super().handle_one_request()
                except OSError:  # The other side ended it.
                    self.close_connection = True

            def answer(self) -> None:
                Request(server, self).answer()

            do_GET = do_POST = do_PATCH = do_PUT = do_DELETE = answer  # noqa: N815

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002
                pass

        self._http = ThreadingHTTPServer(("127.0.0.1", 0), Connection)
        self._http.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._http.server_port}"
        self._thread = threading.Thread(target=self._http.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Answer no more."""
        self.ends.set()
        self.faults.lift()
        self._http.shutdown()
        self._http.server_close()
        self._thread.join()


class Request:
    """One request and its answer."""

    def __init__(self, server: ApiServer, http: BaseHTTPRequestHandler) -> None:
        self.server, self.http = server, http
        parts = urlsplit(http.path)
        self.query = {name: values[-1] for name, values in parse_qs(parts.query).items()}
        length = int(http.headers.get("Content-Length") or 0)
        content = http.rfile.read(length)
        self.body: Any = json.loads(content) if content else None
        found = _PATH.fullmatch(parts.path)
        self.found: dict[str, str] = {k: v or "" for k, v in found.groupdict().items()} if found else {}

    def answer(self) -> None:
        """Do what is asked for, or what the fault switch says."""
        if self.found.get("plural") not in _KINDS:
            return self._send(404, ApiError(404, "NotFound", f"no {self.http.path}").status())
        call = self._call()
        self.server.calls.append(call)
        fault = self.server.faults.of(call)
        if fault == HANG:
            self.server.faults.lifted.wait()
            self.http.close_connection = True
            return None
        try:
            if isinstance(fault, int):
                raise ApiError(fault, "Fault", f"told to answer {fault}")
            self.server.admission.check_right(*call, self.found["namespace"])
            if call.verb == "watch":
                return self._stream(cut=fault == CUT)
            result = self._do(call.verb)
        except ApiError as error:
            return self._send(error.code, error.status())
        if fault == LOSE:
            self.http.close_connection = True
            return None
        return self._send(201 if call.verb == "create" else 200, result)

    def _call(self) -> Call:
        found, method = self.found, self.http.command
        resource = found["plural"] + (f"/{found['part']}" if found["part"] else "")
        verbs = {"POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
        if method != "GET":
            return Call(verbs[method], found["group"], resource)
        if found["name"]:
            return Call("get", found["group"], resource)
        return Call("watch" if self.query.get("watch") in ("1", "true", "True") else "list", found["group"], resource)

    @property
    def _key(self) -> Key:
        return self.found["plural"], self.found["namespace"], self.found["name"]

    def _do(self, verb: str) -> Object | bytes:
        objects, found, body = self.server.objects, self.found, self.body
        if found["part"] == "log":
            return self._log()
        if found["part"] == "binding":
            return objects.update(self._key, lambda pod: bound(pod, body["target"]["name"]))
        if verb == "get":
            return objects.get(self._key)
        if verb == "list":
            return self._list()
        if verb == "create":
            check_new(found["plural"], body)
            if found["plural"] == "pods":
                self.server.admission.check_pod(found["namespace"], body)
            return objects.create((found["plural"], found["namespace"], body["metadata"]["name"]), new(body, found))
        if verb == "delete":
            options = body or {}
            uid = options.get("preconditions", {}).get("uid")
            return objects.delete(self._key, uid, options.get("gracePeriodSeconds"))
        if self._content_type == APPLY:
            return self._apply()
        if verb == "update":
            return objects.update(self._key, lambda _: body)
        return objects.update(self._key, self._patch)

    @property
    def _content_type(self) -> str:
        return self.http.headers.get("Content-Type", "").partition(";")[0]

    def _apply(self) -> Object:
        """Merge what a manager applies into what is there; it owns those fields then. Nothing there: it is created."""
        objects, found, manager = self.server.objects, self.found, self.query["fieldManager"]
        with objects.changed:
            try:
                objects.get(self._key)
            except ApiError:
                if self.body["metadata"].get("uid"):
                    raise ApiError(409, "Conflict", "uid mismatch: no existing object was found") from None
                self.server.calls.append(Call("create", found["group"], found["plural"]))  # which needs that right, too
                check_new(found["plural"], self.body)
                return objects.create(self._key, new(applied({}, self.body, manager), found))
            return objects.update(self._key, lambda value: applied(value, self.body, manager))

    def _patch(self, value: Object) -> Object:
        changed = patched(self._content_type, value, self.body)
        if self.found["plural"] == "pods":
            check_changed(value, changed)
        return changed

    def _list(self) -> Object:
        objects = self.server.objects
        with objects.changed:
            wanted = int(self.query.get("resourceVersion") or 0)
            if wanted > objects.version:
                message = f"Too large resource version: {wanted}, current: {objects.version}"
                raise ApiError(504, "Timeout", message)
            items = [item for item in objects.each(*self._kind) if self._selects(item)]
            first = int(self.query.get("continue") or 0)
            size = int(self.query.get("limit") or 0) or len(items) or 1
            rest = str(first + size) if first + size < len(items) else ""
            meta = {"resourceVersion": str(objects.version), "continue": rest}
            kind = f"{_KINDS[self.found['plural']]}List"
            return {"kind": kind, "metadata": meta, "items": items[first : first + size]}

    @property
    def _kind(self) -> tuple[str, str]:
        return self.found["plural"], self.found["namespace"]

    def _selects(self, item: Object) -> bool:
        labels = item["metadata"].get("labels", {})
        for term in filter(None, self.query.get("labelSelector", "").split(",")):
            name, equals, value = term.partition("=")
            if name not in labels or (equals and labels[name] != value):
                return False
        return True

    def _stream(self, *, cut: bool) -> None:
        """Send changes as they come, until the time is over."""
        objects, version = self.server.objects, int(self.query["resourceVersion"])
        self.http.send_response(200)
        self.http.send_header("Content-Type", "application/json")
        self.http.send_header("Transfer-Encoding", "chunked")
        self.http.end_headers()
        until_s = time.monotonic() + float(self.query.get("timeoutSeconds", 300))
        allowed = self.query.get("allowWatchBookmarks") in ("1", "true", "True")
        bookmark_s = time.monotonic() + (_BOOKMARK_S if allowed else float("inf"))
        while time.monotonic() < until_s and not self.server.ends.is_set():
            try:
                with objects.changed:
                    changes = objects.changes_after(version, *self._kind)
                    if not changes:
                        objects.changed.wait(min(0.1, max(until_s - time.monotonic(), 0.0)))
            except ApiError as error:
                self._line({"type": "ERROR", "object": error.status()})
                break
            for change in changes:
                version = change.version
                if self._selects(change.object):
                    if cut:
                        return self._half_a_line({"type": change.kind, "object": change.object})
                    self._line({"type": change.kind, "object": change.object})
            if time.monotonic() >= bookmark_s:
                bookmark_s = time.monotonic() + _BOOKMARK_S
                with objects.changed:
                    if not objects.changes_after(version, *self._kind):
                        version = max(version, objects.version)
                bare = {"kind": _KINDS[self.found["plural"]], "metadata": {"resourceVersion": str(version)}}
                self._line({"type": "BOOKMARK", "object": bare})
        self.http.wfile.write(b"0\r\n\r\n")
        return None

    def _line(self, event: Object) -> None:
        content = json.dumps(event).encode() + b"\n"
        self.http.wfile.write(b"%x\r\n%b\r\n" % (len(content), content))
        self.http.wfile.flush()

    def _half_a_line(self, event: Object) -> None:
        content = json.dumps(event).encode()
        self.http.wfile.write(b"%x\r\n%b\r\n" % (len(content) // 2, content[: len(content) // 2]))
        self.http.wfile.flush()
        self.http.close_connection = True

    def _log(self) -> bytes:
        pod = self.server.objects.get(self._key)
        if not pod["status"].get("containerStatuses"):
            raise ApiError(400, "BadRequest", f'container in pod "{self.found["name"]}" is waiting to start')
        lines = [line + b"\n" for line in self.server.log_of(pod).split(b"\n")[:-1]]
        if "sinceSeconds" in self.query:
            since = time.time() - float(self.query["sinceSeconds"])
            text = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(since)).encode()
            lines = [line for line in lines if line[: len(text)] >= text]
        if self.query.get("timestamps") not in ("true", "True"):
            lines = [line.partition(b" ")[2] for line in lines]
        return b"".join(lines)

    def _send(self, code: int, result: Object | bytes) -> None:
        content = result if isinstance(result, bytes) else json.dumps(result).encode()
        self.http.send_response(code)
        self.http.send_header("Content-Type", "text/plain" if isinstance(result, bytes) else "application/json")
        self.http.send_header("Content-Length", str(len(content)))
        self.http.end_headers()
        self.http.wfile.write(content)


def new(value: Object, found: dict[str, str]) -> Object:
    """Return an object as the server stores it first: what it says of its own state does not count."""
    value = {**value, "metadata": dict(value["metadata"])}
    for field in ("uid", "resourceVersion", "deletionTimestamp"):
        value["metadata"].pop(field, None)
    if found["plural"] == "pods":
        value["status"] = {"phase": "Pending"}
    return value


def bound(pod: Object, node: str) -> Object:
    """Return a pod bound to a node.

    Raises:
        ApiError: If it is gated, being deleted, or bound already.
    """
    if pod["spec"].get("nodeName") or "deletionTimestamp" in pod["metadata"] or pod["spec"].get("schedulingGates"):
        raise ApiError(409, "Conflict", f"pod {pod['metadata']['name']} cannot be assigned to a host")
    pod["spec"]["nodeName"] = node
    placed = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now()}
    pod["status"]["conditions"] = [placed]
    return pod
