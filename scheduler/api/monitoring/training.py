"""The training of a job: what an iteration takes, and how long it computes on each type of node.

Source: SPEC F2, F3.
"""

import math
from typing import Literal

from fastapi import APIRouter
from pydantic import BaseModel

from ...model.stored_spec import stored_or_usual
from ...store.monitoring.compute_records import records_of
from ...store.rows.attempts import attempts_of
from ..http.auth import Serving
from ..views.lookup import NO_JOB, Found
from ..views.models import places_of

router = APIRouter()


class ComputedPage(BaseModel):
    """How long iterations of a job computed on one type of node."""

    type: str
    iterations: int
    mean_s: float
    last_s: tuple[float, ...]  # the last 32, the newest last


class SeatPage(BaseModel):
    """A rank, in the order of the ring: the last one sends to the first."""

    rank: int
    node: str
    gpu: int
    type: str


class TrainingPage(BaseModel):
    """What is known of a job's iterations."""

    model: str  # its name, by the job file
    iteration_flops: float | None  # of one iteration on one GPU, by the job file
    parameter_bytes: float  # volume of one all-reduce
    ring: tuple[SeatPage, ...]  # of its last attempt
    step: int | None  # that it is at; none of one that does not run or tell
    loss: float | Literal["nan", "inf", "-inf"] | None  # of the last step that it was told of
    average_iteration_s: float | None  # over the last steps of its slowest node
    steps: int  # that this is the mean of
    slowest: str | None  # that node
    computed: tuple[ComputedPage, ...]


@router.get("/v1/jobs/{job}/training", responses=NO_JOB)
def training(row: Found, service: Serving) -> TrainingPage:
    """Show what is known of a job's iterations; of the steps of one that runs the leading scheduler knows."""
    with service.store.read() as tx:
        records, attempts = records_of(tx, row.id), attempts_of(tx, row.id)
    spec, figures = stored_or_usual(row.spec), service.control.step_figures().get(row.id)
    average = None if figures is None else figures.average
    ring = places_of(attempts[-1]) if attempts else []
    return TrainingPage(
        model=spec.model, iteration_flops=spec.iteration_flops, parameter_bytes=spec.parameter_bytes,
        ring=tuple(
            SeatPage(rank=rank, node=node, gpu=gpu, type=service.node_types.get(node, ""))
            for rank, (node, gpu) in enumerate(ring)
        ),
        step=None if figures is None else figures.step,
        loss=None if figures is None else in_json(figures.loss),
        average_iteration_s=None if average is None else average.iteration_s,
        steps=0 if average is None else average.steps,
        slowest=None if figures is None or average is None else figures.slowest,
        computed=tuple(
            ComputedPage(type=it.kind, iterations=it.iterations, mean_s=it.mean_s, last_s=it.last_s) for it in records
        ),
    )  # fmt: skip


def in_json(loss: float | None) -> float | Literal["nan", "inf", "-inf"] | None:
    """Return a loss as JSON can say it: one that is not finite as a word."""
    if loss is None or math.isfinite(loss):
        return loss
    return "nan" if math.isnan(loss) else "inf" if loss > 0.0 else "-inf"
