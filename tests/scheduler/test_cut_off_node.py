"""A node whose link is cut, or whose agent is killed, in real namespaces: its lease ends what runs there in time."""

import json
import os
import shutil
import sys
from pathlib import Path

import pytest

from benchmarks.namespaces import NAMESPACES, why_not
from tests.checkout import ROOT
from tests.scheduler.cut_off_node import SETS_BY_S
from tests.support import processes
from tests.support.processes import PYTHON_PATH

pytestmark = [pytest.mark.full, pytest.mark.long]

SET = [pytest.param(it, marks=pytest.mark.full) for it in SETS_BY_S]  # the node's clock, by an hour


@pytest.mark.parametrize("mode", ["link", pytest.param("agent", marks=pytest.mark.full), *SET])
def test_what_runs_on_a_node_that_is_cut_off_ends_before_the_scheduler_takes_it_for_gone(
    mode: str, tmp_path: Path
) -> None:
    if why := why_not():
        pytest.skip(why)
    if mode in SETS_BY_S and shutil.which("cc") is None:
        pytest.skip("no C compiler is installed")
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    command = [*NAMESPACES, sys.executable, "-m", "tests.scheduler.cut_off_node", str(tmp_path), mode]
    done = processes.run(command, cwd=ROOT, env=environment, capture_output=True, timeout_s=300, check=False)
    log = (tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""
    assert done.returncode == 0, done.stderr + log
    reported = json.loads(done.stdout.splitlines()[-1])
    # The last answer may have come up to a second before; its lease lasts 10 s from when it was asked for.
    assert 8.0 <= reported["killed_s"] < reported["fenced_s"]
    assert reported["fenced_s"] >= 11.0
    # Until then leases were renewed, whatever the node's clock said.
    assert (reported["lived"], reported["alive"]) == (1.0, 1.0)
    if mode != "agent":
        assert reported["back_s"] > reported["fenced_s"]
