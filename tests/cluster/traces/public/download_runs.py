"""Runs of `longshore trace download` against a server of this process."""

import hashlib
import json
from pathlib import Path
from typing import Any

from tests.cluster.traces.public.trace_server import Answers
from tests.command_line import Command, Done

CSV = b"id,gpus,work_s,submit_s\n" + b"".join(b"job-%d,1,%d,%d\n" % (i, 60 + i, 10 * i) for i in range(20_000))


def row(content: bytes, **other: object) -> dict[str, Any]:
    """Return the row of a catalogue for a file."""
    return {
        "name": "small",
        "repository": "somebody/traces",
        "commit": "0123456789abcdef" * 2 + "01234567",
        "path": "data/small.csv",
        "sha256": hashlib.sha256(content).hexdigest(),
        "size_bytes": len(content),
        "licence": "CC-BY-4.0 (somebody/traces)",
        "good_for": "trying out",
        "saved_as": "small.csv",
        **other,
    }


class Download:
    """Runs `longshore trace download small` against a server, with a catalogue of one trace."""

    def __init__(self, longshore: Command, server: Answers, row: dict[str, Any]) -> None:
        self.longshore, self.server, self.row = longshore, server, row

    def __call__(self, *options: object, ways: list[str] | None = None, timeout: float = 20.0) -> Done:
        Path("catalogue.json").write_text(json.dumps([self.row]))
        self.server.ways, self.server.asked = ways or ["whole"], []
        return self.longshore(
            "trace", "download", "small", "--catalogue", "catalogue.json", "--mirror", self.server.url,
            "--timeout", timeout, *options,
        )  # fmt: skip


def left() -> set[str]:
    return {path.name for path in Path().iterdir()} - {"catalogue.json"}


def refused(done: Done) -> str:
    """Return the message of a download that failed with one line."""
    assert done.status == 2, done
    lines = [line for line in done.err.splitlines() if line.startswith("longshore: ")]
    assert len(lines) == 1, done.err
    assert "Traceback" not in done.err
    return lines[0]
