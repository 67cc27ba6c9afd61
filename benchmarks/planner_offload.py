"""Offload in trainings by a plan: what it does to memory and to the time of a step; and two replicas on one device.

All on CPUs: state goes from the memory of a process to a file, and a device is one core. Arms take turns, or are
processes of their own.
"""

import json
import os
import shlex
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from statistics import mean, median
from typing import Any

from longshore.cluster.model.training_plan import PlanFile, StagePlan
from longshore.planner.execution.launching import launch_ranks
from longshore.planner.execution.plan_file import read_plan, write_plan

from .harness import ROOT, Row, main, progress, seconds

MODEL = ROOT / "benchmarks" / "offloaded_model.py"
LAYERS = 6
PAIRS = 2  # of trainings, without and with
STEPS = 3  # of each process whose memory is measured
STEPS_SHARED = 12  # of each arm of two replicas; the first warms up
STEPS_EACH = 8  # of each arm whose time is measured; the first two warm up
NOISE = 0.05  # of a step: two arms that do the same differ by less, in the median of all rounds
NETWORK = "tc qdisc add dev lo root tbf rate 1200mbit burst 256kb latency 200ms"
SHARED = ROOT / "examples" / "plan" / "small_gpt.py"
ARMS = ("never", "auto")
SHARE = 0.9  # of what is put away, by which the peak falls


def measure() -> Iterator[Row]:
    """Measure memory, then time."""
    plan = _plan(2, 2048, 4096)
    results: dict[str, list[dict[str, Any]]] = {it: [] for it in ARMS}
    for number in range(PAIRS):
        progress(f"memory, without and with offload: {number + 1} of {PAIRS}")
        for how in ARMS:
            results[how] += _results("memory", plan, how)
    yield from _memory(**results)
    progress("time")
    yield from _time(_results("time", _plan(1, 256, 512), "auto")[0])
    progress("two replicas on one core")
    yield from _shared()


def _memory(never: list[dict[str, Any]], auto: list[dict[str, Any]]) -> Iterator[Row]:
    state = auto[0]["parts"][0]["size_bytes"]
    old, new = ([it["peak_bytes"] for it in them] for them in (never, auto))
    yield Row("optimizer state of a rank", state / 1e6, "MB")
    yield Row("peak memory without offload", mean(old) / 1e6, "MB")
    yield Row("peak memory with offload", mean(new) / 1e6, "MB")
    share = 100 * (mean(old) - mean(new)) / state
    yield Row("the peak falls, of what is put away", share, "%", least=100 * SHARE)
    differ = sum(old["losses"] != new["losses"] for old, new in zip(never, auto, strict=True))
    yield Row("ranks whose losses differ in a bit", differ, "", most=0)


def _time(found: dict[str, Any]) -> Iterator[Row]:
    """Others may use the machine: so the bar is for the time that cores were busy, and what was waited for."""
    (step_s, core_s), (with_s, with_core_s) = ([median(it) for it in zip(*found[arm], strict=True)] for arm in ARMS)
    part = found["parts"][0]
    yield Row("step without offload", 1e3 * step_s, "ms")
    yield Row("step with offload", 1e3 * with_s, "ms")
    yield Row("copies out and back", 1e3 * (part["out_s"] + part["back_s"]), "ms")
    yield Row("core time of a step without offload", 1e3 * core_s, "ms")
    yield Row("core time of a step, more with offload", 1e3 * (with_core_s - core_s), "ms")
    yield Row("core time of both copies, predicted", 1e3 * part["core_s"], "ms")
    more = (with_core_s - core_s - part["core_s"]) / core_s
    yield Row("core time over what is predicted, of a step", 100 * more, "%", most=100 * NOISE)
    yield Row("step longer by, predicted", 1e3 * part["unhidden_s"], "ms")
    yield Row("step longer by, measured", 1e3 * (with_s - step_s), "ms")
    yield Row("step longer than predicted, of a step", 100 * (with_s - step_s - part["unhidden_s"]) / step_s, "%")
    waited = (part["waited_s"] - part["unhidden_s"]) / step_s
    yield Row("a step waits for state longer than predicted, of a step", 100 * waited, "%", most=100 * NOISE)


def _shared() -> Iterator[Row]:
    """Sums go by real TCP through a network of a known rate, which is a namespace of its own."""
    if shutil.which("unshare") is None or shutil.which("tc") is None:
        progress("no unshare or tc: left out")
        return
    with tempfile.TemporaryDirectory() as folder:
        layers = ("words", "places", *(f"blocks.{it}" for it in range(6)), "norm", "head")
        plan = PlanFile(data=2, pipeline=1, micro_batch=4, batch=8, stages=(StagePlan(layers=layers),))
        write_plan(Path(folder) / "plan.json", plan)
        inside = shlex.join([sys.executable, "-m", "benchmarks.planner_offload", "inside", folder])
        line = ["unshare", "-rn", "sh", "-c", f"ip link set lo up && {NETWORK} && exec {inside}"]
        subprocess.run(line, env={**os.environ, "GLOO_SOCKET_IFNAME": "lo"}, cwd=ROOT, check=True)
        results = json.loads((Path(folder) / "0.json").read_text())
    serial_s, turns_s = (median(results[it]) for it in ("serial", "turns"))
    yield Row("two replicas on a core: step, sums after all passes", 1e3 * serial_s, "ms")
    yield Row("two replicas on a core: step, sums while the other computes", 1e3 * turns_s, "ms")
    yield Row("the same, of the serial step", 100 * turns_s / serial_s, "%", most=95)


def _plan(ranks: int, micro_batch: int, batch: int) -> PlanFile:
    stage = StagePlan(layers=tuple(str(it) for it in range(LAYERS)))
    return PlanFile(data=ranks, pipeline=1, micro_batch=micro_batch, batch=batch, stages=(stage,))


def _results(kind: str, plan: PlanFile, how: str) -> list[dict[str, Any]]:
    """Return the results of each rank of a training."""
    with tempfile.TemporaryDirectory() as folder:
        write_plan(Path(folder) / "plan.json", plan)
        launch_ranks(plan.ranks, [kind, folder, how], module="benchmarks.planner_offload")
        return [json.loads((Path(folder) / f"{rank}.json").read_text()) for rank in range(plan.ranks)]


def be_rank(kind: str, folder: Path, how: str) -> None:
    """Be one of the processes of a training."""
    import torch.distributed as dist

    dist.init_process_group("gloo")
    measured = {"memory": _rank_memory, "time": _rank_time, "shared": _rank_shared}[kind]
    results = measured(read_plan(folder / "plan.json"), folder, how)
    (folder / f"{dist.get_rank()}.json").write_text(json.dumps(results))
    dist.destroy_process_group()


def _member(plan: PlanFile, folder: Path, how: str) -> Any:
    from longshore.planner.execution.cutting import load_script
    from longshore.planner.execution.training import StageTrainer, take_seat
    from longshore.planner.memory import OffloadMode
    from longshore.planner.offload.offloading import OffloadOptions
    from longshore.planner.schedule import default_schedule

    seat = take_seat(plan)
    assert seat is not None
    member = StageTrainer(plan, load_script(str(MODEL), 0), default_schedule(plan.micro_batches, plan.pipeline), seat)
    cores = len(os.sched_getaffinity(0))
    if how != "never":
        member.start_offloading(
            OffloadOptions(OffloadMode(how), folder, has_own_core=cores >= 2 * plan.ranks), progress
        )
    return member


def _rank_memory(plan: PlanFile, folder: Path, how: str) -> dict[str, Any]:
    member = _member(plan, folder, how)
    Path("/proc/self/clear_refs").write_text("5")  # the peak counts from here
    losses = [member.step(number)[0] for number in range(STEPS)]
    status = Path("/proc/self/status").read_text()
    peak = next(int(line.split()[1]) * 1024 for line in status.splitlines() if line.startswith("VmHWM"))
    return {"peak_bytes": peak, "losses": losses, "parts": [it.model_dump() for it in member.close()]}


def _rank_time(plan: PlanFile, folder: Path, how: str) -> dict[str, Any]:
    members = {it: _member(plan, folder, it) for it in ("never", how)}
    taken: dict[str, list[tuple[float, float]]] = {it: [] for it in members}
    for number in range(STEPS_EACH):
        for name, member in members.items():  # they take turns
            began = time.perf_counter(), time.process_time()
            member.step(number)
            if number > 1:
                taken[name].append((time.perf_counter() - began[0], time.process_time() - began[1]))
    parts = [it.model_dump() for it in members[how].close()]
    return {**taken, "parts": parts}


def _rank_shared(plan: PlanFile, _: Path, __: str) -> dict[str, Any]:
    import torch.distributed as dist

    from longshore.planner.execution.cutting import load_script
    from longshore.planner.execution.training import StageTrainer, take_seat
    from longshore.planner.schedule import Schedule
    from longshore.planner.sharing import DeviceTurn

    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # the device
    seat = take_seat(plan)
    assert seat is not None
    members, rank = dict[str, StageTrainer](), dist.get_rank()
    for name in ("serial", "turns"):
        members[name] = StageTrainer(plan, load_script(str(SHARED), 0), Schedule.one_forward_one_backward, seat)
        turn = DeviceTurn(f"{os.environ['MASTER_PORT']}-{name}", 0, rank, starts=rank == 0)
        members[name].share_device(turn, early=name == "turns")
    taken_s: dict[str, list[float]] = {it: [] for it in members}
    for number in range(STEPS_SHARED):
        for name, member in members.items():
            dist.barrier()
            taken_s[name].append(seconds(lambda: member.step(number)))  # noqa: B023
    for member in members.values():
        member.close()
    return {name: them[1:] for name, them in taken_s.items()}


if __name__ == "__main__":
    if sys.argv[1:2] == ["inside"]:
        launch_ranks(2, ["shared", sys.argv[2], "turns"], module="benchmarks.planner_offload")
    elif "RANK" in os.environ:
        be_rank(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
    else:
        main(measure)
