"""A plan as programs read it.

Source: SPEC P1.
"""

import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from ..search.choosing import Choice
from ..search.plan import Misfit, Plan, Stage, Times
from ..search.question import Question
from .terminal import binding, ordered

OF_TRACES = ("offload_s", "away_bytes")  # 0 but in plans for jobs of a trace


def choice_json(asked: Question, choice: Choice, table: Sequence[Plan | Misfit] | None) -> str:
    """Return the answer as JSON text; docs/planner.md has the fields."""
    profile = asked.profile
    said: dict[str, Any] = {
        "model": {
            "name": profile.name, "rung": profile.rung, "parameters": profile.parameters,
            "trained_parameters": profile.trained_parameters, "least_samples": profile.least_samples,
            "forward_flops": profile.forward_flops, "layers": [layer.name for layer in profile.layers],
            "notes": list(profile.notes),
        },
        "batch": asked.batch, "iterations": asked.iterations, "deadline_s": asked.deadline_s,
        "meets_deadline": choice.meets,
        "plan": _plan(choice.plan), "would_do": _plan(choice.would_do),
        "fewer": _plan(choice.fewer), "closest": _misfit(choice.closest),
        "looked_at": choice.looked_at, "worked_out": choice.worked_out,
        "hardware": asked.hardware.model_dump(mode="json"),
    }  # fmt: skip
    if table is not None:
        said["table"] = [
            {
                **(_row(it) if isinstance(it, Plan) else _misfit(it) or {}),
                "verdict": binding(asked, it),
                "chosen": it == choice.plan,
            }
            for it in ordered(table)
        ]
    return json.dumps(said, indent=2)


def _plan(plan: Plan | None) -> dict[str, Any] | None:
    if plan is None:
        return None
    return {
        **_row(plan), "micro_batches": plan.micro_batches, "kind": plan.kind, "gpu_hours": plan.gpu_hours,
        "times": _figures(plan.times),
        "sub_tasks": [{**_figures(stage), "seconds": stage.seconds._asdict()} for stage in plan.stages],
    }  # fmt: skip


def _figures(of: Times | Stage) -> dict[str, Any]:
    return {name: value for name, value in asdict(of).items() if name not in OF_TRACES}


def _row(plan: Plan) -> dict[str, Any]:
    return {
        "gpus": plan.gpus, **plan.layout._asdict(), "gpu_types": list(plan.gpu_types),
        "step_s": plan.step_s, "total_s": plan.total_s, "bound_s": plan.bound_s,
    }  # fmt: skip


def _misfit(it: Misfit | None) -> dict[str, Any] | None:
    if it is None:
        return None
    return {
        "gpus": it.layout.gpus, **it.layout._asdict(), "gpu_type": it.gpu_type, "needed_bytes": it.needed_bytes,
        "gpu_memory_bytes": it.gpu_memory_bytes,
    }  # fmt: skip
