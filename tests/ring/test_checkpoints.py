"""Files that members leave in the folder of checkpoints when they are killed, or cannot write."""

import errno
import math
import os
import pickle
import threading
from collections import defaultdict
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from hypothesis import given

from longshore.cluster.files.errors import InputError
from longshore.ring import wire
from longshore.ring.member_client import MemberClient
from longshore.ring.state import find_newest_checkpoint, write_checkpoint
from tests.states import same, trees


@dataclass
class SavePermission:
    """The part of a member's client that checkpoints use."""

    step: int
    is_relieved: bool = False

    def request_save(self) -> bool:
        return not self.is_relieved


def save(folder: Path, step: int, mark: str, state: dict[str, Any] | None = None) -> Path:
    path = write_checkpoint(
        folder, cast("MemberClient", SavePermission(step)), state or {"step": torch.tensor(step)}, mark
    )
    assert path is not None
    return path


def test_a_member_that_was_relieved_meanwhile_names_no_checkpoint_and_goes_on(tmp_path: Path) -> None:
    relieved = cast("MemberClient", SavePermission(5, is_relieved=True))
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
    newest = find_newest_checkpoint(tmp_path)
    assert newest is not None
    assert newest.step == newest.read()["step"] == 10**10 + 1


@pytest.mark.parametrize("fault", ["no space", "not to be pickled"])
def test_a_checkpoint_that_cannot_be_written_leaves_no_draft(
    fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(file: int) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    if fault == "no space":
        monkeypatch.setattr(os, "fsync", full)
    state = {"it": threading.Lock()} if fault != "no space" else None
    with pytest.raises((OSError, InputError)):
        save(tmp_path, 1, "g1-m0", state)
    assert list(tmp_path.iterdir()) == []


@given(trees)
def test_what_is_saved_is_read_back(tmp_path_factory: pytest.TempPathFactory, tree: Any) -> None:
    folder = tmp_path_factory.mktemp("ring's checkpoints")
    save(folder, 1, "g1-m0", {"it": tree})
    found = find_newest_checkpoint(folder)
    assert found is not None
    assert same(found.read()["it"], tree)


class Level(IntEnum):
    high = 3


CONVERTED: dict[str, tuple[Any, Any]] = {
    "float64": (np.float64(0.1), 0.1),
    "float16": (np.float16(0.5), 0.5),
    "longdouble": (np.longdouble(0.5), 0.5),
    "int8": (np.int8(-3), -3),
    "uint64": (np.uint64(2**64 - 1), 2**64 - 1),
    "bool": (np.bool_(True), True),  # noqa: FBT003
    "complex64": (np.complex64(1 + 2j), 1 + 2j),
    "NumPy's text": (np.str_("it"), "it"),
    "NumPy's bytes": (np.bytes_(b"it"), b"it"),
    "an enumeration": (Level.high, 3),
    "a shape": (torch.Size([2, 3]), (2, 3)),
    "a keyed default": (defaultdict(list, {np.int64(1): [np.nan]}), {1: [math.nan]}),
}


@pytest.mark.parametrize("name", CONVERTED)
def test_what_is_like_a_plain_value_is_saved_as_that(name: str, tmp_path: Path) -> None:
    given_, plain = CONVERTED[name]
    path = save(tmp_path, 1, "g1-m0", {"optimizer": {"param_groups": [{"lr": given_}]}})
    assert same(torch.load(path, weights_only=True)["optimizer"]["param_groups"][0]["lr"], plain)


REFUSED: dict[str, Any] = {
    "a lock": threading.Lock(), "a function": save, "a path": Path("x"), "a date": np.datetime64("2026-01-01"),
    "a huge number": 1 << 3000, "objects": np.array([object()]), "dates": np.zeros(1, "M8[s]"),
    "a frozen set": frozenset([1]), "a sparse tensor": torch.eye(2).to_sparse(),
    "a tensor without content": torch.zeros(2, device="meta"),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_what_could_not_be_read_back_is_refused_by_its_place(name: str, tmp_path: Path) -> None:
    for state in ({"kept": {"sampler": [0, REFUSED[name]]}}, {"kept": {"sampler": {"x": 0, 1: REFUSED[name]}}}):
        with pytest.raises(InputError, match=r"state\['kept'\]\['sampler'\]\[1\]"):
            save(tmp_path, 1, "g1-m0", state)
    assert list(tmp_path.iterdir()) == []


def test_a_state_that_holds_itself_is_refused(tmp_path: Path) -> None:
    state: dict[str, Any] = {}
    state["self"] = [state]
    with pytest.raises(InputError, match="holds itself"):
        save(tmp_path, 1, "g1-m0", state)


@pytest.mark.parametrize("content", [b"", b"no checkpoint", pickle.dumps(print, 2)])
@pytest.mark.parametrize("copies", [1, 2])
def test_what_to_do_about_a_checkpoint_that_cannot_be_read_loses_nothing(
    content: bytes, copies: int, tmp_path: Path
) -> None:
    for step in range(copies):
        save(tmp_path, step, "g1-m0").write_bytes(content)
    newest = find_newest_checkpoint(tmp_path)
    assert newest is not None
    with pytest.raises(InputError) as refused:
        newest.read()
    text = str(refused.value)
    assert "remove" not in text
    assert "delete" not in text
    assert ("step-000000000-g1-m0.pt" in text.partition(";")[2]) is (copies == 2)


@pytest.mark.parametrize("has_seat", [True, False])
def test_a_ring_that_is_just_formed_again_refuses_no_member_that_has_a_seat(
    monkeypatch: pytest.MonkeyPatch, *, has_seat: bool
) -> None:
    """The abort is under way when the member asks, and arrives before the answer."""
    control = MemberClient("127.0.0.1:9", "secret", 0, "node", "", 5)
    control.generation = 1
    asked = []

    def receive(*messages: wire.Message) -> None:
        for message in messages:
            control._receive(message)

    def answer(message: object) -> None:
        if not isinstance(message, wire.SaveRequest):
            return
        asked.append(message.generation)
        aborts = [wire.Abort(2)] if has_seat and message.generation == 1 else []
        granted = has_seat and message.generation == 2
        replies = (*aborts, wire.SaveReply(message.generation, message.step, granted))
        threading.Thread(target=receive, args=replies).start()  # the caller has the lock

    monkeypatch.setattr(control, "_send", answer)
    assert control.request_save() is has_seat
    assert asked == ([1, 2] if has_seat else [1])
