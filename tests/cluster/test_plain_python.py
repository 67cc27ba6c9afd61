"""The kernels as plain Python, without Numba's compiler."""

import json
import os
import sys
from pathlib import Path

import pytest

from tests.plain_run import Runs, all_runs
from tests.support import processes

ROOT = Path(__file__).parents[2]


def test_kernels_in_plain_python_run_the_same_events_as_compiled() -> None:
    environment = {**os.environ, "NUMBA_DISABLE_JIT": "1"}
    command = [sys.executable, "-W", "error", "-m", "tests.plain_run"]
    done = processes.run(command, cwd=ROOT, env=environment, capture_output=True, check=False)
    assert done.returncode == 0, done.stderr
    plain: Runs = json.loads(done.stdout)
    compiled = all_runs()
    assert plain.keys() == compiled.keys()
    for name, events in compiled.items():
        assert [event[1:] for event in plain[name]] == [event[1:] for event in events], name
        assert [event[0] for event in plain[name]] == pytest.approx([event[0] for event in events], rel=1e-12)
    assert sum(event[1] == "stop" for events in compiled.values() for event in events) > 50
