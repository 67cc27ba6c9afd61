"""The coordinator's process on disks that stall or fail, with connections that send no hello, and with long texts."""

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
from longshore.ring.coordinator_server import (
    ACCEPTED_AT_ONCE,
    MAX_TEXT,
    MAX_UNGREETED,
    with_short_texts,
)
from longshore.ring.folder import RECOVERIES, make_ring_folder, read_state, state_file, state_number, write_state
from longshore.ring.ring_client import read_written_ring_report, request_ring_report

from .coordinator_process import Peer, Process, can_connect, started, wait_for
from .trial import LIMIT_S

# The disk


def limit(ring: Process, resource_kind: int, value: int) -> int:
    """Set a resource limit of the coordinator; return the previous one."""
    soft, hard = resource.prlimit(ring.pid, resource_kind)
    resource.prlimit(ring.pid, resource_kind, (value, hard))
    return soft


# No file may grow, as on a full disk; no file may be opened.
FAILING = [pytest.param(resource.RLIMIT_FSIZE, id="full"), pytest.param(resource.RLIMIT_NOFILE, id="no descriptor")]


@pytest.mark.few(1)
@pytest.mark.parametrize("what", FAILING)
def test_while_a_disk_fails_members_are_answered_and_no_message_depends_on_unwritten_state(
    what: int, ring: Process
) -> None:
    launcher = Peer(ring, "launcher")
    assert request_ring_report(ring.folder) is not None  # All earlier changes are written.
    before = read_state(ring.folder)
    kept = limit(ring, what, 0)
    launcher.send(wire.MemberExited(2, -9))
    for _ in range(30):
        for member in ring.members[:2]:
            assert member.beat() == []
        time.sleep(0.05)
    assert read_state(ring.folder) == before
    limit(ring, what, kept)
    ring.all_receive(wire.Resume(2), without=[2])
    assert launcher.receive(wire.MemberGone) == wire.MemberGone(2, "its process ended with status -9")
    assert read_state(ring.folder)[1]["generation"] == 2
    assert request_ring_report(ring.folder) is not None


def test_a_coordinator_restarts_on_a_full_disk(ring: Process) -> None:
    os.kill(ring.pid, signal.SIGKILL)
    os.waitpid(ring.pid, 0)
    with started(ring.folder, "prlimit", "--fsize=0:") as again:
        for number in range(3):
            wait_for(lambda: can_connect(again))
            member = Peer(again, "member", number, generation=1)
            assert member.receive(wire.Resume) == wire.Resume(1)
            member.beat()
        assert request_ring_report(again.folder) is not None


def test_a_file_of_recoveries_that_cannot_be_written_stops_no_process(ring: Process) -> None:
    (ring.folder / "in the way" / "it").mkdir(parents=True)
    while not (ring.folder / RECOVERIES).is_dir():  # the coordinator may be writing its file at this moment
        (ring.folder / RECOVERIES).unlink(missing_ok=True)
        with contextlib.suppress(NotADirectoryError):
            (ring.folder / "in the way").rename(ring.folder / RECOVERIES)
    ring.lose(2)
    ring.all_receive(wire.Resume(2), without=[2])
    assert request_ring_report(ring.folder) is not None


def test_a_state_that_cannot_be_written_for_long_ends_the_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail(*_: object) -> None:
        raise OSError("made up")

    settings = make_ring_folder(tmp_path, 1)
    monkeypatch.setattr(coordinator_server, "write_state", fail)
    monkeypatch.setattr(coordinator_server, "WRITE_TIMEOUT_S", 0.0)
    monkeypatch.setattr(coordinator_server, "REWRITE_S", 0.0)
    with pytest.raises(OSError, match="made up"):
        asyncio.run(coordinator_server.CoordinatorServer(tmp_path, settings, "127.0.0.1").run())


FIRST_MESSAGE = {"stopping": wire.Abort, "forming": wire.RingLayout, "running": wire.Resume, "done": wire.Finish}


@pytest.mark.few(1)
@pytest.mark.parametrize("phase", FIRST_MESSAGE)
def test_during_a_long_write_members_are_answered_and_receive_nothing_that_depends_on_it(
    phase: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    reached, proceed = threading.Event(), threading.Event()

    def slow(folder: Path, number: int, content: Any) -> None:
        if content["phase"] == phase and content["generation"] == 2:
            reached.set()
            assert proceed.wait(LIMIT_S)
        write_state(folder, number, content)

    monkeypatch.setattr(coordinator_server, "write_state", slow)
    settings = make_ring_folder(tmp_path, 3)
    thread = threading.Thread(
        target=lambda: asyncio.run(coordinator_server.CoordinatorServer(tmp_path, settings, "127.0.0.1").run())
    )
    thread.start()
    wait_for(lambda: state_number(tmp_path) > 0)
    ring = Process(tmp_path, settings, os.getpid())
    ring.run_ring()
    ring.lose(2)
    members = ring.members[:2]
    while not reached.is_set():
        for member in members:
            member.beat()
            member.obey_all(is_done=True)
        time.sleep(0.01)
    received = [message for _ in range(20) for member in members for message in member.beat()]
    assert not [it for it in received if isinstance(it, FIRST_MESSAGE[phase]) and getattr(it, "generation", 0) == 2]
    proceed.set()
    while thread.is_alive():
        for member in members:
            member.beat()
            member.obey_all(is_done=True)
            if any(isinstance(it, wire.Finish) for it in member.received):
                member.socket.close()
                members = [it for it in members if it is not member]
        time.sleep(0.01)
    ring.close()
    assert read_state(tmp_path)[1]["phase"] == "done"


# Connections without a hello


@pytest.mark.few(1)
@pytest.mark.parametrize("sent", [b"", b"x" * 300_000, b'{"kind": "Hello", "proof": "', b"{}\n"])
def test_connections_without_a_hello_take_few_descriptors_and_little_memory_and_a_ring_continues(
    sent: bytes, ring: Process
) -> None:
    memory_mib = ring.memory_mib()
    ungreeted = []
    for _ in range(600):
        ungreeted.append(socket.create_connection(("127.0.0.1", ring.port), LIMIT_S))
        with contextlib.suppress(OSError):
            ungreeted[-1].send(sent, socket.MSG_DONTWAIT)
        # Some are accepted, or dropped, and not yet counted.
        assert ring.descriptors() < MAX_UNGREETED + 8 * ACCEPTED_AT_ONCE
    launcher = ring.lose(2)
    ring.all_receive(wire.Resume(2), without=[2])
    ring.members.append(Peer(ring, "member", 7))
    ring.all_receive(wire.Resume(3), without=[2])
    assert ring.memory_mib() < memory_mib + 60
    assert ring.log().count("\n") < 10
    launcher.socket.close()
    for it in ungreeted:
        it.close()


# Messages that are none

FROM_MEMBERS = (
    wire.Heartbeat, wire.Stopped, wire.AwaitsLayout, wire.ExchangeFailed, wire.MemberReady, wire.FirstStep,
    wire.MemberDone, wire.Leave, wire.TrialStep, wire.SaveRequest,
)  # fmt: skip


@pytest.mark.few(1)
def test_a_message_with_a_field_of_another_type_is_refused_and_logged(ring: Process) -> None:
    wrong = [(kind.__name__, it.name) for kind in FROM_MEMBERS for it in fields(kind)]
    for kind, name in wrong:
        peer = Peer(ring, "member", 1)
        peer.socket.sendall(json.dumps({"kind": kind, name: {"of": f"{kind}.{name}"}}).encode() + b"\n")
        with contextlib.suppress(ConnectionError):
            while peer.socket.recv(1 << 16):
                pass
    log = ring.log()
    assert [it for it in wrong if f"{it[0]}.{it[1]}" not in log] == []
    assert log.count("\n") < 2 * len(wrong)


# Texts of peers

LONG = ["x" * 100_000, "\U0001f525" * 60_000, "\x00" * 100_000]


@pytest.mark.parametrize("text", LONG, ids=["plain", "wide", "escaped"])
def test_long_texts_of_peers_are_cut_where_they_arrive(text: str, ring: Process) -> None:
    member, scheduler, launcher = ring.members[1], Peer(ring, "scheduler"), Peer(ring, "launcher")
    member.send(wire.ExchangeFailed(1, 1, text[:30_000], text[:30_000]))
    ring.all_receive(wire.Resume(2))
    member.send(wire.Leave(1, 2, text))
    launcher.receive(wire.MemberGone)
    scheduler.send(wire.NoMemberOffer(text))
    scheduler.send(wire.Retire(2, text))
    assert launcher.receive(wire.MemberGone) == wire.MemberGone(2, text[:MAX_TEXT])
    report = request_ring_report(ring.folder)
    assert report is not None
    assert report.gone == {"1": text[:MAX_TEXT], "2": text[:MAX_TEXT]}
    assert (ring.folder / state_file(state_number(ring.folder))).stat().st_size < 64_000


@given(st.one_of(*(st.from_type(kind) for kind in wire._MESSAGE_KINDS.values())), st.data())
def test_each_text_of_any_message_is_cut_and_nothing_else_changes(message: wire.Message, data: st.DataObject) -> None:
    texts = [it.name for it in fields(message) if isinstance(getattr(message, it.name), str)]
    long: dict[str, Any] = {name: "y" * data.draw(st.integers(0, 3 * MAX_TEXT)) for name in texts}
    assert with_short_texts(replace(message, **long)) == replace(
        message, **{name: text[:MAX_TEXT] for name, text in long.items()}
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("outcome", ["done", "lost"])
def test_connections_at_the_end_leave_no_traceback_in_the_log(outcome: str, ring: Process) -> None:
    peers = [Peer(ring, role) for role in ("scheduler", "launcher", "scheduler")]
    ungreeted = socket.create_connection(("127.0.0.1", ring.port), LIMIT_S)
    for member in ring.members:
        member.send(
            wire.MemberDone(member.member, 1, 1) if outcome == "done" else wire.Leave(member.member, 1, "made up")
        )
    for peer in peers:
        end = peer.receive(wire.RingEnd)
        assert isinstance(end, wire.RingEnd)
        assert end.outcome == outcome
    wait_for(lambda: "State:\tZ" in Path(f"/proc/{ring.pid}/status").read_text())
    ungreeted.close()
    assert [line for line in ring.log().splitlines() if not line.startswith("longshore.ring: ")] == []
    report = read_written_ring_report(ring.folder)
    assert report is not None
    assert report.phase == outcome


def test_the_last_report_of_a_ring_that_its_launcher_ends_is_the_one_before(ring: Process) -> None:
    launcher = Peer(ring, "launcher")
    before, log = request_ring_report(ring.folder), ring.log()
    launcher.send(wire.Terminating())
    for number in range(3):
        launcher.send(wire.MemberExited(number, -15))
    launcher.receive(wire.RingEnd)
    assert read_written_ring_report(ring.folder) == before
    assert ring.log() == log
