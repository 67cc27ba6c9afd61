"""A coordinator that is lost with its machine: the next one has a later epoch, and no process obeys both."""

import asyncio
import os
import shutil
import signal
import socket
import tempfile
from contextlib import nullcontext, suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from longshore.ring import coordinator_server, launcher, wire
from longshore.ring.coordinator_server import CoordinatorServer
from longshore.ring.folder import (
    Appointment,
    SupersededError,
    appoint,
    make_ring_folder,
    read_appointment,
    read_state,
    state_file,
    state_number,
    write_state,
)
from longshore.ring.launcher import MemberStart, RingLauncher
from longshore.ring.member_client import Connection
from longshore.ring.ring_client import RingClient
from longshore.ring.wire import SUPERSEDED_STATUS, WireError, answer_challenge, check_welcome, make_welcome
from tests.support import processes

from .coordinator_process import Peer, Process, started, wait_for
from .trial import LIMIT_S, Outcome, Trial, assert_as_undisturbed, run_ring

OTHER = "127.0.0.2"  # the address of another machine


# The state's numbers


@given(st.lists(st.tuples(st.integers(0, 2), st.booleans()), max_size=60))
def test_of_several_writers_only_the_one_that_knows_the_newest_state_writes_the_next(
    turns: list[tuple[int, bool]],
) -> None:
    with tempfile.TemporaryDirectory() as path:
        folder, known, newest = Path(path), [0, 0, 0], 0
        for writer, reads in turns:
            if reads:
                known[writer], content = read_state(folder)
                assert (known[writer], content) == (newest, newest or {})
            is_newest = known[writer] == newest
            with nullcontext() if is_newest else pytest.raises(SupersededError):
                write_state(folder, known[writer] + 1, known[writer] + 1)
            if is_newest:
                known[writer] = newest = newest + 1


def test_files_of_old_states_are_removed_and_a_writer_that_knows_no_later_one_is_refused(tmp_path: Path) -> None:
    for number in range(1, 101):
        write_state(tmp_path, number, number)
    assert len(list(tmp_path.glob("state-*"))) < 20
    assert not (tmp_path / state_file(8)).exists()
    with pytest.raises(SupersededError):
        write_state(tmp_path, 8, "of a machine that was suspended")
    assert read_state(tmp_path) == (100, 100)


def test_an_epoch_has_one_appointment(tmp_path: Path) -> None:
    assert read_appointment(tmp_path) == Appointment(0, 0)
    assert appoint(tmp_path, Appointment(1, 2, (4, 5)))
    assert not appoint(tmp_path, Appointment(1, 3))
    assert read_appointment(tmp_path) == Appointment(1, 2, (4, 5))


# Two coordinators


def test_a_welcome_of_an_earlier_epoch_is_refused() -> None:
    asked = wire.new_challenge()
    hello = answer_challenge("secret", asked, wire.Hello("member"))
    for epoch, least in ((0, 0), (3, 3), (4, 3)):
        assert check_welcome("secret", asked, hello, make_welcome("secret", asked, hello, epoch), least) == epoch
    for epoch, least in ((0, 1), (2, 3)):
        with pytest.raises(WireError):
            check_welcome("secret", asked, hello, make_welcome("secret", asked, hello, epoch), least)
    right = make_welcome("secret", asked, hello, 2)
    with pytest.raises(WireError):
        check_welcome("secret", asked, hello, wire.Welcome(right.proof, 3))


def test_what_an_earlier_coordinator_had_received_changes_nothing_once_a_later_one_has_begun(ring: Process) -> None:
    launcher = Peer(ring, "launcher")
    processes.stop(ring.pid)  # its machine stands still
    launcher.send(wire.MemberExited(2, -9))
    appoint(ring.folder, Appointment(1, 1, (0,)))
    with started(ring.folder, host=OTHER, epoch=1) as later:
        later.members = [Peer(later, "member", number, generation=1) for number in (1, 2)]
        later.all_receive(wire.Resume(2))
        os.kill(ring.pid, signal.SIGCONT)
        assert os.waitstatus_to_exitcode(os.waitpid(ring.pid, 0)[1]) in (1, SUPERSEDED_STATUS)
        for peer in (*ring.members, launcher):
            before, peer.pending = peer.pending, []
            with suppress(ConnectionError):
                while data := peer.socket.recv(1 << 16):
                    before += peer.lines.feed(data)
            assert not [it for it in before if not isinstance(it, wire.LeaseRenewal | wire.Resume | wire.RingLayout)]
        state = read_state(ring.folder)[1]
        assert (state["epoch"], state["host"], state["holders"]) == (1, OTHER, [-1, 1, 2])
        assert list(state["gone"]) == ["0"]
        for peer in later.members:
            peer.beat()


def test_a_coordinator_of_an_earlier_epoch_does_not_begin(ring: Process) -> None:
    appoint(ring.folder, Appointment(1, 1))
    assert os.waitstatus_to_exitcode(os.waitpid(ring.pid, 0)[1]) == SUPERSEDED_STATUS
    before = read_state(ring.folder)
    with started(ring.folder) as again:  # it sees that there is a state of its epoch
        assert os.waitstatus_to_exitcode(os.waitpid(again.pid, 0)[1]) == SUPERSEDED_STATUS
    assert read_state(ring.folder) == before


def test_a_coordinator_that_loses_the_race_for_its_first_state_ends(tmp_path: Path) -> None:
    settings = make_ring_folder(tmp_path, 1)
    later = CoordinatorServer(tmp_path, settings, OTHER, 1)
    write_state(tmp_path, 1, {"writer": "of an earlier epoch"})
    with pytest.raises(SupersededError):
        asyncio.run(later.run())


def test_a_disk_that_fails_once_it_has_the_file_is_no_other_coordinator(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fails = [True]

    def write(folder: Path, number: int, content: object) -> None:
        write_state(folder, number, content)
        if fails.pop() if fails else False:
            raise OSError("made up")

    monkeypatch.setattr(coordinator_server, "write_state", write)
    monkeypatch.setattr(coordinator_server, "REWRITE_S", 0.0)
    server = CoordinatorServer(tmp_path, make_ring_folder(tmp_path, 1), "127.0.0.1")

    async def run() -> None:
        running = asyncio.create_task(server.run())
        async with asyncio.timeout(LIMIT_S):
            while state_number(tmp_path) < 2:
                await asyncio.sleep(0.01)
                assert not running.done()
        running.cancel()

    asyncio.run(run())


# What a member and a ring do


def test_a_member_follows_to_another_address_and_not_back_to_an_earlier_epoch(tmp_path: Path) -> None:
    """It is the file that counts, also while the connection to the earlier coordinator lives."""
    file = tmp_path / "address"
    with socket.create_server(("127.0.0.1", 0)) as old, socket.create_server(("127.0.0.1", 0)) as new:
        addresses = [f"127.0.0.1:{each.getsockname()[1]}" for each in (old, new)]
        connection = Connection(addresses[0], "secret", str(file))
        assert not connection.follow()
        _welcome(connection, old, 0)
        file.write_text(addresses[1])
        assert connection.follow()
        assert not connection.follow()
        connection.close()
        _welcome(connection, new, 1)
        file.write_text(addresses[0])
        assert connection.follow()
        connection.close()
        with pytest.raises(AssertionError):
            _welcome(connection, old, 0)
        connection.close()
        file.write_text("no address")
        assert not connection.follow()


def _welcome(connection: Connection, listening: socket.socket, epoch: int) -> None:
    """Let a connection be greeted by a coordinator of an epoch; raise if it refuses that."""
    assert connection.open()
    with listening.accept()[0] as other:
        asked = wire.new_challenge()
        other.sendall(wire.encode(asked))
        hello = wire.Hello("member", 0)
        assert connection.receive(LIMIT_S, lambda challenge: connection.send_hello(challenge, hello)) == []
        proven = wire.decode(other.recv(1 << 16))
        assert isinstance(proven, wire.Hello)
        other.sendall(wire.encode(make_welcome("secret", asked, proven, epoch)))
        assert connection.receive(LIMIT_S, lambda _: None) == []


@pytest.mark.parametrize("spares", [0, 1])
def test_a_ring_goes_on_when_the_machine_of_its_coordinator_is_lost(
    warm: Path, undisturbed: Outcome, tmp_path: Path, spares: int
) -> None:
    async def lose(trial: Trial) -> None:
        await trial.elsewhere.connect()
        await trial.reached(8)
        appoint(tmp_path, Appointment(1, 1, (0,)))
        await trial.launcher.end_coordinator()
        trial.send(0, signal.SIGKILL)
        await trial.elsewhere.start_coordinator(OTHER, 1)

    away = range(1, 4 + spares)
    found = run_ring(tmp_path, warm, spares=spares, away=away, wait_s=60.0, during=lose)
    if spares:
        assert_as_undisturbed(found, undisturbed)
    assert (found.end.outcome, found.steps(), len(found.digests())) == ("done", undisturbed.steps(), 1)
    assert (found.report["epoch"], found.report["host"]) == (1, OTHER)
    assert "0" in found.report["gone"]


def test_a_ring_waits_for_another_coordinator_and_takes_no_step_meanwhile(
    warm: Path, undisturbed: Outcome, tmp_path: Path
) -> None:
    steps = list[int]()

    async def wait(trial: Trial) -> None:
        await trial.elsewhere.connect()
        await trial.reached(8)
        await trial.launcher.end_coordinator()
        await trial.until(lambda: all("no coordinator" in log.read_text() for log in tmp_path.glob("member-*.log")))
        steps.append(max(line["content"][0] for line in trial.lines() if line["kind"] == "step"))
        await asyncio.sleep(2.0)
        steps.append(max(line["content"][0] for line in trial.lines() if line["kind"] == "step"))
        appoint(tmp_path, Appointment(1, 1))
        await trial.elsewhere.start_coordinator(OTHER, 1)

    found = run_ring(tmp_path, warm, steps=3000, away=range(4), wait_s=60.0, during=wait)
    assert steps[0] == steps[1] < 2999
    assert found.end.outcome == "done"
    assert found.generation() == 1
    assert len(found.digests()) == 1


def test_a_coordinator_that_ends_at_once_each_time_ends_the_ring_for_all_its_launchers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "MAX_RESTARTS", 1)
    monkeypatch.setattr(launcher, "LOST_GRACE_S", 0.1)

    async def run() -> list[wire.RingEnd]:
        make_ring_folder(tmp_path, 2)
        async with asyncio.timeout(LIMIT_S), RingLauncher(tmp_path) as own, RingLauncher(tmp_path) as other:
            await own.start_coordinator()
            await own.connect()
            await other.connect()
            (tmp_path / state_file(state_number(tmp_path) + 1)).write_text('{"epoch": 0}')  # as a bad disk
            assert own.coordinator_pid is not None
            os.kill(own.coordinator_pid, signal.SIGKILL)
            return [await each.wait_for_end() for each in (own, other)]

    ends = asyncio.run(run())
    assert {end.outcome for end in ends} == {"lost"}
    assert read_state(tmp_path)[1]["phase"] == "lost"


def test_a_launcher_that_does_not_reach_the_coordinator_learns_from_the_state_which_members_are_gone(
    tmp_path: Path,
) -> None:
    async def run() -> dict[int, int]:
        make_ring_folder(tmp_path, 2)
        state = {"host": OTHER, "port": 1, "epoch": 0, "phase": "running", "outcome": ""}
        write_state(tmp_path, 1, {**state, "gone": {}})
        async with asyncio.timeout(LIMIT_S), RingLauncher(tmp_path, wait_s=60.0) as cut_off:
            following = asyncio.create_task(cut_off.connect())
            for number in (0, 1):
                cut_off.start(MemberStart(number, ("sleep", "1000"), os.environ, tmp_path))
            while len(cut_off.running_pids) < 2:
                await asyncio.sleep(0.02)
            write_state(tmp_path, 2, {**state, "gone": {"1": "silent", "7": "on another machine"}})
            while 1 not in cut_off.exits:
                await asyncio.sleep(0.02)
            assert list(cut_off.running_pids) == [0]
            # Also of a ring that is done meanwhile.
            write_state(tmp_path, 3, {**state, "phase": "done", "gone": {"0": "silent"}})
            assert await cut_off.wait_for_end() == wire.RingEnd("done", "")
            following.cancel()
            return cut_off.exits

    assert asyncio.run(run()) == {1: -signal.SIGKILL, 0: -signal.SIGKILL}


def test_the_address_for_members_is_written_again_when_a_machine_clears_its_folder(tmp_path: Path) -> None:
    async def run() -> None:
        make_ring_folder(tmp_path, 2)
        state = {"host": OTHER, "port": 1, "epoch": 0, "phase": "running", "outcome": "", "gone": {}}
        write_state(tmp_path, 1, state)
        async with asyncio.timeout(LIMIT_S), RingLauncher(tmp_path, wait_s=60.0) as launcher:
            following, folder = asyncio.create_task(launcher.connect()), launcher._own
            assert folder is not None
            for _ in range(2):
                while not (folder / "address").exists():
                    await asyncio.sleep(0.02)
                assert (folder / "address").read_text() == f"{OTHER}:1"
                shutil.rmtree(folder)
            following.cancel()
        assert not folder.exists()

    asyncio.run(run())


def test_a_schedulers_connection_ends_when_the_machine_of_the_coordinator_has_vanished(ring: Process) -> None:
    client = RingClient(ring.folder, lambda: None)
    wait_for(lambda: client.is_open)
    connection = client._connection
    assert connection is not None
    for option, value in wire.KEEPALIVE.items():
        assert connection.getsockopt(socket.IPPROTO_TCP, option) == value
    assert connection.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE)
    client.close()


@pytest.mark.parametrize("later", ["state", "appointment"])
def test_a_launcher_whose_coordinator_has_no_epoch_any_more_gives_up_no_ring(tmp_path: Path, later: str) -> None:
    async def run() -> None:
        make_ring_folder(tmp_path, 2)
        state = {"host": OTHER, "port": 1, "epoch": int(later == "state"), "phase": "running", "gone": {}}
        write_state(tmp_path, 1, state)
        if later == "appointment":
            appoint(tmp_path, Appointment(1, 1))
        async with RingLauncher(tmp_path) as own:
            own.give_up(wire.RingEnd("lost", "made up"), 0)
            assert not own.is_over
            assert read_state(tmp_path) == (1, state)
            own.give_up(wire.RingEnd("lost", "made up"), 1)
            assert (await own.wait_for_end()).outcome == "lost"
        assert read_state(tmp_path)[1]["phase"] == "lost"

    asyncio.run(run())


def test_a_ring_whose_coordinator_is_lost_when_it_is_done_is_done_for_all_its_members(
    warm: Path, undisturbed: Outcome, tmp_path: Path
) -> None:
    async def lose(trial: Trial) -> None:
        await trial.elsewhere.connect()
        await trial.reached(8)
        assert trial.launcher.coordinator_pid is not None
        processes.stop(trial.launcher.coordinator_pid)
        number, state = read_state(tmp_path)
        await trial.reached(29)
        write_state(tmp_path, number + 1, {**state, "phase": "done", "outcome": "all members are done"})
        await trial.launcher.end_coordinator()

    found = run_ring(tmp_path, warm, away=range(4), wait_s=60.0, during=lose)
    assert found.end.outcome == "done"
    assert found.digests() == undisturbed.digests()
    assert set(found.exits.values()) == {0}
