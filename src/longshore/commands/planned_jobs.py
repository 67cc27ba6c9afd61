"""`longshore submit` of a job file with `plan:`: the model is planned for the GPUs of the scheduler's cluster.

It is done here, as whoever submits: a model's code runs in a limited process of theirs, and never in the scheduler.

Source: SPEC P1, P2.
"""

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..cluster.files.errors import InputError
from ..cluster.files.yaml_file import YamlFile, validated
from ..cluster.model.training_plan import LEAST_COMPUTE_S as FEWEST_S
from ..cluster.model.training_plan import PlacedIteration, PlanFile
from ..planner.execution.launching import file_of
from ..planner.jobs import iteration_of
from ..planner.model import HostProfile
from ..planner.plan import FoundPlan
from ..planner.question import Question
from ..planner.report import layout_words, time_text, verdict
from ..scheduler.model.job_spec import LEAST_COMPUTE_S, LEAST_S, MOST_COMPUTE_S, MOST_PARAMETER_BYTES, YEAR_S, JobFile
from .plan_questions import Cluster, best, questions
from .plan_wishes import STAGE, PlanWish, wish_of

CHECKPOINTS = "checkpoints"  # folder for them, in that of the job
DECIDED = ("gpus", "shape")  # by the plan


def plan_job(
    file: YamlFile, data: Mapping[str, Any], folder: Path, cluster: Callable[[], Cluster], tell: Callable[[str], None]
) -> dict[str, Any]:
    """Return the fields of a job with a plan in place of the wish for one.

    Args:
        file: Names the lines in errors.
        data: What it says, and what options say in place of it.
        folder: That relative paths of it begin at.
        cluster: Asks the scheduler what GPUs there are.
        tell: Is told what was chosen.

    Raises:
        InputError: If the wish cannot be used, or no plan fulfils it.
    """
    if isinstance(data.get("plan"), dict) and "stages" in data["plan"]:
        return dict(data)  # it is planned already
    wish = wish_of(file, data)
    for name in DECIDED:
        if data.get(name) is not None:
            raise file.error((name,), "the plan decides this", "leave it out; `plan: {gpus: 8}` bounds the GPUs")
    rest = {key: value for key, value in data.items() if key not in ("plan", "deadline")}
    is_ours = rest.get("command") is None
    if is_ours and wish.model.endswith(".csv"):
        raise file.error(("plan", "model"), "a table of layers cannot be trained", "give a command that trains")
    rest["command"] = ["python", "-m", STAGE, "-", wish.model] if is_ours else rest["command"]
    job = validated(file, JobFile, rest)  # before the model is profiled, which takes seconds
    is_plain, here = STAGE in job.command, cluster()
    question, plan, words = _chosen(file, wish, folder, here, job, is_plain=is_plain)
    if is_ours:
        rest["command"] += ["--steps", str(plan.iterations), "--checkpoints", CHECKPOINTS]
    for line in (*words, *_lines(question, plan, is_plain=is_plain)):
        tell(line)
    told = file_of(question, plan).model_copy(update={"iteration": _placed(question, plan, here)})
    known, demands = _figures(question, plan, told, here), _demands(question, plan, rest)
    return {**known, **rest, **demands, "plan": told.model_dump(mode="json", exclude_defaults=True)}


def _chosen(
    file: YamlFile, wish: PlanWish, folder: Path, here: Cluster, job: JobFile, *, is_plain: bool
) -> tuple[Question, FoundPlan, list[str]]:
    """Return the plan, what it answers, and the answer in words.

    Raises:
        InputError: If the model cannot be planned, or no plan fulfils the wish.
    """
    types, switches = job.wants.gpu_types, job.failover == "switch"
    if switches and wish.wanted is not None and wish.wanted[1:] != (1, 1):
        problem = f"with `failover: switch` all ranks do the same, and those of {wish.degrees} do not"
        raise file.error(("plan", "degrees"), problem, "write Dx1x1, or use `failover: restart`")
    try:
        asked = questions(wish, folder, here, types, is_plain=is_plain, is_replicated=switches, spares=job.spares)
        question, choice = best(asked)
    except InputError as error:
        if not error.field.startswith("--"):
            raise
        raise file.error(("plan", error.field[2:]), error.problem, error.fix) from error  # no option here, but a field
    words = list(verdict(question, choice))
    if switches and choice.plan is None:
        words.append(
            "With `failover: switch` only data-parallel plans without ZeRO are looked at, and more with `restart`."
        )
    if choice.plan is None or not choice.meets:
        raise file.error(("plan",), " ".join(words).removesuffix("."), "nothing was submitted")
    return question, choice.plan, words


def _lines(question: Question, plan: FoundPlan, *, is_plain: bool) -> Iterator[str]:
    """Say how the GPUs are used."""
    layout = plan.layout
    yield (
        f"{plan.kind}: {layout_words(plan)} of type {question.pool[0].name}, micro-batches of {layout.micro_batch}; "
        f"an iteration takes {time_text(plan.step_s)}, and there are {plan.iterations:,}."
    )
    if is_plain and not isinstance(question.hardware, HostProfile):
        yield f"Note: {STAGE} computes on CPUs, and the times are for GPUs."


def _placed(question: Question, plan: FoundPlan, here: Cluster) -> PlacedIteration | None:
    """Return by what the scheduler scores placements of the plan; None for one on CPUs, whose links nobody knows."""
    if isinstance(question.hardware, HostProfile):
        return None
    gpu_type = question.pool[0]
    did = iteration_of(plan, gpu_type, next(it["speed"] for it in here["node_types"] if it["name"] == gpu_type.name))
    figures = {name: getattr(did, name) for name in PlacedIteration.model_fields}
    return PlacedIteration(**{**figures, "compute_s": max(did.compute_s, FEWEST_S)})


def _figures(question: Question, plan: FoundPlan, told: PlanFile, here: Cluster) -> dict[str, Any]:
    """Return the model's name and what policies reckon with, where the job file says nothing of it.

    Times are for GPUs of speed 1.
    """
    types = {it["name"]: it["speed"] for it in here["node_types"]}
    speed = types.get(question.pool[0].name, min(types.values()))
    compute_s = (plan.step_s - plan.times.gradients_s) * speed
    found: dict[str, Any] = {
        "model": "".join(it if " " <= it <= "~" else "?" for it in question.profile.name)[:200],
        "estimate_s": min(max(plan.total_s * speed, LEAST_S), YEAR_S),
        "compute_s": min(max(compute_s, LEAST_COMPUTE_S), MOST_COMPUTE_S),
        "parameter_bytes": min(max(max(it.ring_bytes, it.next_bytes) for it in told.stages), MOST_PARAMETER_BYTES),
    }
    flops = max(it.flops for it in told.stages)
    return found | ({"iteration_flops": min(flops, 1e30)} if flops > 0.0 else {})


def _demands(question: Question, plan: FoundPlan, rest: Mapping[str, Any]) -> dict[str, Any]:
    """Return what the plan asks of nodes, and of the environment."""
    found: dict[str, Any] = {"gpus": plan.gpus}
    gpu_type, tensor = question.pool[0], plan.layout.tensor
    if isinstance(question.hardware, HostProfile):
        # It was measured with ranks of one thread.
        return found | {"environment": {"OMP_NUM_THREADS": "1", **(rest.get("environment") or {})}}
    found["needs"] = {**(rest.get("needs") or {}), "gpu_types": [gpu_type.name]}
    if tensor > 1:  # each of its groups inside a node
        each = max(it for it in range(tensor, gpu_type.gpus_per_node + 1, tensor) if plan.gpus % it == 0)
        found["shape"] = {"nodes": plan.gpus // each, "gpus_per_node": each}
    return found
