"""A machine that stands still for longer than a member may be silent, as one that is moved to another host does."""

import asyncio
import os
import signal
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest

from longshore.ring import member_client, wire
from longshore.ring.member_client import MAX_CHECK_S, AbortedError, MemberClient, Silence

from .trial import Outcome, Trial, assert_as_undisturbed, run_ring

pytestmark = pytest.mark.long

STILL_S = 12.0


class Clock:
    """A clock of a member alone that is set by hand: servers in other threads of this process go by the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 1000.0
        for module in (member_client,):
            monkeypatch.setattr(module, "time", self)

    def monotonic(self) -> float:
        return self.now_s


@pytest.mark.parametrize(
    ("checks_s", "first_s", "is_too_long"),
    [
        ([1.0] * 10, 10.0, False),
        ([1.0] * 11, 10.0, True),
        ([0.1] * 99, 10.0, False),
        ([1.0] * 60, 60.0, False),
        ([1.0] * 61, 60.0, True),
        ([3600.0], 10.0, False),  # it stood still
        ([1.0] * 8 + [3600.0], 10.0, False),
        ([1.0] * 9 + [3600.0], 10.0, True),
        ([3600.0] + [1.0] * 9, 10.0, True),
        ([2.0] * 6, 10.0, True),  # a busy machine, on which it could listen all the same
    ],
)
def test_silence_counts_while_a_message_could_have_been_received(
    monkeypatch: pytest.MonkeyPatch, checks_s: Sequence[float], first_s: float, *, is_too_long: bool
) -> None:
    clock = Clock(monkeypatch)
    quiet = Silence(first_s)
    for check_s in checks_s:
        clock.now_s += check_s
        quiet.check()
    assert quiet.is_too_long is is_too_long
    assert quiet.check() == pytest.approx(sum(min(it, MAX_CHECK_S) for it in checks_s))
    quiet.end()
    assert (quiet.is_too_long, quiet.check()) == (False, 0.0)


@pytest.mark.parametrize("message", [wire.LeaseRenewal(1), wire.Abort(2)], ids=lambda it: type(it).__name__)
def test_a_member_changes_nothing_without_a_lease(monkeypatch: pytest.MonkeyPatch, message: wire.Message) -> None:
    """It waits for the coordinator's message, however long it stood still."""
    clock = Clock(monkeypatch)
    member = MemberClient("127.0.0.1:9", "secret", 0, "node", "", 5)
    member.generation = member._group_generation = 1
    clock.now_s += 3600.0
    member._send_heartbeat()  # as it continues
    ended = []

    def apply() -> None:
        try:
            member.begin_apply()
        except AbortedError:
            ended.append("aborted")
        else:
            ended.append("applies")

    thread = threading.Thread(target=apply, daemon=True)
    thread.start()
    thread.join(0.2)
    assert not ended
    member._receive(message)
    thread.join(10.0)
    assert ended == ["applies" if isinstance(message, wire.LeaseRenewal) else "aborted"]


def stopped(pid: int) -> bool:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "T"


@pytest.mark.full
@pytest.mark.parametrize("first", ["members", "coordinator"])
@pytest.mark.parametrize("at", ["computing", "reducing", "reduced", "sending MemberDone"])
def test_a_ring_on_a_machine_that_stands_still_continues(
    at: str, first: str, warm: Path, undisturbed: Outcome, tmp_path: Path
) -> None:
    """In any order of waking up, and at any point."""

    async def stand_still(trial: Trial) -> None:
        members = trial.launcher.running_pids
        await trial.until(lambda: set(members) == {0, 1, 2, 3} or members.update(trial.launcher.running_pids))
        await trial.until(lambda: stopped(members[2]))
        coordinator = trial.launcher.coordinator_pid
        assert coordinator is not None
        processes = [*members.values(), coordinator]
        for pid in processes:
            os.kill(pid, signal.SIGSTOP)
        await asyncio.sleep(STILL_S)
        for pid in processes if first == "members" else processes[::-1]:
            if pid == processes[-1 if first == "members" else -2]:
                await asyncio.sleep(0.5)
            os.kill(pid, signal.SIGCONT)

    faults = [{"member": 2, "step": 30 if at == "sending MemberDone" else 10, "at": at, "do": "STOP"}]
    found = run_ring(tmp_path, warm, faults=faults, during=stand_still)
    assert_as_undisturbed(found, undisturbed)
    assert (found.declared, found.exits) == ({}, {0: 0, 1: 0, 2: 0, 3: 0})
