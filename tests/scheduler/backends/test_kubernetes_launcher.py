"""The launcher in each pod: how it waits for ranks that do not end."""

import json
import os
import select
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

PLACEMENT = (Share("a", (0, 1)),)


def spec_of(folder: Path, *command: str) -> dict[str, Any]:
    """Return what a launcher is to run in a folder."""
    attempt = Attempt("ls-job-1", "job", 1, command, str(folder), {}, grace_s=0.0)
    spec = launcher_spec(attempt, PLACEMENT, PodPart(0, PLACEMENT[0], 0, ()), KubernetesSettings(image="x"))
    return {**json.loads(json.dumps(spec)), "home": str(folder), "message": str(folder / "message")}


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
