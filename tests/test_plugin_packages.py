"""What another package registers is used by the command line, as a user would."""

import os
import sys
from pathlib import Path

import pytest

from tests.extending_page import PARTS, files_of, points_of
from tests.packages import write_package
from tests.support import processes

pytestmark = pytest.mark.full

ROOT = Path(__file__).parent.parent


def call(folders: list[Path], *arguments: str) -> processes.CompletedProcess[str]:
    """Call longshore, or Python by -c, with packages on the path, and without compilation of their kernels."""
    path = os.pathsep.join(str(folder) for folder in folders)
    environment = os.environ | {"NUMBA_DISABLE_JIT": "1", "PYTHONPATH": path, "COLUMNS": "200"}
    line = [sys.executable, *arguments] if arguments[0] == "-c" else [sys.executable, "-m", "longshore", *arguments]
    return processes.run(line, capture_output=True, check=False, env=environment)


@pytest.fixture
def packages(tmp_path: Path) -> list[Path]:
    """The examples of docs/extending.md whose kernels ours call."""
    folders = []
    for title in ("A policy", "A reward"):
        ((group, points),) = points_of(PARTS[title]).items()
        folder = tmp_path / group.removeprefix("longshore.")
        write_package(folder, folder.name, points)
        for name, text in files_of(PARTS[title]).items():
            (folder / name).write_text(text)
        folders.append(folder)
    return folders


def test_jobs_are_simulated_by_the_policy_of_a_plugin(packages: list[Path]) -> None:
    small = str(ROOT / "examples" / "small.yaml")
    done = call(packages, "simulate", "--cluster", small, "--jobs", "8", "--policy", "fullest")
    assert done.returncode == 0, done.stderr
    assert "8" in done.stdout
    listed = call(packages, "policy", "list")
    assert "fullest " in listed.stdout
    assert "fewest free GPUs first" in listed.stdout


def test_help_and_messages_name_what_a_plugin_adds(packages: list[Path]) -> None:
    shown = " ".join(call(packages, "train", "--help").stdout.split())
    assert "waste" in shown
    wrong = call(packages, "train", "--reward", "wast", "--steps", "1")
    assert "did you mean 'waste'" in wrong.stderr


def test_a_broken_package_stops_no_user_of_other_packages(tmp_path: Path) -> None:
    folders = []
    for seam in ("policies", "rewards", "metrics", "networks", "traces"):
        write_package(tmp_path / seam, seam, {"broken": "nowhere:THING"})
        folders.append(tmp_path / seam)
    small = str(ROOT / "examples" / "small.yaml")
    simulate = ("simulate", "--cluster", small, "--jobs", "3")
    assert call(folders, *simulate).returncode == 0
    done = call(folders, *simulate, "--policy", "broken")
    assert done.returncode == 2
    assert "'broken' (nowhere:THING) cannot be imported" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_kernel_of_a_package_that_cannot_be_called_stops_no_user_of_other_packages(tmp_path: Path) -> None:
    text = (
        "from longshore.envs.rewards import Reward\n"
        "from longshore.cluster.kernels.compiled import kernel\n"
        "@kernel\ndef cost_s(sim):\n    return 0.0\n"
        "REWARD = Reward('takes too little', cost_s)\n"
    )
    write_package(tmp_path, "rewards", {"short": "short_module:REWARD"})
    (tmp_path / "short_module.py").write_text(text)
    small = str(ROOT / "examples" / "small.yaml")
    assert call([tmp_path], "simulate", "--cluster", small, "--jobs", "3").returncode == 0
    made = "import gymnasium, longshore; gymnasium.make('longshore/Hetero64-v0', scenarios=1, reward='short')"
    done = call([tmp_path], "-c", made)
    assert "the cost of reward 'short' takes 1 arguments, expected 2" in done.stderr
