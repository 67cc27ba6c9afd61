"""The coordinator's process on disks that stall or fail, among strangers, and with peers that talk too much."""

import asyncio
import contextlib
import json
import os
import resource
import signal
import socket
import threading
import time
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.ring import coordinator_server, wire
from longshore.ring.coordinator_server import ACCEPTED_AT_ONCE, MAX_TEXT, MAX_UNGREETED, with_short_texts
from longshore.ring.coordinator_state import RECOVERIES, STATE, make_ring, write_file
from longshore.ring.ring_client import ask_report, last_report

from .coordinator_process import Peer, Process, can_connect, started, wait_for
from .trial import LIMIT_S

# The disk


def limit(ring: Process, what: int, value: int) -> int:
    """Set what the coordinator may have at most; return what it might before."""
    soft, hard = resource.prlimit(ring.pid, what)
    resource.prlimit(ring.pid, what, (value, hard))
    return soft


# No file may grow, as on a full disk; no file may be opened.
FAILING = [pytest.param(resource.RLIMIT_FSIZE, id="full"), pytest.param(resource.RLIMIT_NOFILE, id="no descriptor")]


@pytest.mark.few(1)
@pytest.mark.parametrize("what", FAILING)
def test_while_a_disk_fails_members_are_answered_and_nobody_is_told_what_is_not_written(
    what: int, ring: Process
) -> None:
    launcher = Peer(ring, "launcher")
    assert ask_report(ring.folder) is not None  # All that was said before is written.
    before = (ring.folder / STATE).read_bytes()
    kept = limit(ring, what, 0)
    launcher.say(wire.MemberExited(2, -9))
    for _ in range(30):
        for member in ring.members[:2]:
            assert member.beat() == []
        time.sleep(0.05)
    assert (ring.folder / STATE).read_bytes() == before
    limit(ring, what, kept)
    ring.all_hear(wire.Resume(2), without=[2])
    assert launcher.hear(wire.MemberGone) == wire.MemberGone(2, "its process ended with status -9")
    assert json.loads((ring.folder / STATE).read_bytes())["generation"] == 2
    assert ask_report(ring.folder) is not None


def test_a_coordinator_is_started_again_on_a_full_disk(ring: Process) -> None:
    os.kill(ring.pid, signal.SIGKILL)
    os.waitpid(ring.pid, 0)
    with started(ring.folder, "prlimit", "--fsize=0:") as again:
        for number in range(3):
            wait_for(lambda: can_connect(again))
            member = Peer(again, "member", number, generation=1)
            assert member.hear(wire.Resume) == wire.Resume(1)
            member.beat()
        assert ask_report(again.folder) is not None


def test_a_file_for_people_that_cannot_be_written_stops_nobody(ring: Process) -> None:
    (ring.folder / "in the way" / "it").mkdir(parents=True)
    while not (ring.folder / RECOVERIES).is_dir():  # the coordinator may be writing its file at this moment
        (ring.folder / RECOVERIES).unlink(missing_ok=True)
        with contextlib.suppress(NotADirectoryError):
            (ring.folder / "in the way").rename(ring.folder / RECOVERIES)
    ring.lose(2)
    ring.all_hear(wire.Resume(2), without=[2])
    assert ask_report(ring.folder) is not None


def test_a_state_that_cannot_be_written_for_long_ends_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    settings = make_ring(tmp_path, 1)
    (tmp_path / STATE / "in the way").mkdir(parents=True)
    monkeypatch.setattr(coordinator_server, "_read_state", lambda folder: ({}, None))
    monkeypatch.setattr(coordinator_server, "WRITE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(coordinator_server, "REWRITE_S", 0.0)
    with pytest.raises(IsADirectoryError):
        asyncio.run(coordinator_server.CoordinatorServer(tmp_path, settings).run())


TELLS = {"stopping": wire.Abort, "forming": wire.RingLayout, "running": wire.Resume, "done": wire.Finish}


@pytest.mark.few(1)
@pytest.mark.parametrize("phase", TELLS)
def test_while_a_write_takes_long_members_are_answered_and_hear_nothing_of_what_it_holds(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, go_on, write = threading.Event(), threading.Event(), write_file

    def slow(folder: Path, name: str, content: Any) -> None:
        if name == STATE and content["phase"] == phase and content["generation"] == 2:
            reached.set()
            assert go_on.wait(LIMIT_S)
        write(folder, name, content)

    monkeypatch.setattr(coordinator_server, "write_file", slow)
    settings = make_ring(tmp_path, 3)
    thread = threading.Thread(
        target=lambda: asyncio.run(coordinator_server.CoordinatorServer(tmp_path, settings).run())
    )
    thread.start()
    wait_for((tmp_path / STATE).exists)
    ring = Process(tmp_path, settings, os.getpid())
    ring.run_ring()
    ring.lose(2)
    members = ring.members[:2]
    while not reached.is_set():
        for member in members:
            member.beat()
            member.obey_all(says_done=True)
        time.sleep(0.01)
    said = [message for _ in range(20) for member in members for message in member.beat()]
    assert not [it for it in said if isinstance(it, TELLS[phase]) and getattr(it, "generation", 0) == 2]
    go_on.set()
    while thread.is_alive():
        for member in members:
            member.beat()
            member.obey_all(says_done=True)
            if any(isinstance(it, wire.Finish) for it in member.said):
                member.socket.close()
                members = [it for it in members if it is not member]
        time.sleep(0.01)
    ring.close()
    assert json.loads((tmp_path / STATE).read_bytes())["phase"] == "done"


# Strangers


@pytest.mark.few(1)
@pytest.mark.parametrize("says", [b"", b"x" * 300_000, b'{"kind": "Hello", "proof": "', b"{}\n"])
def test_strangers_take_few_descriptors_and_little_memory_and_a_ring_goes_on_among_them(
    says: bytes, ring: Process
) -> None:
    memory_mib = ring.memory_mib()
    strangers = []
    for _ in range(600):
        strangers.append(socket.create_connection(("127.0.0.1", ring.port), LIMIT_S))
        with contextlib.suppress(OSError):
            strangers[-1].send(says, socket.MSG_DONTWAIT)
        assert (
            ring.descriptors() < MAX_UNGREETED + 8 * ACCEPTED_AT_ONCE
        )  # Some are taken, or dropped, and not yet counted.
    launcher = ring.lose(2)
    ring.all_hear(wire.Resume(2), without=[2])
    ring.members.append(Peer(ring, "member", 7))
    ring.all_hear(wire.Resume(3), without=[2])
    assert ring.memory_mib() < memory_mib + 60
    assert ring.log().count("\n") < 10
    launcher.socket.close()
    for it in strangers:
        it.close()


# What peers say

LONG = ["x" * 100_000, "\U0001f525" * 60_000, "\x00" * 100_000]


@pytest.mark.parametrize("text", LONG, ids=["plain", "wide", "escaped"])
def test_long_texts_of_peers_are_cut_where_they_come_in(text: str, ring: Process) -> None:
    member, desk, launcher = ring.members[1], Peer(ring, "scheduler"), Peer(ring, "launcher")
    member.say(wire.ExchangeFailed(1, 1, text[:30_000], text[:30_000]))
    ring.all_hear(wire.Resume(2))
    member.say(wire.Leave(1, 2, text))
    launcher.hear(wire.MemberGone)
    desk.say(wire.NoMemberOffer(text))
    desk.say(wire.Retire(2, text))
    assert launcher.hear(wire.MemberGone) == wire.MemberGone(2, text[:MAX_TEXT])
    report = ask_report(ring.folder)
    assert report is not None
    assert report.gone == {"1": text[:MAX_TEXT], "2": text[:MAX_TEXT]}
    assert (ring.folder / STATE).stat().st_size < 64_000


@given(st.one_of(*(st.from_type(kind) for kind in wire._MESSAGE_KINDS.values())), st.data())
def test_each_text_of_any_message_is_cut_and_nothing_else_changes(message: wire.Message, data: st.DataObject) -> None:
    texts = [it.name for it in fields(message) if isinstance(getattr(message, it.name), str)]
    long: dict[str, Any] = {name: "y" * data.draw(st.integers(0, 3 * MAX_TEXT)) for name in texts}
    assert with_short_texts(replace(message, **long)) == replace(
        message, **{name: text[:MAX_TEXT] for name, text in long.items()}
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("outcome", ["done", "lost"])
def test_whoever_is_connected_at_the_end_leaves_no_traceback_in_the_log(outcome: str, ring: Process) -> None:
    peers = [Peer(ring, role) for role in ("scheduler", "launcher", "scheduler")]
    stranger = socket.create_connection(("127.0.0.1", ring.port), LIMIT_S)
    for member in ring.members:
        member.say(
            wire.MemberDone(member.member, 1, 1) if outcome == "done" else wire.Leave(member.member, 1, "made up")
        )
    for peer in peers:
        end = peer.hear(wire.RingEnd)
        assert isinstance(end, wire.RingEnd)
        assert end.outcome == outcome
    wait_for(lambda: "State:\tZ" in Path(f"/proc/{ring.pid}/status").read_text())
    stranger.close()
    assert [line for line in ring.log().splitlines() if not line.startswith("longshore.ring: ")] == []
    report = last_report(ring.folder)
    assert report is not None
    assert report.phase == outcome


def test_a_ring_that_was_asked_to_end_is_told_of_as_it_stood_before(ring: Process) -> None:
    launcher = Peer(ring, "launcher")
    before, log = ask_report(ring.folder), ring.log()
    launcher.say(wire.Terminating())
    for number in range(3):
        launcher.say(wire.MemberExited(number, -15))
    launcher.hear(wire.RingEnd)
    assert last_report(ring.folder) == before
    assert ring.log() == log
