"""Check of a schedule that `longshore simulate` wrote, against what holds for every schedule of every policy.

It knows nothing of the simulator: it reads events (submit, start, stop, finish, fault, repair), jobs and the cluster.
"""

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

Record = Mapping[str, Any]  # one object of the JSON files
TOLERANCE = 1e-6  # relative, of run times
LEGAL = {  # states of a job in which each event may happen, and the state after it
    "submit": ({"unknown"}, "waiting"),
    "start": ({"waiting"}, "running"),
    "stop": ({"running"}, "waiting"),
    "finish": ({"running"}, "finished"),
}


@dataclass
class Progress:
    """Where one job stands."""

    record: Record
    state: str = "unknown"
    gpus: set[int] = field(default_factory=set)  # that it holds now
    start_s: float = 0.0
    stops: int = 0
    remaining_s: float = 0.0  # work that no checkpoint holds
    accounted_s: float = 0.0  # run time that kept work, restarts and losses explain


@dataclass
class Check:
    """The schedule up to one event, and the violations met so far."""

    cluster: Record
    jobs: dict[Any, Progress]
    holder: dict[int, Any] = field(default_factory=dict)  # job on each busy GPU
    taken_s: dict[int, float] = field(default_factory=dict)  # when each busy GPU was taken
    down_s: dict[int, float] = field(default_factory=dict)  # when each GPU that is down failed
    failed: dict[int, float] = field(default_factory=dict)  # when each GPU last failed
    doomed: dict[Any, float] = field(default_factory=dict)  # jobs with a failed GPU, to be stopped at that time
    used_s: dict[int, float] = field(default_factory=dict)  # time each GPU was busy or down
    busy_gpu_s: float = 0.0
    now_s: float = 0.0
    violations: list[str] = field(default_factory=list)


def check_schedule(events: Iterable[Record], jobs: Sequence[Record], cluster: Record) -> None:
    """Check a schedule; times in seconds.

    Args:
        events: Objects {"time", "event", "job", "gpus"} in the order of the file.
        jobs: Objects {"id", "gpus", "work", "submit"}.
        cluster: {"nodes": [{"gpus", "speed"}], "node_penalty", "checkpoint", "restart", "rate"}; run times are left
            unchecked if the rate is "free"; a checkpoint of null or infinity saves nothing.

    Raises:
        AssertionError: With one sentence for each violation.
    """
    check = Check(cluster, {job["id"]: Progress(job, remaining_s=job["work"]) for job in jobs})
    for event in events:
        step(check, event)
    check_end(check)
    if check.violations:
        raise AssertionError("\n".join(check.violations))


def step(check: Check, event: Record) -> None:
    time_s, kind, gpus = event["time"], event["event"], event["gpus"]
    if time_s < check.now_s:
        complain(check, f"{kind} at {time_s} comes after an event at {check.now_s}")
    if time_s > check.now_s:
        check_doomed(check)
    check.now_s = time_s
    unknown = set(gpus) - {gpu for node in check.cluster["nodes"] for gpu in node["gpus"]}
    if unknown:
        complain(check, f"{kind} names GPUs {sorted(unknown)} that the cluster does not have")
    elif kind == "fault":
        fault(check, gpus)
    elif kind == "repair":
        repair(check, gpus)
    elif kind not in LEGAL:
        complain(check, f"{kind!r} is no kind of event")
    elif event["job"] not in check.jobs:
        complain(check, f"{kind} of job {event['job']!r}, which is not among the jobs")
    else:
        job_event(check, kind, event["job"], gpus)


def complain(check: Check, sentence: str) -> None:
    check.violations.append(f"At {check.now_s} s: {sentence}.")


def check_doomed(check: Check) -> None:
    for job, failed_s in check.doomed.items():
        complain(check, f"job {job!r} runs on although a GPU of it failed at {failed_s} s")
    check.doomed.clear()


def fault(check: Check, gpus: Sequence[int]) -> None:
    for gpu in gpus:
        if gpu in check.down_s:
            complain(check, f"GPU {gpu} fails although it is down since {check.down_s[gpu]} s")
        check.down_s[gpu] = check.failed[gpu] = check.now_s
        if gpu in check.holder:
            check.doomed[check.holder[gpu]] = check.now_s


def repair(check: Check, gpus: Sequence[int]) -> None:
    for gpu in gpus:
        if gpu in check.down_s:
            use(check, gpu, check.down_s.pop(gpu))
        else:
            complain(check, f"GPU {gpu} is repaired although it is not down")


def use(check: Check, gpu: int, since_s: float) -> None:
    check.used_s[gpu] = check.used_s.get(gpu, 0.0) + check.now_s - since_s


def job_event(check: Check, kind: str, job: Any, gpus: Sequence[int]) -> None:
    it = check.jobs[job]
    before, after = LEGAL[kind]
    if it.state not in before:
        complain(check, f"{kind} of job {job!r}, which is {it.state}")
        return
    it.state = after
    if kind == "submit":
        check_submit(check, it)
    elif kind == "start":
        start(check, it, gpus)
    else:
        leave(check, kind, it, gpus)


def check_submit(check: Check, it: Progress) -> None:
    if not math.isclose(it.record["submit"], check.now_s, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
        complain(check, f"job {it.record['id']!r} is submitted, but jobs.json says {it.record['submit']} s")


def start(check: Check, it: Progress, gpus: Sequence[int]) -> None:
    job, needed = it.record["id"], it.record["gpus"]
    if len(set(gpus)) != needed or len(gpus) != needed:
        complain(check, f"job {job!r} starts on GPUs {list(gpus)}, it needs {needed}")
    for gpu in gpus:
        if gpu in check.holder:
            complain(check, f"job {job!r} starts on GPU {gpu}, which serves job {check.holder[gpu]!r}")
        if gpu in check.down_s:
            complain(check, f"job {job!r} starts on GPU {gpu}, which is down since {check.down_s[gpu]} s")
        check.holder[gpu], check.taken_s[gpu] = job, check.now_s
    it.gpus, it.start_s = set(gpus), check.now_s


def leave(check: Check, kind: str, it: Progress, gpus: Sequence[int]) -> None:
    job = it.record["id"]
    if set(gpus) != it.gpus:
        complain(check, f"{kind} of job {job!r} names GPUs {list(gpus)}, it has {sorted(it.gpus)}")
    if kind == "stop" and not any(check.failed.get(gpu) == check.now_s for gpu in it.gpus):
        complain(check, f"job {job!r} stops although none of its GPUs fails")
    if kind == "finish" and job in check.doomed:
        complain(check, f"job {job!r} finishes although a GPU of it failed at {check.doomed[job]} s")
    check.doomed.pop(job, None)
    if check.cluster["rate"] != "free" and it.gpus:
        account(check, kind, it)
    it.stops += kind == "stop"
    for gpu in it.gpus:
        if check.holder.get(gpu) == job:
            del check.holder[gpu]
            use(check, gpu, check.taken_s.pop(gpu))
    check.busy_gpu_s += len(it.gpus) * (check.now_s - it.start_s)
    it.gpus = set()


def account(check: Check, kind: str, it: Progress) -> None:
    """Check the length of a run, and renew what remains of the job's work."""
    elapsed_s = check.now_s - it.start_s
    factor = slowdown(check.cluster, it.gpus)
    overhead_s = check.cluster["restart"] if it.stops else 0.0
    full_s = overhead_s + it.remaining_s * factor
    if kind == "finish":
        if not math.isclose(elapsed_s, full_s, rel_tol=TOLERANCE, abs_tol=TOLERANCE):
            complain(check, f"job {it.record['id']!r} ran {elapsed_s} s, its work takes {full_s} s there")
        it.accounted_s += full_s
    else:
        if elapsed_s > full_s * (1 + TOLERANCE):
            complain(check, f"job {it.record['id']!r} stops after {elapsed_s} s, its work takes {full_s} s there")
        saved_s = saved(check.cluster["checkpoint"], elapsed_s - overhead_s)
        it.remaining_s -= saved_s / factor
        it.accounted_s += elapsed_s


def slowdown(cluster: Record, gpus: set[int]) -> float:
    nodes = [node for node in cluster["nodes"] if gpus & set(node["gpus"])]
    slowest: float = min(node["speed"] for node in nodes)
    penalty: float = cluster["node_penalty"]
    return (1 + penalty * (len(nodes) - 1)) / slowest


def saved(checkpoint_s: float | None, useful_s: float) -> float:
    if checkpoint_s is None or checkpoint_s == math.inf:
        return 0.0
    return math.floor(max(0.0, useful_s) / checkpoint_s + TOLERANCE) * checkpoint_s


def check_end(check: Check) -> None:
    """Check what can be said only of a whole schedule."""
    check_doomed(check)
    for job, it in check.jobs.items():
        if it.state != "finished":
            complain(check, f"job {job!r} never finishes, it is {it.state}")
    for gpu, since_s in check.down_s.items():
        use(check, gpu, since_s)
    for gpu, used_s in check.used_s.items():
        if used_s > check.now_s * (1 + TOLERANCE):
            complain(check, f"GPU {gpu} is busy or down for {used_s} s, longer than the schedule")
    explained = sum(it.record["gpus"] * it.accounted_s for it in check.jobs.values())
    if check.cluster["rate"] != "free" and not math.isclose(explained, check.busy_gpu_s, rel_tol=TOLERANCE):
        complain(check, f"{check.busy_gpu_s} GPU-seconds are held, work, restarts and losses explain {explained}")
