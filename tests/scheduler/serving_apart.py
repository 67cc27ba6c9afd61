"""A real scheduler in the network namespace of the test."""

import os
import sys
import time
from pathlib import Path
from typing import IO

import httpx

from tests.support import processes

WITHIN_S = 60.0  # for it to start


def serve_apart(
    folder: Path, settings: str, url: str, log: IO[str]
) -> tuple[processes.Process[bytes], httpx.Client, str]:
    """Start a scheduler, and return its process, a client with its token, and the token.

    Args:
        folder: Of its settings, in which the token is written to `served/token`.
        settings: Of it, as YAML.
        url: At which it serves.
        log: For what it says.
    """
    (folder / "longshore.yaml").write_text(settings)
    serve = [sys.executable, "-m", "longshore", "serve", "--config", str(folder / "longshore.yaml")]
    environment = {**os.environ, "XDG_STATE_HOME": str(folder / "state")}  # nothing is left in the home of who tests
    process = processes.start(serve, cwd=folder, env=environment, stdout=log, stderr=log)
    token, until_s = folder / "served" / "token", time.monotonic() + WITHIN_S
    while not (token.exists() and token.read_text().strip()):
        assert time.monotonic() < until_s, "no token"
        time.sleep(0.05)
    secret = token.read_text().split()[-1]
    headers = {"Authorization": f"Bearer {secret}"}
    return process, httpx.Client(base_url=url, headers=headers, timeout=WITHIN_S, trust_env=False), secret
