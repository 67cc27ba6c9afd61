"""What is left in the folder of checkpoints by members that were killed, or could not write."""

import errno
import os
import threading
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import torch

from longshore.scheduler.failover import wire
from longshore.scheduler.failover.member.checkpoints import load_newest, write_checkpoint
from longshore.scheduler.failover.member.control import Control


@dataclass
class Leave:
    """What a checkpoint asks of its member's connection."""

    step: int
    is_relieved: bool = False

    def may_save(self) -> bool:
        return not self.is_relieved


def save(folder: Path, step: int, mark: str, state: dict[str, Any] | None = None) -> Path:
    path = write_checkpoint(folder, cast("Control", Leave(step)), state or {"step": torch.tensor(step)}, mark)
    assert path is not None
    return path


def test_a_member_that_was_relieved_meanwhile_names_no_checkpoint_and_goes_on(tmp_path: Path) -> None:
    relieved = cast("Control", Leave(5, is_relieved=True))
    assert write_checkpoint(tmp_path, relieved, {"step": torch.tensor(5)}, "g1-m0") is None
    assert list(tmp_path.iterdir()) == []


EARLIER = ["step-000000099-g1-m0", "step-000000100-g1-m7", "step-000000100-g2-m1", "step-000000007-g30-m30"]
OTHERS = [".step-000000101-g2-m0.pt.draft", ".step-000000100-g3-m1.pt.draft", ".notes.draft", "step-x.pt", ".mine.pt"]


def test_drafts_of_members_that_were_killed_are_removed_by_the_next_checkpoint_and_nothing_else(
    tmp_path: Path,
) -> None:
    for name in (*(f".{it}.pt.draft" for it in EARLIER), *OTHERS):
        (tmp_path / name).write_bytes(b"half")
    written = save(tmp_path, 100, "g2-m2")
    assert {it.name for it in tmp_path.iterdir()} == {written.name, *OTHERS}


def test_the_newest_checkpoints_are_kept_by_number(tmp_path: Path) -> None:
    for step in (5, 999_999_999, 10**9, 10**10, 10**10 + 1):
        save(tmp_path, step, "g1-m0")
    assert len(list(tmp_path.iterdir())) == 3
    newest = load_newest(tmp_path)
    assert newest is not None
    assert newest["step"] == 10**10 + 1


@pytest.mark.parametrize("fault", ["no space", "not to be pickled"])
def test_a_checkpoint_that_cannot_be_written_leaves_no_draft(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if fault == "no space":
        monkeypatch.setattr(os, "fsync", full)
    state = {"it": threading.Lock()} if fault != "no space" else None
    with pytest.raises((OSError, TypeError)):
        save(tmp_path, 1, "g1-m0", state)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("has_seat", [True, False])
def test_a_ring_that_is_just_formed_anew_refuses_no_member_that_has_a_seat(
    monkeypatch: pytest.MonkeyPatch, *, has_seat: bool
) -> None:
    """The word that the ring is formed anew is under way when the member asks, and comes before the answer."""
    control = Control("127.0.0.1:9", "secret", 0, "node", "", 5)
    control.generation = 1
    asked = []

    def hear(*words: wire.Message) -> None:
        for it in words:
            control._hear(it)

    def answer(message: object) -> None:
        if not isinstance(message, wire.AskToSave):
            return
        asked.append(message.generation)
        said = [wire.Abort(2)] if has_seat and message.generation == 1 else []
        granted = has_seat and message.generation == 2
        words = (*said, wire.MaySave(message.generation, message.step, granted))
        threading.Thread(target=hear, args=words).start()  # who asks has the lock

    monkeypatch.setattr(control, "_say", answer)
    assert control.may_save() is has_seat
    assert asked == ([1, 2] if has_seat else [1])
