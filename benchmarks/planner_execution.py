"""Plans carried out on this machine, against what was predicted: all numbers of replicas and stages on up to 4 ranks.

The machine is measured first, with layers of its own. Nothing is fitted to the plans.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import mean, median

from longshore.cluster.model.training_plan import PlanFile
from longshore.planner.execution.launching import launch_ranks, measure_host
from longshore.planner.execution.plan_file import plan_file_of, read_plan, write_plan
from longshore.planner.inputs import read_or_profile_model
from longshore.planner.profile.profiling import ProfilingLimits
from longshore.planner.request import PlanRequest, make_request, rank_pool_of
from longshore.planner.search import find_plan

from .harness import ROOT, Row, main, progress, seconds

MODEL = ROOT / "examples" / "plan" / "small_gpt.py"
DEGREES = ((1, 1), (2, 1), (1, 2), (4, 1), (2, 2), (1, 4))  # replicas and stages
RANKS, BATCH = 4, 32
ROUNDS, STEPS = 10, 3  # steps of each plan in each round; the first warms up
CLOSE = 1.1  # of the fastest: so long may the plan take that was predicted to be the fastest


def measure() -> Iterator[Row]:
    """Measure the machine, plan, carry out, compare."""
    progress(f"measuring {RANKS} ranks of this machine")
    host = measure_host(RANKS)
    found = read_or_profile_model(f"{MODEL}:build", ProfilingLimits())
    asked = make_request(found, host, rank_pool_of(host), batch=BATCH, samples=1e4, deadline_s=None)
    plans = [_plan(asked, *degrees) for degrees in DEGREES]
    taken_s = _carried_out(plans)
    ratios = []
    for plan, each_s in zip(plans, taken_s, strict=True):
        name = f"{plan.data} x {plan.pipeline} ranks, micro-batches of {plan.micro_batch}"
        ratios.append(plan.step_s / median(each_s))
        yield Row(f"{name}: measured", 1e3 * median(each_s), "ms")
        yield Row(f"{name}: predicted, off by", 100.0 * (ratios[-1] - 1.0), "%")
    yield Row("speed of a rank where all four are busy", host.speeds[-1], "of one alone")
    yield Row("layers left out of the fit: error", 100.0 * host.accuracy.mean_error, "%")
    yield Row("plans carried out: error", 100.0 * mean(abs(it - 1.0) for it in ratios), "%", most=25)
    first = min(range(len(plans)), key=lambda at: plans[at].step_s)
    hits = sum(each[first] <= CLOSE * min(each) for each in zip(*taken_s, strict=True))
    yield Row(f"rounds of {ROUNDS} with the predicted fastest within 10 % of it", hits, "", least=9)


def _plan(asked: PlanRequest, data: int, pipeline: int) -> PlanFile:
    """Return the fastest plan of a number of replicas and stages."""
    of_degrees = replace(asked, degrees=(data, pipeline, 1))
    plan = find_plan(of_degrees).plan
    assert plan is not None  # the model is small
    return plan_file_of(of_degrees, plan)


def _carried_out(plans: list[PlanFile]) -> list[list[float]]:
    """Return the time of a step of each plan in each round; plans take turns."""
    with tempfile.TemporaryDirectory() as folder:
        paths = [Path(folder) / f"{at}.json" for at in range(len(plans))]
        for path, plan in zip(paths, plans, strict=True):
            write_plan(path, plan)
        arguments = [str(Path(folder) / "out.json"), *map(str, paths)]
        launch_ranks(RANKS, arguments, module="benchmarks.planner_execution", pipelines=True)
        found: list[list[float]] = json.loads((Path(folder) / "out.json").read_text())
    return found


def carry_out(out: Path, paths: list[Path]) -> None:
    """Be one of the processes that carry out plans by turns."""
    import torch.distributed as dist

    from longshore.planner.execution.cutting import load_script
    from longshore.planner.execution.training import StageTrainer, take_seat
    from longshore.planner.schedule import default_schedule

    dist.init_process_group("gloo")
    rank, members, plans = dist.get_rank(), list[StageTrainer | None](), [read_plan(path) for path in paths]
    for plan in plans:
        seat = take_seat(plan)
        script = load_script(str(MODEL), 0)
        schedule = default_schedule(plan.micro_batches, plan.pipeline)
        members.append(None if seat is None else StageTrainer(plan, script, schedule, seat))
        dist.barrier()
    taken_s: list[list[float]] = [[] for _ in plans]
    for number in range(ROUNDS):
        if rank == 0:
            print(f"round {number + 1} of {ROUNDS}", flush=True)
        for at, member in enumerate(members):
            dist.barrier()
            if member is not None:
                steps_s = [seconds(lambda: member.step(number * STEPS + step)) for step in range(STEPS)]  # noqa: B023
                taken_s[at].append(mean(steps_s[1:]))
    if rank == 0:
        out.write_text(json.dumps(taken_s))
    dist.destroy_process_group()


if __name__ == "__main__":
    if "RANK" in os.environ:
        carry_out(Path(sys.argv[1]), [Path(it) for it in sys.argv[2:]])
    else:
        main(measure)
