"""What is built and installed, without the checkout beside it."""

import os
import shutil
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.support import processes

pytestmark = pytest.mark.full

ROOT = Path(__file__).parent.parent
ROOMS = ("agents", "cluster", "envs", "eval", "planner", "preflight", "ring", "scheduler", "training")


def run(*arguments: object, cwd: Path, **variables: str) -> processes.CompletedProcess[str]:
    command = [sys.executable, "-m", *map(str, arguments)]
    return processes.run(command, cwd=cwd, capture_output=True, check=False, env=os.environ | variables)


def tracked() -> list[Path]:
    if shutil.which("git") is None or not (ROOT / ".git").exists():
        pytest.skip("what belongs to the project is asked of git, and this is no checkout")
    listed = processes.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, check=True)
    return [Path(name) for name in listed.stdout.split("\0") if name]


def copy_files(names: Sequence[Path], to: Path) -> None:
    for name in names:
        if (ROOT / name).is_symlink() or (ROOT / name).exists():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, to / name, follow_symlinks=False)


def unreachable(said: str) -> bool:
    """Whether a build failed because its isolated environment could not be filled from PyPI."""
    return "No matching distribution found for setuptools" in said or "ConnectionError" in said


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("built")
    copy_files(tracked(), folder / "source")
    built = run("build", "--outdir", folder / "dist", cwd=folder / "source")
    if built.returncode and unreachable(built.stdout + built.stderr):
        pytest.skip("building in isolation needs setuptools from PyPI, which cannot be reached")
    assert built.returncode == 0, built.stdout + built.stderr
    (made,) = (folder / "dist").glob("*.whl")
    return made


def test_a_wheel_holds_the_package_with_its_rooms_and_nothing_else(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        entries = archive.infolist()
    names = {entry.filename for entry in entries}
    tops = {name.split("/")[0] for name in names}
    assert tops == {"longshore", next(top for top in tops if top.endswith(".dist-info"))}
    assert not any(entry.external_attr >> 28 == 0o12 for entry in entries)  # 0o12: a symbolic link
    assert not [name for name in names if Path(name).name.startswith("test_")]
    assert {f"longshore/{room}/__init__.py" for room in ROOMS} <= names
    data = ("py.typed", "checkpoints/hetero64.zip", "checkpoints/hetero64.md", "eval/report.html")
    assert {f"longshore/{name}" for name in data} <= names


def test_a_wheel_holds_every_tracked_file_of_the_rooms(wheel: Path) -> None:
    with zipfile.ZipFile(wheel) as archive:
        names = set(archive.namelist())
    ours = {f"longshore/{name}" for name in tracked() if name.parts[0] in {*ROOMS, "checkpoints"}}
    assert ours - names == set()


def test_an_installed_wheel_works_without_the_checkout(wheel: Path, tmp_path: Path) -> None:
    site = tmp_path / "site"
    installed = run("pip", "install", "--quiet", "--no-deps", "--no-index", "--target", site, wheel, cwd=tmp_path)
    assert installed.returncode == 0, installed.stderr
    shutil.copy(ROOT / "examples" / "small.yaml", tmp_path)
    asked = [sys.executable, "-c", "import longshore; print(longshore.__file__)"]
    variables = os.environ | {"PYTHONPATH": str(site)}
    found = processes.run(asked, cwd=tmp_path, env=variables, capture_output=True, check=True)
    assert Path(found.stdout.strip()).is_relative_to(site)
    # Compiled code is kept by the path of its source, so that kernels would be compiled anew in each run of this test.
    plain = {"PYTHONPATH": str(site), "NUMBA_DISABLE_JIT": "1"}
    listed = run("longshore", "policy", "list", cwd=tmp_path, **plain)
    assert listed.returncode == 0, listed.stderr
    assert "hetero64" in listed.stdout
    given = ("--cluster", "small.yaml", "--policy", "pack", "--jobs", "20")
    simulated = run("longshore", "simulate", *given, cwd=tmp_path, **plain)
    assert simulated.returncode == 0, simulated.stderr
    assert simulated.stdout
