"""A process of a node may name any attempt in its environment: only names that attempts have are reported."""

import os
import sys
from pathlib import Path

import pytest

from longshore.scheduler.health.evidence import NodeReport
from longshore.scheduler.health.guarding import processes_by_attempt
from tests.support import processes

NAMES = {
    "ls-01m8a7dhgyfn818zs4bjbd4enq-1": True,
    "ls-debug": False,
    "ls-": False,
    "ls-job-1\n": False,
    "ls-job-1 ": False,
    "ls-JOB-1": False,
    "ls-jöb-1": False,
    f"ls-{'a' * 41}-1": False,
    "ls-a-1234567890": False,
    "xls-a-1": False,
}


@pytest.mark.parametrize("name", NAMES)
def test_a_report_holds_whatever_a_process_names(name: str, tmp_path: Path) -> None:
    code = "import sys; print('runs', flush=True); sys.stdin.read()"
    environment = {**os.environ, "LONGSHORE_ATTEMPT": name}
    with processes.start(
        [sys.executable, "-c", code], env=environment, stdin=processes.PIPE, stdout=processes.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "runs\n"
        found = processes_by_attempt()
        NodeReport(boot_id="b", attempts=tuple(sorted(found)))
        pids = {each.pid for them in found.values() for each in them}
        assert (process.pid in pids) is NAMES[name]
        process.kill()
