"""The fastest plan of each number of GPUs, on GPUs of one type.

Source: SPEC P1.
"""

import numpy as np

from ..model.pool import GpuType
from .choosing import fitting_layouts
from .evaluating import evaluate
from .plan import Plan
from .question import Question


def fastest_by_gpus(asked: Question, gpu_type: GpuType, *, data_parallel: bool = False) -> dict[int, Plan]:
    """Return the fastest plan that fits for each number of GPUs of a type that has one.

    Args:
        asked: The model and its batch.
        gpu_type: The GPUs, of which at most as many are used as there are.
        data_parallel: Whether plans may be data parallel only.
    """
    chain = (gpu_type,)
    found, least_s = fitting_layouts(asked, chain)
    is_open = np.isfinite(least_s)
    if data_parallel:
        is_open &= (found.pipeline == 1) & (found.tensor == 1)
    fastest: dict[int, Plan] = {}
    order = np.flatnonzero(is_open)
    for at in order[np.argsort(least_s[order], kind="stable")].tolist():
        known = fastest.get(int(found.gpus[at]))
        if known is not None and least_s[at] >= known.step_s:
            continue
        plan = evaluate(asked, chain, found.one(at))
        if isinstance(plan, Plan) and (known is None or plan.step_s < known.step_s):
            fastest[plan.gpus] = plan
    return fastest
