"""`longshore submit` of a job file with `plan:`: the model is planned for the GPUs of the scheduler's cluster.

It is done by the submitting user: the code of a model runs in a limited process of that user, never in the scheduler.

Source: SPEC P1, P2.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Annotated, Any

from pydantic import ConfigDict, Field

from ..cluster.files.durations import seconds_of
from ..cluster.files.errors import InputError
from ..cluster.files.yaml_file import ExactTypes, YamlFile, validated
from ..cluster.model.training_plan import LEAST_COMPUTE_S as FEWEST_S
from ..cluster.model.training_plan import MAX_BATCH, PlacedIteration, PlanFile
from ..planner.execution.plan_file import plan_file_of
from ..planner.hardware import DEFAULT, HostProfile, read_hardware
from ..planner.inputs import read_or_profile_model, training_samples
from ..planner.jobs import iteration_of
from ..planner.plan import FoundPlan
from ..planner.profile.profiling import ProfilingLimits
from ..planner.report import degrees_text, result_sentences, time_text
from ..planner.request import GpuType, PlanRequest, make_request, rank_pool_of
from ..planner.search import SearchResult, find_plan
from ..scheduler.model.job_spec import (
    MAX_COMPUTE_S,
    MAX_PARAMETER_BYTES,
    MIN_COMPUTE_S,
    MIN_JOB_ESTIMATE_S,
    YEAR_S,
    JobFile,
)

AUTO = "auto"
STAGE = "longshore.stage"  # module that carries out plans
HOW = "write `plan: {model: train.py:build, samples: 1e6}`"
BATCH, STEPS = 256, 20  # as `longshore plan find` and the module have them
MIN_DEADLINE_S, MAX_DEADLINE_S = 1e-3, 366 * 86400.0  # as for a job's running time
MAX_SAMPLES, MAX_TOKENS = 1e15, 1e18


Degrees = Annotated[
    str,
    Field(
        pattern=r"^[1-9][0-9]{0,5}x[1-9][0-9]{0,5}x[1-9][0-9]{0,5}$",
        description="Data x pipeline x tensor, as in 2x2x1.",
    ),
]


class JobPlanRequest(ExactTypes):
    """The field `plan` of a job file: how to plan a model."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    model: str = Field(min_length=1, max_length=4096)
    samples: float | None = Field(None, ge=1.0, le=MAX_SAMPLES)
    tokens: float | None = Field(None, ge=1.0, le=MAX_TOKENS)
    batch: int = Field(BATCH, ge=1, le=MAX_BATCH)
    deadline: Annotated[str, Field(max_length=100)] | float | None = None  # seconds, or a text such as 24h
    gpus: int | None = Field(None, ge=1, le=1_000_000)
    hardware: str | None = Field(None, min_length=1, max_length=4096)  # profile
    degrees: Degrees | None = None

    @property
    def deadline_s(self) -> float | None:
        """Time for all of the training; None for as soon as possible."""
        return seconds_of(self.deadline) if isinstance(self.deadline, str) else self.deadline

    @property
    def three_degrees(self) -> tuple[int, int, int] | None:
        """Data, pipeline and tensor degree; None for any."""
        if self.degrees is None:
            return None
        data, pipeline, tensor = map(int, self.degrees.split("x"))
        return data, pipeline, tensor


def job_plan_request(file: YamlFile, data: Mapping[str, Any]) -> JobPlanRequest:
    """Return the request for a plan of a job file.

    Args:
        file: Names the lines in errors.
        data: Its content.

    Raises:
        InputError: If it cannot be used.
    """
    if "plan" in data and data["plan"] is None:
        raise file.error(("plan",), "it is empty", f"{HOW}, or omit it")
    if "plan" not in data:
        raise file.error(("deadline",), "a deadline needs a plan", f"{HOW} too")
    content = data["plan"]
    if content == AUTO:
        content = _training_of_command(file, data.get("command"))
    elif not isinstance(content, dict):
        fix = f"{HOW}, `plan: auto`, or here the content of the file that `longshore plan find --out` wrote"
        raise file.error(("plan",), f"{file.text_at(('plan',), content)} is no plan", fix)
    place: tuple[str, ...] = ("plan", "deadline")
    if data.get("deadline") is not None:
        if content.get("deadline") is not None:
            raise file.error(("deadline",), "there are two deadlines", "omit this one or that of `plan`")
        content, place = {**content, "deadline": data["deadline"]}, ("deadline",)
    request = validated(file, JobPlanRequest, content, ("plan",))
    _check_deadline(file, place, request)
    if (request.samples is None) == (request.tokens is None):
        problem = "the length of the training is missing" if request.samples is None else "its length is given twice"
        raise file.error(("plan",), problem, "give either `samples` or `tokens`")
    return request


def _check_deadline(file: YamlFile, field: tuple[str, ...], request: JobPlanRequest) -> None:
    try:
        deadline_s = request.deadline_s
    except ValueError as error:
        problem, _, fix = str(error).partition("; ")
        raise file.error(field, problem, fix) from error
    if deadline_s is not None and not MIN_DEADLINE_S <= deadline_s <= MAX_DEADLINE_S:
        raise file.error(
            field, f"{file.text_at(field, request.deadline)} is too short or too long", "write 1ms to 366d"
        )


def _training_of_command(file: YamlFile, command: object) -> dict[str, Any]:
    """Return the model and the length of training that a command of the module `longshore.stage` names."""
    words = [str(word) for word in command] if isinstance(command, list) else []
    behind = words[words.index(STAGE) + 1 :] if STAGE in words else []
    if len(behind) < 2 or behind[0] != "-" or behind[1].startswith("-"):
        problem = f"auto takes the model from a command `python -m {STAGE} - train.py:build --steps 1000`"
        raise file.error(("plan",), problem, f"{HOW}, or such a command")
    steps = _steps_option(behind)
    if not 1 <= steps * BATCH <= MAX_SAMPLES:
        raise file.error(("command",), "its --steps cannot be used", "write a whole number of at least 1")
    return {"model": behind[1], "samples": float(steps * BATCH)}


def _steps_option(words: Sequence[str]) -> int:
    values = [after for word, after in pairwise(words) if word == "--steps"]
    values += [word.partition("=")[2] for word in words if word.startswith("--steps=")]
    if not values:
        return STEPS
    return int(values[-1]) if values[-1].isascii() and values[-1].isdecimal() and len(values[-1]) < 16 else 0


Cluster = Mapping[str, Any]  # what the API answers


def plan_requests(
    request: JobPlanRequest,
    folder: Path,
    here: Cluster,
    accepted: Collection[str],
    *,
    is_plain: bool,
    is_replicated: bool,
    spares: int,
) -> list[PlanRequest]:
    """Return a request for each GPU type alone: of several types, a job would get any, in any order.

    Args:
        request: Of the job file.
        folder: That its paths begin at.
        here: The cluster.
        accepted: Types that the job accepts; all if there are none.
        is_plain: Whether only plans count that `longshore.stage` carries out.
        is_replicated: Whether only plans count whose ranks all do the same.
        spares: GPUs that the job holds beside those of its plan.

    Raises:
        InputError: If the model cannot be profiled, or there is no GPU for it.
    """
    hardware = DEFAULT if request.hardware is None else read_hardware(folder / request.hardware)
    pool = [_gpu_type(gpu_type) for gpu_type in here["node_types"] if not accepted or gpu_type["name"] in accepted]
    pool = [gpu_type._replace(gpus=max(0, gpu_type.gpus - spares)) for gpu_type in pool]
    gpus = sum(gpu_type.gpus for gpu_type in pool)
    if not gpus:
        types = f" of type {' or '.join(accepted)}" if accepted else ""
        types += f" beside {spares} spares" if spares else ""
        raise InputError(f"no GPU{types} is in service", "`longshore node list` shows why", field="--gpus")
    if isinstance(hardware, HostProfile):
        rank = rank_pool_of(hardware)[0]
        pool = [rank._replace(gpus=min(rank.gpus, gpus))]
    profile = read_or_profile_model(str(folder / request.model), ProfilingLimits())
    samples = training_samples(profile, samples=request.samples, tokens=request.tokens)
    return [
        replace(
            make_request(
                profile, hardware, (gpu_type._replace(gpus=min(gpu_type.gpus, request.gpus or gpu_type.gpus)),),
                batch=request.batch, samples=samples, deadline_s=request.deadline_s, degrees=request.three_degrees,
            ),
            is_plain=is_plain, is_replicated=is_replicated,
        )
        for gpu_type in pool
        if gpu_type.gpus
    ]  # fmt: skip


def _gpu_type(node_type: Mapping[str, Any]) -> GpuType:
    across = min(node_type["nic_bytes_per_s"], node_type["uplink_bytes_per_s"] or node_type["nic_bytes_per_s"])
    return GpuType(
        node_type["name"], node_type["gpus_in_service"], node_type["peak_flops"], node_type["memory_bytes"],
        node_type["gpus_per_node"], node_type["intra_bytes_per_s"], across,
    )  # fmt: skip


def find_best_plan(plan_requests: Sequence[PlanRequest]) -> tuple[PlanRequest, SearchResult]:
    """Return the best of several answers: the one that meets the deadline with the fewest GPUs, or the fastest.

    Raises:
        InputError: If none of the requests makes sense.
    """
    found, errors = [], []
    for each in plan_requests:
        try:
            found.append((each, find_plan(each)))
        except InputError as error:  # such as degrees that this type has too few GPUs for
            errors.append(error)
    if not found:
        raise errors[0]
    return min(found, key=_plan_rank)


def _plan_rank(answer: tuple[PlanRequest, SearchResult]) -> tuple[bool, bool, float, float]:
    plan_request, choice = answer
    if choice.plan is None:
        return True, True, 0.0, 0.0
    counts = choice.meets and plan_request.deadline_s is not None
    return False, not choice.meets, choice.plan.gpus if counts else 0.0, choice.plan.total_s


CHECKPOINT_FOLDER = "checkpoints"  # folder for them, in that of the job
DECIDED = ("gpus", "shape")  # by the plan


def plan_job(
    file: YamlFile, data: Mapping[str, Any], folder: Path, cluster: Callable[[], Cluster], report: Callable[[str], None]
) -> dict[str, Any]:
    """Return the fields of a job with a plan in place of the request for one.

    Args:
        file: Names the lines in errors.
        data: Its content, overridden by options.
        folder: That relative paths of it begin at.
        cluster: Returns the GPUs of the scheduler, from its API.
        report: Receives what was chosen, line by line.

    Raises:
        InputError: If the request cannot be used, or no plan meets it.
    """
    if isinstance(data.get("plan"), dict) and "stages" in data["plan"]:
        return dict(data)  # it is planned already
    request = job_plan_request(file, data)
    for name in DECIDED:
        if data.get(name) is not None:
            raise file.error((name,), "the plan decides this", "omit it; `plan: {gpus: 8}` bounds the GPUs")
    rest = {key: value for key, value in data.items() if key not in ("plan", "deadline")}
    is_ours = rest.get("command") is None
    if is_ours and request.model.endswith(".csv"):
        raise file.error(("plan", "model"), "a table of layers cannot be trained", "give a command that trains")
    rest["command"] = ["python", "-m", STAGE, "-", request.model] if is_ours else rest["command"]
    job = validated(file, JobFile, rest)  # before the model is profiled, which takes seconds
    is_plain, here = STAGE in job.command, cluster()
    plan_request, plan, words = _choose_plan(file, request, folder, here, job, is_plain=is_plain)
    if is_ours:
        rest["command"] += ["--steps", str(plan.iterations), "--checkpoints", CHECKPOINT_FOLDER]
    for line in (*words, *_plan_lines(plan_request, plan, is_plain=is_plain)):
        report(line)
    planned = plan_file_of(plan_request, plan).model_copy(
        update={"iteration": _placed_iteration(plan_request, plan, here)}
    )
    known, demands = _job_figures(plan_request, plan, planned, here), _job_demands(plan_request, plan, rest)
    return {**known, **rest, **demands, "plan": planned.model_dump(mode="json", exclude_defaults=True)}


def _choose_plan(
    file: YamlFile, request: JobPlanRequest, folder: Path, here: Cluster, job: JobFile, *, is_plain: bool
) -> tuple[PlanRequest, FoundPlan, list[str]]:
    """Return the plan, its request, and the verdict in words.

    Raises:
        InputError: If the model cannot be planned, or no plan fulfils the request.
    """
    types, switches = job.node_needs.gpu_types, job.failover == "switch"
    if switches and request.three_degrees is not None and request.three_degrees[1:] != (1, 1):
        problem = f"with `failover: switch` all ranks do the same, and those of {request.degrees} do not"
        raise file.error(("plan", "degrees"), problem, "write Dx1x1, or use `failover: restart`")
    try:
        of_types = plan_requests(
            request, folder, here, types, is_plain=is_plain, is_replicated=switches, spares=job.spares
        )
        plan_request, choice = find_best_plan(of_types)
    except InputError as error:
        if not error.field.startswith("--"):
            raise
        raise file.error(("plan", error.field[2:]), error.problem, error.fix) from error  # no option here, but a field
    words = list(result_sentences(plan_request, choice))
    if switches and choice.plan is None:
        words.append(
            "With `failover: switch` only data-parallel plans without ZeRO are considered; `restart` allows more."
        )
    if choice.plan is None or not choice.meets:
        raise file.error(("plan",), " ".join(words).removesuffix("."), "nothing was submitted")
    return plan_request, choice.plan, words


def _plan_lines(plan_request: PlanRequest, plan: FoundPlan, *, is_plain: bool) -> Iterator[str]:
    """Yield how the GPUs are used, in words."""
    layout = plan.layout
    yield (
        f"{plan.kind}: {degrees_text(plan)} of type {plan_request.pool[0].name}, micro-batches of "
        f"{layout.micro_batch}; an iteration takes {time_text(plan.step_s)}, and there are {plan.iterations:,}."
    )
    if is_plain and not isinstance(plan_request.hardware, HostProfile):
        yield f"Note: {STAGE} computes on CPUs, and the times are for GPUs."


def _placed_iteration(plan_request: PlanRequest, plan: FoundPlan, here: Cluster) -> PlacedIteration | None:
    """Return the figures by which the scheduler scores placements; None for a plan on CPUs, whose links are unknown."""
    if isinstance(plan_request.hardware, HostProfile):
        return None
    gpu_type = plan_request.pool[0]
    speed = next(node_type["speed"] for node_type in here["node_types"] if node_type["name"] == gpu_type.name)
    iteration = iteration_of(plan, gpu_type, speed)
    figures = {name: getattr(iteration, name) for name in PlacedIteration.model_fields}
    return PlacedIteration(**{**figures, "compute_s": max(iteration.compute_s, FEWEST_S)})


def _job_figures(plan_request: PlanRequest, plan: FoundPlan, planned: PlanFile, here: Cluster) -> dict[str, Any]:
    """Return the name of the model and the figures that policies use, for fields that the job file omits.

    Times are for GPUs of speed 1.
    """
    types = {each["name"]: each["speed"] for each in here["node_types"]}
    speed = types.get(plan_request.pool[0].name, min(types.values()))
    compute_s = (plan.step_s - plan.times.gradients_s) * speed
    found: dict[str, Any] = {
        "model": "".join(each if " " <= each <= "~" else "?" for each in plan_request.profile.name)[:200],
        "estimate_s": min(max(plan.total_s * speed, MIN_JOB_ESTIMATE_S), YEAR_S),
        "compute_s": min(max(compute_s, MIN_COMPUTE_S), MAX_COMPUTE_S),
        "parameter_bytes": min(
            max(max(each.ring_bytes, each.next_bytes) for each in planned.stages), MAX_PARAMETER_BYTES
        ),
    }
    flops = max(each.flops for each in planned.stages)
    return found | ({"iteration_flops": min(flops, 1e30)} if flops > 0.0 else {})


def _job_demands(plan_request: PlanRequest, plan: FoundPlan, rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the plan needs of nodes and of the environment."""
    found: dict[str, Any] = {"gpus": plan.gpus}
    gpu_type, tensor = plan_request.pool[0], plan.layout.tensor
    if isinstance(plan_request.hardware, HostProfile):
        # It was measured with ranks of one thread.
        return found | {"environment": {"OMP_NUM_THREADS": "1", **(rest.get("environment") or {})}}
    found["needs"] = {**(rest.get("needs") or {}), "gpu_types": [gpu_type.name]}
    if tensor > 1:  # each of its groups inside a node
        each = max(count for count in range(tensor, gpu_type.gpus_per_node + 1, tensor) if plan.gpus % count == 0)
        found["shape"] = {"nodes": plan.gpus // each, "gpus_per_node": each}
    return found
