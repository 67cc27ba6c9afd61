"""The example of a policy as a package: built, installed, and obeyed by a real scheduler."""

import importlib.util
import shutil
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.registry import find_policy, policy_names
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.store.database import open_store
from longshore.testing.twin import starts_of
from tests.plain_run import busy_case
from tests.scheduler.twin_run import layout_of, simulated, twin_of
from tests.support import processes

EXAMPLE = Path(__file__).parents[2] / "examples" / "plugin-policy"
PATIENCE_S = 120.0  # far more than anything here takes
NEEDED = ("pip", "setuptools")


def installed(folder: Path) -> Path:
    """Return a folder into which the example is installed from a copy, without a network."""
    source, target = folder / "source", folder / "site"
    shutil.copytree(EXAMPLE, source)
    line = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-index"]
    done = processes.run(
        [*line, "--no-deps", "--no-build-isolation", "--target", str(target), str(source)],
        capture_output=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return target


@pytest.mark.full
@pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in NEEDED) or int(version("setuptools").partition(".")[0]) < 77,
    reason="the example is built here by pip and setuptools 77 or newer; install both",
)
def test_the_example_is_installed_found_by_name_and_decides_about_jobs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(installed(tmp_path))
    case = busy_case(ring=True)
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    twin = twin_of(case, store, Placer(HEURISTICS["pack"], "one-rack", PATIENCE_S))
    assert twin.scheduler.tick()
    twin.parts.placer.wait_until_ready(PATIENCE_S)

    twin.run()
    twin.scheduler.close()
    starts = starts_of(store, layout_of(case))
    store.close()

    assert "one-rack" in policy_names()
    assert twin.parts.placer.version == "longshore-rack-policy 0.1.0"
    assert not twin.parts.placer.misses
    assert starts == simulated(case, find_policy("one-rack"))
