"""A server of files over HTTP that misbehaves in one given way for each request."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass
class Answers:
    """What the server does: `ways` for its first requests, the last of them for all others.

    Ways are `whole`, `cut:N` (the connection ends after N bytes of the body), `whole-no-range`, `cut-no-range:N`,
    `hang` (nothing comes), `hang:N` (nothing more comes after N bytes), `wrong-part`, `unsized` (no length is sent),
    `endless`, `packed`, `garbage`, `redirect:URL` and a status, such as `404`.
    """

    content: bytes
    ways: list[str] = field(default_factory=lambda: ["whole"])
    asked: list[tuple[str, str | None]] = field(default_factory=list)  # path and range of each request
    ended: threading.Event = field(default_factory=threading.Event)
    url: str = ""


class Handler(BaseHTTPRequestHandler):
    """Answers one request in the way whose turn it is."""

    server: "TraceServer"

    def do_GET(self) -> None:
        """Answer; the other side may have gone."""
        answers = self.server.answers
        way = answers.ways[min(len(answers.asked), len(answers.ways) - 1)]
        answers.asked.append((self.path, self.headers["Range"]))
        self.close_connection = True
        with suppress(OSError):
            self._answer(answers, *way.partition(":")[::2])

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def _answer(self, answers: Answers, way: str, more: str) -> None:
        if way.isdecimal():
            self.send_error(int(way))
        elif way == "redirect":
            self.send_response(302)
            self.send_header("Location", more)
            self.end_headers()
        elif way == "hang" and not more:
            answers.ended.wait(30.0)
        elif way == "garbage":
            self.wfile.write(b"\x16\x03 this is no HTTP\r\n\r\n")
        else:
            self._send(answers, way, int(more or 0))

    def _send(self, answers: Answers, way: str, most: int) -> None:
        first = int((self.headers["Range"] or "bytes=0-")[6:-1]) if "no-range" not in way else 0
        body = answers.content[first:]
        if first and not body:
            self.send_error(416)
            return
        self._head(way, first, len(answers.content))
        self.wfile.write(body[:most] if way.startswith(("cut", "hang")) else body)
        while way == "endless":
            self.wfile.write(b"x" * 65_536)
        if way == "hang":
            answers.ended.wait(30.0)
        self.connection.shutdown(socket.SHUT_RDWR)

    def _head(self, way: str, first: int, size: int) -> None:
        self.send_response(206 if first else 200)
        if first:
            self.send_header("Content-Range", f"bytes {first + (way == 'wrong-part')}-{size - 1}/{size}")
        if way == "packed":
            self.send_header("Content-Encoding", "gzip")
        if way not in ("unsized", "endless"):
            self.send_header("Content-Length", str(size - first))
        self.end_headers()


class TraceServer(ThreadingHTTPServer):
    """Serves one file under every path."""

    def __init__(self, answers: Answers) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = answers


@contextmanager
def serving(answers: Answers) -> Iterator[Answers]:
    """Serve until the block ends."""
    server = TraceServer(answers)
    thread = threading.Thread(target=server.serve_forever, args=(0.02,))
    thread.start()
    answers.url = f"http://127.0.0.1:{server.server_address[1]}"
    try:
        yield answers
    finally:
        answers.ended.set()
        server.shutdown()
        server.server_close()
        thread.join()
