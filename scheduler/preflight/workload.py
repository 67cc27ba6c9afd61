"""What of a workload says which checks make sense.

Source: SPEC C1, C8.
"""

from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field

from ..model.job_spec import ALL_ATTACHMENTS, Attachment, Collectives, Dtype, JobFile, Sample

Word = Annotated[str, Field(max_length=200)]
Amount = Annotated[float, Field(ge=0.0, le=1e18)]


class Workload(BaseModel):
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


def workload_of(job: JobFile, *, link_bytes_per_s: float = 0.0) -> Workload:
    """Return what a job file says of a workload.

    Args:
        job: The job file.
        link_bytes_per_s: That is promised between its nodes, 0 for nothing.
    """
    types, sample, settings = job.wants.gpu_types, job.sample, job.gpu_settings
    return Workload(
        dtype=job.dtype,
        backend=job.collectives,
        attachments=job.attachments,
        gpu_type=types[0] if len(types) == 1 else "",
        gpu_memory_bytes=job.wants.gpu_memory_bytes,
        link_bytes_per_s=link_bytes_per_s,
        sample=() if sample is None else sample.command,
        sample_limit_s=Sample.model_fields["limit_s"].default if sample is None else sample.limit_s,
        sample_folder="" if sample is None else job.folder,
        environment=() if sample is None else tuple(job.environment.items()),
        clock_mhz=0 if settings is None else settings.clock_mhz or 0,
        power_w=0.0 if settings is None else settings.power_w or 0.0,
    )
