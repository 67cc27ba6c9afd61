"""The warm process of a node: it runs one check after another, and is killed if one takes too long."""

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from multiprocessing import forkserver
from multiprocessing.connection import Connection
from typing import Annotated, Any

from pydantic import BaseModel, Field, ValidationError

from ..cluster.files.errors import BackendError, LongshoreError
from ..cluster.files.output_file import encodable_text
from ..cluster.files.processes import kill_with_parent_hook
from .check import (
    MAX_FINDING_CHARS,
    Check,
    CheckedJob,
    CheckFinding,
    CheckOutcome,
    all_checks,
    find_check,
    incomplete,
)
from .context import CheckGroup, CheckScope, Context, NodeSetup, open_context

MAX_CHECK_MESSAGE_BYTES = 1 << 20  # of a message
MAX_FINDINGS = 1000


class CheckRequest(BaseModel, frozen=True, extra="forbid"):
    """A request to run a check."""

    number: int
    check: str  # its registered name
    chosen: CheckScope
    workload: CheckedJob
    group: CheckGroup | None = None


class CheckReply(BaseModel, frozen=True, extra="forbid"):
    """What a check has found. Number 0 reports that the process is warm."""

    number: int
    findings: Annotated[tuple[CheckFinding, ...], Field(max_length=MAX_FINDINGS)] = ()
    seconds: Annotated[float, Field(ge=0.0, allow_inf_nan=False)] = 0.0


def encode_reply(number: int, findings: list[CheckFinding], seconds: float) -> bytes:
    """Return a reply as it is sent. Texts that are too long are cut; of too many findings bad ones are kept first."""
    first = sorted(findings, key=lambda finding: not finding.is_bad) if len(findings) > MAX_FINDINGS else findings
    cut = [_shorten_texts(finding) for finding in first[:MAX_FINDINGS]]
    while len(reply := CheckReply(number=number, findings=tuple(cut), seconds=seconds).model_dump_json().encode()) > (
        MAX_CHECK_MESSAGE_BYTES
    ):
        cut = sorted(cut, key=lambda finding: not finding.is_bad)[: len(cut) // 2]
    return reply


def _shorten_texts(finding: CheckFinding) -> CheckFinding:
    texts = ("device", "got", "wanted", "action", "reason", "text")
    cut: dict[str, Any] = {name: encodable_text(getattr(finding, name))[:MAX_FINDING_CHARS] for name in texts}
    return replace(finding, **cut)


def decode_reply(content: bytes) -> CheckReply:
    """Return a received reply.

    Raises:
        BackendError: If it is no reply.
    """
    try:
        return CheckReply.model_validate_json(content)
    except ValidationError as error:
        raise BackendError("the reply of the node's process is invalid") from error


Target = Callable[[Connection, NodeSetup], None]


def serve_node(connection: Connection, setup: NodeSetup) -> None:
    """Serve a node with the readers of its real hardware, until the runner ends."""
    serve(connection, open_context(setup))


def serve(connection: Connection, context: Context) -> None:
    """Run the requested checks, until the runner ends."""
    _end_with_parent()
    _redirect_output_to_log(context.setup)
    _warm_up(context)
    connection.send_bytes(encode_reply(0, [], 0.0))
    while True:
        try:
            request = CheckRequest.model_validate_json(connection.recv_bytes(MAX_CHECK_MESSAGE_BYTES))
        except (EOFError, ConnectionError):
            return
        begin_s = time.perf_counter()
        findings = run_check(request, context)
        try:
            connection.send_bytes(encode_reply(request.number, findings, time.perf_counter() - begin_s))
        except ConnectionError:
            return


def run_check(request: CheckRequest, context: Context) -> list[CheckFinding]:
    """Return what a check finds; a check that raises is incomplete."""
    context.chosen, context.workload, context.group = request.chosen, request.workload, request.group
    try:
        check = find_check(request.check)
        found = _unmet_needs(check, context) or list(check.run(context))
        wrong = [finding for finding in found if not isinstance(finding, CheckFinding)]
        return [incomplete(f"it found {wrong[0]!r}, which is no finding")] if wrong else found
    except LongshoreError as error:
        return [incomplete(str(error))]
    except Exception as error:  # hardware, libraries and checks of third parties may raise anything
        problem = f"{type(error).__name__}: {' '.join(str(error).split())}"
        return [incomplete(problem, "inspect the node; if it is good, the check is broken")]


def _unmet_needs(check: Check, context: Context) -> list[CheckFinding]:
    """Return why a check cannot run, empty if it can; what does not apply comes before what cannot be read."""
    found = [finding for need in check.needs if (finding := context.why_unmet(need)) is not None]
    return sorted(found, key=lambda finding: finding.outcome is not CheckOutcome.SKIPPED)[:1]


def _end_with_parent() -> None:
    """Die with the process that started this one, and on the signals of the runner."""
    kill_with_parent_hook(os.getppid())()
    _release_fork_server()
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for the runner, which ends this process
    os.setpgid(0, 0)


def _release_fork_server() -> None:
    """Close the descriptor that keeps the fork server alive.

    The fork server ends once no process holds the writing end of a pipe any more. Each of its children inherits that
    end, so a child that hangs would keep both alive after the runner was killed.
    """
    alive = getattr(forkserver._forkserver, "_forkserver_alive_fd", None)  # there is no public way
    if alive is not None:
        with suppress(OSError):
            os.close(alive)


def _redirect_output_to_log(setup: NodeSetup) -> None:
    """Redirect what libraries print to a file: it would disturb the runner's output."""
    name = re.sub(r"[^A-Za-z0-9_.-]", "_", setup.node)[:100]
    with suppress(OSError):
        log = os.open(setup.folder / f"{name}.log", os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        os.dup2(log, 1)
        os.dup2(log, 2)
        os.close(log)


def set_product_precision() -> None:
    """Make products on GPUs round as the tolerance assumes, whatever PyTorch's defaults are."""
    import torch

    kinds = torch.backends.cuda.matmul
    kinds.allow_tf32 = False  # fp32 means fp32
    # Otherwise parts of a sum may be added in half precision, and are rounded more than once.
    kinds.allow_bf16_reduced_precision_reduction = kinds.allow_fp16_reduced_precision_reduction = False


def _warm_up(context: Context) -> None:
    """Do once what takes long the first time. What fails here fails again in its check, which reports it."""
    os.environ["CUDA_DEVICE_ORDER"] = "PCI_BUS_ID"  # as NVML and the scheduler count
    import torch

    torch.set_num_threads(1)
    set_product_precision()
    with suppress(Exception):
        all_checks()
        gpus = _gpus_to_warm(context, torch.cuda.device_count())
        context.workload, context.chosen = CheckedJob(dtype=context.setup.dtype), replace(context.chosen, gpus=gpus)
        for name in ("gemm.ref", "job.sample"):
            list(find_check(name).run(context))


def _gpus_to_warm(context: Context, count: int) -> tuple[int, ...]:
    """Return the GPUs to warm up: those of this job, where they are known."""
    if context.setup.slots:
        return (0,)
    if context.setup.warmed is not None:
        return context.setup.warmed
    shown = context.visible_gpus()
    return tuple(range(count) if shown is None else shown)
