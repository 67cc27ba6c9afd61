"""`longshore status`, `queue`, `logs`, `job list` and `explain`, with rings and sub-tasks in words."""

import re
import shlex
import time
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import TYPE_CHECKING, Annotated, Any

import typer

from ...cluster.files.durations import duration_text
from ...cluster.files.errors import InputError
from ...cluster.files.output_file import in_one_line
from ..model.job import estimate_source_words
from ..model.states import JobState
from ..rules.attempts import UNFIT
from .options import (
    DEFAULT_URL,
    CaOption,
    JobArgument,
    JsonOption,
    TableColumn,
    UrlOption,
    client_of,
    minute_text,
    placement_text,
    print_json,
    print_table,
    ran_s,
    second_text,
)

if TYPE_CHECKING:
    pass

ALL_RANKS = "all"


def logs(
    job: JobArgument,
    rank: Annotated[str, typer.Option(help="Rank to show, or `all`, with [RANK] before each line.")] = "0",
    attempt: Annotated[int | None, typer.Option(min=1, help="Attempt to show; default: the last.")] = None,
    tail: Annotated[int | None, typer.Option(min=0, max=100_000, help="Only the last lines of each rank.")] = None,
    follow: Annotated[bool, typer.Option("-f", "--follow", help="Follow until the job has ended.")] = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """Show the output of ranks of a job; after a failed attempt, name the rank to read first."""
    if rank != ALL_RANKS and not rank.isdecimal():
        raise InputError(f"--rank is {rank!r}; write the number of a rank, or all")
    client = client_of(url, ca)
    if follow:
        for text in client.follow_logs(job, rank, attempt, tail):
            typer.echo(text, nl=False)
    else:
        if attempt is None and (known := client.job(job)["attempts"]):
            attempt = known[-1]["number"]  # all pages are of one attempt, although the next one may begin meanwhile
        data, after = client.logs(job, rank, 0, attempt, tail)
        typer.echo(data, nl=False)
        while after is not None and (part := client.logs(job, rank, after, attempt))[0]:
            typer.echo(part[0], nl=False)
            after = part[1]
    attempts = [each for each in client.job(job)["attempts"] if attempt in (None, each["number"])]
    crash = crash_line(job, attempts[-1]) if attempts else ""
    if crash and rank not in (ALL_RANKS, str(attempts[-1]["crash"]["rank"])):
        typer.echo(crash, err=True)


def crash_line(job: str, attempt: Mapping[str, Any]) -> str:
    """Return which rank of an attempt failed, where, and how to show its output; "" if none did."""
    crash = attempt["crash"]
    if crash is None:
        return ""
    how = f"signal {crash['signal']}" if crash["signal"] else f"exit code {crash['code']}"
    return (
        f"rank {crash['rank']} on {crash['node']}, GPU {crash['gpu']}, failed first ({how}): "
        f"longshore logs {job} --attempt {attempt['number']} --rank {crash['rank']}"
    )


PHASES = ("detect_s", "stop_s", "choose_s", "form_s", "copy_s", "first_step_s")
RECOVERY_COLUMNS = (
    TableColumn("GENERATION", right=True), TableColumn("MEMBERS", right=True),
    *(TableColumn(phase.removesuffix("_s").upper().replace("_", " "), right=True) for phase in PHASES),
    TableColumn("BECAUSE", gives=True),
)  # fmt: skip
MEMBER_COLUMNS = (
    TableColumn("SEAT"), TableColumn("MEMBER", right=True), TableColumn("GPU", gives=True),
    TableColumn("RANK", right=True), TableColumn("PID", right=True),
)  # fmt: skip
CANDIDATE_COLUMNS = (
    TableColumn("CANDIDATE"), TableColumn("T", right=True), TableColumn("T*", right=True), TableColumn(""),
    TableColumn("LINKS", gives=True),
)  # fmt: skip
MAX_SHOWN_CANDIDATES = 8  # candidates of the last choice


def print_ring(ring: Mapping[str, Any]) -> None:
    """Print the members of a ring by seat, and its recoveries with the seconds of their phases."""
    filled = sum(member >= 0 for member in ring["order"])
    spares = len(ring["spares"])
    typer.echo(
        f"{'ring':10s} {in_one_line(ring['phase'])}, {filled} of {ring['seats']} seats, "
        f"{spares} spare{'s' * (spares != 1)}, generation {ring['generation']}, step {ring['step']}"
    )
    for words in ring["hints"]:
        typer.echo(f"{'hint':10s} {in_one_line(words)}")
    if ring["relieved"]:
        typer.echo(f"{'slow':10s} {', '.join(map(str, ring['relieved']))}")
    for reason in dict.fromkeys(ring["gone"].values()):
        of = [member for member, its in ring["gone"].items() if its == reason]
        words = f"member{'s' * (len(of) > 1)} {', '.join(of)}: {reason}"
        typer.echo(f"{'gone':10s} {in_one_line(words)}")
    for each in ring["replacements"]:
        use = "for an empty seat" if each["backup_for"] is None else f"as the backup of member {each['backup_for']}"
        words = f"GPU {each['gpu']} of {each['node']} as rank {each['rank']}, {use}"
        typer.echo(f"{'joined':10s} {in_one_line(words)}")
    typer.echo()
    print_table(MEMBER_COLUMNS, [_member_cells(each, ring["spares"]) for each in _members_by_seat(ring)])
    for each in ring["replacements"][-1:]:
        average = f"{each['average_s']:.3g} s" if each["average_s"] > 0.0 else "not known"
        typer.echo(f"\n{'before':10s} an iteration of the ring took {average}; with each candidate, in seconds:")
        candidates = [_candidate_cells(candidate, each) for candidate in each["candidates"][:MAX_SHOWN_CANDIDATES]]
        print_table(CANDIDATE_COLUMNS, candidates)
    if len(ring["recoveries"]) > 1:
        typer.echo()
        print_table(RECOVERY_COLUMNS, [_recovery_cells(each) for each in ring["recoveries"][1:]])


def _members_by_seat(ring: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the members by seat, empty seats among them, then the members without a seat."""
    empty = [{"seat": seat, "member": None} for seat, member in enumerate(ring["order"]) if member < 0]

    def order(member: Mapping[str, Any]) -> tuple[bool, int, int]:
        return member["seat"] is None, member["seat"] or 0, member["member"] or 0

    return sorted([*ring["members"], *empty], key=order)


def _member_cells(member: Mapping[str, Any], spares: Collection[int]) -> tuple[str, ...]:
    if member["member"] is None:
        return str(member["seat"]), "empty", "-", "-", "-"
    seat = member["seat"] if member["seat"] is not None else "spare" if member["member"] in spares else "-"
    pid = "-" if member["pid"] is None else str(member["pid"])
    return str(seat), str(member["member"]), f"{member['node']}:{member['gpu']}", str(member["rank"]), pid


def _candidate_cells(candidate: Mapping[str, Any], of: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = ("-" if candidate[name] is None else f"{candidate[name]:.3g}" for name in ("source_s", "ring_s"))
    is_chosen = (candidate["node"], candidate["gpu"]) == (of["node"], of["gpu"])
    return f"GPU {candidate['gpu']} of {candidate['node']}", *seconds, "chosen" if is_chosen else "", candidate["links"]


def _recovery_cells(recovery: Mapping[str, Any]) -> tuple[str, ...]:
    seconds = ("-" if recovery[phase] < 0 else f"{recovery[phase]:.3f}" for phase in PHASES)
    return (str(recovery["generation"]), str(recovery["members"]), *seconds, recovery["reason"])


TASK_COLUMNS = (
    TableColumn("RANK", right=True), TableColumn("STAGE", right=True), TableColumn("REPLICA", right=True),
    TableColumn("GPU"), TableColumn("LAYERS", gives=True), TableColumn("PREDICTED", right=True),
    TableColumn("MEASURED", right=True), TableColumn("WAITS FOR", gives=True),
)  # fmt: skip
SEAT_COLUMN = TableColumn("SEAT", right=True)  # of a ring, beside the rank in it
AWAY_COLUMN = TableColumn("AWAY", right=True)  # where state is put away
MAX_SHOWN_TASKS = 64  # ranks; --json has all


def plan_facts(found: Mapping[str, Any]) -> dict[str, str]:
    """Return what the plan of a job is, how its steps compare with it, and when it will be done."""
    degrees = f"data {found['data']} x pipeline {found['pipeline']} x tensor {found['tensor']}"
    predicted = f"predicted {_step_text(found['predicted_step_s'])}" if found["predicted_step_s"] else "not predicted"
    of = f" of {found['iterations']}" if found["iterations"] else ""
    reached = "" if found["step"] is None else f"{found['step']}{of}; "
    measured = "" if found["step_s"] is None else f", measured {_step_text(found['step_s'])}"
    facts = {
        "plan": f"{degrees}, {found['micro_batches']} micro-batches of {found['micro_batch']}",
        "step": f"{reached}{predicted}{measured}",
        "deadline": "" if found["deadline_s"] is None else f"{duration_text(found['deadline_s'])} of running",
        "done": "" if found["ends_s"] is None else f"{second_text(found['ends_s'])}, as it goes now",
    }
    if found["iterations"]:
        bound = f"at most {duration_text(found['bound_s'])}"
        facts["training"] = f"predicted {duration_text(found['predicted_total_s'])}, {bound}"
    return {title: value for title, value in facts.items() if value}


def print_sub_tasks(found: Mapping[str, Any], *, in_ring: bool) -> None:
    """Print what each rank does, where, how long that takes, and for which ranks it waits; `in_ring`: by seats."""
    tasks, columns = found["tasks"][:MAX_SHOWN_TASKS], [*TASK_COLUMNS]
    rows = [[*_sub_task_cells(task)] for task in tasks]
    if in_ring:
        columns.insert(0, SEAT_COLUMN)
        for row, task in zip(rows, tasks, strict=True):
            row.insert(1, "-" if task["runs_as"] is None else str(task["runs_as"]))
    if any(task["away_bytes"] is not None for task in tasks):
        columns.append(AWAY_COLUMN)
        for row, task in zip(rows, tasks, strict=True):
            size_bytes = task["away_bytes"]
            row.append("-" if size_bytes is None else f"{size_bytes / 1e6:.1f} MB")
    left_out = len(found["tasks"]) - len(tasks)
    if left_out:
        words = f"{left_out} more ranks; --json has all"
        rows.append([words if task.title == "LAYERS" else "..." if at == 0 else "" for at, task in enumerate(columns)])
    print_table(tuple(columns), [tuple(row) for row in rows])


def _sub_task_cells(task: Mapping[str, Any]) -> tuple[str, ...]:
    place = "-" if task["gpu"] is None else f"{task['node']}:{task['gpu']}"
    measured = "-" if task["computed_s"] is None else _step_text(task["computed_s"])
    waits = " ".join(map(str, task["waits_for"])) or "-"
    parts = (task["rank"], task["stage"], task["replica"], place, " ... ".join(task["layers"]))
    return (*map(str, parts), _step_text(task["predicted_s"]) if task["predicted_s"] else "-", measured, waits)


def _step_text(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1.0 else f"{1e3 * seconds:.3g} ms"


ATTEMPT_COLUMNS = (
    TableColumn("ATTEMPT", right=True), TableColumn("STATE"), TableColumn("STARTED"), TableColumn("RAN", right=True),
    TableColumn("GPUS", gives=True), TableColumn("CAUSE", gives=True),
)  # fmt: skip


def status(job: JobArgument, json: JsonOption = False, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Show a job with all its attempts, and why it waits."""
    client = client_of(url, ca)
    found, training = client.job(job), client.training(job)
    plan = client.sub_tasks(job) if found["spec"].get("plan") else None
    if json:
        print_json({**found, "training": training, **({} if plan is None else {"sub_tasks": plan})})
        return
    facts = _job_facts(found) | _training_facts(training) | ({} if plan is None else plan_facts(plan))
    for title, value in facts.items():
        typer.echo(f"{title:10s} {in_one_line(value)}")
    in_ring = found["spec"].get("failover") == "switch"
    if in_ring and (ring := client_of(url, ca).ring(found["id"])):
        print_ring(ring)
    if plan is not None:
        typer.echo()
        print_sub_tasks(plan, in_ring=in_ring)
    if found["attempts"]:
        typer.echo()
        print_table(ATTEMPT_COLUMNS, [_attempt_cells(attempt) for attempt in found["attempts"]])
        if crash := crash_line(found["id"], found["attempts"][-1]):
            typer.echo(f"\n{crash}")


def _job_facts(found: dict[str, Any]) -> dict[str, str]:
    spec, waiting = found["spec"], found["waiting"]
    facts = {
        "job": found["id"], "name": found["name"], "user": found["owner"], "state": found["state"],
        "cause": found["cause"], "waiting": "" if waiting is None else waiting["reason"],
        "place": "" if waiting is None or waiting["position"] is None else f"{waiting['position']} in the queue",
        "GPUs": str(found["gpus"]), "priority": str(found["priority"]), "submitted": second_text(found["submitted_s"]),
        "ended": "" if found["ended_s"] is None else second_text(found["ended_s"]),
        "estimate": estimate_text(found),
        "limit": "" if spec["limit_s"] is None else duration_text(spec["limit_s"]),
        "command": shlex.join(spec["command"]), "folder": spec["folder"],
    }  # fmt: skip
    return {title: value for title, value in facts.items() if value}


def _training_facts(training: dict[str, Any]) -> dict[str, str]:
    """Return how long iterations take, and how long they computed on each type of node; nothing without any."""
    facts = {"model": training["model"]} if training["model"] else {}
    if (loss := training["loss"]) is not None:
        facts["loss"] = f"{float(loss):.6g}"
    if (mean_s := training["average_iteration_s"]) is not None:
        last = f"the last {training['steps']} steps of {training['slowest']}, its slowest node"
        facts["iteration"] = f"{mean_s:.3g} s, by {last}"
    if training["computed"]:
        each = (
            f"{computed['mean_s']:.3g} s on {computed['type']} ({computed['iterations']})"
            for computed in training["computed"]
        )
        facts["computing"] = ", ".join(each)
    return facts


def estimate_text(found: dict[str, Any]) -> str:
    """Return how long a job is expected to run, and where that is from."""
    words = estimate_source_words(found["estimate_from"], found["estimate_jobs"])
    return f"{duration_text(found['estimate_s'])}, {words}"


def _attempt_cells(attempt: dict[str, Any]) -> tuple[str, ...]:
    ended_s = time.time() if attempt["ended_s"] is None else attempt["ended_s"]
    ran = "-" if attempt["started_s"] is None else duration_text(ended_s - attempt["started_s"])
    contact = "" if attempt["contact"] == "ok" else ", no answer from it"
    return (
        str(attempt["number"]), attempt["state"] + contact, minute_text(attempt["started_s"]), ran,
        placement_text(attempt["held"]), attempt["cause"],
    )  # fmt: skip


StateOption = Annotated[list[JobState] | None, typer.Option(help="Only jobs in this state; repeatable.")]
UserOption = Annotated[str | None, typer.Option(help="Only jobs of this user.")]
NameOption = Annotated[str | None, typer.Option(help="Only jobs of this name; * stands for any text.")]

JOB, NAME, USER = TableColumn("JOB"), TableColumn("NAME", gives=True), TableColumn("USER", gives=True)
STATE, GPUS = TableColumn("STATE"), TableColumn("GPUS", right=True)
SUBMITTED, STARTED, RAN = TableColumn("SUBMITTED"), TableColumn("STARTED"), TableColumn("RAN", right=True)


def queue(
    state: StateOption = None,
    user: UserOption = None,
    name: NameOption = None,
    json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """List the jobs that have not ended: those with GPUs, then the queue in its order, then those outside of it."""
    found = client_of(url, ca).queue(_filters(state, user, name))
    if json:
        print_json(list(found))
        return
    place, why = TableColumn("PLACE", right=True), TableColumn("NODES OR REASON", gives=True)
    columns = (place, JOB, NAME, USER, STATE, GPUS, SUBMITTED, STARTED, RAN, why)
    _print_list(
        columns,
        [(_queue_position(job), *_job_cells(job), _where_or_why(job)) for job in found],
        "no jobs are running or waiting",
    )


def jobs(
    state: StateOption = None,
    user: UserOption = None,
    name: NameOption = None,
    limit: Annotated[int, typer.Option(min=1, help="Maximum number of jobs.")] = 20,
    json: JsonOption = False,
    url: UrlOption = DEFAULT_URL,
    ca: CaOption = None,
) -> None:
    """List the latest jobs, the newest first, including ended ones."""
    found = client_of(url, ca).jobs(_filters(state, user, name), limit)
    if json:
        print_json(list(found))
        return
    ended, why = TableColumn("ENDED"), TableColumn("CAUSE, NODES OR REASON", gives=True)
    columns = (JOB, NAME, USER, STATE, GPUS, SUBMITTED, STARTED, RAN, ended, why)
    _print_list(
        columns, [(*_job_cells(job), minute_text(job["ended_s"]), _where_or_why(job)) for job in found], "no jobs"
    )


def _filters(state: list[JobState] | None, user: str | None, name: str | None) -> dict[str, object]:
    filters = {"state": [each.value for each in state] if state else None, "user": user, "name": name}
    return {key: value for key, value in filters.items() if value is not None}


def _print_list(columns: tuple[TableColumn, ...], rows: Iterable[tuple[str, ...]], none: str) -> None:
    found = list(rows)
    if found:
        print_table(columns, found)
    else:
        typer.echo(none)


def _job_cells(job: dict[str, Any]) -> tuple[str, ...]:
    run_s = ran_s(job, time.time())
    times = (
        minute_text(job["submitted_s"]),
        minute_text(job["started_s"]),
        "-" if run_s is None else duration_text(run_s),
    )
    return (job["id"], job["name"], job["owner"], job["state"], str(job["gpus"]), *times)


def _queue_position(job: dict[str, Any]) -> str:
    position = job["waiting"] and job["waiting"]["position"]
    return "-" if position is None else str(position)


def _where_or_why(job: dict[str, Any]) -> str:
    """Return the cause of an end, why a job waits, or where it runs."""
    if job["ended_s"] is not None:
        return str(job["cause"])
    if job["waiting"]:
        return str(job["waiting"]["reason"])
    return " ".join(str(share["node"]) for share in job["placement"])


INDENT = " " * 10


def explain(job: JobArgument, json: JsonOption = False, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Show which GPUs a job got and why, and what the policy and the heuristic would have chosen."""
    found = client_of(url, ca).decisions(job)
    if json:
        print_json(found)
        return
    detail = client_of(url, ca).job(job)
    typer.echo(f"{'estimate':{len(INDENT)}}{estimate_text(detail)}")
    for decision in found:
        typer.echo("\n".join(decision_lines(decision, job)))
    if not found:
        waiting = detail["waiting"]
        why = "it has ended" if waiting is None else waiting["reason"]
        typer.echo(f"no decision yet: {in_one_line(why)}")
    if detail["waiting"] is not None and (before := detail["waiting"]["turn"]) is not None:
        typer.echo(f"{'turn':{len(INDENT)}}{_turn_text(before)}")
    for line in check_lines(detail):
        typer.echo(line)


def _turn_text(before: int) -> str:
    """Return whose turn it is in the queue, by the number of users whose turn is before that of a job's owner."""
    if before == 0:
        return "its owner's turn is next"
    return (
        "1 other user has a turn before its owner"
        if before == 1
        else f"{before} other users have turns before its owner"
    )


def check_lines(job: dict[str, Any]) -> list[str]:
    """Return what checks of nodes found for a job that does not run, and why it waits now."""
    unfit = [(attempt["number"], attempt["cause"]) for attempt in job["attempts"] if attempt["cause"].startswith(UNFIT)]
    lines = [f"attempt {number}: {cause}" for number, cause in unfit]
    if job["waiting"] is not None and job["attempts"]:
        lines.append(f"{'waiting':{len(INDENT)}}{job['waiting']['reason']}")
    return lines


def decision_lines(decision: dict[str, Any], job: str) -> list[str]:
    """Return a decision on a job in words: what was done, and what the policy and the heuristic would have done."""
    took = f"{1e3 * decision['took_s']:.1f} ms"
    done = _outlook_text(decision["placement"], decision["expected"])
    lines = [f"{_time_text(decision['at_s'])}  {done}", f"{INDENT}chosen by {decision['decided_by']} in {took}"]
    is_alone = decision["proposal"] is None and not decision["policy_error"]
    if is_alone:
        return [*lines, f"{INDENT}policy {_policy_name(decision)}"]
    lines.append(f"{INDENT}the policy {_policy_name(decision)}: {_proposal_text(decision, job)}")
    return [*lines, f"{INDENT}the heuristic {decision['heuristic']}: {_heuristic_text(decision, job)}"]


def _policy_name(decision: dict[str, Any]) -> str:
    return f"{decision['policy']} ({decision['mode']} mode, version {_short_version(decision['version'])})"


def _proposal_text(decision: dict[str, Any], job: str) -> str:
    """Return what the policy proposed and how sure it was, or why there is no usable proposal."""
    proposal = decision["proposal"]
    if proposal is None:
        return f"gave no usable answer: {decision['policy_error']}"
    probability, options = proposal["probability"], proposal["options"]
    sure = "" if probability is None else f", {probability:.0%} sure among {options} moves"
    if proposal["job"] == "-":
        return f"would have started another user's job{sure}"
    placement = _outlook_text(proposal["placement"], proposal["expected"])
    if proposal["job"] != job:
        return f"would have started job {proposal['job']} on {placement}{sure}"
    return f"{'what was done' if proposal['placement'] == decision['placement'] else placement}{sure}"


def _heuristic_text(decision: dict[str, Any], job: str) -> str:
    """Return what the heuristic would have done with the job that was due."""
    due, other = decision["fallback_job"], _outlook_text(decision["fallback"], decision["fallback_expected"])
    if due == "-":
        return "would have decided about another user's job"
    if due not in ("", job):
        return f"job {due}: {other}"
    return "what was done" if decision["placement"] == decision["fallback"] else other


def _time_text(time_s: float) -> str:
    return datetime.fromtimestamp(time_s).astimezone().strftime("%H:%M:%S")


def _outlook_text(placement: list[dict[str, Any]] | None, expected: dict[str, float] | None) -> str:
    """Return GPUs and what is expected of them."""
    if placement is None:
        return "wait"
    gpus = placement_text(placement)
    if expected is None:
        return gpus
    return f"{gpus}, {expected['slowdown']:.2f} x its estimate, to end at {_time_text(expected['end_s'])}"


def _short_version(version: str) -> str:
    return version[:12] if re.fullmatch("[0-9a-f]{64}", version) else version
