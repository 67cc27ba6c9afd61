"""The recorded decisions of a scheduler whose policy draws its actions, with the simulation behind them."""

from pathlib import Path
from typing import NamedTuple

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.learned.checkpoint import save_policy
from longshore.scheduler.placement.placer import Placer
from longshore.scheduler.placement.replay import export_decisions
from longshore.scheduler.store.database import open_store
from longshore.testing.twin import Twin
from tests.policies_under_test import untrained_candidates
from tests.scheduler.twin_run import twin_of
from tests.strategies import Case

PATIENCE_S = 120.0  # far more than anything here takes


class RecordedHistory(NamedTuple):
    """Decisions of a scheduler, and the simulation behind them."""

    file: Path  # of its decisions
    twin: Twin
    checkpoint: Path  # of the policy that decided, of random weights


def record_history(case: Case, folder: Path) -> RecordedHistory:
    """Let a scheduler whose policy has random weights place the jobs of a case."""
    policy, checkpoint, file = untrained_candidates(waiting=True), folder / "serving.zip", folder / "decisions.jsonl"
    save_policy(checkpoint, policy.schema, policy.network)
    store = open_store(f"sqlite:///{folder / 'store.db'}")
    placer = Placer(HEURISTICS["patient"], str(checkpoint), PATIENCE_S, sample_temperature=1.0)
    twin = twin_of(case, store, placer)
    assert twin.scheduler.tick()
    placer.wait_until_ready(PATIENCE_S)
    twin.run()
    twin.scheduler.close()
    file.write_text("".join(line + "\n" for line in export_decisions(store)), encoding="utf-8")
    store.close()
    return RecordedHistory(file, twin, checkpoint)
