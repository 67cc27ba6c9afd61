"""Rings of real processes, on gloo, with real faults and real detection."""

import asyncio
import json
import signal
from pathlib import Path

import pytest

from .trial import Outcome, Trial, assert_as_undisturbed, run_ring, warm_process


def test_an_undisturbed_ring_has_one_generation_and_one_state(undisturbed: Outcome) -> None:
    assert undisturbed.end.outcome == "done"
    assert undisturbed.exits == {0: 0, 1: 0, 2: 0, 3: 0}
    assert undisturbed.steps() == list(range(30))
    assert len(undisturbed.digests()) == 1
    assert undisturbed.generation() == 1


AT = ["computing", "reducing", "reduced"]


@pytest.mark.few(1)
@pytest.mark.parametrize("at", AT)
def test_a_member_that_is_killed_is_replaced_by_a_spare_bit_for_bit(
    at: str, warm: Path, undisturbed: Outcome, tmp_path: Path
) -> None:
    fault = {"member": 2, "step": 10, "at": at, "do": "KILL"}
    found = run_ring(tmp_path, warm, spares=1, faults=[fault])
    assert_as_undisturbed(found, undisturbed)
    assert found.exits == {0: 0, 1: 0, 2: -9, 3: 0, 4: 0}
    assert found.generation() == 2


@pytest.mark.full
def test_members_of_several_generations_end_well(
    undisturbed: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With PyTorch's libraries taken apart beside threads that may still run, which elsewhere is left out."""
    monkeypatch.setenv("WHOLE_END", "1")
    faults = [
        {"member": 2, "step": 10, "at": "computing", "do": "KILL"},
        {"member": 1, "step": 20, "at": "computing", "do": "break 0"},
    ]
    with warm_process() as warm:
        found = run_ring(tmp_path, warm, spares=1, faults=faults)
    assert_as_undisturbed(found, undisturbed)
    assert found.exits == {0: 0, 1: 0, 2: -9, 3: 0, 4: 0}
    assert found.generation() == 3


def test_two_members_killed_in_one_moment_are_one_round(warm: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    async def kill(trial: Trial) -> None:
        await trial.reached(10)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # stopped first: neither reports the other's end
            for member in (1, 3):
                trial.send(member, number)
        (tmp_path / "go").touch()

    faults = [{"member": 0, "step": 12, "at": "computing", "do": "wait"}]
    found = run_ring(tmp_path, warm, spares=2, faults=faults, during=kill)
    assert_as_undisturbed(found, undisturbed)
    assert (found.exits[1], found.exits[3], found.generation()) == (-9, -9, 2)


@pytest.mark.full
def test_a_second_member_killed_later_is_a_second_round(warm: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    faults = [{"member": it, "step": step, "at": "reducing", "do": "KILL"} for it, step in ((0, 5), (3, 25))]
    found = run_ring(tmp_path, warm, spares=2, faults=faults)
    assert_as_undisturbed(found, undisturbed)
    assert found.generation() == 3


@pytest.mark.full
def test_the_source_killed_in_the_middle_of_the_copy_leaves_another_one(
    warm: Path, undisturbed: Outcome, tmp_path: Path
) -> None:
    faults = [
        {"member": 2, "step": 10, "at": "computing", "do": "KILL"},
        {"member": 0, "step": 10, "at": "copying", "do": "KILL"},
    ]
    found = run_ring(tmp_path, warm, spares=2, faults=faults)
    assert_as_undisturbed(found, undisturbed)
    assert (found.exits[0], found.exits[2]) == (-9, -9)
    assert source_and_receivers(found) == {2: (0, {4}), 3: (1, {4, 5})}
    # What was copied so far was not taken over: the newcomer has a seat from the second round on.
    assert [line["content"][1] for line in found.of("seated") if line["member"] == 4] == [3]


def source_and_receivers(found: Outcome) -> dict[int, tuple[int, set[int]]]:
    """Return source and receivers of the state, by generation."""
    forms = {line["content"][0]: (line["content"][1], set(line["content"][2])) for line in found.of("layout")}
    return {generation: form for generation, form in forms.items() if generation > 1}


@pytest.mark.full
def test_a_newcomer_killed_once_it_is_ready_is_replaced_by_the_next(
    warm: Path, undisturbed: Outcome, tmp_path: Path
) -> None:
    faults = [
        {"member": 2, "step": 10, "at": "computing", "do": "KILL"},
        {"member": 4, "step": 10, "at": "ready", "do": "KILL"},
    ]
    found = run_ring(tmp_path, warm, spares=2, faults=faults)
    assert_as_undisturbed(found, undisturbed)
    assert set(found.declared) == {2, 4}


@pytest.mark.full
def test_of_members_a_step_apart_the_one_ahead_gives_its_state(
    warm: Path, undisturbed: Outcome, tmp_path: Path
) -> None:
    """All exchange the gradients of a step; one applies it, the others are held until the ring is formed again."""
    faults = [{"member": it, "step": 10, "at": "reduced", "do": 0.5} for it in (1, 2)]
    faults.append({"member": 3, "step": 10, "at": "reduced", "do": "KILL"})
    found = run_ring(tmp_path, warm, spares=1, faults=faults)
    assert_as_undisturbed(found, undisturbed)
    assert [line["member"] for line in found.of("step") if line["content"][0] == 10] == [0]


@pytest.mark.full
def test_a_stop_of_two_seconds_is_no_fault(warm: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    async def stop(trial: Trial) -> None:
        await trial.reached(5)
        trial.send(2, signal.SIGSTOP)
        await asyncio.sleep(2.0)
        trial.send(2, signal.SIGCONT)

    found = run_ring(tmp_path, warm, spares=1, during=stop)
    assert_as_undisturbed(found, undisturbed)
    assert found.generation() == 1


def losses(found: Outcome) -> list[float]:
    """Return the loss of the global batch at each step."""
    last = {
        (line["content"][0], shard): line["content"][4] for line in found.of("step") for shard in line["content"][3][:1]
    }
    return [sum(loss for (at, _), loss in last.items() if at == step) for step in found.steps()]


@pytest.mark.full
def test_without_a_spare_the_ring_shrinks_and_the_loss_stays_nearly_the_same(warm: Path, tmp_path: Path) -> None:
    # Without dropout: its random numbers hang on how many shards a member computes.
    whole = run_ring(tmp_path / "whole", warm, DROPOUT="0")
    fault = {"member": 2, "step": 10, "at": "computing", "do": "KILL"}
    found = run_ring(tmp_path / "shrunk", warm, faults=[fault], DROPOUT="0")
    assert found.end.outcome == "done"
    assert len(found.digests()) == 1
    shards = {line["member"]: line["content"][3] for line in found.of("step") if line["content"][0] == 20}
    assert shards == {0: [0, 2], 1: [1], 3: [3]}
    assert found.steps() == whole.steps()
    assert json.loads((tmp_path / "shrunk" / "recoveries.json").read_text())[-1]["members"] == 3
    assert losses(found) == pytest.approx(losses(whole), abs=1e-5)


def test_a_ring_of_two_goes_on_alone(warm: Path, tmp_path: Path) -> None:
    found = run_ring(tmp_path, warm, seats=2, faults=[{"member": 0, "step": 10, "at": "reducing", "do": "KILL"}])
    assert found.end.outcome == "done"
    assert found.steps() == list(range(30))
    assert found.exits == {0: -9, 1: 0}


@pytest.mark.full
def test_a_ring_all_of_whose_members_are_killed_is_lost(warm: Path, tmp_path: Path) -> None:
    async def kill(trial: Trial) -> None:
        await trial.reached(10)
        for number in (signal.SIGSTOP, signal.SIGKILL):  # or a spare has the state before the last ends
            for member in range(3):
                trial.send(member, number)

    found = run_ring(tmp_path, warm, seats=3, spares=1, during=kill)
    assert found.end.outcome == "lost"
    assert found.exits == {0: -9, 1: -9, 2: -9, 3: 76}


@pytest.mark.full
def test_a_ring_that_was_lost_goes_on_from_its_checkpoint(warm: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    faults = [{"member": it, "step": 25, "at": "computing", "do": "KILL"} for it in range(4)]
    lost = run_ring(tmp_path / "lost", warm, faults=faults, checkpoints=checkpoints)
    assert lost.end.outcome == "lost"
    found = run_ring(tmp_path / "again", warm, checkpoints=checkpoints)
    assert found.steps() == list(range(20, 30))
    assert found.digests() == undisturbed.digests()


@pytest.mark.full
def test_of_eight_members_all_stop_when_one_is_killed_though_gloo_would_wait(warm: Path, tmp_path: Path) -> None:
    """Those that are no neighbours of the dead learn of it from the coordinator alone: gloo's own limit is a month."""
    fault = {"member": 5, "step": 10, "at": "reducing", "do": "KILL"}
    found = run_ring(tmp_path, warm, seats=8, spares=1, faults=[fault])
    assert found.end.outcome == "done"
    assert found.steps() == list(range(30))
    assert len(found.digests()) == 1
    assert found.generation() == 2
    (recovery,) = json.loads((tmp_path / "recoveries.json").read_text())[1:]
    assert ends_of_links(recovery["reason"]) or "member 5 is gone" in recovery["reason"]
    formed = {line["member"] for line in found.of("layout") if line["content"][0] == 2}
    assert formed == {0, 1, 2, 3, 4, 6, 7, 8}
    # None of the others took the step with the old group: it was repeated, with the new one.
    assert {line["content"][1] for line in found.of("step") if line["content"][0] == 10} == {2}


def ends_of_links(reason: str) -> bool:
    """Say whether a round began as a member saw the end of a link, and not as it had waited for long."""
    return "an exchange failed" in reason and any(it in reason for it in ("closed", "reset", "Broken pipe"))


@pytest.mark.full
def test_a_member_that_joins_later_makes_the_ring_whole(warm: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    async def join(trial: Trial) -> None:
        await trial.seated(2)
        trial.start()

    fault = {"member": 2, "step": 10, "at": "computing", "do": "KILL"}
    found = run_ring(tmp_path, warm, steps=60, pause_s=0.03, faults=[fault], during=join)
    assert found.end.outcome == "done"
    assert found.steps() == list(range(60))
    assert found.generation() == 3
    assert len(found.of("end")) == 4
    assert len(found.digests()) == 1
    last = {line["member"]: line["content"][3] for line in found.of("step") if line["content"][0] == 59}
    assert last == {0: [0], 1: [1], 4: [2], 3: [3]}
