"""`python -m longshore.ring`, and what it costs to import."""

import os
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.support import processes

from .ring_command import VARIABLES, ring
from .tiny import tiny


@pytest.mark.parametrize("module", ["longshore.ring", "longshore.ring.coordinator_server"])
def test_what_starts_a_ring_needs_nothing_but_python(module: str) -> None:
    code = f"import sys, {module}; print(*{{name.split('.')[0] for name in sys.modules}})"
    done = processes.run([sys.executable, "-c", code], env=VARIABLES, capture_output=True, check=True)
    assert not set(done.stdout.split()) & {"torch", "numpy", "pydantic", "numba", "sqlalchemy"}


def test_a_script_outside_of_a_ring_gets_the_command_that_starts_one(tmp_path: Path) -> None:
    code = "from longshore.ring import Ring; Ring(None, None)"
    done = processes.run([sys.executable, "-c", code], env=VARIABLES, capture_output=True, check=False)
    assert "this process is no member of a ring: LONGSHORE_RING_ADDRESS is not set; start the script by" in done.stderr


def test_a_ring_ends_with_the_status_of_its_scripts(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(tiny(last="sys.exit(5 if ring.seat == 1 else 0)"))
    run = ring("--seats", 2, "--", "python", script, folder=tmp_path)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 5, errors
    assert "generation 1 runs with 2 of 2 members" in errors


@pytest.mark.full
def test_a_ring_whose_members_name_different_ends_is_lost_with_that_reason(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(tiny(until="3 + 2 * ring.seat"))
    run = ring("--seats", 3, "--", "python", script, folder=tmp_path)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 3
    assert re.search("the ring is lost: member 0 .* 3 .*member 1 .*`until`", errors)


def test_a_ring_whose_script_cannot_run_is_lost(tmp_path: Path) -> None:
    code = """
import os
from pathlib import Path
Path(f"local-{os.environ['LOCAL_RANK']}-{os.environ['LOCAL_WORLD_SIZE']}-{os.getpid()}").touch()
raise SystemExit(9)
"""
    run = ring("--seats", 2, "--no-warm", "--restarts", 1, "--", "python", "-c", code, folder=tmp_path)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 3
    places = sorted(it.name.rpartition("-")[0] for it in tmp_path.glob("local-*"))
    # A replacement has the local rank of its predecessor.
    assert places in (["local-0-2", "local-0-2", "local-1-2"], ["local-0-2", "local-1-2", "local-1-2"])
    assert "ended with status 9" in errors
    assert "the ring is lost: no member connected" in errors


def test_a_missing_program_is_named(tmp_path: Path) -> None:
    run = ring("--seats", 1, "--restarts", 0, "--", "no-such-program", folder=tmp_path)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 3
    assert "member 0 cannot be started" in errors
    assert "no-such-program" in errors


@pytest.mark.parametrize(
    "arguments", [["--seats", "0", "--", "x"], ["--seats", "2", "--spares", "-1", "--", "x"], ["--seats", "2"]]
)
def test_options_that_make_no_sense_are_refused(arguments: list[str], tmp_path: Path) -> None:
    run = ring(*arguments, folder=tmp_path)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 2
    assert errors.splitlines()[-1].startswith("python -m longshore.ring: error:")


@pytest.mark.full
def test_members_are_forked_from_a_warm_process_however_long_the_path_of_the_folder_is(tmp_path: Path) -> None:
    folder = tmp_path / ("of a user with a long name " * 5) / "attempts"
    folder.mkdir(parents=True)
    script = tmp_path / "train.py"
    parent = "pathlib.Path('parent').write_text(pathlib.Path(f'/proc/{os.getppid()}/cmdline').read_text())"
    script.write_text(tiny(parent))
    run = ring("--seats", 1, "--folder", folder, "--", "python", script, folder=tmp_path)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    assert "longshore.ring.warm" in (tmp_path / "parent").read_text()


@pytest.mark.full
def test_a_ring_that_is_done_does_not_wait_for_a_member_that_is_still_being_started(tmp_path: Path) -> None:
    """Member 1 dies in its first step, the spare takes its seat, and the replacement of the spare is too late."""
    script = tmp_path / "train.py"
    late = "if os.environ['LONGSHORE_RING_MEMBER'] == '3': time.sleep(3600)"
    script.write_text(tiny(late, until="3 if ring.member != 1 else os._exit(9)", last="time.sleep(1.0)"))
    run = ring("--seats", 2, "--spares", 1, "--", "python", script, folder=tmp_path)
    _, errors = run.communicate(timeout=120)
    assert run.returncode == 0, errors
    assert "member 1 ended with status 9" in errors
    assert "member 3 is gone: the ring was done before it connected" in errors


def make_file(path: Path) -> None:
    path.touch()


def make_folder_for_settings(path: Path) -> None:
    (path / "ring.json").mkdir(parents=True)


def make_loop(path: Path) -> None:
    path.symlink_to(path)


@pytest.mark.parametrize("make", [make_file, make_folder_for_settings, make_loop])
def test_a_folder_that_cannot_be_used_is_reported_in_one_line(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "ring")
    run = ring("--seats", 1, "--folder", "ring", "--", "true", folder=tmp_path)
    _, errors = run.communicate(timeout=60)
    assert run.returncode == 2
    assert re.fullmatch("longshore.ring: .*ring.* cannot be used: .+\n", errors)


def test_a_folder_serves_one_run_at_a_time_and_the_next_one_however_that_ended(tmp_path: Path) -> None:
    folder = tmp_path / "target"
    folder.mkdir()
    (folder / "ring.json").write_text("damaged")
    (tmp_path / "ring").symlink_to(folder)
    lost = ring("--seats", 1, "--restarts", 0, "--folder", "ring", "--", "false", folder=tmp_path)
    assert lost.communicate(timeout=60)
    assert lost.returncode == 3
    killed = ring("--seats", 4, "--folder", "ring", "--", "sleep", 1000, folder=tmp_path)
    while not (folder / "member-3.log").exists():
        assert killed.poll() is None
        time.sleep(0.01)
    second = ring("--seats", 1, "--folder", "ring", "--", "true", folder=tmp_path)
    _, errors = second.communicate(timeout=60)
    assert (second.returncode, errors.count("\n")) == (2, 1)
    killed.kill()
    killed.communicate(timeout=60)
    script = tmp_path / "train.py"
    script.write_text(tiny(last="pathlib.Path(f'end-{ring.member}').touch()"))
    done = ring("--seats", 2, "--folder", "ring", "--", "python", script, folder=tmp_path)
    _, errors = done.communicate(timeout=120)
    assert done.returncode == 0, errors
    assert {path.name for path in tmp_path.glob("end-*")} == {"end-0", "end-1"}


@pytest.mark.full
@pytest.mark.parametrize("end", ["done", "SIGTERM"])
def test_a_folder_of_a_ring_that_ended_trains_another_one_with_other_seats(end: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(tiny(until="3" if end == "done" else "10**9"))
    first = ring("--seats", 1, "--folder", "ring", "--", "python", script, folder=tmp_path)
    while end != "done" and "generation 1 runs" not in str(first.stderr and first.stderr.readline()):
        assert first.poll() is None
    if end != "done":
        first.terminate()
    first.communicate(timeout=120)
    assert first.returncode == (0 if end == "done" else 143)
    script.write_text(tiny(last="pathlib.Path(f'end-{ring.member}').touch()"))
    second = ring("--seats", 2, "--folder", "ring", "--", "python", script, folder=tmp_path)
    _, errors = second.communicate(timeout=120)
    assert second.returncode == 0, errors
    assert {path.name for path in tmp_path.glob("end-*")} == {"end-0", "end-1"}


@pytest.mark.parametrize(
    "more",
    [
        pytest.param("    for step in ring.steps(until=9):\n        pathlib.Path('trained').touch()", id="loop"),
        pytest.param("    ring.step()\n    pathlib.Path('trained').touch()", id="step", marks=pytest.mark.full),
    ],
)
def test_steps_behind_the_end_are_refused_and_not_trained_without_a_ring(more: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(tiny(last=more))
    run = ring("--seats", 2, "--", "python", script, folder=tmp_path)
    output, errors = run.communicate(timeout=120)
    assert run.returncode == 1, errors
    assert "the ring is done after 3 steps" in output + errors
    assert not (tmp_path / "trained").exists()


@pytest.mark.parametrize("goes_to", ["/dev/full", "a pipe that nothing reads"])
def test_a_ring_trains_and_replaces_members_where_nothing_can_be_logged(goes_to: str, tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    dies_once = "if os.environ['LONGSHORE_RING_MEMBER'] == '1': os._exit(9)\nsys.stderr = open(os.devnull, 'w')"
    script.write_text(tiny(first=dies_once, last="pathlib.Path(f'end-{ring.member}').touch()"))
    reads, writes = os.pipe()
    os.close(reads)
    with open("/dev/full", "wb") if goes_to == "/dev/full" else os.fdopen(writes, "wb") as log:  # noqa: PTH123
        run = ring("--seats", 2, "--folder", "ring", "--", "python", script, folder=tmp_path, stderr=log)
        run.communicate(timeout=120)
    assert run.returncode == 0
    assert {path.name for path in tmp_path.glob("end-*")} == {"end-0", "end-2"}
