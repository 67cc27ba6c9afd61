"""Members that were left behind, cut off or are worn out, and links that fail although both ends live."""

import asyncio
import json
import signal
from contextlib import suppress
from pathlib import Path

import pytest

from longshore.ring import wire
from longshore.ring.membership import RingLimits
from longshore.ring.wire import greet
from tests.support import processes

from .trial import Outcome, Trial, assert_as_undisturbed, run_ring


@pytest.mark.full
def test_a_member_that_wakes_up_after_it_was_declared_gone_changes_nothing(warm: Path, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    seen: dict[str, object] = {}

    def standing(trial: Trial) -> dict[str, object]:
        lines = [line for line in trial.lines() if line["member"] == 0]
        files = {path.name: path.read_bytes() for path in checkpoints.iterdir() if "-m0." in path.name}
        return {"lines": lines, "files": files}

    async def stop(trial: Trial) -> None:
        await trial.until(lambda: any(line["kind"] == "fault" for line in trial.lines()))
        processes.see_stopped(trial.elsewhere.running_pids[0])
        seen.update(standing(trial))
        await trial.seated(2)
        trial.send(0, signal.SIGCONT)
        await trial.until(lambda: 0 in trial.elsewhere.exits)
        seen["after"] = standing(trial)

    faults = [{"member": 0, "step": 25, "at": "computing", "do": "STOP"}]
    found = run_ring(
        tmp_path, warm, spares=1, steps=120, pause_s=0.1, faults=faults, during=stop, checkpoints=checkpoints, away=[0]
    )
    assert found.end.outcome == "done"
    assert found.exits[0] == wire.GONE_STATUS
    assert seen["after"] == {"lines": seen["lines"], "files": seen["files"]}
    assert found.steps() == list(range(120))
    assert len(found.digests()) == 1
    assert "sent nothing" in found.declared[0]


# Where it is stopped: its draft is written and it is about to ask; a message is about to be sent; others have the step.
STOPPED = {"sending SaveRequest": 20, "sending FirstStep": 1, "reduced": 10}


@pytest.mark.full
@pytest.mark.parametrize("at", STOPPED)
def test_messages_and_checkpoints_of_a_member_that_wakes_up_are_refused(
    at: str, warm: Path, undisturbed: Outcome, tmp_path: Path
) -> None:
    """It wakes up before it would end itself by its own clock, so that nothing but the refusal holds it."""
    checkpoints, seen = tmp_path / "checkpoints", list[wire.RingReport]()

    async def wake(trial: Trial) -> None:
        await trial.seated(2)
        seen.append(await trial.report())
        trial.send(0, signal.SIGCONT)
        await trial.until(lambda: 0 in trial.elsewhere.exits)
        seen.append(await trial.report())
        (tmp_path / "go").touch()

    faults = [
        {"member": 0, "step": STOPPED[at], "at": at, "do": "STOP"},
        {"member": 1, "step": 25, "at": "computing", "do": "wait"},
    ]
    found = run_ring(
        tmp_path, warm, spares=1, faults=faults, during=wake, limits=RingLimits(silence_s=2.0), checkpoints=checkpoints,
        away=[0],
    )  # fmt: skip
    assert_as_undisturbed(found, undisturbed)
    assert (found.exits[0], found.generation(), set(found.declared)) == (wire.GONE_STATUS, 2, {0})
    before, after = ((it.generation, it.order, it.gone, it.phase) for it in seen)
    assert before == after
    assert max((line["content"][0] for line in found.of("step") if line["member"] == 0), default=0) <= STOPPED[at]
    saved = {it.name for it in checkpoints.glob("step-*")}
    before_it = {"step-000000010-g1-m0.pt"} if STOPPED[at] >= 10 else set()
    assert {it for it in saved if it.endswith("-m0.pt")} == before_it
    assert "step-000000030-g2-m4.pt" in saved


@pytest.mark.full
def test_a_silent_member_is_replaced(warm: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    """The same in short: the coordinator waits 2 s; the launcher kills what was declared gone."""
    faults = [{"member": 2, "step": 10, "at": "computing", "do": "STOP"}]
    found = run_ring(tmp_path, warm, spares=1, faults=faults, limits=RingLimits(silence_s=2.0))
    assert_as_undisturbed(found, undisturbed)
    assert found.exits[2] == -9


@pytest.mark.full
def test_a_link_that_fails_again_and_again_costs_one_of_its_members_the_seat(
    warm: Path, undisturbed: Outcome, tmp_path: Path
) -> None:
    faults = [{"member": 1, "step": step, "at": "computing", "do": "break 2"} for step in (5, 8, 11)]
    found = run_ring(tmp_path, warm, spares=1, faults=faults)
    assert_as_undisturbed(found, undisturbed)
    assert found.declared == {2: "exchanges between members [1, 2] failed 3 times"}
    assert found.exits[2] == wire.GONE_STATUS or found.exits[2] == -9


@pytest.mark.full
def test_a_link_that_fails_once_costs_no_member_the_seat(warm: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [{"member": 1, "step": 5, "at": "computing", "do": "break 2"}]
    found = run_ring(tmp_path, warm, spares=1, faults=faults)
    assert_as_undisturbed(found, undisturbed)
    assert (found.declared, found.generation()) == ({}, 2)


@pytest.mark.full
def test_a_slow_member_is_no_fault(warm: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    """Longer than a group may take to form, and than a member may be silent."""
    faults = [{"member": 1, "step": 5, "at": "computing", "do": 13.0}]
    found = run_ring(tmp_path, warm, spares=1, faults=faults)
    assert_as_undisturbed(found, undisturbed)
    assert found.generation() == 1


@pytest.mark.full
def test_a_script_that_fails_gives_up_its_seat_at_once(warm: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [{"member": 1, "step": 5, "at": "computing", "do": "raise"}]
    found = run_ring(tmp_path, warm, spares=1, faults=faults)
    assert_as_undisturbed(found, undisturbed)
    assert found.declared == {1: "RuntimeError: made up"}


async def connect(trial: Trial) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = trial.launcher.coordinator_address().rpartition(":")
    return await asyncio.open_connection(host, int(port))


GARBAGE = [
    b"",
    b"\n",
    b"GET / HTTP/1.1\r\nHost: x\r\n\r\n",
    b"\x00\xff" * 1000 + b"\n",
    b"[" * 100_000 + b"\n",
    b"{}\n",
    b'{"kind": "Hello"}\n',
    b'{"kind": "Hello", "role": 3, "proof": []}\n',
    b'{"kind": "MemberExited", "member": 0, "status": 0}\n',
    b'{"kind": "Hello", "role": "member", "proof": "\\ud800", "member": 0}\n',
    b'{"kind": "Hello", "role": "launcher", "proof": "wrong"}\n{"kind": "MemberExited", "member": 0, "status": 0}\n',
    b"x" * (3 << 20),
]
SECRET = [  # behind a Hello with the right secret
    b"nothing\n",
    b'{"kind": "Stopped", "member": 1, "generation": 9007199254740993, "step": 1, "awaits_layout": true}\n',
    b'{"kind": "MemberExited", "member": 1e999, "status": 0}\n',
    b'{"kind": "ExchangeFailed", "member": 0, "generation": 1}\n',
    b'{"kind": "Heartbeat", "member": 7, "generation": 1, "number": 1, "step": NaN}\n',
]


@pytest.mark.full
def test_nothing_that_comes_over_the_port_disturbs_a_ring(warm: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    async def send_all(trial: Trial) -> None:
        await trial.reached(2)
        secret = json.loads((tmp_path / "ring.json").read_text())["secret"]
        roles = ("member", "launcher", "scheduler", "status", "king")
        for role, content in (*(("", it) for it in GARBAGE), *((role, it) for role in roles for it in SECRET)):
            reader, writer = await connect(trial)
            if role:
                await greet(reader, writer, secret, wire.Hello(role, member=2, token="not that member's"))
            writer.write(content)
            with suppress(OSError):  # it may have been closed at once
                writer.write_eof()
            with suppress(ConnectionError):
                await asyncio.wait_for(reader.read(), 10.0)
            writer.close()

    found = run_ring(tmp_path, warm, steps=30, pause_s=0.03, during=send_all)
    assert_as_undisturbed(found, undisturbed)
    assert (found.declared, found.generation()) == ({}, 1)


@pytest.mark.full
def test_a_member_with_another_secret_is_ignored(warm: Path, tmp_path: Path) -> None:
    async def come(trial: Trial) -> None:
        await trial.reached(2)
        reader, writer = await connect(trial)
        with pytest.raises(wire.WireError):
            await greet(reader, writer, "another", wire.Hello("member", member=9, token="x"))
        assert await reader.read() == b""
        writer.close()

    found = run_ring(tmp_path, warm, seats=2, pause_s=0.03, during=come)
    assert (found.end.outcome, found.generation()) == ("done", 1)
