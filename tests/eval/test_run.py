from pathlib import Path

import numpy as np
import pytest

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.protocol import Policy
from longshore.cluster.model.outcome import Outcome
from longshore.eval.comparison import run_all
from tests.envs.random_run import small_problem

HETERO64 = Path(__file__).parents[2] / "checkpoints" / "hetero64.zip"


@pytest.mark.parametrize("chunk", [1, 3, 4])
def test_scenarios_run_in_chunks_end_as_those_run_at_once(chunk: int) -> None:
    problem = small_problem(8, faults=2, order="easy")
    policies: list[Policy] = [HEURISTICS["random"], load_policy(HETERO64)]
    whole, parts = (run_all(problem, policies, chunk=size) for size in (100, chunk))
    for policy in policies:
        for name in Outcome._fields:
            one, other = (getattr(outcomes[policy.name], name) for outcomes in (whole, parts))
            assert one.shape[0] == 8
            assert np.array_equal(one, other), name


def test_each_chunk_is_reported_before_it_is_run() -> None:
    reported: list[tuple[str, int]] = []
    policies = [HEURISTICS["pack"], HEURISTICS["eft"]]
    run_all(small_problem(7), policies, lambda *stand: reported.append(stand), chunk=3)
    assert reported == [(name, run) for name in ("pack", "eft") for run in (0, 3, 6)]
