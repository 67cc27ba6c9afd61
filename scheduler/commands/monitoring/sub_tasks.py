"""The sub-tasks of a job with a plan, for people."""

from collections.abc import Mapping
from typing import Any

from ....cluster.files.durations import duration_text
from ..moments import clock
from ..tables import Column, print_table

COLUMNS = (
    Column("RANK", right=True), Column("STAGE", right=True), Column("REPLICA", right=True), Column("GPU"),
    Column("LAYERS", gives=True), Column("PREDICTED", right=True), Column("MEASURED", right=True),
    Column("WAITS FOR", gives=True),
)  # fmt: skip
SEAT = Column("SEAT", right=True)  # in a ring, beside the rank of who has it
AWAY = Column("AWAY", right=True)  # where state is put away
MOST_SHOWN = 64  # ranks; --json has all


def plan_facts(found: Mapping[str, Any]) -> dict[str, str]:
    """Return what the plan of a job is, how its steps compare with it, and when it will be done.

    Args:
        found: As the API has it.
    """
    degrees = f"data {found['data']} x pipeline {found['pipeline']} x tensor {found['tensor']}"
    predicted = f"predicted {_time(found['predicted_step_s'])}" if found["predicted_step_s"] else "not predicted"
    measured = "" if found["step_s"] is None else f", measured {_time(found['step_s'])}"
    facts = {
        "plan": f"{degrees}, {found['micro_batches']} micro-batches of {found['micro_batch']}",
        "step": f"{_at(found)}{predicted}{measured}",
        "deadline": "" if found["deadline_s"] is None else f"{duration_text(found['deadline_s'])} of running",
        "done": "" if found["ends_s"] is None else f"{clock(found['ends_s'])}, as it goes now",
    }
    if found["iterations"]:
        bound = f"at most {duration_text(found['bound_s'])}"
        facts["training"] = f"predicted {duration_text(found['predicted_total_s'])}, {bound}"
    return {title: value for title, value in facts.items() if value}


def print_sub_tasks(found: Mapping[str, Any], *, in_ring: bool) -> None:
    """Print what each rank does, where, how long that takes, and for whom it waits.

    Args:
        found: As the API has it.
        in_ring: Whether sub-tasks have seats of a ring, on ranks that change.
    """
    tasks, columns = found["tasks"][:MOST_SHOWN], [*COLUMNS]
    rows = [[*_row(it)] for it in tasks]
    if in_ring:
        columns.insert(0, SEAT)
        for row, it in zip(rows, tasks, strict=True):
            row.insert(1, "-" if it["runs_as"] is None else str(it["runs_as"]))
    if any(it["away_bytes"] is not None for it in tasks):
        columns.append(AWAY)
        for row, it in zip(rows, tasks, strict=True):
            row.append(_size(it["away_bytes"]))
    left_out = len(found["tasks"]) - len(tasks)
    if left_out:
        words = f"{left_out} more ranks; --json has all"
        rows.append([words if it.title == "LAYERS" else "..." if at == 0 else "" for at, it in enumerate(columns)])
    print_table(tuple(columns), [tuple(row) for row in rows])


def _row(it: Mapping[str, Any]) -> tuple[str, ...]:
    place = "-" if it["gpu"] is None else f"{it['node']}:{it['gpu']}"
    measured = "-" if it["computed_s"] is None else _time(it["computed_s"])
    waits = " ".join(map(str, it["waits_for"])) or "-"
    parts = (it["rank"], it["stage"], it["replica"], place, " ... ".join(it["layers"]))
    return (*map(str, parts), _time(it["predicted_s"]) if it["predicted_s"] else "-", measured, waits)


def _at(found: Mapping[str, Any]) -> str:
    if found["step"] is None:
        return ""
    return f"{found['step']} of {found['iterations']}; " if found["iterations"] else f"{found['step']}; "


def _size(size_bytes: int | None) -> str:
    return "-" if size_bytes is None else f"{size_bytes / 1e6:.1f} MB"


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"
