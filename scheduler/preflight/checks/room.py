"""Room for the job: memory of its GPUs that nobody else holds, and a disk that gives back what it takes."""

import os
import tempfile
from collections.abc import Iterator

from ...files.processes import environment, find
from ..check import Check, Finding, failed, passed
from ..context import Context
from ..readers.gpu_reader import Holder

PROBE_BYTES = 256 << 10


def room(context: Context) -> Iterator[Finding]:
    """Look for free memory, strangers on the GPUs, and try the disk."""
    reader = context.gpu_reader
    free = {} if reader is None else {gpu.index: gpu.free_bytes for gpu in reader.gpus()}
    for gpu in context.chosen.gpus if reader is not None else ():
        holders = (reader.holders(gpu) if reader is not None else None) or ()
        strangers = [it for it in holders if not _is_ours(it, context)]
        own_bytes = sum(it.bytes for it in holders if it.pid == os.getpid())  # this ends before the job
        free_bytes = free.get(gpu, 0) + own_bytes
        yield _judge_memory(f"gpu {gpu}", free_bytes, context.workload.gpu_memory_bytes, strangers)
    yield _try_disk(context)


def _judge_memory(device: str, free_bytes: int, need_bytes: float, strangers: list[Holder]) -> Finding:
    if strangers:
        pids = ", ".join(f"process {it.pid} with {it.bytes / 1e9:.2g} GB" for it in strangers[:10])
        return failed(device, pids, "nobody else on it", "end what was left there; see who runs it")
    if free_bytes < need_bytes:
        return failed(
            device, f"{free_bytes / 1e9:.3g} GB free", f"{need_bytes / 1e9:.3g} GB", "end what was left there"
        )
    return passed(device, got=f"{free_bytes / 1e9:.3g} GB free")


def _is_ours(holder: Holder, context: Context) -> bool:
    """Say whether a process is this one, which looks at the GPU itself, or belongs to the job."""
    if holder.pid == os.getpid():
        return True
    process = find(holder.pid)
    told = {} if process is None else environment(process, b"LONGSHORE_JOB")
    return bool(context.workload.job) and told.get(b"LONGSHORE_JOB") == context.workload.job.encode()


def _try_disk(context: Context) -> Finding:
    """Write bytes that no disk can guess, and read them again."""
    sent = os.urandom(PROBE_BYTES)
    try:
        with tempfile.TemporaryFile(dir=context.place.folder) as file:
            file.write(sent)
            file.flush()
            os.fdatasync(file.fileno())
            file.seek(0)
            came = file.read()
    except OSError as error:
        return failed(
            "scratch", f"{context.place.folder}: {error.strerror}", "bytes are kept", "clean or replace the disk"
        )
    if came != sent:
        return failed("scratch", "other bytes than were written", "the same bytes", "replace the disk")
    return passed("scratch")


ROOM = Check("mem.disk", 0, "free memory, no strangers on the GPUs, and a disk that works", 1.0, room)
