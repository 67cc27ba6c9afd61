"""What of a job decides which checks make sense.

Source: SPEC C1, C8.
"""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

Dtype = Literal["fp32", "bf16", "fp16"]  # that a job computes in
Collectives = Literal["gloo", "nccl"]  # library by which its ranks exchange
Attachment = Literal["host", "nic", "nvlink"]  # by which GPUs are reached
ALL_ATTACHMENTS: tuple[Attachment, ...] = ("host", "nic", "nvlink")
Word = Annotated[str, Field(max_length=200)]
Amount = Annotated[float, Field(ge=0.0, le=1e18)]


class CheckedJob(BaseModel):
    """What a job computes with, and on what."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    dtype: Dtype = "fp32"
    backend: Collectives = "gloo"  # of its collectives
    attachments: tuple[Attachment, ...] = ALL_ATTACHMENTS  # how its accelerators are reached
    gpu_type: Word = ""  # any if empty
    gpu_memory_bytes: Amount = 0.0  # that it needs of each
    link_bytes_per_s: Amount = 0.0  # between neighbours of its ring; 0 where nobody knows
    sample: Annotated[tuple[str, ...], Field(max_length=1000)] = ()  # command of two of its own steps; ours if empty
    sample_limit_s: Annotated[float, Field(gt=0.0, le=600.0)] = 60.0  # of that command
    sample_folder: str = ""  # in which it runs; one of its own if empty
    environment: tuple[tuple[str, str], ...] = ()  # of that command, beside what tells of its GPUs
    clock_mhz: Annotated[int, Field(ge=0)] = 0  # of its GPUs while it runs, 0 for that by default
    power_w: Amount = 0.0  # most that each of them takes meanwhile, 0 for that by default
    job: Word = ""  # whose processes are no strangers on its GPUs
