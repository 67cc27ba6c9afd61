"""One of four processes that train by plans in several ways: plainly, with offload, and in turns on a device."""

import json
import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch.distributed as dist

from longshore.cluster.model.training_plan import PlanFile
from longshore.planner.execution.cutting import load_script
from longshore.planner.execution.plan_file import read_plan
from longshore.planner.execution.training import StageTrainer, take_seat
from longshore.planner.memory import OffloadMode
from longshore.planner.offload import offloading
from longshore.planner.schedule import default_schedule
from longshore.planner.sharing import DeviceTurn, PassKind

STEPS, SEED = 3, 3
WAYS = ("plain", "offload", "shared", "both")


def run() -> None:
    folder, target = Path(sys.argv[1]), sys.argv[2]
    vars(offloading)["offload_pays"] = lambda *_: True  # layers of the test take less than any copy
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    for path in sorted(folder.glob("plan-*.json")):
        for way in WAYS:
            plan = read_plan(path)
            seat = take_seat(plan)
            # Processes without a seat do not make the groups of parameters that stages share.
            model = f"{target}:{'tied' if plan.ranks == dist.get_world_size() else 'build'}"
            reported = {} if seat is None else trained(plan, model, seat, way, folder)
            (folder / f"{path.stem}-{way}-{rank}.reported").write_text(json.dumps(reported))
            dist.barrier()
    dist.destroy_process_group()


def trained(plan: PlanFile, target: str, seat: Any, way: str, folder: Path) -> dict[str, Any]:
    rank = dist.get_rank()
    member = StageTrainer(plan, load_script(target, SEED), default_schedule(plan.micro_batches, plan.pipeline), seat)
    message, spans = list[str](), list[tuple[str, float, float]]()
    if way in ("offload", "both"):
        wish = offloading.OffloadOptions(OffloadMode.auto, folder, has_own_core=False)
        member.start_offloading(wish, message.append)
    if way in ("shared", "both"):
        job = f"{os.environ['MASTER_PORT']}-{plan.data}x{plan.pipeline}-{way}"
        member.share_device(DeviceTurn(job, rank // 2, rank, starts=rank % 2 == 0))
        record(member, spans)
    losses = [member.step(number)[0] for number in range(STEPS)]
    parts = [it.model_dump() for it in member.close()]
    weights = {name: it.double().flatten().tolist() for name, it in member.state_by_name().items()}
    return {"losses": losses, "weights": weights, "parts": parts, "spans": spans}


def record(member: StageTrainer, spans: list[tuple[str, float, float]]) -> None:
    """Write down when a sub-task had the device, and when it summed."""
    turn, total = member._turn, member._sum_gradients
    assert turn is not None
    of = turn.hold

    @contextmanager
    def recorded(iteration: int, kind: PassKind, micro_batch: int = 0) -> Iterator[None]:
        with of(iteration, kind, micro_batch):
            began_s = time.perf_counter()
            yield
            spans.append((kind.name, began_s, time.perf_counter()))

    def summed(loss: Any) -> Any:
        began_s = time.perf_counter()
        found = total(loss)
        spans.append(("sum", began_s, time.perf_counter()))
        return found

    turn.hold = recorded  # type: ignore[method-assign]
    member._sum_gradients = summed  # type: ignore[method-assign]


run()
