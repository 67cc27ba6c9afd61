"""A stop is recorded for the supervisors of other nodes, however long the shared folder cannot be written."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from longshore.scheduler.backends.local import supervision
from longshore.scheduler.backends.local.ranks import Spec
from longshore.scheduler.backends.shared_folder import node
from longshore.scheduler.backends.shared_folder.node import SharedStopRequests, read_stop

SPEC = Spec("ls-job-1", "job", 1, ("true",), "/", {}, 1.0, None, (), 0, 0, "node")


class EndedGang:
    """Ranks of which one has failed, and none lives."""

    is_running, ends = False, ((0, 1, 0, 1.0),)

    def __init__(self) -> None:
        self.reason = "rank failed"

    def wait_for_sigterm_or_end(self, limit_s: float) -> bool:
        return False

    def stop(self, reason: str) -> None:
        raise AssertionError("it has ended")

    def tend(self) -> None:
        """Nothing is left to do."""


@pytest.fixture
def requests(tmp_path: Path) -> Iterator[SharedStopRequests]:
    folder = os.open(tmp_path, os.O_RDONLY)
    (tmp_path / "started.json").touch()
    yield SharedStopRequests(folder, folder, SPEC.attempt, "stopped by x")
    os.close(folder)


@pytest.mark.parametrize("failures", [0, 1, 5, 10_000])
def test_it_is_tried_again_for_a_while(
    failures: int, requests: SharedStopRequests, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    write, left = node.write_stop, [failures]

    def fails_first(folder: int, attempt: str, reason: str) -> None:
        left[0] -= 1
        if left[0] >= 0:
            raise OSError(28, "no space")
        write(folder, attempt, reason)

    monkeypatch.setattr(node, "write_stop", fails_first)
    gang = EndedGang()
    supervision._watch_ranks(gang, SPEC, requests.folder, requests)  # type: ignore[arg-type]
    assert gang.reason == "rank failed"
    assert (tmp_path / "stop.json").exists() == (failures < 100)
    if failures < 100:
        assert read_stop(requests.folder) == "rank failed"
