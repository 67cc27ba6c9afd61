"""What was predicted of a plan beside what it took, stage by stage.

Source: SPEC P1.
"""

from rich.console import Console
from rich.table import Table

from ..model.playing import Seconds
from .measured import Measured
from .plan_file import PlanFile, StagePlan

ROWS = {"forward_s": "forward", "backward_s": "backward", "gradients_s": "gradients", "optimizer_s": "optimizer"}


def print_comparison(console: Console, plan: PlanFile, found: Measured, ranks_per_device: int = 1) -> None:
    """Print the times of an iteration; without a prediction, what was measured alone.

    Args:
        console: To print on.
        plan: With what was predicted, for ranks that have a device each.
        found: What was measured.
        ranks_per_device: That took turns.
    """
    table = Table("stage", "layers", "what", box=None, pad_edge=False)
    for heading in ("predicted", "measured", "off"):
        table.add_column(heading, justify="right")
    for k, (stage, took) in enumerate(zip(plan.stages, found.stages, strict=True)):
        names = stage.layers[0] if len(stage.layers) == 1 else f"{stage.layers[0]} ... {stage.layers[-1]}"
        predicted, head = _predicted(stage), (str(k), names)
        for field, what in ROWS.items():
            if getattr(took.seconds, field) or getattr(predicted, field):
                table.add_row(*head, what, *_cells(plan, getattr(predicted, field), getattr(took.seconds, field)))
                head = ("", "")
        table.add_row(*head, "wait", *_cells(plan, _wait_s(plan, predicted), took.wait_s))
    table.add_row("all", f"{plan.ranks} ranks", "iteration", *_cells(plan, plan.step_s, found.step_s))
    console.print()
    console.print(table)
    if plan.step_s and ranks_per_device > 1:
        console.print(f"Predicted for ranks that have a device each. Here {ranks_per_device} took turns on one.")
    if found.offload:
        console.print(_offloaded(found))


def _offloaded(found: Measured) -> Table:
    table = Table("rank", "what was put away", box=None, pad_edge=False)
    for heading in ("size", "steps", "out", "back", "longer by, predicted", "waited for"):
        table.add_column(heading, justify="right")
    for it in found.offload:
        times = (f"{1e3 * seconds:.1f} ms" for seconds in (it.out_s, it.back_s, it.unhidden_s, it.waited_s))
        table.add_row(str(it.rank), it.what, f"{it.size_bytes / 1e6:.1f} MB", str(it.trips), *times)
    return table


def _predicted(stage: StagePlan) -> Seconds:
    return Seconds(stage.forward_s, stage.backward_s, stage.gradients_s, stage.optimizer_s)


def _wait_s(plan: PlanFile, predicted: Seconds) -> float:
    return max(0.0, plan.step_s - predicted.total_s)


def _cells(plan: PlanFile, predicted_s: float, measured_s: float) -> tuple[str, str, str]:
    took = f"{1e3 * measured_s:.1f} ms"
    if not plan.step_s:
        return "", took, ""
    off = f"{100 * (predicted_s / measured_s - 1):+.0f} %" if measured_s > 0.01 * plan.step_s else ""
    return f"{1e3 * predicted_s:.1f} ms", took, off
