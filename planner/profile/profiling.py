"""The profile of a user's model: a row for each layer.

It is read from a table, or made in a process of its own, with limits of time and memory, that runs the user's code.

Source: SPEC P1.
"""

import json
import os
import select
import signal
import subprocess
import sys
import time
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, Field, ValidationError

from ...cluster.files.errors import InputError
from ...cluster.files.input_problems import shortened
from ...cluster.files.output_file import encodable_text
from ...cluster.traces.read import TraceRows, read_rows

MAX_LAYERS = 10_000
OUTSIDE = "(outside of all layers)"  # name of the last layer of a model that computes there
Amount = Annotated[float, Field(ge=0, le=1e30, allow_inf_nan=False)]
Text = Annotated[str, Field(max_length=300)]


class LayerProfile(BaseModel, frozen=True, extra="forbid"):
    """One layer: the smallest part of a model that a pipeline stage may hold. All but parameters is for one sample."""

    name: Text
    kind: Text = ""
    forward_flops: Amount
    backward_flops: Amount
    parameters: Amount  # that no earlier layer has
    frozen_parameters: Amount = 0.0  # of these, not trained
    frozen_bytes: Amount = 0.0  # of these, and of buffers
    tied_parameters: Amount = 0.0  # trained ones that an earlier layer has too: another stage needs a copy
    tied_frozen_bytes: Amount = 0.0  # the same of what is not trained
    saved_bytes: Amount  # that the forward pass keeps for the backward pass
    input_elements: Amount
    output_bytes: Amount  # sent over the network if the pipeline is cut after it
    heads: Annotated[int, Field(ge=0, le=1_000_000)] = 0  # of its attention; 0 for none
    is_block: bool = False  # one of several equal layers: it may be recomputed
    fixed_costs: Amount = 0.0  # kernel launches, in units of one decoder layer


class ModelProfile(BaseModel, frozen=True, extra="forbid"):
    """What a model computes, saves and sends for each sample."""

    name: Text
    rung: Text  # how it was measured
    tokens_per_sample: Annotated[float, Field(gt=0, le=1e12)]
    layers: Annotated[tuple[LayerProfile, ...], Field(min_length=1, max_length=MAX_LAYERS)]
    notes: tuple[Text, ...] = ()  # for the reader
    min_samples: Annotated[int, Field(ge=1)] = 1  # of a micro-batch

    @property
    def parameters(self) -> float:
        """Parameters of the whole model, tied ones once."""
        return sum(layer.parameters for layer in self.layers)

    @property
    def trained_parameters(self) -> float:
        """Of these, trained ones."""
        return sum(layer.parameters - layer.frozen_parameters for layer in self.layers)

    @property
    def forward_flops(self) -> float:
        """FLOPs of one forward pass of one sample."""
        return sum(layer.forward_flops for layer in self.layers)

    @property
    def heads(self) -> int:
        """A number that divides the attention heads of all layers, 0 if the model has no attention."""
        return int(np.gcd.reduce([layer.heads for layer in self.layers]))

    def column(self, name: str) -> NDArray[np.float64]:
        """Return one figure of all layers, shape (layers,)."""
        return np.array([getattr(layer, name) for layer in self.layers], dtype=np.float64)


TABLE_COLUMNS = ("name", "parameters", "forward_flops", "saved_bytes", "output_bytes")
AMOUNTS = ("backward_flops", "tied_parameters", "input_elements", "frozen_parameters", "frozen_bytes", "fixed_costs")
OPTIONAL_COLUMNS = (*AMOUNTS, "heads", "is_block", "tokens")
MAX_AMOUNT = 1e30
NUMBER_BYTES = 2.0  # of a weight that is not trained


def read_layer_table(path: Path) -> ModelProfile:
    """Read the profile of a table: a row for each layer, in order; docs/planner.md has the columns.

    Raises:
        InputError: If it cannot be used.
    """
    layers, tokens = list[LayerProfile](), 1.0
    with closing(read_rows(path, TABLE_COLUMNS, optional=OPTIONAL_COLUMNS)) as chunks:
        for rows in chunks:
            if len(layers) + len(rows.lines) > MAX_LAYERS:
                raise InputError(f"there are more than {MAX_LAYERS:,} layers", "put some into one row", path=path)
            layers += _layer_profiles(rows)
            if rows.has("tokens"):
                tokens = float(rows.numbers("tokens", least=1.0, most=1e12)[0])
    if not layers:
        raise InputError("the table has no layer", "add a row for each", path=path)
    return ModelProfile(
        name=encodable_text(path.name)[-300:], rung="by a table", tokens_per_sample=tokens, layers=tuple(layers)
    )


def _layer_profiles(rows: TraceRows) -> list[LayerProfile]:
    columns = {name: rows.numbers(name, most=MAX_AMOUNT).tolist() for name in TABLE_COLUMNS[1:]}
    for name in AMOUNTS:
        if rows.has(name):
            columns[name] = rows.numbers(name, most=MAX_AMOUNT).tolist()
    for name, most in (("heads", 1_000_000), ("is_block", 1)):
        if rows.has(name):
            columns[name] = rows.whole_numbers(name, most=most).tolist()
    columns.setdefault("backward_flops", [2.0 * value for value in columns["forward_flops"]])
    # By default a layer's input is as large as its output, with two bytes per number.
    columns.setdefault("input_elements", [value / 2.0 for value in columns["output_bytes"]])
    frozen = columns.setdefault("frozen_parameters", [0.0] * len(rows.lines))
    columns.setdefault("frozen_bytes", [NUMBER_BYTES * value for value in frozen])
    for row, (all_of_it, part) in enumerate(zip(columns["parameters"], frozen, strict=True)):
        if part > all_of_it:
            raise rows.error(
                "frozen_parameters", row, f"are more than the {all_of_it:g} parameters", "count them there too"
            )
    names = rows.cells["name"]
    return [
        LayerProfile(name=names[row][-300:], **{name: values[row] for name, values in columns.items()})
        for row in range(len(rows.lines))
    ]


MAX_PROFILE_BYTES = 64 << 20  # of a reply: a profile of 10,000 layers has 5 MiB
# The system kills it when its parent exits, however that ends (1 is PR_SET_PDEATHSIG).
_WORKER_PROGRAM = """\
import ctypes, os, signal, sys
ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)
sys.path[:] = sys.argv.pop().split(os.pathsep)
from longshore.planner.profile.worker import main
main()
"""


@dataclass(frozen=True, slots=True)
class ProfilingLimits:
    """Limits of a user's code while its model is profiled."""

    time_s: float = 120.0
    memory_bytes: float = 8 * 2.0**30


class _ProfileReply(BaseModel, frozen=True, extra="forbid"):
    problem: str | None = None
    rung: str = ""
    tokens_per_sample: float = 1.0
    layers: tuple[LayerProfile, ...] = ()
    notes: tuple[str, ...] = ()
    min_samples: int = 1


def profile_model(target: str, limits: ProfilingLimits) -> ModelProfile:
    """Profile a model.

    Raises:
        InputError: If the model cannot be profiled, with the reason.
    """
    path, function = file_and_function(target)
    if not _is_file(path):
        fix = "give FILE.py:FUNCTION, or a table FILE.csv"
        raise InputError("there is no such file", fix, path=shortened(path, 300)[1:-1])
    line, status, taken_s = _run_worker(path, function, limits)
    if not line:
        raise InputError(*_problem_and_fix(status, taken_s, limits, function), path=path)
    try:
        answer = _ProfileReply.model_validate_json(line)
        if answer.problem is None:
            return ModelProfile(
                name=encodable_text(f"{path.name}:{function}")[-300:], rung=answer.rung,
                tokens_per_sample=answer.tokens_per_sample,
                layers=answer.layers, notes=answer.notes, min_samples=answer.min_samples,
            )  # fmt: skip
    except ValidationError as error:
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"]))
        problem = f"its profile is invalid: {place}: {first['msg']}"
        raise InputError(problem, "give a table of its layers (docs/planner.md)", path=path) from error
    problem, _, fix = answer.problem.partition("; ")
    raise InputError(problem, fix or "see docs/planner.md", path=path, field=function)


def file_and_function(target: str) -> tuple[Path, str]:
    """Return the parts of `FILE.py:FUNCTION`; the function is `build` by default."""
    path, colon, function = target.rpartition(":")
    return (Path(path), function) if colon and function.isidentifier() else (Path(target), "build")


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # such as a name that is too long
        return False


def _run_worker(path: Path, function: str, limits: ProfilingLimits) -> tuple[bytes, int | None, float]:
    """Return the reply of the process, empty if none; its exit status, None after its time limit; the seconds."""
    began = time.monotonic()
    reads, writes = os.pipe()
    try:
        with os.fdopen(writes, "wb", buffering=0):  # the process inherits it
            process = _start_worker(path, function, limits, writes)
        try:
            line = _read_line(reads, began + limits.time_s)
            status = 0 if line else _wait_for_status(process, began + limits.time_s)
        finally:
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)  # with all that the user's code has started
            process.wait()
    finally:
        os.close(reads)
    return line, status, time.monotonic() - began


def _start_worker(path: Path, function: str, limits: ProfilingLimits, reply_fd: int) -> "subprocess.Popen[bytes]":
    process = subprocess.Popen(
        [sys.executable, "-c", _WORKER_PROGRAM, os.pathsep.join(sys.path)],
        stdin=subprocess.PIPE, stdout=subprocess.DEVNULL, pass_fds=(reply_fd,), start_new_session=True,
    )  # fmt: skip
    request = {
        "path": str(path.resolve()), "function": function, "memory_bytes": int(limits.memory_bytes), "answer": reply_fd,
        "cpu_s": int(limits.time_s * (os.cpu_count() or 1)) + 1,
    }  # fmt: skip
    assert process.stdin is not None
    with suppress(BrokenPipeError), process.stdin:
        process.stdin.write(json.dumps(request).encode() + b"\n")
    return process


def _read_line(reply_fd: int, until_s: float) -> bytes:
    """Return the line that arrives, without its end; empty if no whole line arrives in time."""
    got = bytearray()
    while len(got) < MAX_PROFILE_BYTES:
        ready, _, _ = select.select([reply_fd], [], [], max(0.0, until_s - time.monotonic()))
        part = os.read(reply_fd, 1 << 16) if ready else b""
        if not part:
            return b""
        got += part
        if part.endswith(b"\n"):
            return bytes(got[:-1])
    return b""


def _wait_for_status(process: "subprocess.Popen[bytes]", until_s: float) -> int | None:
    try:
        return process.wait(max(0.0, until_s - time.monotonic()))
    except subprocess.TimeoutExpired:
        return None


def _problem_and_fix(status: int | None, taken_s: float, limits: ProfilingLimits, function: str) -> tuple[str, str]:
    """Return how the process ended without a reply, and what to do."""
    if status is None:
        return (
            f"{function} was not profiled after {taken_s:.0f} s",
            "let it only build the model, or raise --time-limit",
        )
    if status == -signal.SIGKILL:
        return "its process was killed, perhaps for lack of memory", "build a smaller batch, or free some memory"
    if status < 0:
        return f"its process ended with {signal.Signals(-status).name}", "run it by itself to find where"
    gib = limits.memory_bytes / 2**30
    return (
        f"its process ended with status {status} and no reply",
        f"let the file define {function} and not exit; if it needs more than {gib:.3g} GiB, raise --memory-limit",
    )
