"""Links of nodes that are cut, in real namespaces: another node tells a broken link from a node that is gone."""

import json
import os
import sys
from pathlib import Path

import pytest

from benchmarks.namespaces import NAMESPACES, why_not
from tests.checkout import ROOT
from tests.support import processes
from tests.support.processes import PYTHON_PATH


@pytest.mark.full
def test_a_node_is_unreachable_if_only_its_link_to_the_scheduler_is_cut_and_dead_if_all_links_are(
    tmp_path: Path,
) -> None:
    if why := why_not():
        pytest.skip(why)
    environment = {**os.environ, "PYTHONPATH": PYTHON_PATH}
    command = [*NAMESPACES, sys.executable, "-m", "tests.scheduler.apart_nodes", str(tmp_path)]
    done = processes.run(command, cwd=ROOT, env=environment, capture_output=True, timeout_s=500, check=False)
    log = (tmp_path / "log").read_text() if (tmp_path / "log").exists() else ""
    assert done.returncode == 0, done.stderr + log
    reported = json.loads(done.stdout.splitlines()[-1])
    assert "rack0-node2 reaches it: the link between it and the scheduler is broken" in reported["link"]
    assert reported["power"].startswith("slow: ")
    for who in ("the scheduler", "rack0-node2"):
        assert f"{who} gets no answer" in reported["power"] or f"{who} finds no route" in reported["power"]
    assert "last answer" in reported["back"]
    assert reported["other"] == "alive"
