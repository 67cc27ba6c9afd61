"""Offload in trainings by a plan: what it does to memory, and to the time of a step beside what is predicted.

All on CPUs: state goes from the memory of a process to a file. Arms take turns, or are processes of their own.
"""

import json
import os
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

from longshore.planner.execution.launching import launch
from longshore.planner.execution.plan_file import PlanFile, StagePlan, read_plan, write_plan

from .harness import ROOT, Row, main, progress, seconds

MODEL = ROOT / "benchmarks" / "offloaded_model.py"
LAYERS = 24
STEPS = 5  # of each process whose memory is measured
ROUNDS, ROUND_STEPS = 8, 3  # of each arm; the first step of a round warms up
NOISE = 0.03  # of a step: two arms that do the same differ by less, in the median of all rounds
SHARE = 0.9  # of what is put away, by which the peak falls


def measure() -> Iterator[Row]:
    """Measure memory, then time."""
    plan = _plan(2, 768, 3072)
    progress("memory, without and with offload")
    never, auto = (_told("memory", plan, how) for how in ("never", "auto"))
    yield from _memory(never, auto)
    for ranks, what in ((1, "a core for the copies"), (2, "copies on the cores that compute")):
        progress(f"time, {what}")
        yield from _time(what, _told("time", _plan(ranks, 256, 512 * ranks), "auto"))


def _memory(never: list[dict[str, Any]], auto: list[dict[str, Any]]) -> Iterator[Row]:
    state = auto[0]["parts"][0]["size_bytes"]
    yield Row("optimizer state of a rank", state / 1e6, "MB")
    yield Row("peak resident memory of a rank without offload", never[0]["peak_bytes"] / 1e6, "MB")
    yield Row("peak resident memory of a rank with offload", auto[0]["peak_bytes"] / 1e6, "MB")
    falls = [(old["peak_bytes"] - new["peak_bytes"]) / state for old, new in zip(never, auto, strict=True)]
    yield Row("the peak falls, of what is put away; the least of ranks", 100 * min(falls), "%", least=100 * SHARE)
    differ = sum(old["losses"] != new["losses"] for old, new in zip(never, auto, strict=True))
    yield Row("ranks whose losses differ in a bit", differ, "", most=0)


def _time(what: str, ranks: list[dict[str, Any]]) -> Iterator[Row]:
    found = max(ranks, key=lambda it: float(it["predicted_s"]))
    step_s, longer_s = median(found["never_s"]), median(found["auto_s"]) - median(found["never_s"])
    yield Row(f"{what}: step without offload", 1e3 * step_s, "ms")
    yield Row(f"{what}: both copies of the optimizer state", 1e3 * found["copies_s"], "ms")
    yield Row(f"{what}: step longer by, predicted", 1e3 * found["predicted_s"], "ms")
    yield Row(f"{what}: step longer by, measured", 1e3 * longer_s, "ms")
    more = (longer_s - found["predicted_s"]) / step_s
    yield Row(f"{what}: longer than predicted, of a step", 100 * more, "%", most=100 * NOISE)


def _plan(ranks: int, micro_batch: int, batch: int) -> PlanFile:
    stage = StagePlan(layers=tuple(str(it) for it in range(LAYERS)))
    return PlanFile(data=ranks, pipeline=1, micro_batch=micro_batch, batch=batch, stages=(stage,))


def _told(kind: str, plan: PlanFile, how: str) -> list[dict[str, Any]]:
    """Return what each rank of a training tells."""
    with tempfile.TemporaryDirectory() as folder:
        write_plan(Path(folder) / "plan.json", plan)
        launch(plan.ranks, [kind, folder, how], module="benchmarks.planner_offload")
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(plan.ranks)]


def be_rank(kind: str, folder: Path, how: str) -> None:
    """Be one of the processes of a training."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    told = (_rank_memory if kind == "memory" else _rank_time)(read_plan(folder / "plan.json"), folder, how)
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(told))
    dist.destroy_process_group()


def _member(plan: PlanFile, folder: Path, how: str) -> Any:
    from longshore.planner.execution.script import script_of
    from longshore.planner.execution.training import Member, take_seat
    from longshore.planner.model.playing import schedule_of
    from longshore.planner.offload.break_even import Offload
    from longshore.planner.offload.offloading import Wish

    seat = take_seat(plan)
    assert seat is not None
    member = Member(plan, script_of(str(MODEL), 0), schedule_of(plan.micro_batches, plan.pipeline), seat)
    cores = len(os.sched_getaffinity(0))
    if how != "never":
        member.offload(Wish(Offload(how), folder, has_own_core=cores >= 2 * plan.ranks), progress)
    return member


def _rank_memory(plan: PlanFile, folder: Path, how: str) -> dict[str, Any]:
    member = _member(plan, folder, how)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    losses = [member.step(number)[0] for number in range(STEPS)]
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    return {"peak_bytes": peak, "losses": losses, "parts": [it.model_dump() for it in member.close()]}


def _rank_time(plan: PlanFile, folder: Path, how: str) -> dict[str, Any]:
    import torch.distributed as dist

    members = {it: _member(plan, folder, it) for it in ("never", how)}
    taken_s: dict[str, list[float]] = {it: [] for it in members}
    for number in range(ROUNDS):
        for name, member in members.items():
            dist.barrier()
            steps_s = [seconds(lambda: member.step(number * ROUND_STEPS + it)) for it in range(ROUND_STEPS)]  # noqa: B023
            taken_s[name] += steps_s[1:]
    parts = members[how].close()
    return {
        "never_s": taken_s["never"], "auto_s": taken_s[how], "predicted_s": sum(it.unhidden_s for it in parts),
        "copies_s": parts[0].out_s + parts[0].back_s,
    }  # fmt: skip


if __name__ == "__main__":
    if "RANK" in os.environ:
        be_rank(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
    else:
        main(measure)
