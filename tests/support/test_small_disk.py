"""File systems that killed tests left mounted go; those of runs that go on stay."""

import time
from pathlib import Path

import pytest

from tests.support.small_disk import ABANDONED_S, small_disk, unmount_abandoned


@pytest.mark.parametrize("lock_age_s", [None, 0.0, 2 * ABANDONED_S])
def test_what_a_killed_test_left_mounted_goes_with_its_run(tmp_path: Path, lock_age_s: float | None) -> None:
    run = tmp_path / "pytest-of-user" / "pytest-1"
    run.mkdir(parents=True)
    if lock_age_s is not None:
        (run / ".lock").touch()
    with small_disk(run / "small", 1 << 20, lambda: None) as folder:
        mounts = [line for line in Path("/proc/self/mounts").read_text().splitlines() if line.split()[1] == str(folder)]
        assert len(mounts) == 1
        unmount_abandoned(mounts[0], time.time() + (lock_age_s or 0.0))
        assert (str(folder) in Path("/proc/self/mounts").read_text()) == (lock_age_s == 0.0)
