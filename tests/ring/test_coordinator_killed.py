"""The coordinator, or the member that hosts the store, is killed after each message of a recovery."""

import json
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from longshore.ring import launcher
from longshore.ring.coordinator import NOT_NEEDED
from longshore.ring.folder import RECOVERIES
from tests.support.processes import ROOT

from .member_pool import offer_members
from .trial import Outcome, Trial, assert_as_undisturbed, nothing, run_ring

pytestmark = pytest.mark.long

LOST, HOST, SEATS = 3, 0, 4  # the host sends the state, and has the store at which the others meet
# In their order; in a ring without spares the scheduler gets a request, offers a member, and starts it.
WITH_SPARES = [
    *(
        "received MemberExited",
        "received ExchangeFailed",
        "wrote stopping",
        "sent Abort",
        "sent MemberGone",
        "received Stopped",
    ),
    *("wrote forming", "sent RingLayout", "received MemberReady", "wrote running", "sent Resume", "received FirstStep"),
]
WITH_SCHEDULER = ["sent SeatRequest", "sent LeaseRenewal", "received MemberOffer", "received MemberStarting"]
LATER = ["received Heartbeat", "received MemberDone", "wrote done", "sent Finish", "sent RingEnd"]
COORDINATOR = [f"{it}=coordinator" for it in (*WITH_SPARES, *WITH_SCHEDULER, *LATER)]
MEMBER = [f"{it}={HOST}" for it in (*WITH_SPARES, *WITH_SCHEDULER)]
BOTH = [
    f"wrote stopping=coordinator,sent RingLayout={HOST}",
    f"sent RingLayout={HOST},received Stopped=coordinator",
    f"received MemberReady={HOST},sent Abort=coordinator",
    f"sent SeatRequest=coordinator,received MemberOffer={HOST}",
    f"received MemberStarting={HOST},sent RingLayout=coordinator",
    "sent Abort=coordinator,sent RingLayout=coordinator",
]
FAST = [
    "wrote stopping=coordinator",
    "sent RingLayout=coordinator",
    "received MemberOffer=coordinator",
    f"sent RingLayout={HOST}",
]
RARE = [it for it in (*COORDINATOR, *MEMBER, *BOTH) if it not in FAST]
KILLS = [*FAST, *(pytest.param(it, marks=pytest.mark.full) for it in RARE)]


@pytest.fixture
def killing(monkeypatch: pytest.MonkeyPatch) -> pytest.MonkeyPatch:
    """Coordinators that kill."""
    monkeypatch.setattr(launcher, "COORDINATOR", "tests.ring.killed_coordinator")
    monkeypatch.setattr(launcher, "RUN_MODULE", f"import sys; sys.path.append({str(ROOT)!r}); {launcher.RUN_MODULE}")
    return monkeypatch


def fault(member: int, at: str, do: object) -> dict[str, Any]:
    return {"member": member, "step": 10, "at": at, "do": do}


def faults_before(kills: str) -> Sequence[dict[str, Any]]:
    """Return the first fault: a process ends, or a link between two living members fails."""
    return (
        [fault(1, "computing", "break 2")] if "received ExchangeFailed" in kills else [fault(LOST, "computing", "KILL")]
    )


@pytest.mark.few(1)
@pytest.mark.parametrize("kills", KILLS)
def test_a_ring_continues_whichever_process_is_killed_after_a_message_of_a_recovery(
    kills: str, warm: Path, undisturbed: Outcome, tmp_path: Path, killing: pytest.MonkeyPatch
) -> None:
    killing.setenv("KILLS", kills)
    asks = any(it in kills for it in WITH_SCHEDULER)
    # A member that started before its offer was received could take its seat before that.
    scheduler = partial(offer_members, most=2, may_start=(tmp_path / "received-MemberOffer").exists)
    # Steps so long that each member sends heartbeats during the recovery.
    found = run_ring(
        tmp_path, warm, spares=0 if asks else 2, faults=faults_before(kills), pause_s=0.1,
        during=scheduler if asks else nothing,
    )  # fmt: skip
    assert_as_undisturbed(found, undisturbed)
    assert not any(0 < it["members"] < SEATS for it in json.loads((tmp_path / RECOVERIES).read_text()))
    killed = kills.split(",")
    assert len(list(tmp_path.glob("killed-*"))) == len(killed)
    assert found.generation() <= 2 + len(killed)
    dead = {HOST for it in killed if it.endswith(f"={HOST}")} | {
        it["member"] for it in faults_before(kills) if it["do"] == "KILL"
    }
    # The ring does not wait for a spare that connects when all is done.
    late = {number for number, reason in found.declared.items() if reason == NOT_NEEDED}
    assert {number for number, status in found.exits.items() if status == -9} - late == dead, found.declared


@pytest.mark.full
def test_a_ring_shrinks_though_its_coordinator_is_killed_once_no_member_is_offered(
    warm: Path, undisturbed: Outcome, tmp_path: Path, killing: pytest.MonkeyPatch
) -> None:
    killing.setenv("KILLS", "received NoMemberOffer=coordinator")
    found = run_ring(tmp_path, warm, faults=faults_before(""), pause_s=0.1, during=partial(offer_members, most=0))
    assert found.end.outcome == "done"
    assert found.steps() == undisturbed.steps()
    assert (tmp_path / "killed-0").exists()
    assert (len(found.of("end")), len(found.digests())) == (SEATS - 1, 1)
    assert found.generation() <= 3


@pytest.mark.full
def test_a_coordinator_may_be_killed_while_the_state_is_copied(
    warm: Path, undisturbed: Outcome, tmp_path: Path
) -> None:
    async def kill(trial: Trial) -> None:
        await trial.until(
            lambda: any(it["content"]["at"] == "copying" for it in trial.lines() if it["kind"] == "fault")
        )
        trial.kill_coordinator()
        (tmp_path / "go").touch()

    faults = [fault(LOST, "computing", "KILL"), fault(HOST, "copying", "wait")]
    found = run_ring(tmp_path, warm, spares=1, faults=faults, during=kill)
    assert_as_undisturbed(found, undisturbed)
    assert found.generation() <= 3


@pytest.mark.full
def test_a_ring_runs_on_while_its_coordinator_is_down(warm: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    async def kill(trial: Trial) -> None:
        await trial.reached(10)
        trial.kill_coordinator()

    found = run_ring(tmp_path, warm, during=kill)
    assert_as_undisturbed(found, undisturbed)
    assert found.generation() == 1


# Where the host itself is, rather than what it has reported.
POINTS = ["stopped", "copying", "ready", "going", "running"]
PLACES = ["formed", *(pytest.param(it, marks=pytest.mark.full) for it in POINTS)]


@pytest.mark.full
@pytest.mark.parametrize("at", PLACES)
def test_the_host_of_the_store_may_be_killed_anywhere_in_a_recovery(
    at: str, warm: Path, undisturbed: Outcome, tmp_path: Path
) -> None:
    found = run_ring(tmp_path, warm, spares=2, faults=[fault(2, "computing", "KILL"), fault(HOST, at, "KILL")])
    assert_as_undisturbed(found, undisturbed)
    assert set(found.declared) == {HOST, 2}
    assert found.generation() <= 3
