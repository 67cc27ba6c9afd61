"""Where a training begins: at its newest checkpoint, or nowhere if that cannot be known."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from longshore.cluster.files.errors import InputError
from longshore.planner.execution import checkpoints
from longshore.planner.execution.checkpoints import has_checkpoints_without_ring

ERRORS = [
    errno.EACCES, errno.EIO, errno.ESTALE, errno.ELOOP, errno.EMFILE, errno.ENOMEM, errno.ETIMEDOUT, errno.ENOTCONN,
]  # fmt: skip


@pytest.fixture(autouse=True)
def _alone(monkeypatch: pytest.MonkeyPatch) -> None:
    """Make this process the only one of a training."""
    monkeypatch.setattr(dist, "get_rank", lambda: 0)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda _: None)
    for name in (checkpoints.CHECKPOINT, checkpoints.ATTEMPT):
        monkeypatch.delenv(name, raising=False)


def path_of(folder: Path | None) -> Path | None:
    return checkpoints._path_to_resume_from(folder)


@pytest.mark.parametrize("number", ERRORS, ids=errno.errorcode.get)
def test_a_folder_that_cannot_be_listed_is_not_taken_for_an_empty_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    (tmp_path / "step-000000999-a0").mkdir()

    def failing(_: Path) -> Iterator[Path]:
        raise OSError(number, os.strerror(number))

    with monkeypatch.context() as broken:
        broken.setattr(Path, "iterdir", failing)
        with pytest.raises(InputError) as refused:
            path_of(tmp_path)
        assert str(tmp_path) in str(refused.value)
        with pytest.raises(InputError):
            has_checkpoints_without_ring(tmp_path)
        broken.setenv(checkpoints.CHECKPOINT, "/of/the/scheduler")
        assert path_of(tmp_path) == Path("/of/the/scheduler")
    assert path_of(tmp_path) == tmp_path / "step-000000999-a0"


def test_a_training_without_checkpoints_begins_at_its_beginning(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    (tmp_path / ".step-000000001-a0.draft").mkdir()
    for folder in (None, tmp_path, tmp_path / "missing", tmp_path / "file", tmp_path / "file" / "below"):
        assert path_of(folder) is None
        assert folder is None or not has_checkpoints_without_ring(folder)


def test_the_newest_checkpoint_is_of_the_last_attempt(tmp_path: Path) -> None:
    for name in ("step-000000009-a1", "step-000000002-a2", "step-000000001-a2", ".step-000000010-a3.draft"):
        (tmp_path / name).mkdir()
    assert path_of(tmp_path) == tmp_path / "step-000000002-a2"
