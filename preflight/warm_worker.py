"""The warm process of a node: it runs one check after the other, and is killed if one takes too long."""

import ctypes
import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Annotated

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from ..cluster.files.errors import BackendError, LongshoreError
from ..cluster.files.output_file import readable
from .check import Check, Finding, Outcome, all_checks, find_check, incomplete
from .checked_job import CheckedJob
from .context import Chosen, Context, Group, NodeSetup, open_context

MOST_BYTES = 1 << 20  # of a message
MOST_FINDINGS, MOST_TEXT = 1000, 1000
Text = Annotated[str, Field(max_length=MOST_TEXT)]


class _Message(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Order(_Message):
    """A check to run."""

    number: int
    check: str  # its registered name
    chosen: Chosen
    workload: CheckedJob
    group: Group | None = None


class Told(_Message):
    """A finding on its way."""

    outcome: Outcome
    device: Text = ""
    got: Text = ""
    wanted: Text = ""
    action: Text = ""
    reason: Text = ""
    figure: float | None = None
    text: Text = ""


class Answer(_Message):
    """What a check has found. Number 0 says that the process is warm."""

    number: int
    findings: Annotated[tuple[Told, ...], Field(max_length=MOST_FINDINGS)] = ()
    seconds: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0


def answer_of(number: int, findings: list[Finding], seconds: float) -> bytes:
    """Return an answer, as it is sent; what is too long is cut."""
    told = tuple(_told(finding) for finding in findings[:MOST_FINDINGS])
    return Answer(number=number, findings=told, seconds=seconds).model_dump_json().encode()


def _told(finding: Finding) -> Told:
    texts = ("device", "got", "wanted", "action", "reason", "text")
    cut = {name: readable(getattr(finding, name))[:MOST_TEXT] for name in texts}
    return Told(outcome=finding.outcome, figure=finding.figure, **cut)


def read_answer(content: bytes) -> tuple[Answer, list[Finding]]:
    """Return an answer that came, and its findings.

    Raises:
        BackendError: If it is none.
    """
    try:
        answer = Answer.model_validate_json(content)
    except ValidationError as error:
        raise BackendError("the process of the node answers nonsense") from error
    return answer, [Finding(**dict(told)) for told in answer.findings]


_PR_SET_PDEATHSIG = 1
Target = Callable[[Connection, NodeSetup], None]


def serve_node(connection: Connection, place: NodeSetup) -> None:
    """Serve a node with the readers of its real hardware, until the other side ends."""
    serve(connection, open_context(place))


def serve(connection: Connection, context: Context) -> None:
    """Run the checks that are ordered, until the other side ends.

    Args:
        connection: To the runner.
        context: Of the node.
    """
    _end_with_parent()
    _write_to_log(context.place)
    _warm_up(context)
    connection.send_bytes(answer_of(0, [], 0.0))
    while True:
        try:
            order = Order.model_validate_json(connection.recv_bytes(MOST_BYTES))
        except (EOFError, ConnectionError):
            return
        begin_s = time.perf_counter()
        findings = carry_out(order, context)
        try:
            connection.send_bytes(answer_of(order.number, findings, time.perf_counter() - begin_s))
        except ConnectionError:
            return


def carry_out(order: Order, context: Context) -> list[Finding]:
    """Return what a check finds; one that breaks is incomplete."""
    context.chosen, context.workload, context.group = order.chosen, order.workload, order.group
    try:
        check = find_check(order.check)
        found = _missing(check, context) or list(check.run(context))
        wrong = [it for it in found if not isinstance(it, Finding)]
        return [incomplete(f"it found {wrong[0]!r}, which is no finding")] if wrong else found
    except LongshoreError as error:
        return [incomplete(str(error))]
    except Exception as error:  # whatever hardware, libraries and strangers' checks may raise
        told = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return [incomplete(told, "look at the node; if it is well, the check is broken")]


def _missing(check: Check, context: Context) -> list[Finding]:
    """Return why a check cannot run; what does not apply comes before what cannot be read."""
    found = [it for need in check.needs if (it := context.lacks(need)) is not None]
    return sorted(found, key=lambda it: it.outcome is not Outcome.SKIPPED)[:1]


def _end_with_parent() -> None:
    """Die with the process that started this one, and as others want it to."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    _let_parent_end()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the runner, which ends this process
    os.setpgid(0, 0)


def _let_parent_end() -> None:
    """Let go of what keeps the process alive that this one was forked from.

    That process ends once nobody holds the writing end of a pipe any more. Whoever is forked from it gets that end too,
    so one that hangs would keep both alive after the runner was killed.
    """
    alive = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)  # nothing that is public does this
    if alive is not None:
        with suppress(OSError):
            os.close(alive)


def _write_to_log(place: NodeSetup) -> None:
    """Let what libraries print go to a file: it would stand in the midst of a table."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", place.node)[:100]
    with suppress(OSError):
        log = os.open(place.folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)


def set_arithmetic() -> None:
    """Let products on GPUs be rounded as the tolerance takes them to be, whatever PyTorch's defaults are."""
    import torch

    kinds = torch.backends.cuda.matmul
    kinds.allow_tf32 = False  # fp32 means fp32
    # Else parts of a sum may be added up in the half itself, which is rounded more than once then.
    kinds.allow_bf16_reduced_precision_reduction = kinds.allow_fp16_reduced_precision_reduction = False


def _warm_up(context: Context) -> None:
    """Do once what takes long the first time. What fails here fails again when it is asked for, and is told then."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as NVML and the scheduler count
    import torch

    torch.set_num_threads(1)
    set_arithmetic()
    with suppress(Exception):
        all_checks()
        gpus = _warmed(context, torch.cuda.device_count())
        context.workload, context.chosen = CheckedJob(dtype=context.place.dtype), replace(context.chosen, gpus=gpus)
        for name in ("gemm.ref", "job.sample"):
            list(find_check(name).run(context))


def _warmed(context: Context, count: int) -> tuple[int, ...]:
    """Return the GPUs to use once. Those of others are left alone, where it is known which ones are ours."""
    if context.place.slots:
        return (0,)
    if context.place.warmed is not None:
        return context.place.warmed
    shown = context.shown()
    return tuple(range(count) if shown is None else shown)
