"""The coordinator is killed in the middle of a recovery, after each kind of message and each state that it writes."""

from pathlib import Path

import pytest

from longshore.scheduler.failover.processes import keeper, tools

from .test_ring import assert_as_undisturbed
from .trial import ROOT, Outcome, Trial, run_ring

FIRST = ["wrote stopping", "told Form"]  # one before the ring is formed, one while it is: in every run of the tests
OTHERS = [
    *("told Abort", "told Declared", "told Go", "told Lease"),
    *("heard Fault", "heard Stopped", "heard Ready", "heard Running", "heard Beat", "heard Done"),
    *("wrote forming", "wrote running", "wrote done", "told Finish", "told End"),
]
KINDS = [*FIRST, *(pytest.param(it, marks=pytest.mark.faults) for it in OTHERS)]


@pytest.mark.parametrize("when", KINDS)
def test_a_coordinator_that_is_killed_goes_on_where_it_was(
    when: str, warm: Path, undisturbed: Outcome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "COORDINATOR", "tests.scheduler.failover.killed_coordinator")
    monkeypatch.setattr(tools, "BEGIN", f"import sys; sys.path.append({str(ROOT)!r}); {tools.BEGIN}")
    monkeypatch.setenv("KILL_AT", when)
    faults = [{"member": 2, "step": 10, "at": "computing", "do": "KILL"}]
    # Steps that take so long that each member beats in what follows the fault.
    found = run_ring(tmp_path, warm, spares=1, faults=faults, pause_s=0.1)
    assert_as_undisturbed(found, undisturbed)
    assert (tmp_path / "coordinator-was-killed").exists()
    assert found.generation() <= 3


def test_a_ring_runs_on_while_its_coordinator_is_away(warm: Path, undisturbed: Outcome, tmp_path: Path) -> None:
    async def kill(trial: Trial) -> None:
        await trial.reached(10)
        trial.kill_coordinator()

    found = run_ring(tmp_path, warm, during=kill)
    assert_as_undisturbed(found, undisturbed)
    assert found.generation() == 1


# The first member gives the state and has the store at which the others meet.
POINTS = ["stopped", "copying", "ready", "going", "running"]
KILLS = ["formed", *(pytest.param(it, marks=pytest.mark.faults) for it in POINTS)]


@pytest.mark.parametrize("at", KILLS)
def test_the_host_of_the_store_may_be_killed_anywhere_in_a_recovery(
    at: str, warm: Path, undisturbed: Outcome, tmp_path: Path
) -> None:
    faults = [
        {"member": 2, "step": 10, "at": "computing", "do": "KILL"},
        {"member": 0, "step": 10, "at": at, "do": "KILL"},
    ]
    found = run_ring(tmp_path, warm, spares=2, faults=faults)
    assert_as_undisturbed(found, undisturbed)
    assert set(found.declared) == {0, 2}
    assert found.generation() <= 3
