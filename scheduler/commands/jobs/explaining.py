"""`longshore explain`: who chose a job's GPUs, and what the others would have chosen."""

import re
from datetime import datetime
from typing import Any

import typer

from ....cluster.files.output_file import in_one_line
from ...rules.attempt_step import UNFIT
from ..options import DEFAULT_URL, CaOption, JobArgument, JsonOption, UrlOption, client_of, print_json
from .jobs import estimate_text

INDENT = " " * 10


def explain(job: JobArgument, json: JsonOption = False, url: UrlOption = DEFAULT_URL, ca: CaOption = None) -> None:
    """Show which GPUs a job was given, by whom and why, and what policy and heuristic would have chosen."""
    found = client_of(url, ca).decisions(job)
    if json:
        print_json(found)
        return
    asked = client_of(url, ca).job(job)
    typer.echo(f"{'estimate':{len(INDENT)}}{estimate_text(asked)}")
    for it in found:
        typer.echo("\n".join(lines_of(it, job)))
    if not found:
        waiting = asked["waiting"]
        why = "it has ended" if waiting is None else waiting["reason"]
        typer.echo(f"nothing was decided on it: {in_one_line(why)}")
    if asked["waiting"] is not None and (before := asked["waiting"]["turn"]) is not None:
        typer.echo(f"{'turn':{len(INDENT)}}{_turn(before)}")
    for line in checks_lines(asked):
        typer.echo(line)


def _turn(before: int) -> str:
    """Return whose turn it is in the queue, by how many users come before a job's owner."""
    if before == 0:
        return "its owner's is next"
    return "of 1 other user before its owner's" if before == 1 else f"of {before} other users before its owner's"


def checks_lines(job: dict[str, Any]) -> list[str]:
    """Return what checks of its nodes have to do with a job that does not run: what they found, and that they go on.

    Args:
        job: As the API has it.
    """
    unfit = [(it["number"], it["cause"]) for it in job["attempts"] if it["cause"].startswith(UNFIT)]
    lines = [f"attempt {number}: {cause}" for number, cause in unfit]
    if job["waiting"] is not None and job["attempts"]:
        lines.append(f"{'waiting':{len(INDENT)}}{job['waiting']['reason']}")
    return lines


def lines_of(decision: dict[str, Any], job: str) -> list[str]:
    """Return a decision in words: what was done, by whom, and what each of both would have done.

    Args:
        decision: As the API has it.
        job: The job whose decisions are shown; a policy may have wanted to start another one.
    """
    took = f"{1e3 * decision['took_s']:.1f} ms"
    done = _outlook(decision["placement"], decision["expected"])
    lines = [f"{_clock(decision['at_s'])}  {done}", f"{INDENT}chosen by {decision['obeyed']} in {took}"]
    is_alone = decision["said"] is None and not decision["missed"]
    if is_alone:
        return [*lines, f"{INDENT}policy {_policy(decision)}"]
    lines.append(f"{INDENT}the policy {_policy(decision)}: {_word(decision, job)}")
    return [*lines, f"{INDENT}the heuristic {decision['heuristic']}: {_instead(decision, job)}"]


def _policy(decision: dict[str, Any]) -> str:
    return f"{decision['policy']} ({decision['mode']} mode, version {_version(decision['version'])})"


def _word(decision: dict[str, Any], job: str) -> str:
    """Return what the policy said, and how sure it was, or why it was not heard."""
    said = decision["said"]
    if said is None:
        return f"was not heard: {decision['missed']}"
    sure = "" if said["probability"] is None else f", {said['probability']:.0%} sure among {said['options']} moves"
    if said["job"] == "-":
        return f"would have started somebody else's job{sure}"
    if said["job"] != job:
        return f"would have started job {said['job']} on {_outlook(said['placement'], said['expected'])}{sure}"
    if said["placement"] == decision["placement"]:
        return f"what was done{sure}"
    return f"{_outlook(said['placement'], said['expected'])}{sure}"


def _instead(decision: dict[str, Any], job: str) -> str:
    """Return what the heuristic would have done with the job that was due."""
    due, other = decision["fallback_job"], _outlook(decision["fallback"], decision["fallback_expected"])
    if due == "-":
        return "would have decided about somebody else's job"
    if due not in ("", job):
        return f"job {due}: {other}"
    return "what was done" if decision["placement"] == decision["fallback"] else other


def _clock(time_s: float) -> str:
    return datetime.fromtimestamp(time_s).astimezone().strftime("%H:%M:%S")


def _outlook(placement: list[dict[str, Any]] | None, expected: dict[str, float] | None) -> str:
    """Return GPUs and what is expected of them."""
    if placement is None:
        return "wait"
    shares = " ".join(f"{share['node']}:{','.join(map(str, share['gpus']))}" for share in placement)
    if expected is None:
        return shares
    return f"{shares}, {expected['slowdown']:.2f} x its estimate, to end at {_clock(expected['end_s'])}"


def _version(version: str) -> str:
    return version[:12] if re.fullmatch("[0-9a-f]{64}", version) else version
