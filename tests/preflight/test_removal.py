"""What a job leaves in its folder is removed, whatever it is."""

import os
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from longshore.preflight import removal
from longshore.preflight.removal import remove_tree
from tests.preflight.gpus import ask_after

DEEP = 1100  # more than Python calls itself


def make_deep(path: Path) -> None:
    """Make folders whose path is longer than any that can be opened."""
    path.mkdir()
    at = os.open(path, os.O_RDONLY)
    for _ in range(DEEP):
        os.mkdir("down", dir_fd=at)
        os.close(os.open("file", os.O_WRONLY | os.O_CREAT, dir_fd=at))
        below = os.open("down", os.O_RDONLY, dir_fd=at)
        os.close(at)
        at = below
    os.close(at)


def make_wide(path: Path) -> None:
    for number in range(300):
        (path / str(number % 20) / str(number)).mkdir(parents=True)
        (path / str(number % 20) / str(number) / "file").touch()


def make_without_rights(path: Path) -> None:
    (path / "a" / "b").mkdir(parents=True)
    (path / "a" / "b" / "file").touch()
    for folder in (path / "a" / "b", path / "a", path):
        folder.chmod(0)


def make_odd_names(path: Path) -> None:
    (path / "new\nline").mkdir(parents=True)
    (path / os.fsdecode(b"\xff")).mkdir()
    (path / "-rf").touch()


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as made:
        made.bind(str(path))


def make_link(path: Path) -> None:
    path.symlink_to(path.parent / "kept")


def make_links(path: Path) -> None:
    path.mkdir()
    (path / "folder").symlink_to(path.parent / "kept")
    (path / "above").symlink_to("..")
    (path / "loop").symlink_to("loop")


MADE: list[Callable[[Path], None]] = [
    make_deep, make_wide, make_without_rights, make_odd_names, os.mkfifo, make_socket, make_link, make_links,
    Path.touch, Path.mkdir, lambda _: None,
]  # fmt: skip


@pytest.fixture
def kept(tmp_path: Path) -> Path:
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept" / "file").touch()
    return tmp_path / "kept"


@pytest.mark.parametrize("make", MADE)
def test_what_a_job_left_is_removed_and_what_it_points_to_stays(
    make: Callable[[Path], None], kept: Path, tmp_path: Path
) -> None:
    make(tmp_path / "scratch")
    descriptors = len(os.listdir("/proc/self/fd"))  # noqa: PTH208
    assert [it.outcome for it in ask_after(tmp_path, tmp_path / "scratch") if it.device == "scratch"] == ["pass"]
    assert os.listdir(tmp_path) == ["kept"]  # noqa: PTH208
    assert (kept / "file").exists()
    assert len(os.listdir("/proc/self/fd")) == descriptors  # noqa: PTH208


@pytest.mark.parametrize("make", [make_deep, make_wide])
def test_several_may_remove_one_folder(make: Callable[[Path], None], tmp_path: Path) -> None:
    make(tmp_path / "scratch")
    with ThreadPoolExecutor(4) as pool:
        for removed in [pool.submit(remove_tree, tmp_path / "scratch") for _ in range(4)]:
            removed.result(60.0)
    assert not (tmp_path / "scratch").exists()


def test_a_folder_that_is_moved_while_it_is_removed_leads_nowhere_else(
    kept: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "scratch" / "a" / "b").mkdir(parents=True)
    unlink_files = removal._unlink_files

    def unlink_and_move(folder: int) -> list[str]:
        found = unlink_files(folder)
        if found == ["b"]:
            (tmp_path / "scratch" / "a").rename(kept / "a")
        return found

    monkeypatch.setattr(removal, "_unlink_files", unlink_and_move)
    with pytest.raises(OSError, match="moved"):
        remove_tree(tmp_path / "scratch")
    assert (kept / "file").exists()
