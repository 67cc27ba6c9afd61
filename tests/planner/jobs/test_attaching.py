"""Models and plans that are attached to the jobs of a trace."""

import math
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from longshore.cluster.files.errors import InputError
from longshore.cluster.model.problem import with_layout
from longshore.cluster.model.workload import Workload, iteration_s, workload_of
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.planner.hardware import DEFAULT
from longshore.planner.jobs import (
    MIN_ITERATIONS,
    Decoder,
    PlanTables,
    attach_plans,
    iteration_of,
    one_iteration_plans,
    read_models,
)

ROOT = Path(__file__).absolute().parents[3]
MODELS = read_models(ROOT / "examples/plan/models.yaml")
SIZES = (1, 2, 4, 8, 16, 32)


@cache
def tables() -> PlanTables:
    return PlanTables(read_cluster(ROOT / "examples/small.yaml"), DEFAULT, 48)


def jobs(count: int = 200, seed: int = 0) -> Workload:
    rng = np.random.default_rng(seed)
    ids = tuple(f"job {number}" for number in range(count))
    gpus = rng.choice([*SIZES, 7], count).astype(np.int32)
    return workload_of(ids, gpus, rng.lognormal(8.0, 2.0, count), np.sort(rng.uniform(0.0, 1e6, count)))


@pytest.mark.parametrize("model", MODELS, ids=lambda it: it.name)
def test_the_examples_are_as_large_as_their_names_say(model: Decoder) -> None:
    number, unit = model.name.removeprefix("gpt-")[:-1], {"m": 1e6, "b": 1e9}[model.name[-1]]
    assert model.profile.parameters == pytest.approx(float(number) * unit, rel=0.06)


@pytest.mark.few(11)
@pytest.mark.parametrize("model", MODELS, ids=lambda it: it.name)
@pytest.mark.parametrize("gpus", SIZES)
def test_on_whole_nodes_of_its_type_a_simulated_plan_takes_as_long_as_the_planner_predicts(
    model: Decoder, gpus: int
) -> None:
    choices = tables().plans_for(model, gpus)
    if choices is None:
        assert one_iteration_plans(model, gpus, tables()) == ()
        return
    it = choices.gpu_type
    grain = 0 if gpus <= it.gpus_per_node else math.gcd(it.gpus_per_node, gpus)
    for plan in (choices.data_parallel[gpus], choices.any_layout[gpus]):
        did = iteration_of(plan, choices.gpu_type, choices.speed)
        found = iteration_s(did, 1.0, choices.speed, it.intra_bytes_per_s, it.nic_bytes_per_s, grain)
        edges_s = did.edge_bytes / it.nic_bytes_per_s  # which the planner leaves out
        crosses = grain % (did.data * did.tensor) != 0
        # Rings inside nodes are faster here: to the planner all links of a plan of several nodes are the network's.
        least = plan.step_s if crosses or gpus <= it.gpus_per_node else plan.step_s - plan.times.gradients_s
        assert least * (1 - 1e-9) <= found <= plan.step_s * (1 + 1e-9) + edges_s


def test_the_first_plan_is_data_parallel_and_takes_as_long_as_in_the_trace() -> None:
    asked = jobs()
    found = attach_plans(asked, MODELS, tables(), seed=1)[0]
    assert found.plans is not None
    with_plans = [(job, plans) for job, plans in enumerate(found.plans) if plans]
    assert len(with_plans) > 100
    for job, (first, *others) in with_plans:
        assert (first.iteration.pipeline, first.iteration.tensor) == (1, 1)
        assert (first.gpus, first.work_s) == (asked.gpus[job], asked.work_s[job])
        assert all(it.gpus <= first.gpus for it in others)
    assert found.gpus.tolist() == asked.gpus.tolist()
    assert found.work_s.tolist() == asked.work_s.tolist()


def test_the_best_plans_cost_no_job_time_or_gpu_time() -> None:
    fixed = attach_plans(jobs(), MODELS, tables(), seed=1)[0]
    best = with_layout(fixed, "best")
    assert (best.gpus <= fixed.gpus).all()
    assert (best.work_s <= fixed.work_s).all()
    assert (best.gpus < fixed.gpus).any()
    assert ((best.gpus == fixed.gpus) & (best.work_s < fixed.work_s)).any()


@pytest.mark.full
def test_plans_that_put_state_away_come_last_and_each_saves_time() -> None:
    known = tables().setup
    without = PlanTables(replace(known, host_bytes_per_s=(0.0,) * len(known.offers)), DEFAULT, 48)
    found = 0
    for model in MODELS:
        for gpus in SIZES:
            plans, others = one_iteration_plans(model, gpus, tables()), one_iteration_plans(model, gpus, without)
            assert plans[: len(others)] == others
            assert all(it.away_bytes == 0.0 for it in others)
            for number in range(len(others), len(plans)):
                it = plans[number]
                assert it.away_bytes > 0.0
                assert all(it.work_s < other.work_s for other in plans[1:number] if other.gpus <= it.gpus)
                found += 1
    assert found > 20


def test_offload_makes_no_job_later_and_costs_no_gpu_time() -> None:
    fixed = attach_plans(jobs(), MODELS, tables(), seed=1)[0]
    best, offload = with_layout(fixed, "best"), with_layout(fixed, "offload")
    assert (offload.gpus <= best.gpus).all()
    assert (offload.work_s <= fixed.work_s).all()
    assert (offload.gpus * offload.work_s <= fixed.gpus * fixed.work_s * (1 + 1e-12)).all()
    assert ((offload.gpus == best.gpus) & (offload.work_s < 0.95 * best.work_s)).any()


@pytest.mark.full
def test_the_same_seed_gives_the_same_plans_and_another_one_others() -> None:
    asked = jobs()
    found = [attach_plans(asked, MODELS, tables(), seed=seed)[0].plans for seed in (1, 1, 2)]
    assert found[0] == found[1]
    assert found[0] != found[2]


def test_short_jobs_and_those_whose_gpus_split_no_batch_have_no_plan() -> None:
    found, count = attach_plans(jobs(), MODELS, tables(), seed=1)
    assert found.plans is not None
    for job, plans in enumerate(found.plans):
        assert not plans or found.gpus[job] != 7
        assert not plans or found.work_s[job] >= MIN_ITERATIONS * 0.1
    assert count.total() == 200
    assert count[""] == sum(not plans for plans in found.plans)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("models: []", "models"),
        ("models: [{name: a, layers: 2, hidden: 100, heads: 3, batch: 8}]", "3 heads do not divide"),
        ("models: [{name: a, layers: 2, hidden: 8, heads: 2}]", "batch"),
        (
            "models: [{name: a, layers: 2, hidden: 8, heads: 2, batch: 8}, "
            "{name: a, layers: 2, hidden: 8, heads: 2, batch: 8}]",
            "two models have the name a",
        ),
    ],
)
def test_a_file_of_models_that_cannot_be_used_is_refused(text: str, problem: str, tmp_path: Path) -> None:
    path = tmp_path / "models.yaml"
    path.write_text(text)
    with pytest.raises(InputError, match=problem):
        read_models(path)
