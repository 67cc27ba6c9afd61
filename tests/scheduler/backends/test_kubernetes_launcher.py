"""The launcher in each pod: what its ranks get, and how it waits for those that do not end."""

import fcntl
import json
import os
import select
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from longshore.cluster.model.placement import Share
from longshore.scheduler.backends.kubernetes import launcher
from longshore.scheduler.backends.kubernetes.launcher import Launcher
from longshore.scheduler.backends.kubernetes.pods import PodPart, launcher_spec
from longshore.scheduler.backends.kubernetes.settings import KubernetesSettings
from longshore.scheduler.backends.protocol import Attempt
from tests.support import processes

PLACEMENT = (Share("a", (0, 1)),)


def spec_of(folder: Path, *command: str) -> dict[str, Any]:
    """Return what a launcher is to run in a folder."""
    attempt = Attempt("ls-job-1", "job", 1, command, str(folder), {}, grace_s=0.0)
    spec = launcher_spec(attempt, PLACEMENT, PodPart(0, PLACEMENT[0], 0, ()), KubernetesSettings(image="x"))
    return {**json.loads(json.dumps(spec)), "home": str(folder), "message": str(folder / "message")}


@pytest.mark.parametrize("number", [20, 900])
def test_a_rank_has_no_descriptor_of_its_launcher(number: int, tmp_path: Path) -> None:
    spec = spec_of(tmp_path, "sh", "-c", "for at in /proc/$$/fd/*; do echo ${at##*/}; done")
    with (tmp_path / "open").open("w") as file:
        inherited = fcntl.fcntl(file.fileno(), fcntl.F_DUPFD, number)
        line = [sys.executable, "-I", "-S", str(Path(launcher.__file__)), json.dumps(spec)]
        done = processes.run(line, capture_output=True, check=True, pass_fds=[inherited])
        os.close(inherited)
    shown = [row.partition(" ")[2] for row in done.stdout.splitlines() if row.startswith("0@")]
    assert {"0", "1", "2"} <= set(shown)
    assert str(inherited) not in shown


def test_a_launcher_does_not_spin_while_a_killed_rank_hangs_in_the_kernel(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, killed = Launcher(spec_of(tmp_path, "true")), list[int]()
    now_s = [1000.0]

    def wait(*given: Any) -> tuple[list[int], list[int], list[int]]:
        now_s[0] += given[3]
        return [], [], []

    monkeypatch.setattr(os, "killpg", lambda _pid, number: killed.append(number))
    monkeypatch.setattr(os, "waitpid", lambda *_: (0, 0))
    monkeypatch.setattr(select, "select", wait)
    monkeypatch.setattr(launcher, "time", SimpleNamespace(monotonic=lambda: now_s[0], time=lambda: now_s[0]))
    own._ranks = {1 << 22: 0}
    own._stop_ranks("cancelled")
    for _ in range(20):
        own._handle_events(-1)
    assert now_s[0] > 1000.0 + 5.0
    assert len(killed) > 2  # SIGTERM, and SIGKILL more than once
