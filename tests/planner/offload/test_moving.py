"""State that goes and comes back: bit for bit, whatever fails, and without a trace on the disk."""

import ctypes
import os
import sys
import tempfile
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from longshore.cluster.files.errors import CheckpointError
from longshore.planner.memory import OffloadMode
from longshore.planner.offload.offloading import (
    Offloading,
    OffloadOptions,
    StateMover,
    optimizer_storages,
    parameter_storages,
)
from longshore.planner.offload.places import OFFLOAD_PREFIX, FilePlace, remove_left_files
from tests.support import processes
from tests.support.budgets import examples

FAR_S = 1e9  # nothing comes back by itself
COMES_AND_GOES = """\
import os, sys
if sys.argv[2] == "named":
    del os.O_TMPFILE
import torch
from pathlib import Path
from longshore.planner.offload.offloading import StateMover
from longshore.planner.offload.places import FilePlace
print("ready", flush=True)
while True:
    storages = [torch.zeros(100_000).untyped_storage()]
    mover = StateMover(FilePlace(400_000, Path(sys.argv[1])), storages)
    for _ in range(5):
        mover.copy_out(storages, 0.0)
        mover.wait_until_back()
    mover.close()
"""


def moved(sizes: list[int], folder: Path) -> tuple[StateMover, FilePlace, list[torch.Tensor]]:
    tensors = [torch.randint(0, 255, (size,), dtype=torch.uint8) for size in sizes]
    place = FilePlace(sum(sizes), folder)
    return StateMover(place, [it.untyped_storage() for it in tensors]), place, tensors


def wait_until_away(mover: StateMover) -> None:
    give_up_s = time.monotonic() + 60.0
    while not mover.is_away:
        assert time.monotonic() < give_up_s
        time.sleep(0.001)


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")


@settings(max_examples=examples(20))
@given(st.lists(st.integers(1, 300_000), min_size=1, max_size=600), st.sampled_from(["at once", "away", "by itself"]))
def test_content_is_the_same_after_a_trip(sizes: list[int], needed: str) -> None:
    mover, _, tensors = moved(sizes, Path(tempfile.gettempdir()))
    before = [it.clone() for it in tensors]
    for _ in range(2):
        mover.copy_out([it.untyped_storage() for it in tensors], 0.0 if needed == "by itself" else FAR_S)
        if needed == "away":
            wait_until_away(mover)
        mover.wait_until_back()
        assert all(map(torch.equal, tensors, before))
    mover.close()


def test_what_is_out_has_no_memory(tmp_path: Path) -> None:
    size = 100_000_000
    mover, _, tensors = moved([size], tmp_path)
    full = resident_bytes()
    mover.copy_out([it.untyped_storage() for it in tensors], FAR_S)
    wait_until_away(mover)
    assert resident_bytes() < full - 0.9 * size
    assert mover.trips == 0
    mover.close()
    assert abs(resident_bytes() - full) < 0.1 * size
    assert mover.trips == 1


def test_pieces_of_a_heap_give_back_theirs_and_leave_their_neighbours_alone(tmp_path: Path) -> None:
    tensors = [torch.randint(0, 255, (size,), dtype=torch.uint8) for size in (50_000, 60_000, 4096, 511, 70_000)]
    before = [it.clone() for it in tensors]
    ours = [it.untyped_storage() for it in tensors[::2]]
    mover = StateMover(FilePlace(sum(it.nbytes() for it in ours), tmp_path), ours)
    mover.copy_out(ours, FAR_S)
    wait_until_away(mover)
    assert not tensors[0][4096:-4096].any()
    assert all(map(torch.equal, tensors[1::2], before[1::2]))
    mover.close()
    assert all(map(torch.equal, tensors, before))


def test_memory_that_cannot_be_given_back_stays(tmp_path: Path) -> None:
    mover, _, tensors = moved([1_000_000], tmp_path)
    before = tensors[0].clone()
    address, size = ctypes.c_void_p(tensors[0].data_ptr()), ctypes.c_size_t(1_000_000)
    library = ctypes.CDLL(None)
    if library.mlock(address, size):
        pytest.skip("memory may not be locked here: that takes root, or a higher RLIMIT_MEMLOCK")
    mover.copy_out([tensors[0].untyped_storage()], FAR_S)
    mover.wait_until_back()
    library.munlock(address, size)
    assert torch.equal(tensors[0], before)
    mover.close()


def test_nothing_comes_back_without_room_before_it_is_needed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    mover, place, tensors = moved([1000], tmp_path)
    asked: list[None] = []
    monkeypatch.setattr(place, "has_room", lambda: asked.append(None))
    mover.copy_out([tensors[0].untyped_storage()], 0.0)
    give_up_s = time.monotonic() + 60.0
    while len(asked) < 3 and time.monotonic() < give_up_s:
        time.sleep(0.001)
    assert len(asked) >= 3
    assert mover.is_away
    mover.wait_until_back()
    assert not mover.is_away


@pytest.mark.parametrize("size", [1 << 50, 1 << 62])
def test_without_room_on_the_disk_there_is_no_place(size: int, tmp_path: Path) -> None:
    with pytest.raises(OSError, match=r"No space left|File too large"):
        FilePlace(size, tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_a_disk_that_gets_full_keeps_state_in_memory(tmp_path: Path) -> None:
    mover, place, tensors = moved([1000, 1_000_000], tmp_path)
    before = [it.clone() for it in tensors]
    full = os.open("/dev/full", os.O_RDWR)
    os.dup2(full, place._file)
    for _ in range(2):
        mover.copy_out([it.untyped_storage() for it in tensors], FAR_S)
        mover.wait_until_back()
        assert all(map(torch.equal, tensors, before))
    assert "No space left" in str(mover.refused)
    assert mover.trips == 0
    os.close(full)


def test_state_that_cannot_be_read_back_is_reported(tmp_path: Path) -> None:
    mover, place, tensors = moved([1000], tmp_path)
    mover.copy_out([tensors[0].untyped_storage()], FAR_S)
    wait_until_away(mover)
    os.ftruncate(place._file, 500)
    with pytest.raises(CheckpointError, match="cannot be read back: the file ends at byte 500"):
        mover.wait_until_back()


@pytest.mark.full
@pytest.mark.parametrize("how", ["nameless", "named"])
def test_a_process_killed_at_any_moment_leaves_no_file(how: str, tmp_path: Path) -> None:
    path = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    rng = np.random.default_rng(5)
    for _ in range(3):
        line = [sys.executable, "-c", COMES_AND_GOES, str(tmp_path), how]
        with processes.start(line, env=path, stdout=processes.PIPE) as process:
            assert process.stdout is not None
            process.stdout.readline()
            time.sleep(rng.uniform(0.0, 0.2))
        if how == "named":  # killed between two calls; the next process removes what is left
            FilePlace(1, tmp_path).close()
        assert list(tmp_path.iterdir()) == []


def test_stale_files_are_swept_and_others_stay(tmp_path: Path) -> None:
    for name in (f"{OFFLOAD_PREFIX}abc", f"{OFFLOAD_PREFIX}x1_2", "longshore-other", "mine"):
        (tmp_path / name).write_text("x")
    remove_left_files(tmp_path)
    assert {it.name for it in tmp_path.iterdir()} == {"longshore-other", "mine"}


@pytest.mark.parametrize("make", [torch.optim.AdamW, torch.optim.Adam, torch.optim.RMSprop, torch.optim.Adagrad])
def test_state_of_any_optimizer_is_found(make: type[torch.optim.Optimizer]) -> None:
    large, small = torch.nn.Parameter(torch.zeros(1000)), torch.nn.Parameter(torch.zeros(2))
    optimizer = make([large, small])  # type: ignore[call-arg]
    for it in (large, small):
        it.grad = torch.ones_like(it)
    optimizer.step()
    values = [it for it in optimizer.state[large].values() if torch.is_tensor(it) and it.numel() == 1000]
    assert values
    assert {it.data_ptr() for it in optimizer_storages(optimizer)} == {it.data_ptr() for it in values}
    assert [it.data_ptr() for it in parameter_storages([large, small])] == [large.data_ptr()]


def test_parameters_in_one_piece_of_memory_go_once() -> None:
    whole = torch.zeros(2000)
    parameters = [torch.nn.Parameter(whole[:1000]), torch.nn.Parameter(whole[1000:])]
    assert [it.nbytes() for it in parameter_storages(parameters)] == [8000]


@pytest.mark.parametrize("how", list(OffloadMode))
@pytest.mark.parametrize("sizes", [[], [0], [1], [300_000]])
def test_steps_of_a_stage_of_any_parameters_end(tmp_path: Path, how: OffloadMode, sizes: list[int]) -> None:
    """A stage may have only frozen layers; its optimizer then has a parameter without numbers."""
    parameters = [torch.nn.Parameter(torch.zeros(size)) for size in sizes]
    optimizer = torch.optim.SGD(parameters or [torch.nn.Parameter(torch.zeros(0))], lr=0.1, momentum=0.9)
    lines = list[str]()
    it = Offloading(OffloadOptions(how, tmp_path, has_own_core=True), 0, optimizer, parameters, lines.append)
    for _ in range(4):
        it.begin_step()
        for parameter in parameters:
            parameter.grad = torch.ones_like(parameter)
        it.begin_sync()
        it.end_sync()
        optimizer.step()
        it.end_update()
    it.measurements()
    it.close()
    assert it.away_bytes == 0
    assert all(bool((parameter != 0).all()) for parameter in parameters)
