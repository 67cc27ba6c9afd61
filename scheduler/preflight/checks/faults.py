"""Faults that GPUs and the kernel's log tell of."""

from collections.abc import Iterator

from ..check import Check, Finding, Need, failed, passed, skipped, warned
from ..context import Context
from ..readers.gpu_reader import Rows
from ..readers.kernel_log import XidLine, read_log, same_gpu, xid_lines
from ..readers.xids import Blame, xid_of

NOT_TOLD = "the GPU does not tell"


def memory_errors(context: Context) -> Iterator[Finding]:
    """Look for uncorrected memory errors since the driver was loaded."""
    for gpu in context.chosen.gpus if context.gpu_reader is not None else ():
        errors = context.gpu_reader.uncorrected_errors(gpu) if context.gpu_reader is not None else None
        device = f"gpu {gpu}"
        if errors is None:
            yield skipped(NOT_TOLD, device)
        elif errors:
            yield failed(device, f"{errors} uncorrected errors", "none", "reset the GPU; replace it if they return")
        else:
            yield passed(device)


def replaced_rows(context: Context) -> Iterator[Finding]:
    """Look for rows of memory that wait to be replaced, or could not be."""
    reader = context.gpu_reader
    for gpu in context.chosen.gpus if reader is not None else ():
        rows = reader.rows(gpu) if reader is not None else None
        yield skipped(NOT_TOLD, f"gpu {gpu}") if rows is None else _judge_rows(f"gpu {gpu}", rows)


def _judge_rows(device: str, rows: Rows) -> Finding:
    if rows.failed:
        return failed(device, "no spare row of memory was left", "none failed", "replace the GPU")
    if rows.pending:
        return failed(device, "a row of memory waits to be replaced", "none pending", "reset the GPU")
    return passed(device, got=f"{rows.corrected + rows.uncorrected} rows replaced")


def recent_xids(context: Context) -> Iterator[Finding]:
    """Look through the kernel's log for faults of GPUs since the node was cleared."""
    lines = xid_lines(read_log(context.place.kernel_log) or [])
    recent = [line for line in lines if line.at_s >= context.chosen.cleared_s]
    known = [] if context.gpu_reader is None else context.gpu_reader.gpus()
    index = {line: next((gpu.index for gpu in known if same_gpu(gpu.pci, line)), None) for line in recent}
    for line in recent:
        yield from _judge_xid(line, index[line], context.chosen.gpus)


def _judge_xid(line: XidLine, gpu: int | None, chosen: tuple[int, ...]) -> Iterator[Finding]:
    xid = xid_of(line.number)
    device = f"gpu {gpu}" if gpu is not None else f"pci {line.pci}"
    got, wanted = f"Xid {line.number}, {xid.about}: {line.line}", "no such fault since the node was cleared"
    if xid.blame in (Blame.NOTHING, Blame.JOB):
        return
    matters = gpu is None or gpu in chosen or xid.blame is Blame.NODE
    if xid.blame is Blame.WARN or not matters:
        yield warned(device, got, wanted, xid.action)
    else:
        yield failed(device, got, wanted, xid.action)


ECC = Check("ecc.volatile", 0, "no uncorrected memory errors", 0.5, memory_errors, (Need.GPU,))
ROWS = Check("rows.remap", 0, "no row of memory waits to be replaced, or could not be", 0.5, replaced_rows, (Need.GPU,))
XID = Check("xid.recent", 0, "no fault of a GPU in the kernel's log", 0.5, recent_xids, (Need.LOG,))
