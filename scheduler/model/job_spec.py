"""What a job is, as one configuration file, and as the store holds it.

What is submitted is read strictly, as a `JobFile`. What is stored was valid once, but the rules may have changed since:
an update with a narrower bound, a return to an earlier version that lacks a field, or an edit in the database. Such a
job must stop no other one, and goes on if it is still clear what it runs. So `stored_job` reads leniently.

Source: SPEC K9.
"""

import math
import re
from collections.abc import Callable, Mapping
from copy import deepcopy
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator, model_validator

from ...cluster.files.errors import LongshoreError
from ...cluster.files.yaml_file import ExactTypes
from ...cluster.model.topology import ANYTHING, NodeNeeds
from ...cluster.model.training_plan import PlanFile
from ...preflight.check import ALL_ATTACHMENTS, Attachment, CheckedJob, Collectives, Dtype
from .job import DEFAULT_TRIES, NO_PROGRESS, Tries

JOB_NAME_PATTERN = r"^[a-z0-9]([a-z0-9-]{0,38}[a-z0-9])?$"
VARIABLE_PATTERN = r"^[A-Za-z_][A-Za-z0-9_]{0,127}$"
YEAR_S = 366 * 86400.0
# With these, and those of cluster files, every run time that can come of a job is finite and above 0. A millisecond is
# shorter than the scheduler's resolution; compute_s is bounded as in traces (docs/formats.md).
MIN_JOB_ESTIMATE_S = 1e-3
MIN_COMPUTE_S, MAX_COMPUTE_S = 1e-6, 86400.0
MAX_PARAMETER_BYTES = 1e15
Seconds = Annotated[float, Field(ge=MIN_JOB_ESTIMATE_S, le=YEAR_S)]
Text = Annotated[  # what a process can be given
    str,
    Field(
        max_length=131072, pattern=r"^[^\x00]*$", description="Text of at most 131072 characters, none of them zero."
    ),
]
Secret = Annotated[Text, Field(json_schema_extra={"writeOnly": True})]
JOB_NAME_RULE = "1 to 40 small letters, digits and -, the first and the last no -."
MODEL_WORDS = "Text of at most 200 characters of ASCII that can be printed."
IMAGE_WORDS = "Text of at most 512 characters, none of them zero."
MAX_SUBMITTED_GPUS = 1_000_000
PLAN_VARIABLE = "LONGSHORE_PLAN"  # by which ranks get it
MAX_PLAN_BYTES = 100_000  # of a plan: its ranks get it in their environment, which holds 128 KiB at most
VARIABLE_WORDS = "Letters, digits and _, at most 128, the first no digit."
Priority = Annotated[int, Field(ge=-1000, le=1000)]
Count = Annotated[int, Field(ge=0, le=1000)]
VisibleGpus = Literal["node", "rank"]  # GPUs that a rank sees: those of all ranks on its node, or its own alone
OFF: Literal["off"] = "off"  # in place of a detector: slow steps are not detected
DetectorName = Literal[  # those of health/step_watch.py, or OFF
    "cusum", "ewma", "in_a_row", "mad", "median_k", "patent_literal", "patent_mean", "off"
]  # fmt: skip


class Watching(NamedTuple):
    """How the steps of a job are watched."""

    slow: DetectorName = "cusum"
    hang_s: float | None = None  # how long a step may take, inf for as long as it likes; None to go by those before


class _SpecSection(ExactTypes):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RetrySpec(_SpecSection):
    """How often a job is tried again after an end of each class, and how often in vain."""

    infra: Count = DEFAULT_TRIES.infra
    resource: Count = DEFAULT_TRIES.resource
    user: Count = DEFAULT_TRIES.user
    again: Count = DEFAULT_TRIES.again
    ambiguous: Count = DEFAULT_TRIES.ambiguous
    no_progress: Annotated[int, Field(ge=1, le=1_000_000)] = NO_PROGRESS  # attempts in a row after which it is held

    def tries(self) -> Tries:
        """Return the same as a tuple."""
        return Tries(self.infra, self.resource, self.user, self.again, self.ambiguous)


class HealthSpec(_SpecSection):
    """How slow and hung steps are handled; only for jobs that report their steps."""

    slow: DetectorName = Watching().slow
    hang: Literal["auto", "off"] | Seconds = "auto"  # seconds that a step may take

    def watching(self) -> Watching:
        """Return the same as a tuple."""
        return Watching(
            self.slow, {"off": math.inf, "auto": None}[self.hang] if isinstance(self.hang, str) else self.hang
        )


def _equals(default: object) -> Callable[[object], bool]:  # a field with its default is not written
    return lambda value: value == default


class Shape(_SpecSection):
    """How the GPUs of a job lie on nodes."""

    nodes: int = Field(ge=1, le=1_000_000)
    gpus_per_node: int = Field(ge=1, le=1_000_000)

    @property
    def gpus(self) -> int:
        """Of all nodes together."""
        return self.nodes * self.gpus_per_node

    @property
    def words(self) -> str:
        """For people."""
        each = "1 GPU" if self.gpus_per_node == 1 else f"{self.gpus_per_node} GPUs"
        return f"1 node with {each}" if self.nodes == 1 else f"{self.nodes} nodes with {each} each"

    @model_validator(mode="after")
    def _check_bounds(self) -> "Shape":
        if self.gpus > MAX_SUBMITTED_GPUS:
            raise ValueError(f"that is {self.gpus} GPUs in all; a job has at most {MAX_SUBMITTED_GPUS}")
        return self


class JobNeeds(_SpecSection):
    """What a job needs of the nodes that it runs on. CPUs and memory count by a node's share for each of its GPUs."""

    gpu_types: tuple[Annotated[str, Field(min_length=1, max_length=200)], ...] = Field((), max_length=100)
    gpu_memory_bytes: float = Field(0.0, ge=0.0, le=1e18)  # of each GPU
    cpus_per_gpu: float = Field(0.0, ge=0.0, le=1e6)
    host_memory_bytes_per_gpu: float = Field(0.0, ge=0.0, le=1e18)


class SampleSpec(_SpecSection):
    """Two steps of a job, run on its nodes before it starts: the last line that it prints is {"losses": [...]}."""

    command: tuple[Text, ...] = Field(min_length=1, max_length=1000)
    limit_s: float = Field(60.0, ge=1.0, le=600.0)  # of a node; a program that loads PyTorch takes seconds


class GpuSettings(_SpecSection):
    """How GPUs run while they serve a job; what is not given stays as it is by default."""

    clock_mhz: int | None = Field(None, ge=1, le=100_000)  # of the cores, which then neither rises nor falls
    power_w: float | None = Field(None, ge=1.0, le=100_000.0)  # most that a GPU may take


class JobFile(_SpecSection):
    """A job. Times are in seconds; the command runs once for each GPU, and never meets a shell."""

    version: Literal[1] = 1
    name: str = Field("job", pattern=JOB_NAME_PATTERN, description=JOB_NAME_RULE)
    gpus: int = Field(1, ge=1, le=MAX_SUBMITTED_GPUS)
    shape: Shape | None = Field(None, exclude_if=_equals(None))  # `gpus` may be omitted then
    needs: JobNeeds | None = Field(None, exclude_if=_equals(None))  # by default it runs on any node
    command: tuple[Text, ...] = Field(min_length=1, max_length=1000)
    image: str = Field("", max_length=512, pattern=r"^[^\x00]*$", description=IMAGE_WORDS)  # by default the cluster's
    folder: Text = ""  # working directory; by default one of the attempt's own
    environment: dict[Annotated[str, Field(pattern=VARIABLE_PATTERN)], Secret] = Field({}, description=VARIABLE_WORDS)
    estimate_s: Seconds = 3600.0  # run time on the cluster's reference GPUs
    limit_s: Seconds | None = None  # running time after which it is stopped
    grace_s: float = Field(30.0, ge=0.0, le=3600.0)  # between asking it to stop and killing it
    priority: Priority = 0  # higher goes first
    compute_s: float = Field(1.0, ge=MIN_COMPUTE_S, le=MAX_COMPUTE_S)  # of an iteration on a reference GPU
    parameter_bytes: float = Field(0.0, ge=0.0, le=MAX_PARAMETER_BYTES)  # volume of one all-reduce
    # Its name, for people
    model: str = Field("", max_length=200, pattern=r"^[ -~]*$", description=MODEL_WORDS, exclude_if=_equals(""))
    # Of one iteration on one GPU
    iteration_flops: float | None = Field(None, gt=0.0, le=1e30, exclude_if=_equals(None))
    # What a fault does: the whole job is tried again, or the others of its ring go on (docs/failover.md)
    failover: Literal["restart", "switch"] = Field("restart", exclude_if=_equals("restart"))
    spares: int = Field(0, ge=0, le=1000, exclude_if=_equals(0))  # GPUs beside, whose members wait for a seat
    # Slow members of its ring in whose place others may compute, on GPUs beside those
    backups: int = Field(0, ge=0, le=100, exclude_if=_equals(0))
    # GPUs that a rank sees: those of all ranks on its node, as under torchrun, or its own alone
    visible_gpus: VisibleGpus = Field("node", exclude_if=_equals("node"))
    # Whether its GPUs are checked before it starts; by default as in the scheduler's settings (docs/preflight.md)
    preflight: Literal["auto", "off"] | None = Field(None, exclude_if=_equals(None))
    dtype: Dtype = Field("fp32", exclude_if=_equals("fp32"))  # that it computes in, and its GPUs are checked in
    # By which its ranks exchange, and its links are checked
    collectives: Collectives = Field("gloo", exclude_if=_equals("gloo"))
    # What its ranks use of their nodes, and is checked: the way through the host, network ports, links between GPUs
    attachments: tuple[Attachment, ...] = Field(
        ALL_ATTACHMENTS, min_length=1, max_length=3, exclude_if=_equals(ALL_ATTACHMENTS)
    )
    sample: SampleSpec | None = Field(None, exclude_if=_equals(None))  # of its own steps, in place of ours
    gpu_settings: GpuSettings | None = Field(None, exclude_if=_equals(None))  # that its GPUs are given while it runs
    plan: PlanFile | None = Field(None, exclude_if=_equals(None))  # what each rank does (docs/planner.md)
    retry: RetrySpec = RetrySpec()
    health: HealthSpec = HealthSpec()

    @property
    def all_gpus(self) -> int:
        """GPUs that it holds: those of its ring, and those that wait."""
        return self.gpus + self.spares

    @property
    def seats(self) -> int:
        """Seats of its ring; 0 for a job whose ranks all stop when one fails."""
        return self.gpus if self.failover == "switch" else 0

    @property
    def node_needs(self) -> NodeNeeds:
        """What it needs of the nodes that it runs on."""
        return ANYTHING if self.needs is None else NodeNeeds(**dict(self.needs))

    @model_validator(mode="before")
    @classmethod
    def _fill_gpus(cls, content: object) -> object:
        if not isinstance(content, Mapping) or content.get("gpus") is not None:
            return content
        try:
            if content.get("shape") is not None:
                return {**content, "gpus": Shape.model_validate(content["shape"]).gpus}
            return {**content, "gpus": PlanFile.model_validate(content.get("plan")).ranks}
        except ValidationError:  # which is reported for the field itself
            return content

    @model_validator(mode="after")
    def _check_spares(self) -> "JobFile":
        if self.spares and self.failover != "switch":
            raise ValueError("spares wait for seats of a ring; write `failover: switch` too, or omit them")
        if self.backups and self.failover != "switch":
            raise ValueError("backups compute for members of a ring; write `failover: switch` too, or omit them")
        if self.spares and self.shape is not None:
            raise ValueError("a shape places all GPUs, so there are no others; omit `spares` or `shape`")
        return self

    @model_validator(mode="after")
    def _check_plan_visibility(self) -> "JobFile":
        if self.plan is not None and self.visible_gpus == "rank":
            raise ValueError("ranks of a plan count those of their node; omit `visible_gpus: rank`")
        return self

    @field_validator("shape", mode="before")
    @classmethod
    def _refuse_option_form(cls, shape: object) -> object:
        if isinstance(shape, str) and (parts := re.fullmatch(r"([0-9]{1,7})x([0-9]{1,7})", shape)):
            nodes, each = parts.groups()
            raise ValueError(f"{shape} is the form of the option; write {{nodes: {nodes}, gpus_per_node: {each}}}")
        return shape

    @field_validator("attachments")
    @classmethod
    def _sort_attachments(cls, attachments: tuple[Attachment, ...]) -> tuple[Attachment, ...]:
        return tuple(attachment for attachment in ALL_ATTACHMENTS if attachment in attachments)

    @field_validator("plan")
    @classmethod
    def _check_plan(cls, plan: PlanFile | None, info: ValidationInfo) -> PlanFile | None:
        if plan is None:
            return None
        gpus = info.data.get("gpus")
        if gpus is not None and gpus != plan.ranks:
            raise ValueError(f"the plan is for {plan.ranks} GPUs, not for the {gpus} of `gpus`; omit `gpus`")
        if info.data.get("failover") == "switch" and not plan.is_replicated:
            raise ValueError("only ranks of a data-parallel plan can change their seats; use `failover: restart`")
        size = len(plan_text(plan).encode())
        if size > MAX_PLAN_BYTES:
            raise ValueError(f"the plan takes {size} bytes of {MAX_PLAN_BYTES}; give its layers shorter names")
        return plan

    @field_validator("shape")
    @classmethod
    def _check_shape_gpus(cls, shape: Shape | None, info: ValidationInfo) -> Shape | None:
        gpus = info.data.get("gpus")
        if shape is not None and gpus is not None and gpus != shape.gpus:
            raise ValueError(f"{shape.words}: these are not the {gpus} of `gpus`; omit `gpus`")
        return shape


def plan_text(plan: PlanFile) -> str:
    """Return a plan as its ranks get it."""
    return plan.model_dump_json(exclude_defaults=True)


class External(_SpecSection):
    """A job of another queue, such as Slurm's. It is held there until its GPUs have been chosen.

    The other queue takes only GPUs with the same indices on each node.
    """

    number: str = Field(max_length=64)  # that its owner knows it by


class StoredJob(JobFile):
    """A job as the store holds it; it may have come by another way than a job file."""

    external: External | None = Field(None, exclude_if=_equals(None))


# What a job runs, and on what: with another value it would be another job, so no value is substituted.
ESSENTIAL = ("command", "folder", "environment", "image", "shape", "needs", "plan", "external")
NEAREST = {"greater_than_equal": "ge", "less_than_equal": "le"}  # kinds of problems, and where the bound stands
MAX_REPAIR_ROUNDS = 8  # of mending: one shows what the one before hid


class UnreadableSpecError(LongshoreError):
    """A stored job file without a command to run."""


def stored_job(spec: object) -> StoredJob:
    """Return a job as the store holds it.

    A number beyond today's bounds is taken for the nearest one within them. A field that is not known, or has a value
    that makes no sense, counts as omitted.

    Args:
        spec: What the store holds.

    Raises:
        UnreadableSpecError: If it lacks the command, folder, environment or image.
    """
    given = spec
    for _ in range(MAX_REPAIR_ROUNDS):
        try:
            return StoredJob.model_validate(given)
        except ValidationError as error:
            given = _without_invalid_fields(given, error)
    raise UnreadableSpecError("its stored job file makes no sense; submit it again")


def is_external(spec: object) -> bool:
    """Return whether a stored job came from another queue; much faster than to read all of it."""
    return isinstance(spec, Mapping) and bool(spec.get("external"))


def is_shaped(spec: object) -> bool:
    """Return whether it matters for a stored job how its GPUs lie on nodes; much faster than to read all of it."""
    return isinstance(spec, Mapping) and bool(spec.get("shape"))


def has_needs(spec: object) -> bool:
    """Return whether a stored job may not take every node; much faster than to read all of it."""
    return isinstance(spec, Mapping) and bool(spec.get("needs"))


def is_ring_job(spec: object) -> bool:
    """Return whether a stored job goes on as a ring when members of it fail; much faster than to read all of it."""
    return isinstance(spec, Mapping) and spec.get("failover") == "switch"


def stored_job_or_default(spec: object) -> StoredJob:
    """Return a job as the store holds it, one with the usual values if that cannot be read: it must not be started."""
    try:
        return stored_job(spec)
    except UnreadableSpecError:
        return _USUAL


def _without_invalid_fields(spec: object, error: ValidationError) -> object:
    """Return a stored job file without what cannot be used of it."""
    if not isinstance(spec, Mapping):
        raise UnreadableSpecError("its stored job file cannot be read; submit it again") from error
    mended = deepcopy(dict(spec))
    for problem in error.errors(include_url=False):
        place = problem["loc"]
        if not place:  # fields that do not go together: it is not known which of them is wrong
            raise UnreadableSpecError(f"its stored job file cannot be used: {problem['msg']}") from error
        if place[0] in ESSENTIAL and problem["type"] != "extra_forbidden":
            where = ".".join(str(part) for part in place)
            raise UnreadableSpecError(f"its stored job file cannot be used: {where}: {problem['msg']}") from error
        bound = problem.get("ctx", {}).get(NEAREST.get(problem["type"], ""))
        is_number = problem["input"] == problem["input"]
        _set_or_remove(mended, place, bound if is_number else None)
    return mended


def _set_or_remove(spec: dict[str, Any], place: tuple[int | str, ...], value: object) -> None:
    """Put a value at the deepest key of a place that is there, or take the key out if the value is None."""
    inside, last = spec, place[0]
    for part in place[1:]:
        below = inside.get(str(last))
        if not isinstance(below, dict) or part not in below:
            break
        inside, last = below, part
    if value is None:
        inside.pop(str(last), None)
    else:
        inside[str(last)] = value


_USUAL = stored_job({"command": ["true"]})


def checked_job_of(job: JobFile, *, link_bytes_per_s: float = 0.0) -> CheckedJob:
    """Return the workload that a job file describes.

    Args:
        job: The job file.
        link_bytes_per_s: That is promised between its nodes, 0 for nothing.
    """
    types, sample, settings = job.node_needs.gpu_types, job.sample, job.gpu_settings
    return CheckedJob(
        dtype=job.dtype,
        backend=job.collectives,
        attachments=job.attachments,
        gpu_type=types[0] if len(types) == 1 else "",
        gpu_memory_bytes=job.node_needs.gpu_memory_bytes,
        link_bytes_per_s=link_bytes_per_s,
        sample=() if sample is None else sample.command,
        sample_limit_s=SampleSpec.model_fields["limit_s"].default if sample is None else sample.limit_s,
        sample_folder="" if sample is None else job.folder,
        environment=() if sample is None else tuple(job.environment.items()),
        clock_mhz=0 if settings is None else settings.clock_mhz or 0,
        power_w=0.0 if settings is None else settings.power_w or 0.0,
    )
