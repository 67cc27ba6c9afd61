"""The newest checkpoint of a ring cannot be read: what a living ring needs of it, and one that starts."""

from pathlib import Path

import pytest

from .trial import Outcome, Trial, run_ring


@pytest.mark.full
def test_a_newcomer_of_a_living_ring_needs_no_checkpoint(warm: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"

    async def spoil(trial: Trial) -> None:
        await trial.until(lambda: any(line["kind"] == "fault" for line in trial.lines()))
        found = list(checkpoints.glob("step-*.pt"))
        assert found
        for path in found:
            path.write_bytes(b"no checkpoint")
        (tmp_path / "go").touch()

    faults = [
        {"member": 0, "step": 22, "at": "computing", "do": "wait"},
        {"member": 2, "step": 23, "at": "computing", "do": "KILL"},
    ]
    found = run_ring(tmp_path, warm, again=1, faults=faults, during=spoil, checkpoints=checkpoints)
    assert found.end.outcome == "done"
    assert found.steps() == list(range(30))
    assert found.digests() == undisturbed.digests()
    assert {line["member"] for line in found.of("end")} == {0, 1, 3, 4}


def test_a_ring_does_not_begin_anew_beside_what_it_cannot_read(warm: Path, tmp_path: Path) -> None:
    checkpoints = tmp_path / "checkpoints"
    checkpoints.mkdir()
    newest = checkpoints / "step-000000010-g1-m0.pt"
    newest.write_bytes(b"no checkpoint")
    found = run_ring(tmp_path, warm, seats=2, checkpoints=checkpoints)
    assert found.end.outcome == "lost"
    assert found.steps() == []
    assert set(found.exits.values()) == {1}
    assert "InputError" in found.end.reason
    assert newest.read_bytes() == b"no checkpoint"
