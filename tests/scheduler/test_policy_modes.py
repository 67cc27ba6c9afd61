"""Who is obeyed: a policy, or the heuristic beside it; the same as in the simulator under the same rule."""

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.protocol import Policy
from longshore.cluster.placing import undo_picks
from longshore.cluster.simulator.engine import advance, reset, start, wait
from longshore.cluster.state.state import Simulation
from longshore.scheduler.api.decisions import decision_page
from longshore.scheduler.placement.placer import Mode, Placer, Proposal
from longshore.scheduler.placement.replay import export_decisions
from longshore.scheduler.store.attempts import DecisionRow, decisions_after, last_decisions
from longshore.scheduler.store.database import open_store
from longshore.testing.twin import starts_of
from tests.plain_run import busy_case
from tests.scheduler.obedient import Obedient
from tests.scheduler.trials import Trial
from tests.scheduler.twin_run import layout_of, simulated, twin_of

PATIENCE_S = 120.0  # far more than anything here takes


class Vetoed:
    """Decides as one policy does, and waits where another one would."""

    name, about, waits = "vetoed", "", True

    def __init__(self, decides: Policy, refuses: Policy) -> None:
        self.decides, self.refuses = decides, refuses

    def place(self, sim: Simulation, row: int) -> bool:
        if not self.refuses.place(sim, row):
            return False
        undo_picks(sim, row)
        return self.decides.place(sim, row)

    def run(self, sim: Simulation, scenarios: NDArray[np.int64]) -> None:
        for row, scenario in enumerate(scenarios):
            reset(sim, row, scenario)
            while advance(sim, row):
                if self.place(sim, row):
                    start(sim, row)
                else:
                    wait(sim, row)


@pytest.mark.full
@pytest.mark.parametrize(
    ("mode", "obeyed"),
    [
        (Mode.ACTIVE, HEURISTICS["patient"]),
        (Mode.SHADOW, HEURISTICS["spread"]),
        (Mode.VETO, Vetoed(HEURISTICS["spread"], HEURISTICS["patient"])),
    ],
)
def test_a_policy_is_obeyed_as_the_mode_says(mode: Mode, obeyed: Policy, tmp_path: Path) -> None:
    case = busy_case(ring=True)
    store = open_store(f"sqlite:///{tmp_path / 'store.db'}")
    twin = twin_of(case, store, Placer(HEURISTICS["spread"], "patient", PATIENCE_S, mode))
    assert twin.scheduler.tick()
    twin.parts.placer.wait_until_ready(PATIENCE_S)

    twin.run()
    twin.scheduler.close()
    starts, lines = starts_of(store, layout_of(case)), list(export_decisions(store))
    with store.read() as tx:
        rows = decisions_after(tx, 0, len(lines))
    store.close()

    assert starts == simulated(case, obeyed)
    assert not twin.parts.placer.misses
    agreements = twin.parts.placer.agreements
    assert agreements[True] > 0 < agreements[False]
    assert agreements.total() == len(lines)
    assert sum('"agrees":true' in line for line in lines) == agreements[True]
    pages = [decision_page(it.row) for it in rows]
    proposals = [page.proposal for page in pages]
    for page, proposal in zip(pages, proposals, strict=True):
        assert proposal is not None  # it is shown in every mode, with what the policy expects
        assert (proposal.expected is None) == (proposal.placement is None)
        if page.decided_by == "patient":
            assert (proposal.placement, proposal.expected) == (page.placement, page.expected)
        if proposal.agrees:
            assert (proposal.placement, proposal.expected) == (page.fallback, page.fallback_expected)
    assert {proposal.agrees for proposal in proposals if proposal is not None} == {True, False}
    assert len({line.partition('"decided_by":"')[2].partition('"')[0] for line in lines}) == 1 + (mode is Mode.VETO)


def test_where_a_policy_turns_to_another_job_it_is_stored_about_which_the_heuristic_was_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    backend = Obedient({"a": 4})
    trial = Trial(tmp_path, {"a": 4}, lambda: backend, "obedient")
    backend.now_s = trial.now_s
    trial.runs(trial.submit("x"))  # so that it may wait
    due, other = trial.submit("x"), trial.submit("x")
    trial.scheduler.parts.placer.policy = "learned"
    words = [None, Proposal(other, (3,), rests=False)]
    with monkeypatch.context() as learned:
        learned.setattr(Placer, "_receive_proposal", lambda *_: (words.pop(), None, None))
        trial.tick()

    told = {job: [it.explanation for it in decisions_of_job(trial, job)] for job in (due, other)}
    trial.close()
    assert [(it["decided_by"], it["fallback_job"], it["agrees"]) for it in told[other]] == [("learned", due, False)]
    assert [it["fallback_job"] for it in told[due]] == [due]


def decisions_of_job(trial: Trial, job: str) -> list[DecisionRow]:
    with trial.store.read() as tx:
        return last_decisions(tx, 1000, job)[::-1]
