"""`longshore status`."""

import shlex
import time
from typing import Any

import typer

from ....cluster.files.durations import duration_text
from ....cluster.files.output_file import in_one_line
from ...model.job import estimate_words
from ..moments import clock, moment
from ..monitoring.sub_tasks import plan_facts, print_sub_tasks
from ..options import DEFAULT_URL, CaOption, JobArgument, JsonOption, UrlOption, client_of, print_json
from ..tables import Column, print_table
from .logs import crash_line
from .rings import print_ring

ATTEMPTS = (
    Column("ATTEMPT", right=True), Column("STATE"), Column("STARTED"), Column("RAN", right=True),
    Column("GPUS", gives=True), Column("CAUSE", gives=True),
)  # fmt: skip


def status(job: JobArgument, json: JsonOption = False, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Show a job with all its attempts, and why it waits."""
    client = client_of(url, ca)
    found, training = client.job(job), client.training(job)
    plan = client.sub_tasks(job) if found["spec"].get("plan") else None
    if json:
        print_json({**found, "training": training, **({} if plan is None else {"sub_tasks": plan})})
        return
    facts = _facts(found) | _training(training) | ({} if plan is None else plan_facts(plan))
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
        print_table(ATTEMPTS, [_attempt(it) for it in found["attempts"]])
        if crash := crash_line(found["id"], found["attempts"][-1]):
            typer.echo(f"\n{crash}")


def _facts(found: dict[str, Any]) -> dict[str, str]:
    spec, waiting = found["spec"], found["waiting"]
    facts = {
        "job": found["id"], "name": found["name"], "user": found["owner"], "state": found["state"],
        "cause": found["cause"], "waiting": "" if waiting is None else waiting["reason"],
        "place": "" if waiting is None or waiting["position"] is None else f"{waiting['position']} in the queue",
        "GPUs": str(found["gpus"]), "priority": str(found["priority"]), "submitted": clock(found["submitted_s"]),
        "ended": "" if found["ended_s"] is None else clock(found["ended_s"]),
        "estimate": estimate_text(found),
        "limit": "" if spec["limit_s"] is None else duration_text(spec["limit_s"]),
        "command": shlex.join(spec["command"]), "folder": spec["folder"],
    }  # fmt: skip
    return {title: value for title, value in facts.items() if value}


def _training(training: dict[str, Any]) -> dict[str, str]:
    """Return how long iterations take, and how long they computed on each type of node; nothing without any."""
    facts = {"model": training["model"]} if training["model"] else {}
    if (loss := training["loss"]) is not None:
        facts["loss"] = f"{float(loss):.6g}"
    if (mean_s := training["average_iteration_s"]) is not None:
        last = f"the last {training['steps']} steps of {training['slowest']}, its slowest node"
        facts["iteration"] = f"{mean_s:.3g} s, by {last}"
    if training["computed"]:
        each = (f"{it['mean_s']:.3g} s on {it['type']} ({it['iterations']})" for it in training["computed"])
        facts["computing"] = ", ".join(each)
    return facts


def estimate_text(found: dict[str, Any]) -> str:
    """Return how long a job is expected to run, and where that is from."""
    words = estimate_words(found["estimate_from"], found["estimate_jobs"])
    return f"{duration_text(found['estimate_s'])}, {words}"


def _attempt(it: dict[str, Any]) -> tuple[str, ...]:
    ended_s = time.time() if it["ended_s"] is None else it["ended_s"]
    ran = "-" if it["started_s"] is None else duration_text(ended_s - it["started_s"])
    contact = "" if it["contact"] == "ok" else ", no answer from it"
    return (
        str(it["number"]), it["state"] + contact, moment(it["started_s"]), ran, _shares(it["held"]), it["cause"],
    )  # fmt: skip


def _shares(placement: list[dict[str, Any]] | None) -> str:
    if placement is None:
        return "wait"
    return " ".join(f"{share['node']}:{','.join(map(str, share['gpus']))}" for share in placement)
