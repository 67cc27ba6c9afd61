"""What the markers of an attempt on several nodes prove, as supervisors write them."""

import os
import time
from pathlib import Path

import pytest

from longshore.cluster.files.durable import make_folder, open_folder
from longshore.scheduler.backends.local.supervision import write_exit_marker
from longshore.scheduler.backends.shared_folder.backend import proven_status, read_records
from longshore.scheduler.backends.shared_folder.node import claim_attempt, write_stop
from longshore.scheduler.model.states import Run, Status

NAME = "ls-x-1"
LOST = "node fault: Ray lost node d"


def reported(folder: Path, *reasons: str, stop: str) -> Status | None:
    """Return the status of an attempt whose ranks all ended with 0, each on a node that wrote why it stopped it."""
    attempt = open_folder(str(folder))
    claim_attempt(attempt, NAME, job=1, parts=len(reasons), ranks=len(reasons), address="d")
    if stop:
        write_stop(attempt, NAME, stop)
    for number, reason in enumerate(reasons):
        make_folder(attempt, f"part-{number}")
        part = open_folder(f"part-{number}", inside=attempt)
        write_exit_marker(part, NAME, reason, time.time(), [(number, 0, 0, time.time())])
        os.close(part)
    status = proven_status(read_records(attempt, NAME, folder / "ring"))
    os.close(attempt)
    return status


def test_ranks_that_were_stopped_for_a_lost_node_are_not_done_even_if_they_ended_with_0(
    tmp_path: Path,
) -> None:
    status = reported(tmp_path, LOST, LOST, stop=LOST)
    assert status is not None
    assert (status.run, status.reason) == (Run.LOST, LOST)


def test_ranks_that_had_all_ended_by_themselves_are_done_whatever_node_was_missed_after_that(tmp_path: Path) -> None:
    status = reported(tmp_path, "", "", stop=LOST)
    assert status is not None
    assert (status.run, len(status.ends)) == (Run.EXITED, 2)


@pytest.mark.parametrize("content", [b"{torn", b"[]", b"{}", b"1", b"[" * 60_000])
def test_a_reason_that_makes_no_sense_is_no_more_than_a_marker_that_cannot_be_read(
    tmp_path: Path, content: bytes
) -> None:
    (tmp_path / "stop.json").write_bytes(content)
    with pytest.raises(ValueError, match=r"."):
        reported(tmp_path, "", stop="")
