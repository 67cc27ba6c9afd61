"""A Kubernetes API with pods and nodes over real HTTP: lists by page, watches, and versions that are no longer kept."""

import json
import queue
import ssl
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, urlparse

PAGE = 2  # objects of a page, whatever the client asks for
Stored = dict[str, dict[str, Any]]


class KubernetesApi:
    """Objects by path and uid, and those who watch them."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.version = 1
        self.objects: dict[str, Stored] = {"/api/v1/pods": {}, "/api/v1/nodes": {}}
        self.watchers: dict[str, list[queue.Queue[bytes | None]]] = {path: [] for path in self.objects}
        self.told: dict[str, list[tuple[int, dict[str, Any]]]] = {path: [] for path in self.objects}
        self.lists = 0
        self.authorization: str | None = None  # of the last request

    def put(self, path: str, uid: str, it: dict[str, Any]) -> None:
        what = "MODIFIED" if uid in self.objects[path] else "ADDED"
        self._change(path, what, uid, it)

    def delete(self, path: str, uid: str) -> None:
        self._change(path, "DELETED", uid, self.objects[path][uid])

    def _change(self, path: str, what: str, uid: str, it: dict[str, Any]) -> None:
        with self.lock:
            self.version += 1
            it = {**it, "metadata": {**it["metadata"], "uid": uid, "resourceVersion": str(self.version)}}
            if what == "DELETED":
                del self.objects[path][uid]
            else:
                self.objects[path][uid] = it
            self.told[path].append((self.version, {"type": what, "object": it}))
            self.tell(path, {"type": what, "object": it})

    def tell(self, path: str, event: dict[str, Any]) -> None:
        for watcher in self.watchers[path]:
            watcher.put(json.dumps(event).encode() + b"\n")

    def forget(self, path: str) -> None:
        """Send to all watches that their version is no longer kept."""
        self.tell(path, {"type": "ERROR", "object": {"kind": "Status", "code": 410, "reason": "Expired"}})

    def page(self, path: str, after: str) -> dict[str, Any]:
        with self.lock:
            self.lists += 1
            uids = sorted(self.objects[path])
            left = [uid for uid in uids if uid > after]
            more = left[PAGE - 1] if len(left) > PAGE else ""
            metadata = {"resourceVersion": str(self.version), "continue": more}
            return {"metadata": metadata, "items": [self.objects[path][uid] for uid in left[:PAGE]]}

    def watch(self, path: str, version: int) -> "queue.Queue[bytes | None]":
        with self.lock:
            received: queue.Queue[bytes | None] = queue.Queue()
            for at, event in self.told[path]:
                if at > version:
                    received.put(json.dumps(event).encode() + b"\n")
            bookmark = {"type": "BOOKMARK", "object": {"metadata": {"resourceVersion": str(self.version)}}}
            received.put(json.dumps(bookmark).encode() + b"\n")
            self.watchers[path].append(received)
            return received

    def hang_up(self) -> None:
        with self.lock:
            for watchers in self.watchers.values():
                for watcher in watchers:
                    watcher.put(None)
                watchers.clear()


@contextmanager
def kubernetes_api(encryption: ssl.SSLContext | None = None) -> Iterator[tuple[KubernetesApi, str]]:
    api = KubernetesApi()

    class Answers(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            url = urlparse(self.path)
            api.authorization = self.headers.get("Authorization")
            proposal = {key: values[0] for key, values in parse_qs(url.query).items()}
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.end_headers()
            if "watch" not in proposal:
                self.wfile.write(json.dumps(api.page(url.path, proposal.get("continue", ""))).encode())
                return
            received = api.watch(url.path, int(proposal["resourceVersion"]))
            while (line := received.get()) is not None:
                self.wfile.write(line)
                self.wfile.flush()

        def log_message(self, format: str, *args: object) -> None:  # noqa: A002
            return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Answers)
    server.daemon_threads = True
    if encryption is not None:
        server.socket = encryption.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield api, f"http{'' if encryption is None else 's'}://127.0.0.1:{server.server_address[1]}"
    finally:
        api.hang_up()
        server.shutdown()
        thread.join()
        server.server_close()
