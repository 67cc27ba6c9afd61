"""Rings of real processes, one of which is slow for a while: a backup computes in its place."""

import asyncio
import signal
from pathlib import Path

import pytest

from longshore.ring.membership import RingLimits

from .trial import Outcome, Trial, run_ring

pytestmark = [pytest.mark.full, pytest.mark.long]

LIMITS = RingLimits(slow_steps=2, well_steps=2, hold_steps=5)
STEPS, PAUSE_S = 300, 0.04


@pytest.fixture(scope="module")
def alone(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    """A ring in which no member is slow."""
    return run_ring(tmp_path_factory.mktemp("alone"), warm, seats=3, steps=STEPS, pause_s=0.0)


def assert_same(found: Outcome, alone: Outcome, members: int) -> None:
    """Each step was taken once, and those that are seated have the bits of a ring in which no member was slow."""
    assert found.end.outcome == "done", found
    assert found.steps() == list(range(STEPS))
    ends = [[line["content"][0], line["content"][3], line["content"][4]] for line in found.of("end")]
    assert all(it == [line["content"][i] for i in (0, 3, 4)] for it in ends for line in alone.of("end")[:1])
    assert len(ends) == members


@pytest.mark.parametrize("slow", [0, 1])
def test_a_backup_computes_in_place_of_a_slow_member_until_it_is_well(
    slow: int, warm: Path, alone: Outcome, tmp_path: Path
) -> None:
    """It is bit for bit as if nothing had happened; also if the one that is the state's source and saves it is slow."""
    orders: list[list[int]] = []

    async def be_slow(trial: Trial) -> None:
        await trial.reached(5)
        trial.slow(slow, is_slow=True)
        backup = trial.start()
        await trial.is_relieved([slow])
        orders.append((await trial.report()).order)
        trial.slow(slow, is_slow=False)
        await trial.is_relieved([])
        await trial.until(lambda: backup in trial.launcher.exits)
        orders.append((await trial.report()).order)

    found = run_ring(
        tmp_path, warm, seats=3, steps=STEPS, pause_s=PAUSE_S, limits=LIMITS, during=be_slow, backups=1,
        checkpoints=tmp_path / "saved",
    )  # fmt: skip
    assert orders == [[3 if it == slow else it for it in range(3)], [0, 1, 2]]
    assert_same(found, alone, 3)
    assert found.declared.keys() == {3}
    assert found.exits == {0: 0, 1: 0, 2: 0, 3: 76}
    assert found.generation() == 3


@pytest.mark.full
def test_a_warm_spare_is_the_backup_and_the_slow_member_is_the_spare_once_it_is_well(
    warm: Path, alone: Outcome, tmp_path: Path
) -> None:
    async def be_slow(trial: Trial) -> None:
        await trial.reached(5)
        trial.slow(2, is_slow=True)
        await trial.is_relieved([2])
        trial.slow(2, is_slow=False)
        await trial.is_relieved([])
        assert (await trial.report()).spares == [2]
        trial.send(1, signal.SIGKILL)
        while (await trial.report()).order != [0, 2, 3]:
            await asyncio.sleep(0.02)

    found = run_ring(
        tmp_path, warm, seats=3, spares=1, steps=STEPS, pause_s=PAUSE_S, limits=LIMITS, during=be_slow, backups=1
    )
    assert_same(found, alone, 3)
    assert found.declared.keys() == {1}


@pytest.mark.full
def test_a_member_that_stays_slow_ends_with_the_ring(warm: Path, alone: Outcome, tmp_path: Path) -> None:
    async def be_slow(trial: Trial) -> None:
        await trial.reached(5)
        trial.slow(1, is_slow=True)
        await trial.is_relieved([1])

    found = run_ring(
        tmp_path, warm, seats=3, spares=1, steps=STEPS, pause_s=PAUSE_S, limits=LIMITS, during=be_slow, backups=1
    )
    assert_same(found, alone, 3)
    assert found.exits == dict.fromkeys(range(4), 0)


@pytest.mark.full
@pytest.mark.parametrize("victim", ["slow", "backup", "coordinator"])
def test_a_process_that_is_killed_meanwhile_costs_no_step(
    victim: str, warm: Path, alone: Outcome, tmp_path: Path
) -> None:
    async def be_slow(trial: Trial) -> None:
        await trial.reached(5)
        trial.slow(1, is_slow=True)
        await trial.is_relieved([1])
        if victim == "coordinator":
            trial.kill_coordinator()
            await asyncio.sleep(0.5)
        else:
            trial.send(1 if victim == "slow" else 3, signal.SIGKILL)
        trial.slow(1, is_slow=False)
        await trial.is_relieved([])

    found = run_ring(
        tmp_path, warm, seats=3, spares=1, steps=STEPS, pause_s=PAUSE_S, limits=LIMITS, during=be_slow, backups=1
    )
    if victim == "backup":  # for a while two members computed for three
        assert found.end.outcome == "done"
        assert found.steps() == list(range(STEPS))
        assert len(found.digests()) == 1
    else:
        assert_same(found, alone, 3)


@pytest.mark.full
def test_a_member_that_still_computes_when_the_ring_is_done_is_no_failure(
    warm: Path, alone: Outcome, tmp_path: Path
) -> None:
    """It was relieved in the midst of a step that outlasts all steps of the others."""

    async def hold(trial: Trial) -> None:
        await trial.reached(5)
        trial.slow(1, is_slow=True)
        await trial.reached(10)
        (tmp_path / "hold-1").touch()
        await trial.until((tmp_path / "held-1").exists)
        trial.start()
        await trial.until(lambda: sum(line["kind"] == "end" for line in trial.lines()) == 3)
        (tmp_path / "hold-1").unlink()

    found = run_ring(tmp_path, warm, seats=3, steps=STEPS, pause_s=PAUSE_S, limits=LIMITS, during=hold, backups=1)
    assert_same(found, alone, 3)
    assert found.exits == dict.fromkeys(range(4), 0)
