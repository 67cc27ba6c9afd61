"""Whichever message is lost in a recovery, or around a slow member: no step is lost, and no process waits for ever."""

import itertools
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from longshore.ring.membership import RingLimits

from .lossy_proxy import Loses
from .trial import Outcome, Trial, run_ring

pytestmark = pytest.mark.long

LIMITS = RingLimits(slow_steps=2, well_steps=2, hold_steps=5)
STEPS, PAUSE_S = 300, 0.04
OFTEN = ("Heartbeat", "LeaseRenewal", "TrialStep")  # sent once a second, whatever happens


@pytest.fixture(scope="module")
def alone(warm: Path, tmp_path_factory: pytest.TempPathFactory) -> Outcome:
    return run_ring(tmp_path_factory.mktemp("alone"), warm, seats=3, steps=STEPS, pause_s=0.0)


def first_and_third(kind: str, before: int) -> bool:
    """Lose the first and the third of each kind: of most there is one for each member."""
    return before in (0, 2)


def by_chance(seed: int) -> Loses:
    """Lose some messages at random, and one for certain: a run may have few."""
    rng, messages = np.random.default_rng(seed), itertools.count()
    return lambda kind, before: next(messages) == seed or bool(rng.random() < (0.02 if kind in OFTEN else 0.15))


@pytest.mark.full
@pytest.mark.parametrize("loses", [first_and_third, *(by_chance(seed) for seed in range(4))])
def test_a_lost_message_costs_no_step(
    loses: Callable[[str, int], bool], warm: Path, alone: Outcome, tmp_path: Path
) -> None:
    lost: list[str] = []

    async def be_slow(trial: Trial) -> None:
        assert trial.proxy is not None
        await trial.reached(5)
        trial.proxy.on = True
        trial.slow(1, is_slow=True)
        await trial.is_relieved([1])
        trial.slow(1, is_slow=False)
        await trial.is_relieved([])
        trial.proxy.on = False
        lost.extend(trial.proxy.lost)

    found = run_ring(
        tmp_path, warm, seats=3, spares=1, steps=STEPS, pause_s=PAUSE_S, limits=LIMITS, during=be_slow, backups=1,
        loses=loses,
    )  # fmt: skip
    assert {"Abort", "RingLayout", "Resume", "AwaitsLayout", "Hello", "MemberReady", "Stopped", "Welcome"} <= set(
        lost
    ) or loses is not first_and_third
    assert lost
    assert found.end.outcome == "done", found
    assert found.steps() == list(range(STEPS))
    assert found.digests() == alone.digests()
    assert found.declared == {}


@pytest.mark.full
@pytest.mark.parametrize("loses", [first_and_third, *(by_chance(seed) for seed in range(4, 8))])
def test_a_lost_message_at_a_fault_costs_no_step(
    loses: Callable[[str, int], bool], warm: Path, alone: Outcome, tmp_path: Path
) -> None:
    lost: list[str] = []

    async def lose_one(trial: Trial) -> None:
        assert trial.proxy is not None
        await trial.reached(5)
        await trial.spare_joined(3)
        trial.proxy.on = True
        trial.send(1, signal.SIGKILL)
        await trial.seated(2)
        await trial.reached(STEPS - 1)
        await trial.until(lambda: trial.launcher.is_over)
        lost.extend(trial.proxy.lost)

    found = run_ring(
        tmp_path, warm, seats=3, spares=1, steps=STEPS, during=lose_one, loses=loses, checkpoints=tmp_path / "saved"
    )
    assert {"Abort", "SaveRequest", "MemberDone", "RingLayout", "SaveReply", "MemberReady"} <= set(
        lost
    ) or loses is not first_and_third
    assert lost
    assert found.end.outcome == "done", found
    assert found.steps() == list(range(STEPS))
    assert found.digests() == alone.digests()
    assert found.declared.keys() == {1}
