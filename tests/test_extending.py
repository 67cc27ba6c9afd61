"""What docs/extending.md says works as it stands there: its files are written down and run."""

import os
import sys
from pathlib import Path

import pytest

from longshore.cluster.files.plugins import SEAMS
from longshore.cluster.kernels.kept import COMPILED_SEAMS
from tests.extending_page import PARTS, files_of, points_of
from tests.packages import write_package
from tests.support import processes

COMPILED = [f"longshore.{seam}" for seam in COMPILED_SEAMS]
WITH_CODE = [title for title, part in PARTS.items() if "```python" in part]


@pytest.mark.few(1)
@pytest.mark.parametrize("title", WITH_CODE)
def test_an_example_is_one_file_and_one_registration_and_passes_its_check(title: str, tmp_path: Path) -> None:
    files, ((group, points),) = files_of(PARTS[title]), points_of(PARTS[title]).items()
    (check,) = [name for name in files if name.startswith("check_")]
    assert group.removeprefix("longshore.") in SEAMS
    assert len(points) == 1
    assert len(files) <= 2
    write_package(tmp_path, group.removeprefix("longshore."), points)
    for name, text in files.items():
        (tmp_path / name).write_text(text)
    # The kernel of a plug-in is compiled with all of ours, which takes minutes; as plain Python it does the same.
    environment = os.environ | ({"NUMBA_DISABLE_JIT": "1"} if group in COMPILED else {})
    line = [sys.executable, check]
    done = processes.run(line, cwd=tmp_path, capture_output=True, check=False, env=environment)
    assert done.returncode == 0, done.stderr


def test_the_page_has_a_section_for_every_kind() -> None:
    groups = [group for part in PARTS.values() if "```toml" in part for group in points_of(part)]
    assert sorted(groups) == sorted(f"longshore.{seam}" for seam in SEAMS)
