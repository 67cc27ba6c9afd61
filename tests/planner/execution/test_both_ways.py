"""Offload and turns on a device change when things happen, and not what is learned."""

import json
from itertools import combinations, pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from longshore.cluster.model.training_plan import PlanFile, StagePlan
from longshore.planner.execution.launching import launch_ranks
from longshore.planner.execution.plan_file import write_plan

pytestmark = pytest.mark.full

HERE = Path(__file__).parent
LAYERS = ("words", "places", *(f"blocks.{i}" for i in range(5)), "head", "(outside of all layers)")
DEGREES = ((2, 1, 2), (2, 1, 12), (1, 2, 3), (2, 2, 2), (1, 4, 6), (4, 1, 3))  # data, pipeline, micro-batch
RANKS, STEPS = 4, 3


@pytest.fixture(scope="module")
def reported(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, str], list[dict[str, Any]]]:
    """Return what each rank reports of each plan in each way."""
    folder = tmp_path_factory.mktemp("ways")
    for at, (data, pipeline, micro_batch) in enumerate(DEGREES):
        ends = [round(k * (len(LAYERS) - 1) / pipeline) for k in range(pipeline)] + [len(LAYERS)]
        stages = tuple(StagePlan(layers=LAYERS[ends[k] : ends[k + 1]]) for k in range(pipeline))
        plan = PlanFile(data=data, pipeline=pipeline, micro_batch=micro_batch, batch=24, stages=stages)
        write_plan(folder / f"plan-{at}.json", plan)
    launch_ranks(
        RANKS, [str(folder), str(HERE / "counting.py")], module="tests.planner.execution.both_ways", pipelines=True
    )
    assert not [it for it in folder.iterdir() if it.suffix not in (".json", ".reported")]
    return {
        (at, way): [json.loads((folder / f"plan-{at}-{way}-{rank}.reported").read_text()) for rank in range(d * p)]
        for at, (d, p, _) in enumerate(DEGREES)
        for way in ("plain", "offload", "shared", "both")
    }


SharedRunReport = dict[tuple[int, str], list[dict[str, Any]]]


@pytest.mark.parametrize("at", range(len(DEGREES)))
@pytest.mark.parametrize("way", ["offload", "shared", "both"])
def test_what_is_learned_is_the_same(at: int, way: str, reported: SharedRunReport) -> None:
    for plain, other in zip(reported[at, "plain"], reported[at, way], strict=True):
        if DEGREES[at][0] <= 2 or way == "offload":
            assert (plain["losses"], plain["weights"]) == (other["losses"], other["weights"])
        else:  # sums of more than two in pieces add up in another order
            assert np.allclose(plain["losses"], other["losses"], rtol=0, atol=1e-5)
            for name, weights in plain["weights"].items():
                assert np.allclose(weights, other["weights"][name], rtol=0, atol=1e-4)


@pytest.mark.parametrize("at", range(len(DEGREES)))
@pytest.mark.parametrize("way", ["offload", "both"])
def test_the_state_of_every_rank_was_out(at: int, way: str, reported: SharedRunReport) -> None:
    for rank in reported[at, way]:
        assert [it["what"] for it in rank["parts"]] == ["optimizer state", "parameters"]
        assert 0 < rank["parts"][0]["trips"] <= STEPS


def test_parameters_were_out_in_sums(reported: SharedRunReport) -> None:
    """Not in each: where gradients come at once they stay."""
    trips = [rank["parts"][1]["trips"] for (_, way), ranks in reported.items() if way == "offload" for rank in ranks]
    assert 0 < max(trips) <= STEPS


@pytest.mark.parametrize("at", range(len(DEGREES)))
@pytest.mark.parametrize("way", ["shared", "both"])
def test_never_two_have_a_device_at_once(at: int, way: str, reported: SharedRunReport) -> None:
    ranks = reported[at, way]
    for first in range(0, len(ranks), 2):
        spans = [it for rank in ranks[first : first + 2] for it in rank["spans"] if it[0] != "sum"]
        ordered = sorted((began, ended) for _, began, ended in spans)
        assert all(one[1] <= other[0] for one, other in pairwise(ordered))


@pytest.mark.parametrize("at", [at for at, it in enumerate(DEGREES) if it[1] == 1])
def test_one_replica_computes_in_the_synchronisation_of_the_other(at: int, reported: SharedRunReport) -> None:
    ranks = reported[at, "shared"]
    for one, other in combinations(ranks[:2], 2):
        for step in range(STEPS):
            phases, sums = (
                [[s for s in it["spans"] if s[0] == kind] for it in (one, other)] for kind in ("phase", "sum")
            )
            first, second = (0, 1) if phases[0][step][1] < phases[1][step][1] else (1, 0)
            assert phases[first][step][2] <= phases[second][step][1]
            assert phases[second][step][2] <= sums[first][step][2]


def test_passes_of_a_stage_alternate_backward_first(reported: SharedRunReport) -> None:
    """1F1B: the last stage does one forward and one backward pass by turns."""
    at = DEGREES.index((1, 2, 3))
    kinds = [kind for kind, *_ in reported[at, "shared"][1]["spans"] if kind in ("forward", "backward")]
    assert kinds == ["forward", "backward"] * (8 * STEPS)
