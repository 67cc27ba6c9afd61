"""What made-up inputs are fed to: one target for each kind of input that comes from outside.

A target makes an input of a random generator, and takes it in as the product does. It may refuse it by an error of
Longshore's family. Any other error is a fault.
"""

import io
import json
import zipfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from random import Random
from typing import Any, NamedTuple

import numpy as np
import yaml
from pydantic import ValidationError

from longshore.agents.heuristics import HEURISTICS
from longshore.agents.learned.checkpoint import load_policy
from longshore.agents.protocol import Policy
from longshore.agents.rollouts import Rollout, RolloutBase, Search
from longshore.cluster.files.errors import InputError
from longshore.cluster.files.input_problems import input_problems
from longshore.cluster.files.yaml_file import read_yaml, validated
from longshore.cluster.model.problem import Problem
from longshore.cluster.model.workload import Workload, describe
from longshore.cluster.presets.cluster_file import read_cluster
from longshore.cluster.presets.drawn import hetero64
from longshore.cluster.presets.problems import Regime, cluster_problem
from longshore.cluster.simulator.engine import advance, reset
from longshore.cluster.simulator.simulation import simulation_of
from longshore.cluster.traces.read import read_trace
from longshore.eval.comparison import run_all
from longshore.scheduler.mirror.cluster_mirror import (
    ClusterMirror,
    JobRequest,
    MirrorOrigin,
    check_decision,
    expected_start,
)
from longshore.scheduler.model.job_spec import JobFile, stored_job
from longshore.scheduler.policy_host.messages import MAX_MESSAGE_BYTES, PolicyAnswer, read_message, stored_record_of
from longshore.scheduler.service.service import site_of
from longshore.scheduler.settings import SchedulerSettings
from tests.cluster.traces import small_traces

from .harness import ROOT
from .hostile_inputs import as_json, mutated_bytes, mutated_rows, mutated_value

MOST_RUN_GPUS = 512  # larger clusters are read and not run
JOB: dict[str, Any] = {
    "version": 1, "name": "mine", "gpus": 2, "command": ["true"], "folder": "", "environment": {"A": "1"},
    "estimate_s": 3600.0, "limit_s": 7200.0, "grace_s": 30.0, "priority": 0, "compute_s": 1.0, "parameter_bytes": 1e6,
    "retry": {"infra": 3, "user": 1, "no_progress": 3}, "health": {"slow": "cusum", "hang": "auto"},
}  # fmt: skip
JOB_SCHEMA = JobFile.model_json_schema()  # making it takes longer than all else about a job file
TABLES = (
    small_traces.ITP, small_traces.MURI, small_traces.OPENB, small_traces.HELIOS, small_traces.SEREN,
    small_traces.KALOS, small_traces.SIA, small_traces.SWF, small_traces.OWN,
)  # fmt: skip


class Target(NamedTuple):
    """Where inputs of one kind go."""

    name: str
    make: Callable[[Random], bytes]
    feed: Callable[[bytes, Path], bool]  # with a folder for files; returns whether the input was of use


def make_job(rng: Random) -> bytes:
    """Return a job file, as JSON (which is YAML too) or as YAML with broken bytes."""
    spec = mutated_value(rng, JOB)
    return as_json(spec) if rng.random() < 0.9 else mutated_bytes(rng, yaml.safe_dump(JOB).encode())


def feed_job(data: bytes, folder: Path) -> bool:
    """Read a job file as the API and the command line do; an accepted one must come back from the store as it was."""
    job = _job_of(data) if data.startswith((b"{", b"[")) else _job_in(data, folder)
    again = stored_job(job.model_dump(mode="json"))
    if JobFile.model_validate(again.model_dump(exclude={"external"})) != job:
        raise AssertionError("the store gives another job back")
    if job.gpus <= _SITE.cluster.gpu_node.size:
        mirror = ClusterMirror(_SITE, MirrorOrigin(0.0))
        mirror.submit(
            JobRequest("job", job.gpus, job.estimate_s, 0.0, compute_s=job.compute_s,
            parameter_bytes=job.parameter_bytes)
        )  # fmt: skip
        mirror.find_due_job()
        expected = expected_start(mirror, "job", range(job.gpus))
        if not (0.0 < expected.slowdown < np.inf and 0.0 < expected.end_s < np.inf):
            raise AssertionError(f"a job is expected to end at {expected}")
    return True


def _job_of(data: bytes) -> JobFile:
    try:
        spec = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InputError("no JSON", "as the API answers before anything is read") from error
    try:
        return JobFile.model_validate(spec)
    except ValidationError as error:
        found = input_problems(error.errors(include_url=False), JOB_SCHEMA, spec)
        raise InputError("; ".join(it.problem for it in found), "") from error


def _job_in(data: bytes, folder: Path) -> JobFile:
    path = folder / "job.yaml"
    path.write_bytes(data)
    file = read_yaml(path, "quickstart.md")
    return validated(file, JobFile, file.data)


def make_cluster(rng: Random) -> bytes:
    """Return a cluster file."""
    text = rng.choice(_CLUSTERS)
    if rng.random() < 0.4:
        return mutated_bytes(rng, text.encode())
    return as_json(mutated_value(rng, _with_numbers(yaml.safe_load(text))))


def _with_numbers(value: Any) -> Any:
    """Return what YAML 1.1 holds with numbers such as 125e12, which it takes for text."""
    if isinstance(value, dict):
        return {key: _with_numbers(it) for key, it in value.items()}
    if isinstance(value, list):
        return [_with_numbers(it) for it in value]
    with suppress(TypeError, ValueError):
        return value if isinstance(value, bool | int) else float(value)
    return value


def feed_cluster(data: bytes, folder: Path) -> bool:
    """Read a cluster file, and run a few jobs on a cluster that is not too large."""
    path = folder / "cluster.yaml"
    path.write_bytes(data)
    setup = read_cluster(path)
    gpus = setup.cluster.gpu_node.size
    if gpus > MOST_RUN_GPUS:
        return True
    asked = np.minimum(np.array([1, 2, 8, 1], dtype=np.int32), gpus)
    jobs = Workload(
        ids=("a", "b", "c", "d"), gpus=asked, work_s=np.array([60.0, 3600.0, 600.0, 1.0]),
        submit_s=np.zeros(4), estimate_s=np.array([60.0, 3600.0, 600.0, 1.0]), compute_s=np.ones(4),
        parameter_bytes=np.full(4, 1e6),
    )  # fmt: skip
    problem = cluster_problem(setup, [jobs], Regime(oracle=True), runs=1, seed=0)
    problem = problem._replace(rules=problem.rules._replace(limit_s=min(problem.rules.limit_s, 1e7)))
    outcome = run_all(problem, [HEURISTICS["pack"]])["pack"]
    if np.isnan(outcome.finish_s).any() or (outcome.busy_gpu_s < 0.0).any():
        raise AssertionError(f"a simulation gives {outcome}")
    return True


def make_trace(rng: Random) -> bytes:
    """Return a trace of any format."""
    if rng.random() < 0.1:
        return as_json(mutated_value(rng, small_traces.PHILLY))
    return mutated_rows(rng, rng.choice(TABLES))


def feed_trace(data: bytes, folder: Path) -> bool:
    """Read a trace, and describe it."""
    path = folder / "trace.csv"
    path.write_bytes(data)
    workload = read_trace(path)
    for values in (workload.work_s, workload.submit_s, workload.estimate_s, workload.compute_s):
        if not np.isfinite(values).all() or (values < 0.0).any():
            raise AssertionError(f"a trace gives {values}")
    describe(workload)
    return True


def make_checkpoint(rng: Random) -> bytes:
    """Return a checkpoint with broken bytes, another schema, or other arrays."""
    whole, schema, weights = rng.choice(_CHECKPOINTS)
    way = rng.random()
    if way < 0.4:
        return mutated_bytes(rng, whole)
    if way < 0.75:
        schema = as_json(mutated_value(rng, json.loads(schema)))
    else:
        weights = mutated_bytes(rng, weights) if rng.random() < 0.5 else _scaled(rng, weights)
    file = io.BytesIO()
    kind = rng.choice((zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED))
    with zipfile.ZipFile(file, "w", kind) as archive:
        archive.writestr("schema.json", schema)
        archive.writestr("weights.npz", weights)
    return file.getvalue()


def _scaled(rng: Random, weights: bytes) -> bytes:
    """Return weights of which some arrays are so large that what they give overflows."""
    with np.load(io.BytesIO(weights)) as arrays:
        scaled = {name: np.clip(arrays[name] * np.float32(10.0 ** rng.randint(0, 38)), -3e38, 3e38) for name in arrays}
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **scaled)
    return file.getvalue()


def feed_checkpoint(data: bytes, folder: Path) -> bool:
    """Load a checkpoint, and let it decide on the preset by itself and, if it can, with rollouts."""
    path = folder / "policy.zip"
    path.write_bytes(data)
    policy = load_policy(path)
    decide(policy)
    if isinstance(policy, RolloutBase):
        decide(Rollout(policy, Search(futures=2, width=2)))
    return True


def decide(policy: Policy) -> None:
    """Let a policy place one job of the preset, or wait."""
    cluster, scenarios, process, rules = _PRESET
    sim = simulation_of(Problem(cluster, scenarios, process, rules._replace(waiting=policy.waits)))
    reset(sim, 0, 0)
    if not advance(sim, 0):
        raise AssertionError("the preset has no decision")
    if policy.place(sim, 0) != (sim.state.need[0] == 0):
        raise AssertionError(f"a policy leaves {sim.state.need[0]} GPUs to pick")


def make_answer(rng: Random) -> bytes:
    """Return what a policy's process might send."""
    if rng.random() < 0.3:
        return mutated_bytes(rng, as_json(rng.choice(_ANSWERS)))
    return as_json(mutated_value(rng, rng.choice(_ANSWERS)))


def feed_answer(data: bytes, _: Path) -> bool:
    """Take in an answer, and apply it if that is possible."""
    if len(data) > MAX_MESSAGE_BYTES:
        return False  # of such a message the channel reads the length alone
    message = read_message(data)
    if not isinstance(message, PolicyAnswer):
        return True
    if message.record is not None:
        stored_record_of(message.record)
    mirror = ClusterMirror(_SITE, MirrorOrigin(0.0))
    mirror.submit(JobRequest("job", 2, 60.0, 0.0))
    mirror.find_due_job()
    check_decision(mirror, message.job, message.gpus)
    if message.gpus:
        mirror.carry_out(message.job, message.gpus)
        if sorted(gpu for gpu in range(_SITE.cluster.gpu_node.size) if mirror.holder(gpu)) != sorted(message.gpus):
            raise AssertionError("a job holds other GPUs than it was given")
    return True


def _parts(path: Path) -> tuple[bytes, bytes, bytes]:
    with zipfile.ZipFile(path) as archive:
        return path.read_bytes(), archive.read("schema.json"), archive.read("weights.npz")


_PRESET = hetero64(1, 0)
_CLUSTERS = [(ROOT / "examples" / name).read_text() for name in ("small.yaml", "hetero64.yaml", "philly64.yaml")]
_CHECKPOINTS = [_parts(ROOT / "checkpoints" / name) for name in ("hetero64.zip", "hetero64-wait.zip")]
_SITE = site_of(read_cluster(ROOT / "examples" / "small.yaml"), SchedulerSettings())
_SEEN = {"observations": "AACAPwAAAEA=", "masks": "AQE=", "log_probabilities": "gWsgv4FrIL8=", "actions": [1]}
_ANSWERS: list[dict[str, Any]] = [
    {"kind": "choice", "number": 1, "job": "job", "gpus": [0, 1], "rests": False, "took_s": 0.001, "seen": _SEEN},
    {"kind": "choice", "number": 1, "job": "job", "gpus": [], "rests": True, "took_s": 0.001, "seen": None},
    {"kind": "ready", "name": "mine", "waits": True},
    {"kind": "failed", "number": 1, "reason": "it broke"},
]
TARGETS = {
    target.name: target
    for target in (
        Target("job files", make_job, feed_job),
        Target("cluster files", make_cluster, feed_cluster),
        Target("traces", make_trace, feed_trace),
        Target("checkpoints", make_checkpoint, feed_checkpoint),
        Target("policy answers", make_answer, feed_answer),
    )
}
