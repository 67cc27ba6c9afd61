"""What it costs that optimizer state is in host memory while forward and backward passes run.

State leaves after an update, while the first micro-batches go forward and the memory for what they keep fills up. It
comes back while gradients are summed, when nothing is kept any more. What these two times do not hide makes an
iteration longer. The rule is that of planner/offload/, which does it for real without GPUs.

Source: SPEC P4.
"""

from collections.abc import Sequence
from dataclasses import replace

from ..model.break_even import Copies, Offload, pays, unhidden_s
from ..model.pool import GpuType
from .plan import Plan, Stage


def with_copies(plan: Plan, types: Sequence[GpuType]) -> Plan | None:
    """Return a plan with the time of its copies, None if host memory has no room or they take too long to pay.

    Args:
        plan: Whose stages put state away.
        types: GPUs of each stage.
    """
    sum_s = _sum_at_the_end_s(plan)
    idle_s = plan.step_s - sum_s - plan.times.optimizer_s
    late_s = 0.0
    for k, (stage, it) in enumerate(zip(plan.stages, types, strict=True)):
        if it.host_bytes_per_s <= 0.0 or stage.away_bytes > it.host_room_bytes:
            return None
        each_s = stage.away_bytes / it.host_bytes_per_s
        copies = Copies(each_s, each_s)
        if not pays(idle_s, copies, Offload.auto):
            return None
        back_s = unhidden_s(sum_s, copies, both_in_wait=False, has_own_core=True)
        late_s = max(late_s, back_s + max(0.0, copies.out_s - _filling_s(plan, stage, k)))
    return replace(plan, times=replace(plan.times, offload_s=late_s))


def _sum_at_the_end_s(plan: Plan) -> float:
    """Return how long gradients are summed once all passes are done.

    With ZeRO-3 each micro-batch gathers weights twice and sums gradients once, and only the last of these is behind it.
    """
    if plan.layout.saving.zero == 3:
        return plan.times.gradients_s / (3.0 * plan.micro_batches)
    return plan.times.gradients_s


def _filling_s(plan: Plan, stage: Stage, k: int) -> float:
    """Return how long a stage goes forward before what it keeps is all there (1F1B)."""
    held = min(plan.layout.pipeline - k, plan.micro_batches)
    return held * stage.seconds.forward_s / plan.micro_batches
