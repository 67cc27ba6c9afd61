from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.cluster.traces.public.download_runs import CSV, Download, row
from tests.cluster.traces.public.trace_server import Answers, serving
from tests.command_line import Command


@pytest.fixture(autouse=True)
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Work in a folder of its own, straight (no proxy), and without long pauses."""
    monkeypatch.chdir(tmp_path)
    for name in ("HTTP_PROXY", "http_proxy", "ALL_PROXY", "all_proxy", "LONGSHORE_MIRROR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr("longshore.cluster.traces.download.RETRY_PAUSE_S", 0.0)
    return tmp_path


@pytest.fixture
def server() -> Iterator[Answers]:
    with serving(Answers(CSV)) as answers:
        yield answers


@pytest.fixture
def download(longshore: Command, server: Answers) -> Download:
    return Download(longshore, server, row(CSV))
